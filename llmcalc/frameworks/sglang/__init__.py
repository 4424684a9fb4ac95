"""The serving engine SGLang: flags, and the GPU memory that remains for the KV cache.

Whatever is here may be changed without reading other folders: all that is asked of it is its record.
"""
