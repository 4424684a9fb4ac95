"""The serving engine ik_llama.cpp, a fork of llama.cpp: its flags and versions; `ggml` computes its buffers.

Whatever is here may be changed without reading other folders: all that is asked of it is its record.
"""
