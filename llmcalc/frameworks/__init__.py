"""Frameworks that train and serve models: one folder each, the record that it fills (`framework`), and the memory of
the ranks of a layout (`ranks`).

Whatever is inside a framework's folder may be changed without reading other folders: nothing else names the
framework, and all that is asked of it is its record.
"""
