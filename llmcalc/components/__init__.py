"""The components of model architectures: one file per component, with its fields, operations and PyTorch reference.

`choices` lists them: a new part is a new file and a line there.

A part may be changed without reading other parts: the contract tests compare its flow with its own reference.
"""
