"""What an engine computes on a processor by compiled kernels, and what it leaves to PyTorch there."""
