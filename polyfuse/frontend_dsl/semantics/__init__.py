"""Syntax trees to tensor graphs: names, types, sizes, ranges, calls."""
