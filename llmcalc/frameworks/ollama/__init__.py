"""Ollama: its options and defaults by version, and what it asks llama.cpp for; `ggml` beside it computes the buffers.

Whatever is here may be changed without reading other folders: all that is asked of it is its record, and
`flags.read_options` for the options of a Modelfile.
"""
