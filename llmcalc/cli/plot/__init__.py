"""The command `llmcalc plot`, with one file per picture and its options.

An option's help may be changed without reading elsewhere; what a picture shows is decided in `plots`.
"""

HELP = "Pictures of answers, as svg, png or pdf."

COMMANDS = ("memory", "schedule", "time", "serve", "roofline", "params", "kv", "flops", "shape", "aspect")
"""Names of the pictures; each picture has a module of that name in this package, with a function `command`."""
