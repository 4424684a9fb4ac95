"""The filters of `presets` and `compare --all`, and the list of many models."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from llmcalc.questions import listings
from llmcalc.sources.presets import load_preset, model_names
from llmcalc.studies.model_selection import ModelFilter, attention_kinds
from tests.samples import in_one_test


@in_one_test
@pytest.mark.parametrize(
    ("name", "kinds", "experts"),
    [
        ("gpt2", {"mha"}, False),
        ("llama3-8b", {"gqa"}, False),
        ("falcon-7b", {"mqa"}, False),
        ("gemma2-9b", {"gqa", "sliding"}, False),
        ("deepseek-v3", {"mla"}, True),
        ("mamba2-130m", {"mamba2"}, False),
        ("mixtral-8x7b", {"gqa"}, True),
        ("qwen3-next-80b-a3b", {"gqa", "gated_delta_net"}, True),
    ],
)
def test_what_a_model_is(name: str, kinds: set[str], experts: bool) -> None:
    spec = load_preset(name).model
    assert attention_kinds(spec) == kinds
    assert spec.has_experts is experts


def listed(run: Any, *options: str) -> list[dict[str, str]]:
    code, out, err = run("presets", *options, "--format", "csv")
    assert code == 0, err
    return list(csv.DictReader(io.StringIO(out)))


def test_every_filter_takes_its_share(run: Any) -> None:
    everything = listed(run)
    assert [row["target"] for row in everything] == list(model_names())
    moe, dense = listed(run, "--moe"), listed(run, "--dense")
    assert len(moe) + len(dense) == len(everything)
    assert {"deepseek-v3", "mixtral-8x7b"} <= {row["target"] for row in moe}
    kinds = [listed(run, "--kind", kind) for kind in ("decoder", "encoder", "encoder-decoder")]
    assert sum(map(len, kinds)) == len(everything)
    assert all(row["kind"] == "encoder" for row in kinds[1])
    small = listed(run, "--max-params", "1B", "--min-params", "100M")
    assert small
    assert all(10**8 <= int(row["parameters"]) <= 10**9 for row in small)
    assert {row["target"] for row in listed(run, "--attention", "MLA", "--max-params", "20B")} >= {"deepseek-v2-lite"}


def test_a_list_is_sorted_by_what_is_asked(run: Any) -> None:
    sizes = [int(row["parameters"]) for row in listed(run, "--sort", "params")]
    assert sizes == sorted(sizes)
    dates = [row["released"] for row in listed(run, "gpt", "--sort", "released")]
    assert dates == sorted(dates)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kind", "decodr"], "--kind: 'decodr' is not known; expected one of decoder, encoder, encoder-decoder."),
        (["--attention", "mhaa"], "--attention: no model has 'mhaa'; expected one of mha, "),
        (["--attention", "hgrn2"], "--attention: no model has 'hgrn2'; expected one of "),
        (["--min-params", "2B", "--max-params", "1B"], "--min-params: 2,000,000,000 is more than --max-params"),
        (["--max-params", "10"], "no preset passes the filters"),
        (["--max-params", "many"], "--max-params: 'many' is not a positive number"),
        (["--sort", "size"], "--sort"),
    ],
)
def test_wrong_filters(options: list[str], words: str, run: Any) -> None:
    assert words in run("presets", *options).error


@pytest.mark.parametrize("options", [["--sort", "size"], ["--attention", "foo"], ["--kind", "foo"]])
def test_wrong_names_are_refused_before_a_preset_is_read(
    options: list[str], monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(listings, "load_preset", refuse)
    assert options[0] in run("compare", "--all", *options).error


class TestCompareAll:
    def test_a_row_for_each_model_at_80_columns(self, run: Any) -> None:
        code, out, _ = run("compare", "--all", "--attention", "mla", "--sort", "params")
        rows = [line.split() for line in out.splitlines() if line.split() and line.split()[0] in model_names()]
        assert code == 0
        assert len(rows) == len(listed(run, "--attention", "mla"))
        assert max(map(len, out.splitlines())) <= 80
        totals = [float(row[1].replace(",", "")) for row in rows]
        assert totals == sorted(totals)

    def test_a_wide_terminal_has_every_quantity(self, run: Any) -> None:
        out = run("compare", "--all", "--moe", columns=120).out
        assert "kv heads" in out.splitlines()[0]
        assert max(map(len, out.splitlines())) <= 120

    def test_its_numbers_are_those_of_a_few_side_by_side(self, run: Any) -> None:
        found = run("compare", "--all", "--attention", "mla", "--format", "json").document
        one = run("compare", "deepseek-v3", "--format", "json").document
        whole = {document["model"]["name"]: document["compare"] for document in found}
        assert whole["deepseek-v3"]["parameters"] == one["compare"]["parameters"]

    @pytest.mark.parametrize("words", [("compare",), ("compare", "gpt2", "--all"), ("compare", "gpt2", "--moe")])
    def test_wrong_usage(self, words: tuple[str, ...], run: Any) -> None:
        assert run(*words).error


def test_nothing_asked_takes_everything() -> None:
    assert ModelFilter().accepts(load_preset("gpt2").model, 1)
