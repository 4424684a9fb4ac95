"""The tensors in a checkpoint's header: names, shapes, formats, bytes. The data are never read.

A format may be changed or added without reading the others: all that the rest asks for is the list of tensors.
"""
