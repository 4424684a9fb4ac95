"""Published configs against totals, FLOPs and cache measured on the classes of transformers 5.23 (`tests/data/cases`,
see its README).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmcalc.costs.flops import forward_flops_of
from llmcalc.sources.huggingface.description import text_model_of
from llmcalc.sources.huggingface.registry import model_types
from llmcalc.sources.target import load
from llmcalc.witnesses.deviations import total_cost_in_class
from tests.builders import CASES, run_config
from tests.samples import in_one_test


def read_json(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def is_known(case: Path) -> bool:
    config = read_json(case / "config.json")
    return config["model_type"] in model_types()


REAL_CONFIGS = [pytest.param(case, id=case.name) for case in CASES if is_known(case)]


@in_one_test
@pytest.mark.parametrize("case", REAL_CONFIGS)
def test_real_configs_are_exact(case: Path) -> None:
    truth = read_json(case / "truth.json")
    spec = load(str(case)).model
    kind = text_model_of(read_json(case / "config.json"))[2]
    assert spec.tree().total(lambda use: use.params()) == truth["n_params_total"]
    for seq, flops in truth["forward_flops_eager_batch1"].items():
        assert total_cost_in_class(kind, "forward_flops", forward_flops_of, spec, run_config(seq=int(seq))) == flops
    for seq, cache in truth.get("cache_after_forward_batch1_bf16", {}).items():
        assert (
            total_cost_in_class(kind, "cache_bytes", lambda use: use.cache_bits(16), spec, run_config(seq=int(seq)))
            == 8 * cache["bytes"]
        )
