"""Platforms: where engine replicas run. `base.py` is the seam; `local/` and `kubernetes/` keep it."""
