"""Running kernels: memory, calls, compilers, the reference."""
