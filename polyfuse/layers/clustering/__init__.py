"""Clusters: the pieces of a graph that are scheduled one by one."""
