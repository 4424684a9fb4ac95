"""A run of a model in four words: what is run (`Workload`), how it is counted (`Counting`), how it is executed
(`Execution`), and what an op is given of all three (`Sight`). How it is laid out over devices will be a fifth.
"""
