"""Megatron-DeepSpeed: training with the arguments of Megatron-LM and of DeepSpeed.

All of it may be changed without reading another program; a run is arguments of Megatron-LM.
"""
