"""Cost models: what kernels move, compute and take."""
