"""NeMo-RL: its YAML configs of supervised, preference and reinforcement training.

All of it may be changed without reading another program; a run is one of FSDP2 or of Megatron-Core.
"""
