"""Formulas in symbols, from a model's flow recorded with symbolic sizes.

How a formula is simplified, ordered and written may be changed without reading elsewhere: its value is tested against
the counts.
"""
