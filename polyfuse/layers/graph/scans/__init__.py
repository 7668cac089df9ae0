"""Reductions over ranges that grow are scans, those over windows have two scans for each block."""
