"""Rewrites of the tensor graph before it is scheduled."""
