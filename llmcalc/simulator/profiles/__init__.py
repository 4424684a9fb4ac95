"""The kernels that frameworks run for the steps of a program: a profile has a method for each verb.

A kernel may be changed without reading the parts; a test compares its bytes with torch.
"""
