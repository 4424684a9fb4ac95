"""vLLM, a serving engine: its flags, its budget of a GPU's memory, and how it divides the cache into blocks.

Whatever is here may be changed without reading other folders: all that is asked of it is its record.
"""
