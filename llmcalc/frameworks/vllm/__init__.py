"""The serving engine vLLM: flags, the budget of a GPU's memory, and KV cache blocks.

Whatever is here may be changed without reading other folders: all that is asked of it is its record.
"""
