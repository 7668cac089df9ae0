"""One Python file per workload, beside its operator: inputs, and the function in NumPy, PyTorch and JAX."""
