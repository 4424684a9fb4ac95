"""Training steps, once without values and once as torch runs the reference: the bytes of every phase.

The loop is a plain one:

    for ids in micro_batches:
        loss = F.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none)

With master weights the optimizer has copies in float32, and the step is

    for copy, weight in zip(copies, weights):
        copy.grad = weight.grad.float()
    optimizer.step()
    for copy, weight in zip(copies, weights):
        copy.grad = None
        weight.copy_(copy)

in which all copies of gradients are there at once, beside the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch._dynamo  # a first step imports it, and would count what it allocates
from torch import nn

from llmcalc.device.optimizers import Implementation, implementations
from llmcalc.device.training import Training, TrainingRun
from llmcalc.model import ModelSpec
from llmcalc.optional import MTP
from llmcalc.verify import variants
from tests.kernels import models
from tests.kernels.witness import Alive


class Step(NamedTuple):
    """Bytes of a step, weights included: the most in each phase, and after it."""

    forward: int
    backward: int
    step: int
    after: int


class Steps(NamedTuple):
    """Bytes after set-up, of the first step and of the second."""

    set_up: int
    first: Step
    second: Step


def replayed(spec: ModelSpec, how: Training) -> Steps:
    """Two steps without values."""
    run = TrainingRun(spec, how)
    run.graph.adds_in_place = False  # under a dispatch mode, which the witness is, torch never does
    run.set_up()
    set_up, steps = run.meter.now, []
    for _ in range(2):
        run.meter.peaks = {}
        run.step()
        most = {
            phase: max((peak.bytes for place, peak in run.meter.peaks.items() if place.phase == phase), default=0)
            for phase in ("forward", "backward", "step")
        }
        steps.append(Step(**most, after=run.meter.now))
    return Steps(set_up, *steps)


class WithoutCounts(Alive):
    """Follows no step counts, which are on the host when the model is on a GPU; fused kernels have them on the GPU."""

    def _follow(self, tensor: torch.Tensor, func: Any) -> None:
        if func is not torch.ops.aten.lift_fresh.default or tensor.dim():
            super()._follow(tensor, func)


def device_of(how: Training) -> str:
    """Where torch runs these steps: fused optimizers and autocast on the CPU, some kernels on meta alone."""
    return models.device_of(how.choices)


def by_torch(spec: ModelSpec, how: Training, device: str = "") -> Steps:
    """Two steps of the reference."""
    device = device or device_of(how)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, how.dtype))
    mode = Alive(device=device) if how.implementation == "fused" else WithoutCounts(device=device)
    try:
        with torch.device(device), mode:
            module: Any = spec.reference()
            if MTP.name not in how.include and hasattr(module, "mtp"):
                del module.mtp
            variants.change(module, how.choices, how.recompute, how.adapters, device)
    finally:
        torch.set_default_dtype(before)
    with torch.device(device), mode:
        run = Run(spec, how, module)
        return Steps(mode.now, run.step(mode), run.step(mode))


class Run:
    """The loop above. The names of a batch get the next one when it is made."""

    def __init__(self, spec: ModelSpec, how: Training, module: Any) -> None:
        self.spec, self.how, self.module = spec, how, module
        self.weights = _ordered(spec, how, module)
        self.updated = [w.detach().float() for w in self.weights] if how.master else self.weights
        matrices = matrices_of(spec, how, module)
        self.optimizers = list(
            optimizers(
                how.optimizer,
                [(one, weight in matrices) for one, weight in zip(self.updated, map(id, self.weights), strict=True)],
                how.implementation or implementations(how.optimizer)[0],
                how.momentum,
            )
        )

    def step(self, mode: Alive) -> Step:
        how, found = self.how, {"forward": 0, "backward": 0}
        for _ in range(how.microbatches):
            mode.peak = mode.now
            self.ids, self.source = models.inputs(self.spec, how.batch, how.seq)
            with variants.running(how.choices):
                with torch.autocast("cpu", torch.bfloat16, enabled=how.autocast):
                    loss = models.result(
                        self.spec, self.module, self.ids, self.source, how.choices, how.include, how.autocast
                    )
                found["forward"], mode.peak = max(found["forward"], mode.peak), mode.now
                loss.backward(torch.empty_like(loss))
            del loss
            found["backward"] = max(found["backward"], mode.peak)
        mode.peak = mode.now
        self.update()
        return Step(**found, step=mode.peak, after=mode.now)

    def update(self) -> None:
        if self.how.master:
            for copy, weight in zip(self.updated, self.weights, strict=True):
                copy.grad = None if weight.grad is None else weight.grad.float()
        for optimizer in self.optimizers:
            optimizer.step()
        if self.how.master:
            with torch.no_grad():
                for copy, weight in zip(self.updated, self.weights, strict=True):
                    copy.grad = None
                    weight.copy_(copy)
        self.module.zero_grad(set_to_none=not self.how.keeps_gradients)


def optimizers(
    name: str, parameters: list[tuple[torch.Tensor, bool]], implementation: Implementation, momentum: bool
) -> Iterator[torch.optim.Optimizer]:
    """torch's optimizers of that name. parameters: with each, whether Muon updates it; AdamW has the others."""
    every, how = [one for one, _ in parameters], {"foreach": implementation == "foreach"}
    fused = {**how, "fused": implementation == "fused"}
    match name:
        case "adamw":
            yield torch.optim.AdamW(every, **fused)
        case "sgd":
            yield torch.optim.SGD(every, momentum=0.9 if momentum else 0.0, **fused)
        case "adafactor":
            yield torch.optim.Adafactor(every, **how)
        case "muon":
            taken = [one for one, matrix in parameters if matrix]
            rest = [one for one, matrix in parameters if not matrix]
            if taken:
                yield torch.optim.Muon(taken)
            if rest:
                yield torch.optim.AdamW(rest, **fused)


def matrices_of(spec: ModelSpec, how: Training, module: nn.Module) -> set[int]:
    """The parameters of linear layers inside the model's layers."""
    return {
        id(part.weight)
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear) and ".layers." in f".{name}"
    }


def _ordered(spec: ModelSpec, how: Training, module: nn.Module) -> list[torch.Tensor]:
    """The trained parameters in the order in which a run makes them: a loop over tensors still names the one before."""
    named = {name: one for name, one in module.named_parameters() if one.requires_grad}
    run = TrainingRun(spec, how)
    run.set_up()
    keys = (".".join(str(part).strip(".") for part in key[1:] if part != "") for key, _ in run.lowering.parameters)
    found = [named.pop(name) for key in keys for name in (key, f"{key}.weight", f"{key}.bias") if name in named]
    return [*found, *named.values()]
