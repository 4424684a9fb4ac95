"""Closed forms in symbols: the flow of a model recorded with symbols as sizes, and the formulas computed from it."""
