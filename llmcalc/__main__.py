"""Runs the command line for `python -m llmcalc`."""

from llmcalc.cli import run

run()
