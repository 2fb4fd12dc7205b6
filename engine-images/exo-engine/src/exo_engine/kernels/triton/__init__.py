"""Arithmetic on a GPU, in Triton. No layers, no formats, no caches: kernels, and functions that launch them.

With `TRITON_INTERPRET=1` set before Triton is imported the same kernels run on a CPU, in an interpreter.
That proves what they compute; the order of a GPU's sums it does not show.
"""
