"""vLLM, a serving engine: its flags, its budget of a GPU's memory, and how it divides the cache into blocks."""
