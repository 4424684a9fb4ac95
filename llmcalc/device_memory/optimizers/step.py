"""One step of an optimizer without values: its parameters, and what the steps of all optimizers share.

A step allocates and frees what the function of the library that it names allocates and frees, in the same order. A
local variable stands for the local variable of that name: what it holds lives until it gets another value or the
function returns. Hyperparameters are the defaults of each library; they decide which steps make copies.
Not counted: what a kernel takes for itself, which are the partial sums of a norm (Adafactor, Muon) and the workspace of
a matrix product (Muon, Adafactor).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from ...simulator.aten import Aten
from ...simulator.tensor import Dtype, Tensor, counted_as
from ...workload.execution import OptimizerImplementation


@dataclass(eq=False)
class Trained:
    """A parameter that an optimizer updates.

    tensor: the parameter. matrix: whether it is a matrix of a layer (`TrainedTensor.is_layer_matrix`).
    gradient: its gradient; None if it has none, and then a step leaves the parameter as it is.
    states: what the optimizer keeps for it, empty before its first step. Tensors that all parameters share are in the
        states of the first that needs them.
    path: whose parameter it is.
    """

    tensor: Tensor
    matrix: bool = False
    gradient: Tensor | None = None
    states: list[Tensor] = field(default_factory=list)
    path: Any = None

    @property
    def grad(self) -> Tensor:
        """The gradient of a parameter that has one."""
        assert self.gradient is not None
        return self.gradient


@dataclass(frozen=True)
class OptimizerStep:
    """A step to replay.

    t: torch's operations. parameters: all of them, in the model's order. implementation: how the library runs it.
    momentum: whether an optimizer that may have momentum has it.
    dtype: the type of the states; None for that of the tensors, or of their gradients, as in torch.
    torch: the version of torch, such as `2.0`; empty for the newest.
    """

    t: Aten
    parameters: Sequence[Trained]
    implementation: OptimizerImplementation
    momentum: bool = False
    dtype: Dtype | None = None
    torch: str = ""

    @property
    def updated(self) -> list[Trained]:
        """The parameters that have gradients."""
        return [one for one in self.parameters if one.gradient is not None]

    def each(self, parameters: Sequence[Trained]) -> Iterator[Trained]:
        """Yields parameters one after the other, and tells the meter whose turn it is."""
        meter = self.t.graph.meter
        for one in parameters:
            meter.whose = one.path
            yield one
        meter.whose = None

    def counted(self) -> AbstractContextManager[None]:
        """What is allocated meanwhile is states."""
        return counted_as(self.t.graph.meter, "optimizer")

    def write(self, target: object, *read: object) -> None:
        """An operation in place: it reads tensors, writes into `target`, and makes no tensor."""

    def by_dtype(self, parameters: Sequence[Trained]) -> list[list[Trained]]:
        """The groups of `_group_tensors_by_device_and_dtype`: the type that is found last comes first.

        torch keeps them in a hash table of libstdc++ (`std::unordered_map`), which lists new keys before older ones.
        """
        groups: dict[Dtype, list[Trained]] = {}
        for one in parameters:
            groups.setdefault(one.tensor.dtype, []).append(one)
        return list(reversed(groups.values()))
