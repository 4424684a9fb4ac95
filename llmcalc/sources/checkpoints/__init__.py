"""The tensors in a checkpoint's header: names, shapes, formats, bytes. The data are never read.

A format may be changed or added without reading the others: other packages use only the list of tensors.
"""
