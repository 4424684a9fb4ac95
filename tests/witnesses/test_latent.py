"""The two forms of latent attention after a context, at several contexts and numbers of new tokens.

The expanded form is compared with transformers' classes, both forms with the reference, node by node.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from llmcalc.components.mixers.mla import MLA
from llmcalc.costs.flops import backward_flops_of, forward_flops_of
from llmcalc.model import ModelSpec
from llmcalc.witnesses.checks import Check, compare_nodes
from llmcalc.witnesses.module_measurements import count_flops, module_names
from llmcalc.witnesses.reference import build_on_device as reference
from llmcalc.witnesses.transformers import build_class_model, cache_argument
from llmcalc.workload.execution import LatentForm
from llmcalc.workload.workload import Phase
from tests.builders import run_config, spec_of
from tests.contracts.test_parts import around_a_model
from tests.families import shapes_of

AFTER = [(1, 1), (1, 6), (7, 1), (7, 6), (40, 5)]
"""(tokens in the cache, new tokens)."""
FORMS: tuple[LatentForm, ...] = ("expanded", "absorbed")
EXAMPLES = [pytest.param(around_a_model(example), id=f"MLA-{i}") for i, example in enumerate(MLA.examples())]


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "deepseek_v32", "minicpm3", "longcat_flash"])
def test_expanded_on_top_of_a_context_costs_what_the_class_does(family: str) -> None:
    """The expanded form recomputes keys and values from cached latents: kv_b_proj runs over cached and new tokens."""
    config = shapes_of(family)[0]
    spec, model = spec_of(config), build_class_model(config)
    device = next(model.parameters()).device
    for past, new in AFTER:
        ids = torch.randint(3, spec.vocab_size - 1, (2, past + new)).to(device)
        argument = cache_argument(model)
        kept = model(input_ids=ids[:, :past], use_cache=True)[argument]
        more = {argument: kept, "use_cache": True, "logits_to_keep": 1}
        measured, _ = count_flops(model, partial(model, input_ids=ids[:, past:], **more))
        for form in ("auto", "expanded"):
            run = run_config(batch=2, seq=new, context=past, phase="prefill", mla=form)
            assert spec.tree().total(forward_flops_of, run) == measured[""], (past, new)
        absorbed = run_config(batch=2, seq=new, context=past, phase="prefill", mla="absorbed")
        assert spec.tree().total(forward_flops_of, absorbed) != measured[""]


def checks(spec: ModelSpec, form: LatentForm, past: int, new: int, phase: Phase) -> Iterator[Check]:
    """Compares the FLOPs of every node with the reference, for some tokens after others."""
    module: Any = reference(spec, "meta")
    store: dict[Any, Any] = {}
    before, ids = (torch.empty(2, n, dtype=torch.long, device="meta") for n in (past, new))
    module(before, cached_tensors=store)
    last = phase == "prefill"
    measured, _ = count_flops(module, lambda: [module(ids, cached_tensors=store, past=past, last_only=last, mla=form)])
    run = run_config(batch=2, seq=new, context=past, phase=phase, mla=form)
    names = module_names(module)
    return compare_nodes(
        spec.tree(), "flops", lambda p: p.cost_per_repeat(forward_flops_of), measured, names, "reference", run
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spec", EXAMPLES)
def test_both_forms_cost_what_the_reference_runs(spec: ModelSpec, form: LatentForm) -> None:
    for past, new in AFTER:
        if new > 1:
            found = list(checks(spec, form, past, new, "prefill"))
            assert len(found) > 10
            assert all(check.ok for check in found), (past, new)
        else:
            assert all(check.ok for check in checks(spec, form, past, 1, "decode")), past


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spec", EXAMPLES)
def test_both_forms_train_as_the_reference_does(spec: ModelSpec, form: LatentForm) -> None:
    module: Any = reference(spec, "meta")
    ids = torch.empty(2, 9, dtype=torch.long, device="meta")
    forward, train = count_flops(module, lambda: [module(ids, mla=form)], includes_backward=True)
    run = run_config(batch=2, seq=9, mla=form)
    assert spec.tree().total(forward_flops_of, run) == forward[""]
    assert spec.tree().total(backward_flops_of, run) == train[""] - forward[""]


@pytest.mark.parametrize("spec", EXAMPLES)
def test_both_forms_compute_the_same(spec: ModelSpec) -> None:
    """Token by token and several at once, after the cache that either form has left."""
    torch.manual_seed(0)
    net = spec.reference().eval()
    ids = torch.randint(0, spec.vocab_size, (2, 13))
    with torch.no_grad():
        whole = net(ids)
        for forms in (("expanded", "absorbed", "expanded"), ("absorbed", "expanded", "absorbed")):
            store: dict[Any, Any] = {}
            pieces = [
                net(ids[:, a:b], cached_tensors=store, past=a, mla=form)
                for form, a, b in zip(forms, (0, 4, 12), (4, 12, 13), strict=True)
            ]
            torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=2e-5, rtol=1e-4)
