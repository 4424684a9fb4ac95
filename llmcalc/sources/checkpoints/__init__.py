"""The tensors listed in a checkpoint's header: names, shapes, formats, bytes. Only headers are read, never the data.

A format may be changed or added without reading the others: all that the rest asks for is the list of tensors.
"""
