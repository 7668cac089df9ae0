"""Vector loops as C++: reductions, 16-bit rows, calls of functions for all lanes, masked rests."""
