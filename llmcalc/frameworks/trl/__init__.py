"""TRL: post-training with transformers' Trainer, as open-r1 and the alignment handbook run it.

All of it may be changed without reading another program; `frameworks/launch/trainer.py` has settings that programs of
the Trainer share.
"""
