"""Optimizers: one file each, with its states in closed form and the replay of its step.

An optimizer may be changed or added without reading the others: its record is all that the rest of llmcalc asks.
"""
