"""Reductions that depend on each other, in one pass over memory."""
