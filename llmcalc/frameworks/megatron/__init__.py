"""Megatron-LM: its arguments, readers of its launch files, its kernels, its schedules and the memory of its ranks.

All of it may be changed without reading another framework; an argument is one field of `settings`, from which flags,
readers and refusals follow.
"""
