"""llama.cpp, a serving engine: its flags and versions; `ggml` beside it computes its buffers.

Whatever is here may be changed without reading other folders: all that is asked of it is its record.
"""
