"""What passes ask of loops: accesses, dependences, trip counts, costs.

One simplification is here as well, `guards.simplify_guards`: index-set splitting asks for it in the middle
of its work, and no transformation imports another.  All else changes no loop.
"""
