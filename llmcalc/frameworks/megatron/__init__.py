"""Megatron-LM: arguments, launch file readers, kernels, schedules and rank memory.

All of it may be changed without reading another framework; an argument is one field of `settings`, from which flags,
readers and refusals follow.
"""
