"""Activation checkpointing holds what torch's holds, to the byte, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from llmcalc.components.layers.block import Block
from llmcalc.kernels.lowering import Recompute
from llmcalc.model import ModelSpec
from tests.contracts.test_parts import around_a_model
from tests.kernels.models import by_torch, without_values

PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}


def chosen(kept: set[Any]) -> Callable[[], Any]:
    def policy(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return partial(create_selective_checkpoint_contexts, policy)


class Layers:
    """Checkpoints every `every`-th layer."""

    def __init__(self, every: int = 1, **how: Any) -> None:
        self.every, self.how = every, {"preserve_rng_state": False, "use_reentrant": False, **how}

    def __call__(self, module: Any) -> None:
        for i, layer in enumerate(module.layers):
            if i % self.every == 0:
                layer.forward = partial(checkpoint, layer.forward, **self.how)


def cores(module: Any) -> None:
    for name, part in module.named_modules():
        if name.endswith("core"):
            part.forward = partial(checkpoint, part.forward, use_reentrant=False, preserve_rng_state=False)


MODES: dict[str, tuple[Recompute, Callable[[Any], None]]] = {
    "full": (Recompute(layers=True), Layers()),
    "every second": (Recompute(layers=True, every=2), Layers(every=2)),
    "reentrant": (Recompute(layers=True, reentrant=True), Layers(use_reentrant=True)),
    "core": (Recompute(core=True), cores),
    "products kept": (
        Recompute(layers=True, kept=frozenset({"mm", "addmm", "bmm"})),
        Layers(context_fn=chosen(PRODUCTS)),
    ),
}


def deep(spec: ModelSpec, layers: int) -> ModelSpec:
    stack = spec.main.model_copy(update={"num_hidden_layers": layers})
    return spec.model_copy(update={"decoder": stack})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", [0, 1, 2, 3, 12, 13])
def test_a_mode_holds_what_torch_holds(mode: str, number: int) -> None:
    what, change = MODES[mode]
    spec = deep(around_a_model(Block.examples()[number]), 3)
    ours: list[str] = []
    theirs: list[str] = []
    held = without_values(spec, log=ours, recompute=what)
    assert held == by_torch(spec, log=theirs, change=change), "\n".join([*ours, "=====", *theirs])
