"""CPU kernels in C++: products, attention and what lies between, for bf16.

`csrc/` is compiled by the package's own build where there is a compiler. `library` loads it and chooses
the set of instructions; the other files call it with tensors and check what they are given. Weight
formats and the CPU attention backend use them; without the library these compute with PyTorch.
"""
