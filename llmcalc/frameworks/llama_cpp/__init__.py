"""The serving engine llama.cpp: its flags and versions. Folder `ggml` computes its buffers.

Whatever is here may be changed without reading other folders: all that is asked of it is its record.
"""
