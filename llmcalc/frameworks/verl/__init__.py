"""verl: launch commands of reinforcement learning, with Hydra's overrides.

All of it may be changed without reading another program; a run is one of FSDP2 or of Megatron-Core.
"""
