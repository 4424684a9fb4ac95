"""Pai-Megatron-Patch: Megatron-LM's arguments with those of the patch."""
