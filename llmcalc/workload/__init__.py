"""A run of a model: its workload, its counting conventions, its choices of execution, and all three together.

The classes are `Workload`, `Counting`, `Execution` and, as ops read all three, `RunConfig`.

How a setting is declared and worded (`setting`, `validation`, `lengths`) may be changed without reading elsewhere; a
field of the four classes is read by ops and costs.
"""
