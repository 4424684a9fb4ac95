"""Independent checks of counts and bytes, which share no formula with the costs that they check.

Counts are compared with the PyTorch reference, `transformers` classes, published counts, checkpoints and real
processes.

A comparison may be changed without reading the costs that it checks; a formula may never be taken from them or given
to them.
"""
