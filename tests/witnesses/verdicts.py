"""Results of the comparison with transformers for each file of families: the words in the README's table, and the nodes
that were not compared separately.

`tests/data/family_verdicts.json` has them; test_families.py checks every comparison against it, and `python -m
tests.witnesses.verdicts` runs all comparisons and rewrites it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from llmcalc.costs.cache import cache_bits_cost_by_name
from llmcalc.costs.flops import forward_flops_of
from llmcalc.costs.params import total_params_of
from llmcalc.model import ModelSpec
from llmcalc.optional import PARTS_WITHOUT_FLOPS
from llmcalc.sources.huggingface.registry import FILE_BY_TYPE, TYPES_BY_FILE, family_of
from llmcalc.units import bits_to_bytes
from llmcalc.witnesses.checks import Check, Verdict
from llmcalc.witnesses.transformers import verify_config
from tests.builders import WITH_CLASSES, json_lines, run_config, spec_of
from tests.families import shapes_of

RECORD = Path(__file__).parents[1] / "data" / "family_verdicts.json"
QUANTITIES = ("parameters", "forward_flops", "cache_bytes")
EXACT, FOLLOWED = "exact", "followed"
NUMBERS = re.compile(r"\.(\d+(-\d+|\.\.\d+/\d+)?|\{[^}]*\})(?=\.|$)")


def recorded() -> dict[str, dict[str, Any]]:
    """File of families → its record.

    Each quantity is `exact`, or `followed` if one of its classes deviates from its architecture. `leaves` is the number
    of parts with parameters, `alone` the number compared separately; `summed` and `missing` are the other parts, with
    `*` for numbers.
    """
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    return found


def nodes(paths: Iterable[str]) -> set[str]:
    """`layers.0-2.mlp` → `layers.*.mlp`."""
    return {NUMBERS.sub(".*", path) for path in paths}


def not_alone(verdict: Verdict) -> dict[str, set[str]]:
    """Returns the nodes that a comparison has only in sums, and those that it has only in totals."""
    assert verdict.coverage is not None
    return {"summed": nodes(verdict.coverage.compared_in_sums), "missing": nodes(verdict.coverage.compared_in_totals)}


def found(spec: ModelSpec, verdict: Verdict) -> dict[str, str]:
    """Returns the result of one comparison for each quantity of the whole model. Raises if one is wrong."""
    words: dict[str, str] = {}
    for check in verdict.checks:
        if check.node == "model" and check.quantity in QUANTITIES:
            assert check.ok, (verdict.target, check)
            exact = _architecture(spec, check) == check.measured_value and words.get(check.quantity, EXACT) == EXACT
            words[check.quantity] = EXACT if exact else FOLLOWED
    return words


def _architecture(spec: ModelSpec, check: Check) -> Any:
    """Returns the count of the architecture itself, without its class's deviations."""
    if check.quantity == "parameters":
        return spec.tree().total(total_params_of, include=PARTS_WITHOUT_FLOPS)
    run = run_config(seq=check.seq)
    if check.quantity == "forward_flops":
        return spec.tree().total(forward_flops_of, run)
    return bits_to_bytes(spec.tree().total(cache_bits_cost_by_name("bfloat16"), run))


def hold(config: dict[str, Any], spec: ModelSpec, verdict: Verdict) -> None:
    """Raises `AssertionError` if a comparison differs from the record of its family."""
    known = recorded()[FILE_BY_TYPE[config["model_type"]]]
    for quantity, word in found(spec, verdict).items():
        assert known.get(quantity) in (word, FOLLOWED), (quantity, "run python -m tests.witnesses.verdicts")
    for how, found_nodes in not_alone(verdict).items():
        assert found_nodes <= {*known.get(how, ())}, (how, "run python -m tests.witnesses.verdicts")


def configs(file: str) -> Iterator[dict[str, Any]]:
    """Yields the small configs of a file of families, and one of each wrapper with vision or audio."""
    from tests.components.towers.test_towers import NEED_INPUTS, wrapped
    from tests.components.towers.tower_shapes import WRAPPERS

    for kind in TYPES_BY_FILE[file]:
        if family_of(kind).read_model is not None:
            yield from shapes_of(kind)
        if kind in WRAPPERS and kind not in NEED_INPUTS:
            yield wrapped(kind, WRAPPERS[kind][2][0])


def of_file(file: str) -> dict[str, Any]:
    """Returns the record for all configs of a file of families."""
    words: dict[str, str] = {}
    others: dict[str, set[str]] = {"summed": set(), "missing": set()}
    alone = 0
    for config in configs(file):
        spec = spec_of(config)
        verdict = verify_config(spec, config)
        for quantity, word in found(spec, verdict).items():
            words[quantity] = word if words.get(quantity, EXACT) == EXACT else FOLLOWED
        for how, some in not_alone(verdict).items():
            others[how] |= some
        alone += len(verdict.coverage.compared_alone) if verdict.coverage is not None else 0
    return {
        **{quantity: words[quantity] for quantity in QUANTITIES if quantity in words},
        "leaves": leaves(file),
        "alone": alone,
        **{how: sorted(some) for how, some in others.items() if some},
    }


@cache
def leaves(file: str) -> int:
    """Returns the number of parts with parameters in the configs of a file of families."""
    places = (place for config in configs(file) for place in spec_of(config).tree().walk())
    return sum(
        bool(place.cost_of_operation(total_params_of)) and place.optional_part in {"", *PARTS_WITHOUT_FLOPS}
        for place in places
    )


def coverage(file: str) -> tuple[int, int]:
    """Returns (leaves compared separately, all leaves) for the configs of a file of families, as recorded."""
    known = recorded().get(file, {"alone": 0, "leaves": 0})
    assert known["leaves"] == leaves(file), (file, "run python -m tests.witnesses.verdicts")
    return known["alone"], known["leaves"]


if __name__ == "__main__":
    files = sys.argv[1:] or sorted(WITH_CLASSES)
    old = recorded() if RECORD.exists() else {}
    words = {**old, **{file: of_file(file) for file in files}}
    RECORD.write_text(json_lines({file: words[file] for file in sorted(words) if file in TYPES_BY_FILE}) + "\n")
