"""Megatron-LM: its arguments, the launch files that it reads, its kernels, its schedule and the memory of its ranks."""
