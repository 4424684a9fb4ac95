"""`llmcalc plot memory`: the elements of the picture, and the files that it is written to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.plots.figure import figure_bytes
from llmcalc.plots.memory import plot_memory as picture
from llmcalc.reports import palette
from llmcalc.reports.memory import PHASE_NAMES
from llmcalc.simulator.meter import MEMORY_KINDS

SMALL = "smollm2-135m?num_hidden_layers=2"
HEADS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", HEADS)
def test_every_format_is_written(run: Any, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"memory.{suffix}"
    code, out, err = run("plot", "memory", SMALL, "--phase", "training", "--seq", "64", "-o", str(file))
    assert (code, out, err) == (0, "", "")
    assert file.read_bytes().startswith(HEADS[suffix])


def test_the_picture_of_a_tag_without_a_format_has_the_format_of_ollamas_library(run: Any, tmp_path: Path) -> None:
    headings = []
    for model in (("qwen3:0.6b",), ("qwen3-0.6b", "--quantize", "q4_k_m")):
        file = tmp_path / f"{len(headings)}.svg"
        run("plot", "memory", *model, "--seq", "64", "-o", str(file))
        headings += re.findall(r">([^<]*GiB in inference[^<]*)<", file.read_text()) or [file.read_text()[-3000:]]
    assert headings[0] == headings[1]


def test_the_picture_says_what_the_answer_says() -> None:
    found = llmcalc.memory(SMALL, "training", seq=64)
    text = figure_bytes(picture("A model", found), "svg").decode()
    words = re.findall(r"<text[^>]*>([^<]*)</text>", text)
    for phase, kinds in found.device.moments.items():
        assert PHASE_NAMES[phase] in words
        assert f" {sum(kinds.values()) / 2**30:,.2f}" in words
    assert f" {found.device.device_bytes / 2**30:,.2f}" in words  # the first bar, and the title
    assert f"A model: {found.device.device_bytes / 2**30:,.2f} GiB" in " ".join(words)
    for kind, colour in palette.MEMORY_KIND_COLOURS.items():
        here = any(kinds[kind] for kinds in found.device.moments.values())
        assert (colour.lower() in text) == here, kind
    assert figure_bytes(picture("A model", found), "svg").decode() == text  # equal pictures are equal files


def test_every_kind_has_a_colour_of_its_own() -> None:
    assert tuple(palette.MEMORY_KIND_COLOURS) == MEMORY_KINDS
    assert len(set(palette.MEMORY_KIND_COLOURS.values())) == len(MEMORY_KINDS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("memory", "gpt2", "-o", "memory.txt"), "its suffix names no format of a picture"),
        (("memory", "gpt2", "-o", "no/such/folder.svg"), "there is no folder"),
        (("memory", "gpt2"), "--output"),
        (("memory", "gtp2", "-o", "memory.svg"), "gpt2"),
        (("memroy", "gpt2"), "Did you mean memory"),
    ],
)
def test_bad_words_exit_with_2(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in run("plot", *words).error
    assert not list(tmp_path.iterdir())
