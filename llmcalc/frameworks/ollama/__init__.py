"""The serving engine Ollama: its options and defaults by version, and the flags with which it starts llama.cpp.

Whatever is here may be changed without reading other folders: all that is asked of it is its record, and
`flags.read_options` for the options of a Modelfile.
"""
