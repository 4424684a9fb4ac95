"""Copies of the package in a separate folder, for tests that change one as a contributor would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llmcalc

PACKAGE = Path(llmcalc.__file__).parent
TOYS = Path(__file__).parent.parent / "data" / "toy"


def copy_to(folder: Path) -> Path:
    """Copies the package and its presets as in a checkout, with compiled modules; a changed one is compiled anew."""
    # Modules that another process compiles at this moment have temporary names, which vanish; pytest's are its own.
    ignored = shutil.ignore_patterns("*.pyc.*", "*-pytest-*.pyc")
    shutil.copytree(PACKAGE, folder / "llmcalc", ignore=ignored, copy_function=copy_file)
    if (PACKAGE.parent / "presets").is_dir():
        shutil.copytree(PACKAGE.parent / "presets", folder / "presets", copy_function=copy_file)
    return folder


def copy_file(source: str, copy: str) -> None:
    """Links a file, in a tenth of the time of a copy. `insert` replaces the link that it changes by a file."""
    try:
        os.link(source, copy)
    except OSError:  # on another file system
        shutil.copy2(source, copy)


def insert(file: Path, before: str, line: str) -> None:
    """Adds a line to a file before a given text."""
    text = file.read_text()
    assert before in text, file
    file.unlink()  # it may be a link
    file.write_text(text.replace(before, line + before, 1))


def python(copy: Path, *arguments: str) -> str:
    """Returns the output of a Python process that imports the copy."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


COMMANDS = """
import contextlib, io, json, sys
from llmcalc.cli.main import main

outputs = []
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            main()
    except SystemExit as ended:
        assert not ended.code, arguments
    outputs.append(out.getvalue())
print(json.dumps(outputs))
"""


def outputs(copy: Path, *commands: Sequence[str]) -> list[str]:
    """Returns what commands of the copy print. One process runs them, since each would import the copy anew."""
    outputs: list[str] = json.loads(python(copy, "-c", COMMANDS, json.dumps(commands)))
    return outputs


def command(copy: Path, *arguments: str) -> Any:
    """Returns the JSON that a command of the copy prints."""
    return json.loads(python(copy, "-m", "llmcalc", *arguments, "--format", "json"))
