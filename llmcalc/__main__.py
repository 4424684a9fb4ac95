"""The command line as a module: `python -m llmcalc`."""

from llmcalc.cli import run

run()
