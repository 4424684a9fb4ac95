"""Code that all serving engines share: their registry record, flags and versions, and the memory of one rank's model.

The shape of the record (`engine`) is what the engines' folders rely on; whatever else is here may be changed without
reading them.
"""
