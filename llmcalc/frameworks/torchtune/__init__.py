"""torchtune: PyTorch's recipes for fine-tuning.

All of it may be changed without reading another program; `frameworks/launch/trainer.py` has settings that programs of
the Trainer share.
"""
