"""Timing polyfuse against PyTorch and JAX, in one run: `python -m benchmarks`."""
