"""Runs a command of llmcalc in this process, which takes less time than to start one.

What differs in a process of its own (signals, closed pipes, a terminal) is tested in reports/test_terminal.py.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from typing import Any
from unittest import mock

from llmcalc.cli.main import main


def command(*words: str) -> CompletedProcess[str]:
    """Returns what `llmcalc` prints with these words at 80 columns without colour, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with (
        mock.patch.object(sys, "argv", ["llmcalc", *words]),
        mock.patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"}),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())
