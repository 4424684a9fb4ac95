"""Runs a command of llmcalc in this process, which takes less time than to start one.

What differs in a process of its own (signals, closed pipes, a terminal) is tested in reports/test_terminal.py.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache, cached_property
from typing import Any, NamedTuple
from unittest import mock

import typer

from llmcalc.cli.main import main
from llmcalc.cli.target_options import OutputOptions
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
    with mock.patch.object(sys, "argv", ["llmcalc", *words]):
        return _printed(main, columns)


def _printed(run: Callable[[], object], columns: int = 80) -> Result:
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(columns), "NO_COLOR": "1"}),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            run()
        except SystemExit as stop:
            code = stop.code or 0
    return Result(int(code), out.getvalue(), err.getvalue())


class SharedAnswer:
    """An answer that tests share, as a JSON document and as a screen. code: the exit code of its command."""

    def __init__(self, line: str) -> None:
        """Runs a command. line: its words, without a format."""
        show_answer = OutputOptions.show_answer

        def show_and_store(options: OutputOptions, *arguments: Any, **display: bool) -> None:
            self._show_screen = lambda: show_answer(options._replace(fmt="table"), *arguments, **display)
            show_answer(options, *arguments, **display)

        with mock.patch.object(OutputOptions, "show_answer", show_and_store):
            result = command(*line.split(), "--format", "json")
        self.code = result.code
        self.document: Any = json.loads(result.out)

    @cached_property
    def screen(self) -> str:
        """The table at 80 columns, with single spaces in place of white space."""

        def show_screen() -> None:
            with suppress(typer.Exit):  # of a run that does not fit
                self._show_screen()

        return " ".join(_printed(show_screen).out.split())


@cache
def shared_answer(line: str) -> SharedAnswer:
    """The answer of a command, which is computed once in this process. line: its words, without a format."""
    return SharedAnswer(line)
