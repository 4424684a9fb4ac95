"""Parameters of simulated optimizer steps, which have a shape but no data, and the operations on them.

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

from ...frozen import frozen
from ...simulator.aten import Aten
from ...simulator.meter import NoMeter
from ...simulator.tensor import Dtype, Tensor, count_storages_as, empty
from ...workload.execution import OptimizerImplementation


@dataclass(eq=False)
class OptimizedParameter:
    """A parameter that an optimizer updates.

    tensor: the tensor of the parameter.
    is_layer_matrix: whether it is a weight matrix of a layer (`TrainedTensor.is_layer_matrix`), default false.
    gradient: its gradient; None (default) if it has none, and then a step does not update it.
    states: its optimizer states, empty before the first step. States that all parameters share belong to the first
        parameter that needs them.
    path: path of the parameter.
    is_embedding_table: whether it is a table of embeddings, default false.
    """

    tensor: Tensor
    is_layer_matrix: bool = False
    gradient: Tensor | None = None
    states: list[Tensor] = field(default_factory=list)
    path: Any = None
    is_embedding_table: bool = False

    @property
    def grad(self) -> Tensor:
        """The gradient of the parameter, which must exist."""
        assert self.gradient is not None
        return self.gradient


@frozen
class OptimizerStep:
    """An optimizer step that is replayed on tensors without values.

    aten: torch's operations.
    parameters: all parameters, in the model's order.
    implementation: the library's implementation of the step.
    has_momentum: whether SGD has momentum, default false.
    state_format: number format of the states; default that of the tensors, or of their gradients, as in torch.
    torch_version: the version of torch, such as `2.0`; default the newest.
    pages_states: whether states in managed memory are no tensors of torch's allocator; default false, and then they are
        counted as such.
    """

    aten: Aten
    parameters: Sequence[OptimizedParameter]
    implementation: OptimizerImplementation
    has_momentum: bool = False
    state_format: Dtype | None = None
    torch_version: str = ""
    pages_states: bool = False

    @property
    def updated_parameters(self) -> list[OptimizedParameter]:
        """The parameters that have gradients, which the step updates."""
        return [parameter for parameter in self.parameters if parameter.gradient is not None]

    def iterate_parameters(self, parameters: Sequence[OptimizedParameter]) -> Iterator[OptimizedParameter]:
        """Yields the parameters in order; allocations until the next one are counted under the parameter's path."""
        memory_meter = self.aten.graph.meter
        for parameter in parameters:
            memory_meter.parameter_path = parameter.path
            yield parameter
        memory_meter.parameter_path = None

    def allocating_states(self) -> AbstractContextManager[None]:
        """Returns a context manager in which new storages are counted as optimizer states."""
        return count_storages_as(self.aten.graph.meter, "optimizer")

    def allocate_states_like(self, tensor: Tensor, state_count: int = 1) -> list[Tensor]:
        """Allocates optimizer states with a tensor's shape, in the states' format. state_count: number of states."""
        with self.allocating_states():
            return [self.aten.new_like(tensor, dtype=self.state_format) for _ in range(state_count)]

    def allocate_paged_states_like(self, tensor: Tensor, dtype: Dtype, state_count: int) -> list[Tensor]:
        """Allocates optimizer states in managed memory. state_count: number of states."""
        if self.pages_states:
            return [empty(NoMeter(), tensor.shape, dtype) for _ in range(state_count)]
        with self.allocating_states():
            return [self.aten.new_like(tensor, dtype=dtype) for _ in range(state_count)]

    def record_in_place_operation(self, written_object: object, *read_tensors: object) -> None:
        """Records an in-place operation that reads tensors and writes `written_object`, and allocates no memory."""

    def group_by_dtype(self, parameters: Sequence[OptimizedParameter]) -> list[list[OptimizedParameter]]:
        """Groups parameters by device and number format, as `_group_tensors_by_device_and_dtype` does.

        torch keeps them in a hash table of libstdc++ (`std::unordered_map`), which lists new keys before older ones.
        """
        groups_by_format: dict[Dtype, list[OptimizedParameter]] = {}
        for parameter in parameters:
            groups_by_format.setdefault(parameter.tensor.dtype, []).append(parameter)
        return list(reversed(groups_by_format.values()))
