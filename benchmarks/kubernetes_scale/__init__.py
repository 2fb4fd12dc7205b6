"""What the control plane costs at scale on a Kubernetes, on one machine: see `__main__.py`.

A package, and not `benchmarks/kubernetes.py`: a module of that name would stand before the client
library `kubernetes` for every script of the directory.
"""
