"""NeMo: its YAML configs for Megatron-Core.

All of it may be changed without reading another program; a run is one of Megatron-Core.
"""
