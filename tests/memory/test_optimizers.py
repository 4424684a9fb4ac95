"""Optimizers without values against torch's own: the same bytes at the peak of a step, and kept after it.

torch's optimizers run on meta, where they take the same Python code and the same operations as on a GPU. Two do not
run there as they are:
- Adafactor reads norms on the host; `Answering` answers each with 1. The bytes do not depend on it.
- Fused steps run on the CPU (torch has them for devices with a kernel alone). There the step counts of fused AdamW are
  on the device, as on a GPU.
adamw-8bit is not compared with a run: bitsandbytes is no dependency of the tests. Its numbers are checked by hand.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo  # a first step imports it, and would count what it allocates
from torch import nn

import llmcalc
from llmcalc.costs.optimizers import ADAMW_KINDS, STEP_BYTES, Held, bytes_of, held_tensors, optimizer_state
from llmcalc.errors import InputError
from llmcalc.kernels.autograd import Graph
from llmcalc.kernels.meter import Meter
from llmcalc.kernels.tensor import DTYPES, Tensor, empty
from llmcalc.memory.optimizers import ALIASES, IMPLEMENTATIONS, Implementation, Trained, implementations, step
from tests.kernels.witness import Alive


class Parameter(NamedTuple):
    """A parameter of a test. matrix: whether it is a weight matrix inside the layers, which Muon updates."""

    shape: tuple[int, ...]
    dtype: str
    matrix: bool


class Step(NamedTuple):
    """The most bytes during a step above those before it, and the bytes of states and others after it."""

    peak: int
    kept: int


class Answering(Alive):
    """Follows storages, and answers 1 where the host reads a number of a tensor without values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 1.0
        return super().__torch_dispatch__(func, types, args, kwargs)


# Lists of parameters


def drawn(seed: int) -> dict[str, list[tuple[int, ...]]]:
    """Lists of shapes: every kind alone, and all kinds in a random order."""
    pick = random.Random(seed)

    def size(most: int) -> int:
        return pick.randint(1, most)

    vectors = [(size(6000),) for _ in range(6)]
    matrices = [(size(300), size(300)) for _ in range(6)]
    stacks = [(size(9), size(80), size(80)) for _ in range(3)]
    odd: list[tuple[int, ...]] = [(), (1,), (1, 1), (1, size(500)), (size(500), 1), (size(40), 1, 4), (9, size(9), 3, 3)]
    every = [*vectors, *matrices, *stacks, *odd]
    pick.shuffle(every)
    large = (size(900) + 900, size(900) + 900)
    return {
        "vectors": vectors,
        "matrices": matrices,
        "stacks": stacks,
        "odd": odd,
        "one large": [large],
        "one large among small": [*vectors, large, *matrices],
        "every": every,
    }


FLOATS = ("float32", "bfloat16", "float16")
DRAWN = {dtype: drawn(seed) for seed, dtype in enumerate(("float32", "bfloat16", "mixed"))}
LISTS = [(dtype, name) for dtype, lists in DRAWN.items() for name in lists]
CASES: list[tuple[str, Implementation, bool]] = [
    (name, implementation, momentum)
    for name in IMPLEMENTATIONS
    if name != "adamw-8bit"
    for implementation in implementations(name)
    for momentum in ((False, True) if name == "sgd" else (False,))
]


def parameters(dtype: str, shapes: str) -> list[Parameter]:
    """dtype: one for all, or `mixed`: one of three for each. Of the matrices, every fifth is an embedding."""
    pick = random.Random(shapes)
    return [
        Parameter(shape, pick.choice(FLOATS) if dtype == "mixed" else dtype, len(shape) > 1 and i % 5 != 4)
        for i, shape in enumerate(DRAWN[dtype][shapes])
    ]


# Both sides


def without_values(
    name: str, of: Iterable[Parameter], implementation: Implementation | None = None, momentum: bool = False
) -> list[Step]:
    meter = Meter()
    graph = Graph(meter)
    trained = all_trained(meter, of)
    before, found = meter.now, []
    for _ in range(2):
        now = meter.now
        meter.restart()
        step(graph, name, trained, implementation, momentum)
        found.append(Step(meter.peak - now, meter.now - before))
    assert meter.kind == "temporary"
    assert meter.by_kind["optimizer"] == meter.now - before == sum(s.bytes for one in trained for s in one.states)
    return found


def all_trained(meter: Meter, of: Iterable[Parameter]) -> list[Trained]:
    trained = []
    for one in of:
        tensor = empty(meter, one.shape, DTYPES[one.dtype], leaf=True)
        trained.append(Trained(tensor, one.matrix, empty(meter, one.shape, DTYPES[one.dtype])))
    return trained


def by_torch(name: str, of: Iterable[Parameter], implementation: Implementation, momentum: bool) -> list[Step]:
    device = "cpu" if implementation == "fused" else "meta"
    of = list(of)
    every = [nn.Parameter(torch.zeros(one.shape, dtype=getattr(torch, one.dtype), device=device)) for one in of]
    for parameter in every:
        parameter.grad = torch.zeros_like(parameter)
    how = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    known = [*every, *(p.grad for p in every if p.grad is not None)]
    found = []
    with Answering(known, device=device) as mode:
        optimizers = list(made(name, of, every, how, momentum))
        for _ in range(2):
            now = mode.peak = mode.now
            for optimizer in optimizers:
                optimizer.step()
            found.append(Step(mode.peak - now, mode.now))
    return found


def made(
    name: str, of: Sequence[Parameter], every: Sequence[nn.Parameter], how: dict[str, bool], momentum: bool
) -> Iterator[torch.optim.Optimizer]:
    """torch's optimizers of that name; Muon has AdamW for all that it refuses."""
    match name:
        case "adamw":
            yield torch.optim.AdamW(every, **how)
        case "sgd":
            yield torch.optim.SGD(every, momentum=0.9 if momentum else 0.0, **how)
        case "adafactor":
            yield torch.optim.Adafactor(every, foreach=how["foreach"])
        case "muon":
            taken = [one.matrix and len(one.shape) == 2 for one in of]
            if any(taken):
                yield torch.optim.Muon([p for p, yes in zip(every, taken, strict=True) if yes])
            if not all(taken):
                yield torch.optim.AdamW([p for p, yes in zip(every, taken, strict=True) if not yes], **how)


@pytest.mark.parametrize(("dtype", "shapes"), LISTS)
@pytest.mark.parametrize(("name", "implementation", "momentum"), CASES)
def test_steps_are_torchs(name: str, implementation: Implementation, momentum: bool, dtype: str, shapes: str) -> None:
    if name == "muon" and implementation == "fused" and "large" in shapes:
        pytest.skip("the products of a large matrix take seconds on the CPU, and run on meta with the other two")
    of = parameters(dtype, shapes)
    assert without_values(name, of, implementation, momentum) == by_torch(name, of, implementation, momentum)
