"""A run of a model in four classes: what is run (`Workload`), how it is counted (`Counting`), how it is executed
(`Execution`), and all three together as ops see them (`RunConfig`). A layout over several devices will be a fifth.
"""
