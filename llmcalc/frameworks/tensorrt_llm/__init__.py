"""TensorRT-LLM, a serving engine: its flags, and what its dummy run leaves of a GPU's memory for the cache.

Whatever is here may be changed without reading other folders: all that is asked of it is its record.
"""
