"""Studies of one or several models: comparisons, budgets, layouts, model shapes, plans, rules of thumb.

A study may be changed without reading the others: each asks `costs`, `device_memory` and `frameworks`, and keeps no
arithmetic of ops.
"""
