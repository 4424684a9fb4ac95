"""`llmcalc budget`: bounds hold or do not, and a budget that cannot be read is refused before anything is counted."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import llmcalc
from llmcalc.device_memory.settings import SETTINGS_BY_SHORTHAND, Settings
from llmcalc.studies.budget import check_budget
from llmcalc.studies.budget_file import SETTINGS_BY_KEY, BudgetLimit, read_budget
from llmcalc.workload.setting import declarations_of
from tests.samples import in_one_test

WHOLE = """
[[model]]
target = "llama3-8b"
params = "<= 8.1B"
active = 8030261248
kv_per_token = { max = "64 KiB", dtype = "fp8" }
flops_per_token = { max = "60 GFLOPs", min = "5e10", phase = "training", seq = 8192 }
memory = { max = "24 GiB", batch = 1, seq = 8192, quantize = "q4_k_m" }
fits = ["h100-sxm", "t4"]

[[model]]
target = "deepseek-v3"
params = "== 671_026_404_352"
fits = { on = "h200", seq = 4096 }
"""


@pytest.fixture
def budget(tmp_path: Path) -> Path:
    file = tmp_path / "llmcalc.toml"
    file.write_text(WHOLE)
    return file


def test_every_key_is_what_its_command_counts(budget: Path) -> None:
    checks = check_budget(read_budget(budget), budget.parent)
    measured = {(check.target, check.key, check.accelerator): check.measured_value for check in checks}
    llama = llmcalc.load("llama3-8b")
    assert measured["llama3-8b", "params", ""] == llmcalc.params(llama).total
    assert measured["llama3-8b", "active", ""] == llmcalc.params(llama).active
    assert measured["llama3-8b", "kv_per_token", ""] == llmcalc.kv(llama, dtype="fp8").bytes_per_token
    per_token = llmcalc.flops(llama, seq=8192, phase="training").per_token
    assert float(measured["llama3-8b", "flops_per_token", ""]) == per_token
    served = llmcalc.memory(llama, seq=8192, quantize="q4_k_m").device
    assert measured["llama3-8b", "memory", ""] == served.device_bytes
    assert measured["llama3-8b", "fits", "t4"] == llmcalc.memory(llama, hardware="t4").device.device_bytes
    assert {(check.target, check.accelerator) for check in checks if not check.ok} == {
        ("llama3-8b", "t4"),
        ("deepseek-v3", "h200"),
    }


def test_a_run_takes_every_setting_of_memory(tmp_path: Path) -> None:
    """The settings are the declared ones: each has its check, and the number is that of the command."""
    file = tmp_path / "b.toml"
    settings = {"phase": "training", "seq": "1k", "lora_rank": 8, "recompute": "full", "gradient_checkpointing": True}
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
    file.write_text(f'[[model]]\ntarget = "gpt2"\nmemory = {{ max = "80 GiB", {table} }}\n')
    (check,) = check_budget(read_budget(file), tmp_path)
    options: Any = settings
    assert check.measured_value == llmcalc.memory("gpt2", **options).device.device_bytes
    assert check.settings == settings
    assert set(SETTINGS_BY_KEY["memory"]) == {*declarations_of(Settings), *SETTINGS_BY_SHORTHAND}


def test_a_broken_bound_is_exit_1_and_a_failure(budget: Path, tmp_path: Path, run: Any) -> None:
    xml = tmp_path / "found.xml"
    code, out, _ = run("budget", str(budget), "--junit", str(xml), "--format", "json")
    found = json.loads(out)
    assert code == 1
    assert not found["ok"]
    assert [check["on"] for check in found["checks"] if not check["ok"]] == ["t4", "h200"]
    assert found["checks"][0]["bounds"] == [{"operator": "<=", "value": 8_100_000_000}]
    failures = [(suite.get("name"), suite.get("failures")) for suite in ET.parse(xml).getroot()]
    assert failures == [("llama3-8b", "1"), ("deepseek-v3", "1")]
    budget.write_text('[[model]]\ntarget = "llama3-8b"\nparams = "<= 8.1B"\n')
    code, out, _ = run("budget", str(budget))
    assert code == 0
    assert "the bound holds" in out


def test_a_bound_missed_by_one_has_all_digits(tmp_path: Path, run: Any) -> None:
    file = tmp_path / "b.toml"
    file.write_text('[[model]]\ntarget = "llama3-8b"\nparams = 8_030_261_247\nfits = { on = ["h100"], seq = 10_000 }\n')
    code, out, _ = run("budget", str(file), "--junit", str(tmp_path / "j.xml"))
    assert code == 1
    assert "8,030,261,248" in out
    assert "<= 8,030,261,247" in out
    assert "10,000 tokens are more than the model's max_position_embeddings of 8,192" in out.replace("\n    ", " ")
    assert "params: 8,030,261,248 parameters; expected &lt;= 8,030,261,247" in (tmp_path / "j.xml").read_text()
    _, out, _ = run("budget", str(file), "--format", "csv")
    assert "llama3-8b,params,8030261248,<= 8030261247,1.0000000001" in out


def test_a_path_starts_at_the_budgets_folder(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    (tmp_path / "models").mkdir()
    assert run("convert", "qwen3-0.6b", "--to", "hf", "-o", str(tmp_path / "models" / "config.json")).code == 0
    file = tmp_path / "llmcalc.toml"
    file.write_text('[[model]]\ntarget = "models/config.json"\nparams = "<= 0.7B"\n')
    assert run("budget", str(file)).code == 0


@in_one_test
@pytest.mark.parametrize(
    ("operator", "holds"), [("<=", (1, 1, 0)), (">=", (0, 1, 1)), ("==", (0, 1, 0)), ("<", (1, 0, 0)), (">", (0, 0, 1))]
)
def test_operators(operator: Any, holds: tuple[int, int, int]) -> None:
    limit = BudgetLimit(operator=operator, value=Fraction(5))
    assert tuple(int(limit.is_met_by(Fraction(value))) for value in (4, 5, 6)) == holds


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ('params = "8.1B"', 8_100_000_000),
        ('params = "350 M"', 350_000_000),
        ('kv_per_token = "0.5 KiB"', 512),
        ('kv_per_token = "128 kB"', 128_000),
        ('kv_per_token = "64 B"', 64),
        ('flops_per_token = "1.93 TFLOPs"', 1_930_000_000_000),
        ('flops_per_token = "20G"', 20_000_000_000),
        ("memory = 1024", 1024),
    ],
)
def test_units(text: str, exact: int, tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text(f'[[model]]\ntarget = "gpt2"\n{text}\n')
    (bound,) = read_budget(file).model[0].bounds.values()
    assert bound.limits[0].value == exact  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('params = "<= 8.1X"', "params: 'X' is no unit of it; expected a number such as 8.1B or 350M"),
        ('params = "8 KiB"', "params: 'KiB' is no unit of it"),
        ('parms = "8B"', "memory, fits. Did you mean params"),
        ('params = { max = "8B", seq = 5 }', "params.seq: unknown field; expected one of max, min"),
        ('seq = 5\nparams = "8B"', "seq: is a setting of a bound; expected it in one"),
        ('params = "8,1B"', "params: '8,1B' is no bound"),
        ('params = { max = "8B", min = "9B" }', "params: max is below min"),
        ("params = true", "params: True is no bound"),
        ("params = 8.5", "params: 8.5 is no bound"),
        ('memory = { phase = "training" }', "memory: no bound; expected max or min"),
        ('memory = { max = "8 GiB", phase = "trainin" }', "'trainin' is not known; expected one of training"),
        ('memory = { max = "8 GiB", dtype = "bf17" }', "unknown dtype 'bf17'"),
        ('memory = { max = "8 GiB", quantize = "q9" }', "--quantize q9: unknown scheme"),
        ('kv_per_token = { max = "<= 8 KiB" }', "expected a number without <="),
        ('memory = { max = "8 GiB", batch = 2, users = 2 }', "--users: it is another name of --batch"),
        ('memory = { max = "8 GiB", phase = "decode", recompute = "full" }', "--recompute: it is not for the phase"),
        ('fits = { on = ["h100"], lora_rank = "x" }', "lora_rank: 'x' is not"),
        ('flops_per_token = { max = "1 TFLOPs", seq = 0 }', "seq: 0 is too small"),
        ("fits = []", "fits: no accelerator"),
        ('fits = ["h1000"]', "no accelerator called 'h1000'"),
        ('fits = { on = ["h100"], steps = 3 }', "fits.steps: unknown field"),
    ],
)
def test_a_wrong_bound_is_refused(text: str, message: str, tmp_path: Path, run: Any) -> None:
    file = tmp_path / "b.toml"
    file.write_text(f'[[model]]\ntarget = "gpt2"\n{text}\n')
    assert message in run("budget", str(file)).error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no model; expected tables [[model]]"),
        ('[[model]]\nparams = "8B"\n', "model.0.target: required field is missing"),
        ('[[model]]\ntarget = "gpt2x"\nparams = 1\n', "no preset, file or hub id called 'gpt2x'"),
        ("[[model]\n", "not valid TOML"),
        ('[[model]]\ntarget = "gpt2"\nparams = 1\n[other]\n', "other: unknown field"),
        ('[[model]]\ntarget = "gpt2"\n', "bounds: none; expected one or more of params"),
        ('[model]\ntarget = "gpt2"\n', "expected a list of them, each under [[model]]"),
    ],
)
def test_a_wrong_budget_is_refused(text: str, message: str, tmp_path: Path, run: Any) -> None:
    file = tmp_path / "b.toml"
    file.write_text(text)
    assert message in run("budget", str(file)).error


def test_nothing_is_counted_before_all_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    file = tmp_path / "b.toml"
    file.write_text('[[model]]\ntarget = "gpt2"\nparams = "1"\n[[model]]\ntarget = "no-such-model"\nparams = "1"\n')

    def counted(*_: Any) -> None:
        raise AssertionError("counted before the second target was found")

    monkeypatch.setattr("llmcalc.studies.budget._measured_quantity", counted)
    assert run("budget", str(file)).code == 2
