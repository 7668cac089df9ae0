"""What passes ask of loops: accesses, dependences, trip counts, costs.

Three simplifications that several passes ask for are here as well: `guards.simplify_guards`,
`dependence.serialize_conflicts` and `index_ranges.simplify_windows`.  All else changes no loop.
"""
