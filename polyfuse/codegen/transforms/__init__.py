"""Passes over loops, one idea a module or package; no pass imports another."""
