"""Costs of a model: parameters, FLOPs, cache, trained tensors and quantized weights.

Each cost is a sum over the positions of the model's tree.

A cost may be changed or added without reading other costs, and without knowing where a model came from; the
arithmetic of one op is in `ops`.
"""
