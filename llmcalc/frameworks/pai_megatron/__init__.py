"""Pai-Megatron-Patch: Megatron-LM's arguments with those of the patch.

All of it may be changed without reading another program; a run is arguments of Megatron-LM.
"""
