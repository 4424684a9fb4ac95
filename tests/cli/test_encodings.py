"""Output is complete on a stream of any encoding, such as a redirect on Windows or an old terminal."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from llmcalc.characters import ASCII_REPLACEMENTS, ascii_replacement, text_in_encoding
from llmcalc.cli.main import main

ENCODINGS = ("gbk", "cp1252", "cp437", "latin-1", "ascii")
FORMATS = ("table", "json", "csv", "markdown")
COMMANDS = (
    ("params", "deepseek-v3"),
    ("flops", "llama3-8b", "--conventions"),
    ("kv", "gemma3-27b"),
    ("memory", "llama3-8b", "--phase", "training"),
    ("compare", "gpt2", "bert-base"),
    ("shape", "llama3-8b", "--params", "8000000000"),
    ("explain", "gpt2"),
    ("presets", "gpt"),
    ("hardware", "m4-max"),
)


def written(monkeypatch: pytest.MonkeyPatch, encoding: str, *arguments: str) -> tuple[int, str, str]:
    """Returns (exit code, stdout, stderr) of a command whose streams have that encoding; raises if either cannot be
    decoded.
    """
    raw = [io.BytesIO(), io.BytesIO()]
    streams = [io.TextIOWrapper(stream, encoding=encoding) for stream in raw]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    monkeypatch.setattr(sys, "argv", ["llmcalc", *arguments])
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        main()
    for stream in streams:
        stream.flush()
    out, err = (stream.getvalue().decode(encoding) for stream in raw)
    monkeypatch.undo()
    return int(stop.value.code or 0), out, err


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_tables_are_whole(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The output has as many lines as with UTF-8, or a few more if replacements are wider, and can be encoded."""
    code, whole, _ = written(monkeypatch, "utf-8", *arguments)
    last_word = whole.rstrip().splitlines()[-1].split()[-1]
    for encoding in ENCODINGS:
        fit_code, fit, _ = written(monkeypatch, encoding, *arguments)
        assert code == fit_code == 0, encoding
        assert "?" not in fit, encoding
        assert len(whole.splitlines()) <= len(fit.splitlines()) + 2, encoding
        assert fit.rstrip().splitlines()[-1].split()[-1] == text_in_encoding(last_word, encoding), encoding


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_json_and_csv_are_ascii(arguments: tuple[str, ...], encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, document, _ = written(monkeypatch, encoding, *arguments, "--format", "json")
    assert code == 0
    assert document.isascii()
    assert json.loads(document)
    code, table, _ = written(monkeypatch, encoding, *arguments, "--format", "csv")
    assert code == 0
    assert table.isascii()
    rows = list(csv.reader(io.StringIO(table)))
    assert len(rows) > 1
    assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_errors_and_help_too(encoding: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "größe−模型.toml"
    file.write_text("[model]\nhidden_size = −1\n", encoding="utf-8")
    code, out, err = written(monkeypatch, encoding, "params", str(file))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    code, out, _ = written(monkeypatch, encoding, "flops", "--help")
    assert code == 0
    assert "--recompute" in out


def test_a_file_is_utf_8_whatever_the_terminal_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "answer.txt"
    assert written(monkeypatch, "ascii", "params", "llama3-8b", "-o", str(file))[0] == 0
    assert "─" in file.read_text(encoding="utf-8")


def test_every_stand_in_is_ascii() -> None:
    assert all(text.isascii() and text for text in ASCII_REPLACEMENTS.values())
    assert [ascii_replacement(c) for c in "βλΔé模"] == ["beta", "lamda", "delta", "e", "?"]
    assert text_in_encoding("12Lh² − 2Vh", "ascii") == "12Lh^2 - 2Vh"
    assert text_in_encoding("12Lh² − 2Vh", "cp1252") == "12Lh² - 2Vh"
    assert text_in_encoding("×", "utf-8") == "×"
    assert text_in_encoding("×", "no-such-encoding") == "x"
