"""Outer-loop vectorisation: rows are lanes, and the loop along a row stays a loop."""
