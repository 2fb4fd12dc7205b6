"""The Kubernetes platform: one Helm release per deployment and one per model.

`platform.py` and `models.py` take the steps, `step.py` decides them, `cluster.py` is the cluster as
this process sees it. Start reading at `platform.py`; docs/decisions/0008-helm-releases.md says why.
"""

from exo_inference.platforms.kubernetes.cluster import Cluster
from exo_inference.platforms.kubernetes.models import KubernetesModels
from exo_inference.platforms.kubernetes.platform import KubernetesPlatform
from exo_inference.platforms.kubernetes.settings import (
    KubernetesSettings,
    PlatformValues,
    read_platform_values,
)

__all__ = [
    "Cluster",
    "KubernetesModels",
    "KubernetesPlatform",
    "KubernetesSettings",
    "PlatformValues",
    "read_platform_values",
]
