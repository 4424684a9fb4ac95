"""Compares a process of `llmcalc params llama3-8b` with a process that only imports the modules every such tool
imports, and other commands with it.
"""

from __future__ import annotations

import subprocess
import sys

from .timing import line, processes

RUNS = 11

BARE = """
import typer
from rich.console import Console
from rich.table import Table
from pydantic import BaseModel
class Model(BaseModel):
    size: int
Model(size=1)
"""

COMMAND = ["params", "llama3-8b"]
LONGER = {  # command → its longest time, in times of `params llama3-8b`
    "memory llama3-8b": "≤ 2",
    "time llama3-8b --hardware h100-sxm": "≤ 2",
    "fit llama3-8b --hardware h100-sxm": "≤ 3.5",
    "plan deepseek-v3 --devices 2048 --hardware h100-sxm": "≤ 8",
}
ENTRY = "import sys; from llmcalc.cli import run; sys.argv[0] = 'llmcalc'; run()"
HEAVY = ("torch", "numpy", "sympy", "transformers")
IMPORTED = f"""
import contextlib, io, sys
from llmcalc.cli.main import main
sys.argv = ["llmcalc", *{COMMAND!r}]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
print(" ".join(name for name in {HEAVY!r} if name in sys.modules) or "none")
"""


def main() -> None:
    """Prints wall-clock time, user CPU time, peak memory, and the heavy libraries that were imported."""
    python = sys.executable
    ours, bare = processes([[python, "-c", ENTRY, *COMMAND], [python, "-c", BARE]], RUNS)
    heavy = subprocess.run([python, "-c", IMPORTED], check=True, capture_output=True, text=True).stdout.strip()
    print(
        f"startup: llmcalc {' '.join(COMMAND)} against importing typer, rich and pydantic with one model (median "
        f"of {RUNS})"
    )
    line("llmcalc, wall clock", f"{1000 * ours.wall:.0f} ms")
    line("bare imports, wall clock", f"{1000 * bare.wall:.0f} ms")
    line("ratio, wall clock", f"{ours.wall / bare.wall:.2f}", "≤ 1.15")
    line("ratio, user CPU", f"{ours.user / bare.user:.2f}", "≤ 1.15")
    line("llmcalc, peak resident memory", f"{ours.peak / 1e6:.1f} MB", "< 60 MB")
    line("bare imports, peak resident memory", f"{bare.peak / 1e6:.1f} MB")
    line(f"of {', '.join(HEAVY)}: imported", heavy, "none")
    print("startup: other commands, user CPU time in times of llmcalc params llama3-8b (median of 3)")
    commands = [[python, "-c", ENTRY, *command.split()] for command in (" ".join(COMMAND), *LONGER)]
    counting, *longer = processes(commands, min(RUNS, 3))
    for (command, target), run in zip(LONGER.items(), longer, strict=True):
        line(command, f"{run.user / counting.user:.2f}", target)
