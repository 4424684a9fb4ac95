"""GPT-NeoX: pretraining with DeepSpeed, with layers derived from Megatron-LM.

All of it may be changed without reading another program; DeepSpeed's keys are read in its own folder.
"""
