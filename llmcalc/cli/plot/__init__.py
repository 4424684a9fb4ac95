"""`llmcalc plot`: one file a picture."""

HELP = "Pictures of answers, as svg, png or pdf."

COMMANDS = ("memory", "schedule", "params", "kv", "flops", "shape", "aspect")
"""Each has a module of that name in this package with a function `command`."""
