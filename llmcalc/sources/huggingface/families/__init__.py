"""The families of model types: one file per family, in folders by lineage.

A family may be changed or added without reading the others, except those that its record names; its small configs in
`tests/families` are compared with the class of `transformers`.
"""
