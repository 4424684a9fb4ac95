"""Reads models and accelerators from presets, files, Hugging Face configs, checkpoints and the hub.

A reader may be changed without reading the costs, which never ask where a model came from; whatever opens a user's
file does so by `bounded`.
"""
