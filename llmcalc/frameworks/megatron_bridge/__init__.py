"""Megatron-Bridge: its recipes in Python."""
