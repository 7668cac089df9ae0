"""Layer II: dependent nests stitched into one kernel."""
