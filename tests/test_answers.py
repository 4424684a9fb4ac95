"""What the Python functions return prints as one line, shows as a table in a notebook, and gives rows as dicts."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError

ASKED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "params": (lambda: llmcalc.params("mixtral-8x7b"), ("params", "mixtral-8x7b")),
    "flops": (lambda: llmcalc.flops("llama3-8b", seq=512), ("flops", "llama3-8b", "--seq", "512")),
    "kv": (lambda: llmcalc.kv("gemma3-27b", seq=4096), ("kv", "gemma3-27b", "--seq", "4096")),
    "memory": (
        lambda: llmcalc.memory("gpt2", "training", seq=64),
        ("memory", "gpt2", "--phase", "training", "--seq", "64"),
    ),
}


class Text(HTMLParser):
    """The cells of all tables, and that every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["td"]:
            self.cells[-1] += data


@pytest.mark.parametrize("name", ASKED)
def test_one_line(name: str, run: Any) -> None:
    ask, words = ASKED[name]
    text = repr(ask())
    assert len(text) < 120
    assert run(*words).out.startswith(text.strip("<>"))


def test_the_line_of_an_answer_without_a_heading_names_its_models() -> None:
    assert repr(llmcalc.compare("gpt2", "llama3-8b")) == "<GPT-2 small, Llama 3 8B>"
    assert repr(llmcalc.compare("gpt2", "llama3-8b", "t5-base", "bert-base")).endswith("T5 base and 1 more>")


@pytest.mark.parametrize("name", ASKED)
def test_a_table_of_a_notebook(name: str, run: Any) -> None:
    ask, words = ASKED[name]
    parsed = Text()
    parsed.feed(ask()._repr_html_())
    assert parsed.open == []
    screen = " ".join(run(*words).out.split())
    assert [cell for cell in parsed.cells[:12] if cell.strip() and cell not in screen] == []


@pytest.mark.parametrize("name", ASKED)
def test_a_table_of_a_notebook_names_no_option_for_what_it_leaves_out(name: str) -> None:
    """It said "7 more notes: --notes", which nobody can type in a notebook; `.document` has them all."""
    text = ASKED[name][0]()._repr_html_()
    assert ": --notes" not in text
    assert (": .document" in text) == ("more note" in text or "more row" in text or "more table" in text)


@pytest.mark.parametrize("name", ["params", "flops", "kv"])
def test_records_are_the_rows_of_csv(name: str, run: Any) -> None:
    ask, words = ASKED[name]
    rows = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv").out)))
    found = ask().records()
    assert [list(row) for row in found] == [list(row) for row in rows]
    for mine, theirs in zip(found, rows, strict=True):
        texts = {key: "" if value is None else str(value).removesuffix(".0") for key, value in mine.items()}
        assert texts == theirs


SUMMED = {
    "params": (lambda: llmcalc.params("deepseek-v3"), "parameters"),
    "kv": (lambda: llmcalc.kv("gemma-3-27b"), "bytes"),
    "flops": (lambda: llmcalc.flops("llama3-8b", phase="training"), "flops"),
    "memory": (lambda: llmcalc.memory("deepseek-v3", "decode", seq=64), "bytes"),
    "step": (lambda: llmcalc.memory("gpt2", "training", seq=64), "step_bytes"),
}


@pytest.mark.parametrize("name", SUMMED)
def test_leaves_are_summed_to_the_total(name: str) -> None:
    ask, key = SUMMED[name]
    answer = ask()
    every, leaves = answer.records(), answer.records(leaves_only=True)
    assert len(leaves) < len(every)
    totals = [row[key] for row in every if str(list(row.values())[1]).startswith(("total", "required"))]
    assert sum(row[key] or 0 for row in leaves) == totals[0]
    assert [row for row in leaves if "rest" in str(list(row.values())[1])] == ([leaves[2]] if name == "step" else [])


def test_a_column_has_one_type() -> None:
    """Rows of two models are one table: a share of 1 is a float where other shares are."""
    rows = [row for model in ("gpt2", "llama3-8b") for row in llmcalc.kv(model).records(leaves_only=True)]
    assert {type(row["share"]) for row in rows} == {float}
    assert {type(row["bytes"]) for row in rows} == {int}


def test_another_table() -> None:
    found = llmcalc.memory("gpt2", "training", seq=64)
    assert {row["phase"] for row in found.records("phases")} >= {"forward pass", "backward pass"}
    with pytest.raises(InputError, match="--table: there is no table 'none'"):
        found.records("none")


def test_text_of_a_model_is_escaped() -> None:
    preset = llmcalc.load("gpt2").model_copy(update={"title": "<b>a & b</b>"})
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in llmcalc.params(preset)._repr_html_()


def test_models_and_nodes_are_one_line() -> None:
    preset = llmcalc.load("deepseek-v3")
    assert repr(preset) == "<Preset deepseek-v3: DeepSeek-V3>"
    assert repr(preset.model) == "<ModelSpec: decoder, 61 layers, hidden 7168>"
    tree = llmcalc.params(preset).tree
    assert max(len(repr(place.node)) for place in tree.walk()) < 80


def test_a_count_that_kernels_do_not_have_is_said() -> None:
    assert repr(llmcalc.memory(llmcalc.load("gpt2").model)).startswith("<model: ")
