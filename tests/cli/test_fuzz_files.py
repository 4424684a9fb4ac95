"""Some hundred damaged files of every kind; `python -m tests.fuzz --seconds 600` tries more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llmcalc.cli import main as command
from tests import fuzz

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("inputs", "readers"),
    [(9, ("gguf", "launch", "safetensors")), pytest.param(300, (), marks=pytest.mark.exhaustive)],
    ids=["some", "every kind"],
)
def test_damaged_files(inputs: int, readers: tuple[str, ...]) -> None:
    """In a process of its own, since the memory is measured too. The next test reads damaged files of every kind."""
    words = ["--inputs", str(inputs), "--seed", "0", *(["--readers", *readers] if readers else [])]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert re.search(rf"^{inputs} inputs, 0 wrong", done.stdout, re.MULTILINE)


def test_each_reader_answers_some_and_refuses_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage that every reader refuses at once would test nothing behind it. No answer and no refusal is wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    codes: dict[str, set[object]] = {}

    def spied() -> None:
        try:
            command.main()
        except SystemExit as stop:
            codes.setdefault(reader, set()).add("answered" if stop.code in (0, 1, None) else "refused")
            raise

    monkeypatch.setattr(fuzz, "llmcalc", spied)
    for reader in fuzz.READERS:
        for number in range(60):
            case = fuzz.make(reader, number, 0)
            fuzz.write(case, tmp_path)
            assert fuzz.complaint(case) == "", (reader, number)
            if len(codes[reader]) == 2:
                break
    assert all(len(found) == 2 for found in codes.values()), codes


def test_it_finds_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback, an unclear refusal, and a command that does not end."""
    monkeypatch.setattr(fuzz, "MAX_SECONDS", 0.2)
    case = fuzz.Input(("params", "gpt2"), {})

    def wrong() -> None:
        raise KeyError("x")

    def silent() -> None:
        raise SystemExit(2)

    def endless() -> None:
        while True:
            pass

    for function, message in ((wrong, "KeyError"), (silent, "no clear error"), (endless, "TimeoutError")):
        monkeypatch.setattr(fuzz, "llmcalc", function)
        assert message in fuzz.complaint(case)
