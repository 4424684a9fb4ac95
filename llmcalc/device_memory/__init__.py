"""The memory of one device in bytes: its tensors, and the segments that PyTorch's allocator reserves.

A setting's words, checks and help (`settings`) and a device's fixed overhead (`cuda_runtime`) may be changed without
reading elsewhere; whoever changes what is replayed reads `simulator` first.
"""
