"""Optimizers, by library or one file each: the bytes of optimizer states in closed form, and a replayed step.

An optimizer may be changed or added without reading the others: its record is all that the rest of llmcalc asks.
"""
