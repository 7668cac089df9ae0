"""Sums of products: what they are, and how large their tiles are."""
