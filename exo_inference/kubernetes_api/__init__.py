"""What controller and gateway share on a cluster: requests to its API, and how resources are kept there.

`client.py` sends requests, `objects.py` reads a custom resource back. The store of the controller, its
leader election and the gateway's routing table are made of them; neither knows of those. `pod.py` is what
the chart says to both. Importing the package alone does not need the client library `kubernetes`.
"""
