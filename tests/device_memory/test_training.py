"""A training step, replayed, holds what torch holds on meta: weights, gradients, states and every phase's peak."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F

from llmcalc.components.layers.block import Block
from llmcalc.device_memory.training import TrainingConfig, TrainingRun
from llmcalc.model import ModelSpec
from llmcalc.witnesses.module_measurements import default_dtype
from tests.contracts.test_parts import around_a_model
from tests.simulator.witness import Alive


class Step(NamedTuple):
    """Bytes during and after the second step."""

    forward: int
    backward: int
    step: int
    after: int


def replayed(spec: ModelSpec, training: TrainingConfig) -> Step:
    run = TrainingRun(spec, training)
    run.graph.adds_in_place = False
    run.set_up()
    run.step()
    run.meter.peaks = {}
    run.step()
    most = {
        phase: max((peak.bytes for place, peak in run.meter.peaks.items() if place.phase == phase), default=0)
        for phase in ("forward", "backward", "step")
    }
    return Step(**most, after=run.meter.live_bytes)


def names(spec: ModelSpec, training: TrainingConfig) -> list[str]:
    """The names of the parameters in the order in which a run makes them."""
    run = TrainingRun(spec, training)
    run.set_up()
    return [".".join(str(part) for part in key[1:]).replace("..", ".") for key, _ in run.lowering.parameters]


def by_torch(spec: ModelSpec, training: TrainingConfig) -> Step:
    mode = Alive()
    with default_dtype(getattr(torch, training.dtype)), torch.device("meta"), mode:
        module: Any = spec.reference()
    named = dict(module.named_parameters())
    ordered = [named[name] for name in names(spec, training)]  # a loop over tensors still names the one before
    assert len(ordered) == len(named)
    optimizer = torch.optim.AdamW(ordered, foreach=training.implementation != "loop")
    found: dict[str, int] = {}
    with mode:
        for _ in range(2):
            mode.peak = mode.now
            for _ in range(training.microbatches):
                ids = torch.zeros(training.batch, training.seq, dtype=torch.int64, device="meta")
                logits = module(ids)
                loss = F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())
                del logits
                found["forward"], mode.peak = mode.peak, mode.now
                loss.backward()
                del loss
                found["backward"], mode.peak = mode.peak, mode.now
            optimizer.step()
            found["step"] = mode.peak
            optimizer.zero_grad()
    return Step(**found, after=mode.now)


@pytest.mark.parametrize(
    "training", [TrainingConfig(batch=2, seq=7), TrainingConfig(batch=1, seq=9, implementation="loop")]
)
@pytest.mark.parametrize("number", [0, 1, 2, 12])
def test_a_step_holds_what_torch_holds(number: int, training: TrainingConfig) -> None:
    spec = around_a_model(Block.examples()[number])
    assert replayed(spec, training) == by_torch(spec, training)
