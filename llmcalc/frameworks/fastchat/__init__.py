"""The training script of FastChat, and the one that Qwen derived from it.

All of it may be changed without reading another program; a run is arguments of the Trainer.
"""
