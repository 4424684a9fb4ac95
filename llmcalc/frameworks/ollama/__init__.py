"""The serving engine Ollama: options and defaults by version, and the flags that Ollama passes to llama.cpp.

Whatever is here may be changed without reading other folders: all that is asked of it is its record, and
`flags.read_options` for the options of a Modelfile.
"""
