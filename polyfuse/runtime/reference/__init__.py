"""The oracle: tensor graphs in float64 with bounds."""
