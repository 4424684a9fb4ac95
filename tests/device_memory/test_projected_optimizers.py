"""Adam-mini, GaLore and APOLLO: by hand arithmetic from their source code, and against the libraries where installed.

The libraries are not dependencies of the tests. On meta the libraries' own steps take and free what they do on a GPU,
except for a decomposition's work buffers; APOLLO's limit of growth reads a number on the host, which is answered 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from llmcalc.costs.trained_tensors import TrainedTensor
from llmcalc.device_memory.optimizers.registry import LARGEST_RANK, optimizer
from llmcalc.errors import InputError
from llmcalc.ops import ParamTensor
from tests.comparisons import Thing, compares
from tests.device_memory.test_optimizer_steps import Answering, Parameter, Step, without_values

SHAPES = [
    Parameter((500, 60), "", False),  # an embedding
    Parameter((60,), "", False),
    Parameter((60, 60), "", True),
    Parameter((200, 60), "", True),
    Parameter((60,), "", False),
    Parameter((60, 200), "", True),
    Parameter((500, 60), "", False),  # an output head
]


def of_format(dtype: str) -> list[Parameter]:
    return [parameter._replace(dtype=dtype) for parameter in SHAPES]


def test_the_largest_rank_is_that_of_a_name() -> None:
    assert optimizer(f"galore-r{LARGEST_RANK}").name == "galore-r99999"
    for rank in (LARGEST_RANK + 1, 0):
        with pytest.raises(InputError, match="is not known"):
            optimizer(f"apollo-r{rank}")


# By hand


@compares(lambda: {Thing("optimizer", "adam-mini")}, torch=False)
def test_adam_mini_by_hand() -> None:
    """W [64, 32]: 2048 numbers and 64 means; b [7]: 7 and 7. A step: squares, then the update and its negative."""
    first, second = without_values(
        "adam-mini", [Parameter((64, 32), "float32", True), Parameter((7,), "float32", False)]
    )
    assert first.kept == second.kept == 4 * (2048 + 64 + 7 + 7)
    assert second.peak == 4 * (2 * 2048 + 3 * 64)  # beside the means of squares, h and step sizes


@compares(lambda dtype, projector: {Thing("optimizer", "galore")}, torch=False)
@pytest.mark.parametrize(("dtype", "projector"), [("float32", 4 * 32 * 32), ("bfloat16", 2 * 8 * 32)])
def test_galore_by_hand(dtype: str, projector: int) -> None:
    """W [64, 32] at rank 8: two moments of 64 · 8; the projector in fp32 keeps all 32 · 32 singular vectors alive."""
    width = 4 if dtype == "float32" else 2
    first, second = without_values("galore-r8", [Parameter((64, 32), dtype, True), Parameter((7, 5), dtype, False)])
    assert first.kept == second.kept == projector + 2 * width * (64 * 8 + 35)
    states = (
        optimizer("galore-r8").state([TrainedTensor(ParamTensor((64, 32), "matrix"), "attention", 1)], dtype).states
    )
    assert states == {"ortho_matrix": projector, "exp_avg": width * 64 * 8, "exp_avg_sq": width * 64 * 8}


@compares(lambda: {Thing("optimizer", "apollo")}, torch=False)
def test_apollo_by_hand() -> None:
    """W [32, 64] at rank 8: projector 32 · 8, two moments of 8 · 64, one norm; each of 2 bytes."""
    first, second = without_values("apollo-r8", [Parameter((32, 64), "bfloat16", True)])
    assert first.kept == second.kept == 2 * (256 + 2 * 512 + 1)
    assert optimizer("apollo-r8").state([], "bfloat16").bytes == 0


def test_the_default_rank_is_that_of_transformers() -> None:
    of = of_format("bfloat16")
    for name in ("galore", "apollo"):
        assert without_values(name, of) == without_values(f"{name}_r128", of) != without_values(f"{name}-r16", of)
        with pytest.raises(InputError, match="is not known"):
            optimizer(f"{name}-r0")


# Against the libraries


def library(name: str) -> ModuleType:
    """Imports a file of a library without the library's `__init__`, which imports bitsandbytes."""
    package, _, _ = name.partition(".")
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip(f"{package} is not installed")
    folder = ModuleType(package)
    folder.__path__ = [str(Path(next(iter(spec.submodule_search_locations))))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(import_module("sys").modules, package, folder)
        return import_module(name)


def library_optimizer(name: str, of: Sequence[Parameter], tensors: list[nn.Parameter], rank: int) -> Any:
    if name == "adam-mini":
        names = ["bias" if len(parameter.shape) < 2 else "mlp" for parameter in of]
        mini = library("adam_mini.adam_mini").Adam_mini
        return mini(zip(names, tensors, strict=True), verbose=False)
    vectors = [t for t, p in zip(tensors, of, strict=True) if not p.matrix and len(p.shape) < 2]
    decayed = [t for t, p in zip(tensors, of, strict=True) if not p.matrix and len(p.shape) > 1]
    matrices = [t for t, p in zip(tensors, of, strict=True) if p.matrix]
    projection = {"rank": rank, "update_proj_gap": 200, "scale": 2.0, "proj_type": "std"}
    if name == "galore":
        module = library("galore_torch.adamw")
    else:
        module = library("apollo_torch.apollo")
        projection |= {"proj": "random", "scale_type": "channel"}
        projector = import_module(module.GradientProjector.__module__)
        projector.stable_randn = lambda shape, seed, device, dtype: torch.randn(shape, device=device, dtype=dtype)
    groups = [{"params": vectors}, {"params": decayed}, {"params": matrices, **projection}]
    return module.AdamW(groups, no_deprecation_warning=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["adam-mini", "galore", "apollo"])
def test_steps_are_the_librarys(name: str, dtype: str) -> None:
    of, rank = of_format(dtype), 16
    tensors = [nn.Parameter(torch.zeros(one.shape, dtype=getattr(torch, dtype), device="meta")) for one in of]
    for tensor in tensors:
        tensor.grad = torch.zeros_like(tensor)
    library_steps = library_optimizer(name, of, tensors, rank)
    steps = []
    with Answering([*tensors, *(tensor.grad for tensor in tensors if tensor.grad is not None)], device="meta") as mode:
        for _ in range(2):
            now = mode.peak = mode.now
            library_steps.step()
            steps.append(Step(mode.peak - now, mode.now))
    assert without_values(name if name == "adam-mini" else f"{name}-r{rank}", of) == steps
