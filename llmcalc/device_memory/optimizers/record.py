"""The registry record of an optimizer: formulas of its states, a replay of its step, and its evidence.

Each optimizer is a file beside this one that fills one `Optimizer`; `registry.py` finds it by its name. States are
those that the library allocates at the first step, tensor by tensor; they have the dtype of the tensors that the
optimizer updates, or the one that is asked for. Closed forms load no kernel: what a step needs of the simulator is
imported when the step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from ...algebra import Number, add
from ...costs.trained_tensors import TrainedTensor
from ...evidence import UNTESTED, Witness, torch_witness
from ...frozen import frozen
from ...workload.execution import OptimizerImplementation

if TYPE_CHECKING:
    from .step import OptimizerStep

STEP_BYTES = 4
"""Bytes of torch's step count per tensor, one fp32 number (on the host, unless fused or capturable)."""

STEP_COMPARISON_TEST = "tests/device_memory/test_optimizer_steps.py"
"""The test that compares optimizer steps with torch's."""

LIBRARY_COMPARISON_TEST = "tests/device_memory/test_projected_optimizers.py"
"""The test that compares the steps of Adam-mini, GaLore and APOLLO, by hand and with the libraries' own code."""

TORCH_WITNESS = torch_witness(STEP_COMPARISON_TEST)
"""The witness of an optimizer whose steps are compared with torch's optimizer."""

StateBytesByName: TypeAlias = dict[str, Number]
"""Name of an optimizer state in its library → its bytes."""


@frozen
class Optimizer:
    """The registry record of one optimizer.

    name: the word of `--optimizer`.
    implementations: how its library can run a step, the library's default on a GPU first.
    trainer_default: the implementation that trainers choose; None (default) where they choose none, so that the library
        does.
    state_bytes: (trained tensors, number format of states) → bytes of each state after the first step.
    run_step: allocates and frees what one step does; at the first one it makes the states.
    build_torch_optimizers: (parameters, each with whether it is the weight matrix of a layer; implementation;
        momentum) → torch's optimizers, which `verify` runs; None (default) where torch has none, which
        `reason_not_in_torch` explains.
    reason_not_in_torch: why torch cannot run it; empty (default) where it can.
    depends_on_values: whether a step reads values on the host, which the meta device does not have; false by default.
    aliases: other names that `--optimizer` takes.
    note: on tensors that have different states; empty (default) where all are alike.
    has_momentum: whether `--momentum` switches its states on; false by default, and then its states are always there.
    state_format: the number format of its states where it has a format of its own; empty (default) where it has that
        of the tensors. state_format_note: why `--optimizer-dtype` does not apply.
    supports_element_shards: whether it updates each element by itself, and so any shard of a tensor without the rest;
        false by default.
    supports_row_shards: whether it updates whole rows of a tensor without the rest, as a rank of FSDP2 has them; by
        default as `supports_element_shards`.
    supports_flat_shards: whether it updates a range of a tensor's elements without the rest, as a rank of FSDP 1 has
        them, and takes no DTensor; false by default.
    separates_layer_matrices: whether it updates the matrices of layers apart from all other tensors; false by default.
    states_per_element: (whether a rank's parameters are one tensor without rows) → states of each element of a layer's
        matrix, and how many more any other element has; None (default) where estimates take the mean over all tensors.
    product_flops: trained tensors → FLOPs of the matrix products of a step; None (default) for a step without them.
    uncounted_work: what a step computes beside these and the bytes of its states, not timed; empty by default.
    paged_bytes: trained tensors → bytes of states in managed memory, which the driver may move to the host; None
        (default) for an optimizer without them.
    witness: what its steps were compared with; by default nothing.
    """

    name: str
    implementations: tuple[OptimizerImplementation, ...]
    state_bytes: Callable[[Sequence[TrainedTensor], str], StateBytesByName]
    run_step: Callable[[OptimizerStep], None]
    trainer_default: OptimizerImplementation | None = None
    build_torch_optimizers: (
        Callable[[Sequence[tuple[Any, bool]], OptimizerImplementation, bool], Iterator[Any]] | None
    ) = None
    reason_not_in_torch: str = ""
    depends_on_values: bool = False
    aliases: tuple[str, ...] = ()
    note: str = ""
    has_momentum: bool = False
    state_format: str = ""
    state_format_note: str = ""
    supports_element_shards: bool = False
    supports_row_shards: bool = False
    supports_flat_shards: bool = False
    separates_layer_matrices: bool = False
    states_per_element: Callable[[bool], tuple[int, int] | None] = lambda is_flat: None
    product_flops: Callable[[Sequence[TrainedTensor]], Number] | None = None
    uncounted_work: str = ""
    paged_bytes: Callable[[Sequence[TrainedTensor]], Number] | None = None
    witness: Witness = UNTESTED

    @property
    def default_implementation(self) -> OptimizerImplementation:
        """The default implementation of the optimizer's step."""
        return self.trainer_default or self.implementations[0]

    def state(self, tensors: Sequence[TrainedTensor], dtype: str, has_momentum: bool = False) -> OptimizerState:
        """Returns the state that the optimizer has after the first step over these tensors.

        dtype: number format of the states, unless the optimizer has its own. has_momentum: default False.
        """
        if self.has_momentum and not has_momentum:
            return OptimizerState(self.name, "", {})
        paged_bytes = 0 if self.paged_bytes is None else self.paged_bytes(tensors)
        return OptimizerState(
            self.name, self.state_format or dtype, self.state_bytes(tensors, dtype), self.note, paged_bytes
        )


@frozen
class OptimizerState:
    """The state of an optimizer for a set of tensors, in bytes.

    dtype: number format of the states; empty without states; `uint8` for 8-bit states, whose scales are fp32.
    states: the library's name of a state → its bytes; they add up to `bytes`.
    split_note: a note on tensors that have different states; default empty.
    paged_bytes: bytes of states in managed memory; default 0.
    """

    name: str
    dtype: str
    states: StateBytesByName
    split_note: str = ""
    paged_bytes: Number = 0

    def combined_with(self, other_state: OptimizerState) -> OptimizerState:
        """Returns the sum of this optimizer state and the state for other tensors."""
        joined_states = {name: add(byte_count, other_state.states[name]) for name, byte_count in self.states.items()}
        return replace(self, states=joined_states, paged_bytes=add(self.paged_bytes, other_state.paged_bytes))

    @property
    def bytes(self) -> Number:
        """Bytes of all optimizer states."""
        return reduce(add, self.states.values(), 0)
