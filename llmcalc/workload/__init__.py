"""A run of a model in four classes: what is run (`Workload`), how it is counted (`Counting`), how it is executed
(`Execution`), and all three together as ops see them (`RunConfig`).

How a setting is declared and worded (`setting`, `validation`, `lengths`) may be changed without reading elsewhere; a
field of the four classes is read by ops and costs.
"""
