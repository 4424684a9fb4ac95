"""OpenRLHF: launch commands of reinforcement learning and of fine-tuning.

All of it may be changed without reading another program; a run is a DeepSpeed config and a few settings.
"""
