"""Kinds of layers: how a mixer of tokens and a network stand around the residual stream, one file each."""
