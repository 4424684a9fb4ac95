"""Witnesses against which counts and bytes are compared: the reference, `transformers`, published counts, checkpoints
and real processes.

A comparison may be changed without reading the costs that it checks; a formula may never be taken from them or given
to them.
"""
