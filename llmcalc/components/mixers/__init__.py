"""Token mixers, one file each: components that mix information between tokens.

A mixer may be changed without reading other mixers or layers: what they ask of it is in `TokenMixer` of
`components/base.py`.
"""
