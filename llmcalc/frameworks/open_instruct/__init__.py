"""open-instruct: AI2's post-training with accelerate.

All of it may be changed without reading another program; `frameworks/launch/trainer.py` has settings that programs of
the Trainer share.
"""
