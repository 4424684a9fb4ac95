"""The methods of the recorder, one file per topic; a component's `flow` calls one method per operation.

The checks of a verb and the op that it records may be changed without reading elsewhere; a new verb needs a kernel in
`simulator/profiles/eager`.
"""
