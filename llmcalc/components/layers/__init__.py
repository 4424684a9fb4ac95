"""The kinds of layers, one file each: how a token mixer and a network are placed around the residual stream.

A layer may be changed without reading the mixers and networks, which it knows by `TokenMixer` and `Network` of
`components/base.py` alone.
"""
