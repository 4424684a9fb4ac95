"""The closed forms in symbols: the same flow recorded with letters, and the formulas that are read off it."""
