"""OLMo: the trainer of AI2's first OLMo models.

All of it may be changed without reading another program; `frameworks/launch/trainer.py` has settings that programs of
the Trainer share.
"""
