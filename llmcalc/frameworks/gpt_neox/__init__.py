"""GPT-NeoX: pretraining with DeepSpeed on layers after Megatron-LM's.

All of it may be changed without reading another program; DeepSpeed's keys are read in its own folder.
"""
