"""Megatron-DeepSpeed: Megatron-LM's arguments with DeepSpeed's.

All of it may be changed without reading another program; a run is arguments of Megatron-LM.
"""
