"""The isl view of a tensor graph: domains, accesses, dependences, storage."""
