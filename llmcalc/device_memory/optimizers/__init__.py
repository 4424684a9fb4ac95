"""Optimizers: one file each, with its states in closed form and the replay of its step."""
