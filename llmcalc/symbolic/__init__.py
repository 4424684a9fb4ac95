"""Closed forms in symbols: the flow of a model recorded with symbols as sizes, and the formulas computed from it.

How a formula is simplified, ordered and written may be changed without reading elsewhere: its value is tested against
the counts.
"""
