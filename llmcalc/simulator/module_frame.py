"""Classes that all kernels use: the call of a module, a recomputed module, and the error for a missing kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..errors import InputError
from ..flow.program import ModuleScope
from ..flow.value import Value
from ..frozen import frozen
from ..workload.rows import SOURCE_TOKENS, TOKENS
from .tensor import Tensor

ModulePath: TypeAlias = tuple[Any, ...]
"""The path of a module or parameter, with the indices of layers."""

ParameterSet: TypeAlias = tuple[dict[ModulePath, Tensor], set[ModulePath]]
"""A program's parameters and buffers by path, in the order of their first use; and the paths of the buffers."""

TOKEN_ID_ROWS = (TOKENS, SOURCE_TOKENS)
"""Rows (tokens of a decoder or an encoder) for which the model's input is token ids."""

STAGE_INPUT_KEY = "entry"
"""Key of the input of a pipeline stage without the first layers."""

CARRIED_KEY = "carried"
"""First part of the keys, in `Lowering.pass_memo`, of the tensors that a layer passes to the next layer."""


class UnsupportedKernel(InputError):
    """Raised for an operation for which the profile has no kernel."""


@dataclass
class ModuleFrame:
    """The call of a module in a simulated pass, with its local variables.

    scope: the module.
    local_tensors: the variables of its forward pass, which keep their tensors until it returns.
    caller_variables: the variables of outer functions while an inner function of the module runs.
    layer_index: index of the layer; None for other modules.
    owner_layer_index: index of the layer that owns the parameters; None for other modules.
    path: path of the module, once it has been asked for; None before.
    """

    scope: ModuleScope
    local_tensors: dict[str, Any] = field(default_factory=dict)
    caller_variables: list[dict[str, Any]] = field(default_factory=list)
    layer_index: int | None = None
    owner_layer_index: int | None = None
    path: tuple[Any, ...] | None = None

    def without_tensors(self) -> ModuleFrame:
        """Returns the same module call without the local variables (tensors) that the module's code holds."""
        return ModuleFrame(self.scope, layer_index=self.layer_index, owner_layer_index=self.owner_layer_index)


@frozen
class RecomputedModule:
    """The inputs and outputs of a module that the backward pass recomputes.

    values_read: the values that its steps read from outside, except its argument.
    ids_read_outside: ids of the values that it computes for steps outside of it, except its result.
    values_to_free: the values that no later step reads.
    """

    values_read: tuple[Value, ...]
    ids_read_outside: frozenset[int]
    values_to_free: tuple[Value, ...]
