"""Rewrites of iteration domains: dims merged, split and reordered."""
