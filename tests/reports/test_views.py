"""Every view that counts, for every architecture of a family: a part that a view cannot print would be a crash."""

from __future__ import annotations

import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from llmcalc.cli.main import main
from llmcalc.components.base import AttentionPosition
from llmcalc.components.rope import SCORE_POSITIONS
from llmcalc.costs import cache, flops, params
from llmcalc.device_memory.estimate import Memory, memory
from llmcalc.device_memory.settings import Settings
from llmcalc.model import ModelSpec
from llmcalc.reports import compare as compare_view
from llmcalc.reports import explain as explain_view
from llmcalc.reports import flops as flops_view
from llmcalc.reports import kv as kv_view
from llmcalc.reports import memory as memory_view
from llmcalc.reports import params as params_view
from llmcalc.reports.document import Report
from llmcalc.reports.formats import pipe, plain
from llmcalc.simulator.lowering import UnsupportedKernel
from llmcalc.sources.huggingface.registry import TYPES_BY_FILE
from llmcalc.sources.preset import Preset
from llmcalc.sources.presets import load_preset
from llmcalc.studies import compare
from llmcalc.studies.flop_rules import flop_rules_for
from llmcalc.symbolic.explain import explain
from llmcalc.symbolic.formulas import FormulaSetting
from tests.builders import kinds_of_parts, run_config, spec_of, verbs_of
from tests.families import shapes_of
from tests.samples import in_one_test, sampled

WIDTH = 80

SEQ = FormulaSetting(seq=64)


def reports(preset: Preset) -> list[Report]:
    """Returns the answers of all counting commands, each with all its tables."""
    spec = preset.model
    count, use = flops.flops(spec, flops.run_config_of(spec, seq=64)), memory(spec, Settings(seq=64))
    found = [
        params_view.report(preset, params.params(spec)),
        flops_view.report(preset, count, flop_rules_for(count)),
        *_memory(preset, use),
        compare_view.report([(preset, compare.quantities_of_model(spec))], width=WIDTH),
    ]
    return found if spec.one_pass_model_name else [*found, kv_view.report(preset, cache.kv(spec, 1, 64))]


def _memory(preset: Preset, found: Memory) -> list[Report]:
    """None for experts of a width that torch's grouped products do not take, which no published model has, and for
    operations whose memory is not modelled, which is refused.
    """
    try:
        _ = found.device
    except UnsupportedKernel as error:
        reasons = ("a grouped product requires a multiple of 16", "params, flops and kv count")
        if not any(reason in str(error) for reason in reasons):
            raise
        return []
    return [memory_view.report(preset, found, [])]


def architectures() -> dict[str, ModelSpec]:
    """The first shape of every class of every family."""
    return {
        f"{file}-{cls}": spec_of({"architectures": [cls], **shapes[0]})
        for file in sorted(TYPES_BY_FILE)
        for cls, shapes in import_module(f"tests.families.{file}").SHAPES.items()
    }


@pytest.mark.parametrize("spec", sampled(architectures(), lambda spec: {spec.kind, *kinds_of_parts(spec)}))
def test_every_architecture_can_be_shown(spec: ModelSpec) -> None:
    for report in reports(Preset(name="model", model=spec)):
        out = io.StringIO()
        pipe.render(report, out, WIDTH)
        assert all(len(line) <= WIDTH for line in out.getvalue().splitlines()), out.getvalue()
        plain.write_json(report, io.StringIO())
        plain.write_csv(report, out)
        assert "None" not in out.getvalue()


@in_one_test
@pytest.mark.parametrize("spec", lambda: sampled(architectures(), verbs_of))
def test_every_architecture_can_be_explained(spec: ModelSpec) -> None:
    """test_trees_add_up.py compares the formulas of more models with their counts."""
    out, report = (
        io.StringIO(),
        explain_view.report(Preset(name="model", model=spec), explain(spec, formula_setting=SEQ)),
    )
    pipe.render(report, out, WIDTH)
    assert isinstance(report.data, dict)
    formulas = {row["quantity"]: row["value"] for row in report.data["formulas"] if row["node"] == "model"}
    assert formulas["params"] == params.params(spec).total
    workload = run_config(batch=1, seq=SEQ.seq, source=SEQ.seq)
    assert formulas["flops"] * SEQ.seq == pytest.approx(flops.flops(spec, workload).total)
    assert ("kv" in formulas) == (not spec.one_pass_model_name and cache.kv(spec).bytes_per_token > 0)
    shown = " ".join(out.getvalue().split())
    assert f"= {formulas['params']:,}" in shown


def test_a_row_of_csv_says_what_it_is_a_part_of() -> None:
    out = io.StringIO()
    preset = load_preset("deepseek-v3")
    plain.write_csv(params_view.report(preset, params.params(preset.model)), out)
    names = [line.split(",")[1] for line in out.getvalue().splitlines()]
    assert "layers (moe) / mlp / experts / up_proj" in names
    assert "norm" in names
    assert len(names) == len(set(names))


@pytest.mark.parametrize("command", ["flops", "kv", "memory", "compare"])
def test_warnings_are_not_lost_in_csv(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["llmcalc", command, "gpt2", "--seq", "2048", "--format", "csv"])
    with pytest.raises(SystemExit):
        main()
    out, err = capsys.readouterr()
    assert "note:" not in out
    assert err.startswith("note: ")
    assert "learned positions" in err


def test_a_name_for_every_position() -> None:
    labels = [cls.label for cls in SCORE_POSITIONS.load_component_classes() if issubclass(cls, AttentionPosition)]
    assert all(labels)
    assert len({*labels}) == len(SCORE_POSITIONS.class_paths)


@pytest.mark.parametrize(
    ("name", "dense"),
    [("llama3-8b", True), ("gpt2", True), ("mixtral-8x7b", False), ("deepseek-v3", False), ("bert-base", False)],
)
def test_the_rule_of_thumb_stands_beside_dense_decoders_alone(name: str, dense: bool, run: Any) -> None:
    assert ("rule of thumb 12Lh²" in run("params", name, "--notes").out) is dense


@pytest.mark.parametrize("kind", ["mamba", "rwkv", "jamba", "recurrent_gemma", "qwen3_next"])
def test_no_rule_of_thumb_of_a_model_that_it_was_not_made_for(kind: str, run: Any, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(shapes_of(kind)[0]))
    assert "rule of thumb" not in run("params", str(file)).out
