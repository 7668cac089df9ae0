"""Helper processes and progress."""
