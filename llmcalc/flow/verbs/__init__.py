"""The recorder's methods by topic, which a component's `flow` calls once per operation.

The checks of a verb and the op that it records may be changed without reading elsewhere; a new verb needs a kernel in
`simulator/profiles/eager`.
"""
