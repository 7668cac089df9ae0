"""Index-set splitting: loops cut where a condition, a digit or an index changes its form."""
