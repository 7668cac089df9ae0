"""Variants of an operator's code, tried and timed."""
