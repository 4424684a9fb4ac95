"""How many notes a screen has, where the others are, and which table `--table` picks."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from llmcalc.cli.main import COMMANDS
from llmcalc.errors import InputError, suggest
from llmcalc.reports.document import Column, Report, Row, Table
from llmcalc.sources.hardware import hardware_names
from llmcalc.sources.huggingface.registry import model_types
from llmcalc.sources.presets import model_names


def table(*notes: str, answer: str = "", name: str = "") -> Table:
    return Table("t", (Column("a", "a"),), [Row([1])], notes=notes, answer=answer, name=name)


def notes_of(report: Report) -> list[list[str]]:
    return [list(one.notes) for one in report.tables]


def test_two_notes_for_each_target_and_how_many_more() -> None:
    two_targets = Report(
        {}, [table("1", "2", "3", answer="x"), table("4"), table("5", answer="y"), table("6", "7", "8")]
    )
    assert notes_of(two_targets.with_limited_notes()) == [
        ["1", "2"],
        ["2 more notes: --notes"],
        ["5"],
        ["6", "2 more notes: --notes"],
    ]
    assert notes_of(Report({}, [table("1", "2", "3")]).with_limited_notes()) == [["1", "2", "1 more note: --notes"]]
    assert notes_of(Report({}, [table("1", "2")]).with_limited_notes()) == [["1", "2"]]


def test_a_warning_is_always_there() -> None:
    report = Report({}, [table("1", "2", "careful", "3")], warnings=["gpt2: careful"])
    assert notes_of(report.with_limited_notes()) == [["1", "2", "careful", "1 more note: --notes"]]


@pytest.mark.parametrize(
    ("model", "packages"),
    [
        ("mamba-370m", "mamba-ssm and causal-conv1d"),
        ("falcon-h1-0.5b", "mamba-ssm and causal-conv1d"),
        ("qwen3.5-0.8b", "flash-linear-attention and causal-conv1d"),
        ("gpt2", ""),
    ],
)
def test_packages_of_recurrent_kernels_are_named(run: Any, model: str, packages: str) -> None:
    """Not for a token, which runs no kernel of a sequence."""
    for phase in ("training", "prefill", "decode"):
        notes = run("memory", model, "--phase", phase, "--seq", "64", "--format", "json").document["notes"]
        named = [note for note in notes if "transformers runs loops of torch" in note]
        expected = packages if phase != "decode" else ""
        assert [f"kernels of {expected};" in note for note in named] == ([True] if expected else []), phase


def test_a_blank_line_stands_before_them(run: Any) -> None:
    lines = run("params", "gpt2").out.splitlines()
    assert lines[lines.index("  published 124,439,808: equal") - 1] == ""


def test_all_of_them_are_in_json_and_with_the_option(run: Any) -> None:
    for command in ("params", "kv", "memory", "flops", "explain"):
        brief = run(command, "deepseek-v3").out
        whole = " ".join(run(command, "deepseek-v3", "--notes").out.split())
        notes = run(command, "deepseek-v3", "--format", "json").document["notes"]
        assert ("more note" in brief) == (len(notes) > 2)
        assert "--notes" not in whole
        assert all(" ".join(note.split()) in whole for note in notes), command


class TestTables:
    def test_one_is_picked(self, run: Any) -> None:
        out = run("kv", "gpt2", "llama3-8b", "--table", "growth", "--format", "csv").out
        rows = list(csv.DictReader(io.StringIO(out)))
        assert {row["target"] for row in rows} == {"gpt2", "llama3-8b"}
        assert all(int(row["bytes"]) > 0 for row in rows)
        assert "what if" not in run("kv", "gpt2", "--table", "layers").out

    def test_the_first_is_what_csv_holds(self, run: Any) -> None:
        for command, key in (("params", "component"), ("kv", "layer_kind"), ("memory", "part"), ("flops", "component")):
            heading = run(command, "gpt2", "--format", "csv").out.splitlines()[0]
            assert heading.split(",")[:2] == ["target", key]

    @pytest.mark.parametrize("words", [("kv", "gpt2", "--table", "x"), ("params", "gpt2", "--table", "x")])
    def test_an_unknown_one_is_refused(self, words: tuple[str, ...], run: Any) -> None:
        assert run(*words).error.startswith("error: --table: there is no table 'x'; expected ")

    def test_one_report_alone(self) -> None:
        report = Report({}, [table(name="a"), table(name="b")])
        assert [one.name for one in report.with_only_table("b").tables] == ["b"]
        with pytest.raises(InputError, match="expected one of a, b"):
            report.with_only_table("c")


def test_whole_numbers_have_no_decimal_point(run: Any) -> None:
    for row in csv.DictReader(io.StringIO(run("flops", "gpt2", "--format", "csv").out)):
        assert "." not in row["flops_per_token"]


@pytest.mark.parametrize(
    ("wrong", "first"),
    [
        ("t5", "t5-3b"),
        ("llama", "llama-7b"),
        ("phi", "phi-1"),
        ("mixtrl", "mixtral-8x7b"),
        ("lama3-8b", "llama3-8b"),
        ("falcom", "falcon-7b"),
        ("gema", "gemma-2b"),
        ("gtp-2", "gpt2"),
    ],
)
def test_suggestions_begin_with_what_was_typed(wrong: str, first: str) -> None:
    assert suggest(wrong, list(model_names())).startswith(f" Did you mean {first}")


@pytest.mark.parametrize("word", ["nope", "foo", "hello", "claude", "gemini-2", "---", "模型"])
def test_a_word_that_is_near_no_name_has_no_suggestion(word: str) -> None:
    for names in (list(model_names()), list(model_types()), list(hardware_names()), list(COMMANDS)):
        assert suggest(word, names) == ""
    assert suggest("--foo", ["--format", "--moe"]) == ""


def test_a_field_is_found_by_its_middle() -> None:
    assert "num_hidden_layers" in suggest("hidden_layers", ["num_hidden_layers", "vocab_size"])
