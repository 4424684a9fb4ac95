"""Formulas of costs in symbols, from a model's operations recorded with symbols as sizes.

How a formula is simplified, ordered and written may be changed without reading elsewhere: its value is tested against
the counts.
"""
