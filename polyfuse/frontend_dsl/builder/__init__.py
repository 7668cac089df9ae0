"""Operators written in Python: the same syntax trees as from text."""
