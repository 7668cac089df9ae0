"""Reverse-mode differentiation of tensor graphs.

    TensorGraph --derive--> forward graph (results and what is kept) + backward graph --operator--> text

Both graphs are programs of the language: they are printed, parsed, checked and compiled like all others.
"""
