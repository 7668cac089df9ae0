"""The layers: fusion of loops, stitching of kernels, packing of launches, and the mapping to a machine."""
