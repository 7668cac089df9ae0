"""Kernels on a GPU: drivers, memory, streams, compilers."""
