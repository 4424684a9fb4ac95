"""The types of layers, one per file: the order of token mixers, networks and norms around the residual stream.

A layer may be changed without reading the mixers and networks, which it knows by `TokenMixer` and `Network` of
`components/base.py` alone.
"""
