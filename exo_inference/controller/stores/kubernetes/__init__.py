"""The store on the Kubernetes API: custom resources, Secrets, Events. The contract is `../base.py`."""

from exo_inference.controller.stores.kubernetes.store import KubernetesStore
from exo_inference.kubernetes_api.client import KubernetesApi

__all__ = ["KubernetesApi", "KubernetesStore"]
