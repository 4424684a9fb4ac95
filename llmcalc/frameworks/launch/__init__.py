"""Launch files, whatever framework they are for.

`read.read_launch` tells the kind by the contents: each framework's record states its own kind, and `accelerate` and
`trainer` are kinds that several frameworks have. Each reader gives a `Launch`: the model where the file names one, the
layout, and the settings of the run. Nothing in a file is executed.

A reader may be changed without reading the others: a test gives each of them damaged files, and a `Launch` is all
that the rest of llmcalc sees.
"""
