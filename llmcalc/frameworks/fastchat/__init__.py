"""FastChat's training script, and Qwen's, which is made after it.

All of it may be changed without reading another program; a run is arguments of the Trainer.
"""
