"""Code that llama.cpp, ik_llama.cpp and Ollama share: GGUF tensors, placement on devices, caches, compute buffers.

The shapes of `model` and `compute_graph` are what the engines' folders rely on; a file may be changed without reading
those folders.
"""
