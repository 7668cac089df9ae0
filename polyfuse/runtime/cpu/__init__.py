"""Kernels on a CPU: the pool of threads, memory, calls."""
