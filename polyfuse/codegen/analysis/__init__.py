"""What passes ask of loops: accesses, dependences, trip counts, costs. Nothing here changes a loop."""
