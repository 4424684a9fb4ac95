"""Unsloth: the defaults of Unsloth Studio for a model.

All of it may be changed without reading another program; `frameworks/launch/trainer.py` has settings that programs of
the Trainer share.
"""
