"""The settings of a run: its workload, its counting conventions and its choices of execution.

The classes are `Workload`, `Counting`, `Execution` and, as ops read all three, `RunConfig`.

How a setting is declared and worded (`setting`, `validation`, `lengths`) may be changed without reading elsewhere; a
field of the four classes is read by ops and costs.
"""
