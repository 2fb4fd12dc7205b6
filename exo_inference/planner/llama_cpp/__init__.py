"""Plans of llama.cpp, by its own rules: weights by tensor of a GGUF file, a cache of fixed size, compute buffers."""
