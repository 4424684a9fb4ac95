"""llama.cpp, and Ollama on it: the reader of their logs.

Whatever is here may be changed without reading other folders: all that is asked of it is its record and its reader.
"""
