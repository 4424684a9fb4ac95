"""The memory of an optimizer's step, replayed tensor by tensor.

Each function here allocates and frees what the function that it names allocates and frees, in the same order. A local
variable stands for the local variable of that name: what it holds lives until it gets another value or the function
returns. Hyperparameters are the defaults of each library; they decide which steps make copies.

Sources:
- adamw, sgd, adafactor, muon: torch/optim/adam.py, sgd.py, _adafactor.py, _muon.py of torch 2.13; equal to the bytes of
  torch's steps (tests/memory/test_optimizers.py).
- adamw-8bit: the source code of bitsandbytes 0.50 (bitsandbytes/optim/optimizer.py, `Optimizer2State`), whose kernels
  write into the states and the parameter. Its states equal those of a run on the CPU, which is not among the tests.
Not counted: what a kernel takes for itself, which are the partial sums of a norm (Adafactor, Muon) and the workspace of
a matrix product (Muon, Adafactor).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..algebra import ceil_div
from ..costs.optimizers import ALIASES, BLOCK, LEAST_8BIT
from ..errors import InputError
from ..evidence import UNTESTED, Evidence, Witness, by_source, by_torch
from ..simulator.aten import Aten
from ..simulator.autograd import Graph
from ..simulator.tensor import BFLOAT16, FLOAT32, UINT8, Dtype, Tensor, counted_as
from .settings import Implementation


@dataclass(frozen=True)
class OptimizerRecord:
    """An optimizer whose step is replayed.

    implementations: how its library can run it, the library's default on a GPU first.
    witness: what its steps were compared with; by default nothing.
    """

    implementations: tuple[Implementation, ...]
    witness: Witness = UNTESTED


BY_TORCH = by_torch("tests/device_memory/test_optimizer_steps.py")
"""The witness of an optimizer whose steps are compared with those of torch."""

RECORDS: dict[str, OptimizerRecord] = {
    "adamw": OptimizerRecord(("foreach", "fused", "loop"), BY_TORCH),
    "sgd": OptimizerRecord(("foreach", "fused", "loop"), BY_TORCH),
    "adafactor": OptimizerRecord(("loop", "foreach"), BY_TORCH),
    "adamw-8bit": OptimizerRecord(
        ("loop",), by_source("bitsandbytes/optim/optimizer.py", "tests/device_memory/test_optimizer_steps.py")
    ),
    "muon": OptimizerRecord(("foreach", "fused", "loop"), BY_TORCH),
}
"""Optimizer → its record."""

IMPLEMENTATIONS: dict[str, tuple[Implementation, ...]] = {
    name: record.implementations for name, record in RECORDS.items()
}
"""Optimizer → its implementations, the library's default on a GPU first. torch's Muon is always a loop: the
implementation is that of AdamW, which updates all other tensors.
"""

ONE_INTERMEDIATE = (2, 1)
"""The first version of torch whose foreach AdamW makes one temporary per tensor; older ones make two."""

MAP_ENTRIES = 256
"""Entries of a code map of 8-bit states: one fp32 value per code."""

WITH_MAPS = 6
"""The number of states of the first tensor with 8-bit states: two of each of states, scales and code maps."""

ITERATIONS = 5
"""Newton-Schulz iterations of a step of Muon."""


@dataclass(eq=False)
class Trained:
    """A parameter that an optimizer updates.

    tensor: the parameter. matrix: whether Muon updates it (`costs.optimizers.Held.by_muon`).
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


def implementations(name: str) -> tuple[Implementation, ...]:
    """Returns the implementations of an optimizer, the library's default first. Raises `InputError` if unknown."""
    found = IMPLEMENTATIONS.get(ALIASES.get(name, name))
    if found is None:
        raise InputError(f"--optimizer {name}: not known; expected one of {', '.join([*IMPLEMENTATIONS, *ALIASES])}")
    return found


def evidence_of_optimizer(name: str) -> Evidence:
    """An optimizer, or an alias of one, with its witness."""
    own = ALIASES.get(name, name)
    record = RECORDS.get(own)
    return Evidence("optimizer", own, UNTESTED if record is None else record.witness)


def step(
    graph: Graph,
    name: str,
    trained: Sequence[Trained],
    implementation: Implementation | None = None,
    momentum: bool = False,
    dtype: Dtype | None = None,
    torch: str = "",
) -> None:
    """Allocates and frees what one step of an optimizer does; at the first step its states are made, and stay.

    name: one of `IMPLEMENTATIONS`, or an alias. trained: all parameters, in the model's order.
    implementation: how the library runs the step; by default the first of `implementations(name)`.
    momentum: whether sgd has momentum; the others have no such choice. Default False.
    dtype: the type of the states; None (default) for that of the tensors, or of their gradients, as in torch. States
        of 8 bits have their own.
    torch: the version of torch, such as `2.0`; by default the newest.
    Raises `InputError` for an unknown optimizer, or an implementation that it does not have.
    """
    known = implementations(name)
    chosen = known[0] if implementation is None else implementation
    if chosen not in known:
        raise InputError(f"--optimizer-impl {chosen}: {name} does not have it; expected {' or '.join(known)}")
    ready = [one for one in trained if one.gradient is not None]
    with graph.no_grad():
        match ALIASES.get(name, name):
            case "adamw":
                _adamw(Aten(graph), ready, chosen, dtype, before(torch, ONE_INTERMEDIATE))
            case "sgd":
                _sgd(Aten(graph), ready, chosen, momentum, dtype)
            case "adafactor":
                _adafactor(Aten(graph), ready, chosen, dtype)
            case "muon":
                _muon(Aten(graph), [one for one in ready if one.matrix], dtype)
                others = [one for one in ready if not one.matrix]
                _adamw(Aten(graph), others, chosen, dtype, before(torch, ONE_INTERMEDIATE))
            case "adamw-8bit":
                _adamw_8bit(Aten(graph), ready, any(len(one.states) == WITH_MAPS for one in trained))


# What the functions below share


def _each(t: Aten, trained: Sequence[Trained]) -> Iterator[Trained]:
    """Yields the parameters one after the other, and tells the meter whose turn it is."""
    meter = t.graph.meter
    for one in trained:
        meter.whose = one.path
        yield one
    meter.whose = None


def before(version: str, other: tuple[int, ...]) -> bool:
    """Whether a version, such as `2.0.1`, is older than another; an empty one is the newest."""
    return bool(version) and tuple(map(int, version.split("."))) < other


def _written(target: object, *read: object) -> None:
    """An operation in place: it reads tensors, writes into `target`, and makes no tensor."""


def _by_dtype(trained: Sequence[Trained]) -> list[list[Trained]]:
    """The groups of `_group_tensors_by_device_and_dtype`: the type that is found last comes first.

    torch keeps them in a hash table of libstdc++ (`std::unordered_map`), which lists new keys before older ones.
    """
    groups: dict[Dtype, list[Trained]] = {}
    for one in trained:
        groups.setdefault(one.tensor.dtype, []).append(one)
    return list(reversed(groups.values()))


# AdamW (torch/optim/adam.py)


def _adamw(
    t: Aten, trained: Sequence[Trained], implementation: Implementation, dtype: Dtype | None, older: bool
) -> None:
    """`Adam.step`. The step count of a tensor is on the host, except for fused; exp_avg_sq is the last state.

    older: whether torch is older than 2.1.
    """
    for one in _each(t, trained):
        if not one.states:
            with counted_as(t.graph.meter, "optimizer"):
                if implementation == "fused":
                    one.states.append(t.new((), FLOAT32))  # step
                one.states.append(t.like(one.tensor, dtype=dtype))  # exp_avg
                one.states.append(t.like(one.tensor, dtype=dtype))  # exp_avg_sq
    if implementation == "foreach":
        _multi_tensor_adam(t, trained, older)
    elif implementation == "loop":
        _single_tensor_adam(t, trained)


def _multi_tensor_adam(t: Aten, trained: Sequence[Trained], older: bool) -> None:
    """Every denominator of a group at once; those of the group before are still named while they are made.

    older: whether denominators are a second copy beside the square roots, as before torch 2.1 (pytorch#104898).
    """
    for group in _by_dtype(trained):
        exp_avg_sq_sqrt = [t.like(one.states[-1]) for one in _each(t, group)]
        denom = [t.like(one.states[-1]) for one in _each(t, group)] if older else exp_avg_sq_sqrt
        _written(group, denom)


def _single_tensor_adam(t: Aten, trained: Sequence[Trained]) -> None:
    """The square root and its quotient, while the denominator of the tensor before is still named."""
    for one in _each(t, trained):
        denom = t.like(t.like(one.states[-1]))
        _written(one.tensor, denom)


# SGD (torch/optim/sgd.py)


def _sgd(
    t: Aten, trained: Sequence[Trained], implementation: Implementation, momentum: bool, dtype: Dtype | None
) -> None:
    """`SGD.step` without weight decay: momentum buffers are the first gradients' copies, and nothing else is made.

    Only the order in which the buffers are made depends on the implementation: by groups, or tensor after tensor.
    """
    if momentum:
        groups = _by_dtype(trained) if implementation == "foreach" else [trained]
        for group in groups:
            for one in _each(t, group):
                if not one.states:
                    with counted_as(t.graph.meter, "optimizer"):
                        one.states.append(t.like(one.grad, dtype=dtype))  # momentum_buffer


# Adafactor (torch/optim/_adafactor.py)


def _adafactor(t: Aten, trained: Sequence[Trained], implementation: Implementation, dtype: Dtype | None) -> None:
    """`Adafactor.step`. The step count of a tensor is on the host."""
    for one in _each(t, trained):
        if not one.states:
            with counted_as(t.graph.meter, "optimizer"):
                if _is_factored(one):
                    one.states.append(_reduced(t, one.grad, -1, dtype))  # row_var
                    one.states.append(_reduced(t, one.grad, -2, dtype))  # col_var
                else:
                    one.states.append(t.like(one.grad, dtype=dtype))  # variance
    if implementation == "foreach":
        _multi_tensor_adafactor(t, trained)
    else:
        _single_tensor_adafactor(t, trained)


def _is_factored(one: Trained) -> bool:
    """Whether the second moment is a product of row and column means; a vector has its own."""
    return len(one.grad.shape) > 1


def _reduced(t: Aten, x: Tensor, axis: int, dtype: Dtype | None = None) -> Tensor:
    """One value per index of the other axes; the axis stays, with one element."""
    shape = list(x.shape)
    shape[axis] = 1
    return t.new(tuple(shape), dtype or x.dtype)


def _norm(t: Aten, x: Tensor) -> None:
    """The norm of a tensor, read by the host."""
    t.new((), x.dtype)


def _estimate(t: Aten, row_var: Tensor, col_var: Tensor) -> Tensor:
    """The product of row and column means."""
    return t.new((*row_var.shape[:-1], col_var.shape[-1]), row_var.dtype)


def _single_tensor_adafactor(t: Aten, trained: Sequence[Trained]) -> None:
    """Everything that one tensor's update names lives on into the next tensor's."""
    for one in _each(t, trained):
        grad = one.grad
        _norm(t, one.tensor)
        if _is_factored(one):
            row_var, col_var = one.states
            row_mean = _reduced(t, grad, -1)
            _written(row_var, row_mean)
            col_mean = _reduced(t, grad, -2)
            _written(col_var, col_mean)
            var_estimate = _estimate(t, row_var, col_var)
            _written(var_estimate, _reduced(t, row_var, -2))
        else:
            variance = one.states[0]
            grad_squared = t.like(grad)
            _written(variance, grad_squared)
            var_estimate = t.like(variance)
        update = var_estimate
        _norm(t, update)
        _written(one.tensor, update)


def _multi_tensor_adafactor(t: Aten, trained: Sequence[Trained]) -> None:
    """Group after group; the updates of one group are still named while the next estimates are made."""
    for group in _by_dtype_and_factors(trained):
        for one in _each(t, group):
            _norm(t, one.tensor)
        if _is_factored(group[0]):
            row_means = [_reduced(t, one.grad, -1) for one in _each(t, group)]
            del row_means
            col_means = [_reduced(t, one.grad, -2) for one in _each(t, group)]
            del col_means
            var_estimates = [_estimate(t, *one.states) for one in _each(t, group)]
            row_var_means = [_reduced(t, one.states[0], -2) for one in _each(t, group)]
            del row_var_means
        else:
            grads_squared = [t.like(one.grad) for one in _each(t, group)]
            del grads_squared
            var_estimates = [t.like(one.states[0]) for one in _each(t, group)]
        updates = var_estimates
        for _, update in zip(_each(t, group), updates, strict=True):
            _norm(t, update)
        _written(group, updates)


def _by_dtype_and_factors(trained: Sequence[Trained]) -> list[list[Trained]]:
    """The groups of `_group_tensors_by_device_dtype_and_is_multidim`."""
    groups: dict[tuple[Dtype, bool], list[Trained]] = {}
    for same in _by_dtype(trained):
        for one in same:
            groups.setdefault((one.tensor.dtype, _is_factored(one)), []).append(one)
    return list(groups.values())


# Muon (torch/optim/_muon.py)


def _muon(t: Aten, trained: Sequence[Trained], dtype: Dtype | None) -> None:
    """`Muon.step`, with Nesterov momentum."""
    for one in _each(t, trained):
        if not one.states:
            with counted_as(t.graph.meter, "optimizer"):
                one.states.append(t.like(one.grad, dtype=dtype))  # momentum_buffer
    for one in _each(t, trained):
        update = t.like(one.grad, one.states[0])
        update = _zeropower_via_newtonschulz(t, update)
        _written(one.tensor, update)


def _zeropower_via_newtonschulz(t: Aten, grad: Tensor) -> Tensor:
    """The orthogonalized update in bf16; a bf16 update is itself the first of the iterations' tensors."""
    ortho_grad = t.to(grad, BFLOAT16)
    if grad.shape[0] > grad.shape[1]:
        ortho_grad = t.transpose(ortho_grad, 0, 1)
    _written(ortho_grad, t.like(t.new((), BFLOAT16)))  # divided by its norm, which is at least eps
    for _ in range(ITERATIONS):
        gram_matrix = t.mm(ortho_grad, t.transpose(ortho_grad, 0, 1))
        gram_update = t.addmm(gram_matrix, gram_matrix, gram_matrix)
        ortho_grad = t.addmm(ortho_grad, gram_update, ortho_grad)
    if grad.shape[0] > grad.shape[1]:
        ortho_grad = t.transpose(ortho_grad, 0, 1)
    return ortho_grad


# AdamW with 8-bit states (bitsandbytes/optim/optimizer.py)


def _adamw_8bit(t: Aten, trained: Sequence[Trained], has_maps: bool) -> None:
    """`Optimizer8bit.step`: states are made just before a tensor's first update. Step counts are Python numbers.

    has_maps: whether the two code maps, which all tensors share, exist.
    """
    for one in _each(t, trained):
        if one.states:
            continue
        with counted_as(t.graph.meter, "optimizer"):
            if one.tensor.count < LEAST_8BIT:
                one.states = [t.like(one.tensor, dtype=FLOAT32) for _ in range(2)]  # state1, state2
                continue
            maps = [] if has_maps else [t.new((MAP_ENTRIES,), FLOAT32) for _ in range(2)]
            has_maps = True
            states = [t.like(one.tensor, dtype=UINT8) for _ in range(2)]
            scales = [t.new((ceil_div(one.tensor.count, BLOCK),), FLOAT32) for _ in range(2)]  # absmax1, absmax2
            one.states = [*states, *scales, *maps]
