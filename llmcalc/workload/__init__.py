"""A run of a model in four classes: what runs (`Workload`), how it is counted (`Counting`), how it executes
(`Execution`), and all three as ops read them (`RunConfig`).

How a setting is declared and worded (`setting`, `validation`, `lengths`) may be changed without reading elsewhere; a
field of the four classes is read by ops and costs.
"""
