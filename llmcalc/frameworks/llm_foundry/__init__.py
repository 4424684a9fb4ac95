"""LLM Foundry: training with Composer from one YAML file.

All of it may be changed without reading another program; `frameworks/launch/trainer.py` has settings that programs of
the Trainer share.
"""
