"""Readers of launch files for training runs, shared by all frameworks.

`read.read_launch` recognizes the kind of a file by its contents. Each framework's record states its kind; `accelerate`
and `trainer` are kinds of several frameworks. A reader returns a `Launch`: the model if the file names one, the layout,
and the settings of the run. Nothing in a file is executed.

A reader may be changed without reading the others: a test gives each of them damaged files, and a `Launch` is all
that the rest of llmcalc sees.
"""
