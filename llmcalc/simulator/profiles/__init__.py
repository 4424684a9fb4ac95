"""Profiles: sets of kernels that frameworks run for a program's operations, one method per operation name.

A kernel may be changed without reading the parts; a test compares its bytes with torch.
"""
