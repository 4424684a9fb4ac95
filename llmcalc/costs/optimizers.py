"""Memory of training beyond the weights: gradients, fp32 master weights, and optimizer state.

The states are those that these libraries allocate at the first step, tensor by tensor:
- adamw, sgd, adafactor, muon: `torch.optim` (torch/optim/adam.py, sgd.py, _adafactor.py, _muon.py at 2.13). States have
  the dtype of the parameters that the optimizer updates; AdamW and Adafactor keep a 4-byte step count per tensor.
- adafactor: a matrix has one mean per row and one per column (Shazeer & Stern 2018, arXiv:1804.04235, §3); a vector has
  one value per element.
- muon: one momentum buffer for each weight matrix of a linear layer in the layers (Jordan 2024); AdamW for embeddings,
  output head, norms, biases and other vectors, as in the documentation of torch.optim.Muon, and for stacked experts,
  which it refuses.
- adamw-8bit: two 1-byte states with one fp32 scale per block of 256 elements; a tensor of under 4096 elements has two
  fp32 states; two code maps of 256 fp32 values are shared by all tensors (Dettmers 2021, arXiv:2110.02861;
  bitsandbytes/optim/optimizer.py, 0.44 and later: earlier versions had blocks of 2048). Its step count is not a tensor.
Master weights: Micikevicius 2017, arXiv:1710.03740, §3.1; 16 bytes per parameter in total: ZeRO, arXiv:1910.02054,
§3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from ..algebra import Number, add, ceil_div, floor_div, minimum, times
from ..errors import InputError
from ..flow.tree import Node, Place
from ..ops import ParamTensor
from ..units import DTYPE_BITS, bits_to_bytes

Optimizer: TypeAlias = Literal["adamw", "sgd", "adafactor", "adamw-8bit", "muon"]

STEP_BYTES = 4
"""Bytes of torch's step count per tensor, one fp32 number (on the host, unless fused or capturable)."""

BLOCK, LEAST_8BIT, MAP_BYTES = 256, 4096, 2 * 256 * 4
"""bitsandbytes: elements per scale; elements from which a tensor has 8-bit states; bytes of the two code maps."""


@dataclass(frozen=True, slots=True)
class Held:
    """A trainable tensor of the model.

    kind: its component. times: number of identical tensors. path: the names of the nodes around it, without indices.
    in_layer: whether it is inside one of the model's layers.
    """

    tensor: ParamTensor
    kind: str
    times: Number
    path: str = ""
    in_layer: bool = True

    @property
    def by_muon(self) -> bool:
        """Whether Muon updates it: the weight matrix of a linear layer inside the layers.

        torch's Muon refuses tensors of other than two axes, such as the matrices of all experts as one tensor; AdamW
        updates these, as it does embeddings, the output head, norms and biases (torch/optim/_muon.py).
        """
        return self.in_layer and self.tensor.role == "matrix" and len(self.tensor.shape) == 2


def held_tensors(tree: Node, include: frozenset[str] = frozenset()) -> Iterator[Held]:
    """Yields every trainable tensor, a tied one once; stacked experts are one tensor, as in the reference model."""
    for place in tree.walk():
        use = place.use
        if use is not None and not (place.optional and place.optional not in include):
            for tensor in use.tensors():
                yield Held(tensor, place.kind, place.times, _names(place), in_a_layer(place))


def layers_of(tree: Node) -> tuple[str, ...]:
    """The paths of the model's layers, without indices."""
    return tuple(dict.fromkeys(_names(place) for place in tree.walk() if place.node.kind == "layer"))


def _names(place: Place) -> str:
    """The names of a node and of those around it, without indices."""
    above = "" if place.above is None else _names(place.above)
    return f"{above}.{place.node.name}".strip(".")


def in_a_layer(place: Place | None) -> bool:
    """Whether a node is inside one of the model's layers."""
    while place is not None and place.node.kind != "layer":
        place = place.above
    return place is not None


def bytes_of(elements: Number, dtype: str) -> Number:
    """Bytes of a number of elements; formats narrower than a byte are packed."""
    bits = DTYPE_BITS[dtype]
    return elements * (bits // 8) if bits % 8 == 0 else bits_to_bytes(elements * bits)


@dataclass(frozen=True)
class OptimizerState:
    """The state of an optimizer.

    dtype: number format of the states; empty without states; `uint8` for 8-bit states, whose scales are fp32.
    states: the library's name of a state → its bytes; they add up to `bytes`.
    split: a note on tensors that have different states; default empty.
    """

    name: str
    dtype: str
    states: dict[str, Number]
    split: str = ""

    def with_more(self, other: OptimizerState) -> OptimizerState:
        """The state of these tensors and of others."""
        states = {name: add(size, other.states[name]) for name, size in self.states.items()}
        return replace(self, states=states)

    @property
    def bytes(self) -> Number:
        total: Number = 0
        for size in self.states.values():
            total = add(total, size)
        return total


def _sum(held: list[Held], of: Callable[[ParamTensor], Number]) -> Number:
    total: Number = 0
    for one in held:
        total = add(total, times(of(one.tensor), one.times))
    return total


def _size(tensor: ParamTensor) -> Number:
    return tensor.size


def _one(_: ParamTensor) -> Number:
    return 1


def _adamw(held: list[Held], dtype: str) -> dict[str, Number]:
    n = _sum(held, _size)
    return {"exp_avg": bytes_of(n, dtype), "exp_avg_sq": bytes_of(n, dtype), "step": STEP_BYTES * _sum(held, _one)}


def _rows(tensor: ParamTensor) -> Number:
    """Number of row means: the size without the last axis; 0 for a vector."""
    return ParamTensor(tensor.shape[:-1], tensor.role).size if len(tensor.shape) > 1 else 0


def _columns(tensor: ParamTensor) -> Number:
    """Number of column means: the size without the second to last axis; 0 for a vector."""
    return ParamTensor((*tensor.shape[:-2], tensor.shape[-1]), tensor.role).size if len(tensor.shape) > 1 else 0


def _whole(tensor: ParamTensor) -> Number:
    return tensor.size if len(tensor.shape) < 2 else 0


def _adafactor(held: list[Held], dtype: str) -> dict[str, Number]:
    of = {"row_var": _rows, "col_var": _columns, "variance": _whole}
    return {
        **{name: bytes_of(_sum(held, size), dtype) for name, size in of.items()},
        "step": STEP_BYTES * _sum(held, _one),
    }


def _sgd(held: list[Held], dtype: str) -> dict[str, Number]:
    return {"momentum_buffer": bytes_of(_sum(held, _size), dtype)}


def _muon(held: list[Held], dtype: str) -> dict[str, Number]:
    hidden, rest = [one for one in held if one.by_muon], [one for one in held if not one.by_muon]
    return {"momentum_buffer": bytes_of(_sum(hidden, _size), dtype), **_adamw(rest, dtype)}


def _is_large(tensor: ParamTensor) -> Number:
    """1 for a tensor with 8-bit states, 0 for a tensor with fp32 states."""
    return minimum(1, floor_div(tensor.size, LEAST_8BIT))


def _adamw_8bit(held: list[Held], dtype: str) -> dict[str, Number]:
    """States of 8-bit Adam: each of the two has large·n bytes and large·⌈n/256⌉ scales, or (1 − large)·n fp32 numbers.

    large is 1 for a tensor with 8-bit states and 0 for others.
    """
    state = _sum(held, lambda t: _is_large(t) * t.size + 4 * (1 - _is_large(t)) * t.size)
    scales = 4 * _sum(held, lambda t: _is_large(t) * ceil_div(t.size, BLOCK))
    maps = MAP_BYTES * minimum(1, _sum(held, _is_large))
    return {"state1": state, "state2": state, "absmax1": scales, "absmax2": scales, "qmaps": maps}


_STATES: dict[Optimizer, Callable[[list[Held], str], dict[str, Number]]] = {
    "adamw": _adamw,
    "sgd": _sgd,
    "adafactor": _adafactor,
    "adamw-8bit": _adamw_8bit,
    "muon": _muon,
}

OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)

ALIASES: dict[str, Optimizer] = {"adam8bit": "adamw-8bit"}
"""Other name → optimizer."""

_SPLITS = {
    "muon": "momentum for the weight matrices of linear layers in the layers; AdamW for embeddings, output head, "
    "norms, biases and other vectors, and for stacked experts",
    "adafactor": "a matrix has one mean per row and one per column, a vector its whole second moment",
    "adamw-8bit": f"tensors of under {LEAST_8BIT:,} elements have fp32 states; the others 1 byte per element and an "
    f"fp32 scale per block of {BLOCK} (from the source code of bitsandbytes, not checked by running it)",
}


def elements_of(held: Iterable[Held]) -> Number:
    """The number of elements of these tensors."""
    return _sum(list(held), _size)


def optimizer_state(held: Iterable[Held], name: str, dtype: str, momentum: bool = False) -> OptimizerState:
    """Returns the state of an optimizer after its first step over these tensors.

    name: one of `OPTIMIZERS`, or an alias.
    dtype: number format of the states; ignored by adamw-8bit.
    momentum: whether sgd has a momentum buffer; without it sgd has no state. Default False.
    Raises `InputError` for an unknown optimizer.
    """
    name = ALIASES.get(name, name)
    if name not in _STATES:
        raise InputError(f"--optimizer {name}: not known; expected one of {', '.join(OPTIMIZERS)}")
    if name == "sgd" and not momentum:
        return OptimizerState(name, "", {})
    states = _STATES[name](list(held), dtype)
    return OptimizerState(name, "uint8" if name == "adamw-8bit" else dtype, states, _SPLITS.get(name, ""))
