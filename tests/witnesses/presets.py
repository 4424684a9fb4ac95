"""Measurements of each model preset, by the transformers class that computes it, else by the PyTorch reference.

`tests/data/presets.json` has the results, with a digest of the measured description; `test_presets.py` compares every
preset with it. `python -m tests.witnesses.presets` measures presets with changed descriptions, or the named ones, and
rewrites the file.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from llmcalc.costs.cache import cache_bits_cost_by_name
from llmcalc.costs.flops import forward_flops_of
from llmcalc.costs.params import total_params_of
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.optional import ALL_PART_NAMES, PARTS_WITHOUT_FLOPS
from llmcalc.sources.preset import Preset
from llmcalc.sources.presets import load_preset, model_names
from llmcalc.sources.to_toml import model_description
from llmcalc.units import bits_to_bytes
from llmcalc.witnesses.checks import Verdict
from llmcalc.witnesses.reference import LEAST_SEQ, verify_reference
from llmcalc.witnesses.transformers import verify_with_transformers
from tests.builders import json_lines, run_config
from tests.witnesses.verdicts import FOLLOWED, QUANTITIES, found

REFERENCE = "reference"
RECORD = Path(__file__).parents[1] / "data" / "presets.json"


def recorded() -> dict[str, dict[str, Any]]:
    """Preset → its record.

    digest: digest of its description.
    witness: the measured class, or `reference`.
    text: whether only the text model was measured, without its vision and audio encoders.
    seq: tokens of the pass.
    Each quantity has its measured value, or `followed` if the class deviates from its architecture in it.
    """
    known: dict[str, dict[str, Any]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return known


def digest(spec: ModelSpec) -> str:
    """Returns a short hash of a description, whose fields with default values change nothing that was measured."""
    fields = {name: value for name, value in model_description(spec).items() if name != "dropout"}
    return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def closed_form(quantity: str, preset: Preset, record: dict[str, Any]) -> int:
    """Returns the count of a measured quantity for the whole model and one sequence; parameters include everything that
    was built.
    """
    spec, run = (without_towers(preset) if record["text"] else preset).model, run_config(seq=record["seq"])
    whole = record["witness"] == REFERENCE  # it builds and runs prediction modules too
    if quantity == "parameters":
        return int(spec.tree().total(total_params_of, include=ALL_PART_NAMES if whole else PARTS_WITHOUT_FLOPS))
    if quantity == "forward_flops":
        return int(spec.tree().total(forward_flops_of, run, ALL_PART_NAMES if whole else frozenset()))
    return bits_to_bytes(spec.tree().total(cache_bits_cost_by_name("bfloat16"), run))


def without_towers(preset: Preset) -> Preset:
    """Returns the text model alone, which may have a class when the whole model has none."""
    return preset.model_copy(update={"model": preset.model.model_copy(update={"towers": {}})})


def measure(name: str) -> dict[str, Any]:
    """Returns the record of a preset. Raises `AssertionError` if a witness disagrees."""
    preset = load_preset(name)
    kept: dict[str, Any] = {"digest": digest(preset.model), "seq": LEAST_SEQ}
    for one in (preset, without_towers(preset)):
        kept["text"] = one.model.towers != preset.model.towers
        try:
            verdict = verify_with_transformers(one, seq=LEAST_SEQ)
        except (InputError, RuntimeError, MemoryError):
            continue
        assert verdict.ok, (name, verdict.failures[:3])
        return kept | {"witness": verdict.info["class"]} | _numbers(verdict, found(one.model, verdict))
    verdict = verify_reference(preset.model, name, seq=LEAST_SEQ)
    assert verdict.ok, (name, verdict.failures[:3])
    numbers = _numbers(verdict, {})
    numbers.pop("cache_bytes", None)  # of the cache after decoding, which has one token more; an encoder has none
    return kept | {"text": False, "witness": REFERENCE} | numbers


def _numbers(verdict: Verdict, words: dict[str, str]) -> dict[str, Any]:
    """Returns the measured totals of the whole model; `followed` where the class deviates from its architecture."""
    checks = [c for c in verdict.checks if c.node == "model" and c.quantity in QUANTITIES]
    return {c.quantity: FOLLOWED if words.get(c.quantity) == FOLLOWED else c.measured_value for c in checks}


def main(names: list[str]) -> None:
    """Measures the named presets, else the changed ones, and writes the file after each."""
    known = {name: one for name, one in recorded().items() if name in model_names()}
    RECORD.write_text(json_lines(known) + "\n")
    wanted = names or [n for n in model_names() if known.get(n, {}).get("digest") != digest(load_preset(n).model)]
    for name in wanted:
        known[name] = measure(name)
        print(name, known[name]["witness"], flush=True)
        RECORD.write_text(json_lines(dict(sorted(known.items()))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
