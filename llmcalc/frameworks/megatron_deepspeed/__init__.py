"""Megatron-DeepSpeed: Megatron-LM's arguments with DeepSpeed's."""
