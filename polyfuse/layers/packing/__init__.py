"""Layer III: independent kernels side by side in one launch; calls of libraries."""
