"""nanotron: its YAML configs of pretraining with tensor, pipeline and data parallelism.

All of it may be changed without reading another program; a rank's memory is counted with Megatron-Core's buffers.
"""
