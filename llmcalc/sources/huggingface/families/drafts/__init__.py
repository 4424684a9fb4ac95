"""Families of draft models of speculative decoding, whose configs state the model type of a whole model."""
