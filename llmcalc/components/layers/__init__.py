"""The kinds of layers, one file per kind: the order of token mixers, networks and norms around the residual stream.

A layer may be changed without reading the mixers and networks, which it knows by `TokenMixer` and `Network` of
`components/base.py` alone.
"""
