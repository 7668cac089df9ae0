"""Schedule trees: the axis planner, isl's scheduler, edits by hand."""
