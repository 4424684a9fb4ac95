"""Code that all serving engines share: the registry, flags, versions, and a model's memory on one rank.

The shape of the record (`engine`) is what the engines' folders rely on; whatever else is here may be changed without
reading them.
"""
