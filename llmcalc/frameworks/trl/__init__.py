"""TRL: post-training with transformers' Trainer, also as used by open-r1 and the alignment handbook.

All of it may be changed without reading another program; `frameworks/launch/trainer.py` has settings that programs of
the Trainer share.
"""
