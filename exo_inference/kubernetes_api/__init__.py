"""What controller and gateway share on a cluster: requests to its API, and how resources are kept there.

`client.py` sends requests, `objects.py` reads a custom resource back. The store of the controller, its
leader election and the gateway's routing table are made of them; neither knows of those.
"""

from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi

__all__ = ["ApiRefusal", "KubernetesApi"]
