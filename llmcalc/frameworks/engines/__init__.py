"""Code that all serving engines share: registry record, flags, versions, and model memory on one rank.

The shape of the record (`engine`) is what the engines' folders rely on; whatever else is here may be changed without
reading them.
"""
