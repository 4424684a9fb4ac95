"""Profiles: the kernels that frameworks run for a program's steps, one method per verb.

A kernel may be changed without reading the parts; a test compares its bytes with torch.
"""
