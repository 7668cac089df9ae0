"""Kernels without a compiler: the executable definition of the kernel IR."""
