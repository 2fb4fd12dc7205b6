"""What `gpu_check.py` and `gpu_reckoning.py` are made of: launches, checks, times and tables."""
