"""Replays a framework's kernels on tensors without values, and follows the memory of every tensor.

`tensor` has tensors with shapes, strides and storages; `autograd` records nodes and runs the backward pass; `aten` has
torch's operations on them. A profile in `profiles` lowers the steps of a program to these operations.

A kernel may be changed without reading the parts or the frameworks: a test compares its bytes with torch, and the
order in which tensors are made and freed is its answer.
"""
