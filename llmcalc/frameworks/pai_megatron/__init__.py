"""Pai-Megatron-Patch: training with the arguments of Megatron-LM and of the patch.

All of it may be changed without reading another program; a run is arguments of Megatron-LM.
"""
