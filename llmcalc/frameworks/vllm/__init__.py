"""The serving engine vLLM: its flags, its budget of a GPU's memory, and the blocks of its KV cache.

Whatever is here may be changed without reading other folders: all that is asked of it is its record.
"""
