"""The store on the Kubernetes API: custom resources, Secrets, Events. The contract is `../base.py`."""

from exo_inference.controller.stores.kubernetes.client import KubernetesApi
from exo_inference.controller.stores.kubernetes.store import KubernetesStore

__all__ = ["KubernetesApi", "KubernetesStore"]
