"""Families of GLM's dense models and its multimodal text models."""
