"""The serving engine SGLang: its flags, and the GPU memory that it leaves for the KV cache.

Whatever is here may be changed without reading other folders: all that is asked of it is its record.
"""
