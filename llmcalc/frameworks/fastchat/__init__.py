"""FastChat's training script, and Qwen's derived script.

All of it may be changed without reading another program; a run is arguments of the Trainer.
"""
