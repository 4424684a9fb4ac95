"""Megatron-LM: its arguments, the launch files that it reads, its kernels, its schedule and the memory of its ranks.

All of it may be changed without reading another framework; an argument is one field of `settings`, from which flags,
readers and refusals follow.
"""
