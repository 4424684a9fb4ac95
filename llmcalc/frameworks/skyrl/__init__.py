"""SkyRL: launch commands of reinforcement learning, with overrides of its configuration.

All of it may be changed without reading another program; a run is one of FSDP2 or of Megatron-Core.
"""
