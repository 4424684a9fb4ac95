"""The verbs of the recorder, by topic: a part's flow calls one per operation.

The checks of a verb and the op that it records may be changed without reading elsewhere; a new verb needs a kernel in
`simulator/profiles/eager`.
"""
