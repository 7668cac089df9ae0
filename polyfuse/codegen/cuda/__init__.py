"""CUDA C++ for a GPU: what each thread does, vectors, launches of several kernels."""
