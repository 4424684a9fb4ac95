"""The serving engine TensorRT-LLM: its flags, and the GPU memory that its dummy run leaves for the KV cache.

Whatever is here may be changed without reading other folders: all that is asked of it is its record.
"""
