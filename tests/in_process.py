"""Runs a command of llmcalc in this process, which takes less time than to start one.

What differs in a process of its own (signals, closed pipes, a terminal) is tested in reports/test_terminal.py.
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest import mock

from llmcalc.cli.main import main
from llmcalc.errors import LONGEST_MESSAGE


class Result(NamedTuple):
    """What a shell would see of a command: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    def document_with(self, code: int) -> Any:
        """The JSON document of a command with this exit code."""
        assert self.code == code, self.err
        return json.loads(self.out)

    @property
    def document(self) -> Any:
        """The JSON document of a command that succeeded."""
        return self.document_with(0)

    @property
    def error(self) -> str:
        """The error of a command that refused its input: one line on stderr, exit code 2, and nothing on stdout."""
        assert (self.code, self.out) == (2, ""), self
        assert self.err.startswith("error: "), self.err
        assert self.err.endswith("\n"), self.err
        assert self.err[:-1].isprintable(), self.err
        assert len(self.err) < LONGEST_MESSAGE + 20
        return self.err


def command(*words: str, columns: int = 80) -> Result:
    """Returns what `llmcalc` prints with these words without colour, and its exit code. columns: of the terminal."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with (
        mock.patch.object(sys, "argv", ["llmcalc", *words]),
        mock.patch.dict(os.environ, {"COLUMNS": str(columns), "NO_COLOR": "1"}),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    return Result(int(code), out.getvalue(), err.getvalue())
