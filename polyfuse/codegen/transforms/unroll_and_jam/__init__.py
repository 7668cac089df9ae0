"""Unroll-and-jam: several iterations of an outer loop in one iteration of the loops inside."""
