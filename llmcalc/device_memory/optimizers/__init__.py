"""Optimizers, one file each or one per library: closed forms of their states' bytes, and a replay of a step.

An optimizer may be changed or added without reading the others: its record is all that the rest of llmcalc asks.
"""
