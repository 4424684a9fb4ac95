"""The kinds of layers, one file each: how a token mixer and a network are placed around the residual stream."""
