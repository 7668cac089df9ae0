"""Operators in models of PyTorch."""
