"""Training frameworks and serving engines, one folder each, and the memory of the ranks of a layout.

Whatever is inside a framework's folder may be changed without reading other folders: nothing else names the
framework, and all that is asked of it is its record.
"""
