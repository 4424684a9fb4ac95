"""Independent checks of counts and bytes: PyTorch reference, `transformers` classes, published counts, checkpoints
and real processes.

A comparison may be changed without reading the costs that it checks; a formula may never be taken from them or given
to them.
"""
