"""Compares two specs: whether they are the same architecture, and where they differ first.

A spec can be written in several ways: a head size or the number of key/value heads may be given or omitted, and layers
    may be variants under any names. Here each is converted to one canonical form. Fields that change no count and no
    function's form are ignored: the ε of norms, the base of rotary angles, weights of auxiliary losses, and the context
    length without a position embedding of its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from ...components.base import Part
from ...components.mixers.attention import Attention
from ...components.mtp import MultiTokenPrediction
from ...components.norm import Norm
from ...components.position import Rope
from ...components.stack import Stack
from ...model import ModelSpec

NUMERICS = frozenset({"eps", "norm_eps", "rope_theta", "router_aux_loss_coef", "router_z_loss_coef"})


Difference: TypeAlias = tuple[str, Any, Any]
"""(path, value on one side, value on the other side)."""


def canonical(spec: ModelSpec) -> dict[str, Any]:
    """Returns a model as plain values that are equal for equivalent specs."""
    table = {
        name: getattr(spec, name)
        for name in ModelSpec.model_fields
        if name not in ("encoder", "decoder", "max_position_embeddings", "mtp")
    }
    table = {name: _plain(value, spec.hidden_size) for name, value in table.items()}
    for side, stack in spec.stacks():
        table[side] = _stack(stack, stack.hidden_size or spec.hidden_size)
    return {**table, "mtp": _prediction(spec, spec.mtp)}


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[Difference]:
    """Yields (path, one value, the other) for every difference; equal differences in several layers are reported once.

    The lowest layer is named.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in dict.fromkeys((*ours, *theirs)):
            yield from differences(ours.get(name), theirs.get(name), f"{path}.{name}" if path else name)
    elif (
        isinstance(ours, list)
        and isinstance(theirs, list)
        and len(ours) == len(theirs)
        and any(isinstance(one, dict) for one in ours)
    ):
        seen: list[tuple[Any, Any]] = []
        for i, pair in enumerate(zip(ours, theirs, strict=True)):
            if pair not in seen:  # layers of one kind share one table
                seen.append(pair)
                yield from differences(*pair, f"{path}.{i}")
    elif ours != theirs:
        yield path, ours, theirs


def weight(difference: Difference) -> int:
    """Returns the number of values in a difference: a part that only one side has counts with all its fields."""
    return max(_values(difference[1]), _values(difference[2]))


def _values(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, inner))


def _stack(stack: Stack, width: int) -> dict[str, Any]:
    """Returns one table per layer, and the index of the layer whose parameters it uses."""
    names = stack.layer_names()
    layers = {name: _plain(stack.layer(name), width) for name in dict.fromkeys(names)}
    fields = (
        name
        for name in Stack.model_fields
        if name not in ("block", "variants", "first_layers", "pattern", "vocab_size", "hidden_size")
    )
    table = {
        "vocab_size": stack.vocab_size,
        "hidden_size": stack.hidden_size,
        **{name: _plain(getattr(stack, name), width) for name in fields},
    }
    first = {name: names.index(name) for name in layers}
    owners = [first[name] if name in stack.shared_layers else i for i, name in enumerate(names)]
    return {**table, "shared_layers": owners, "layers": [layers[name] for name in names]}


def _prediction(spec: ModelSpec, mtp: MultiTokenPrediction | None) -> Any:
    if mtp is None:
        return None
    return {
        "num_nextn_predict_layers": mtp.num_nextn_predict_layers,
        "repeated": mtp.repeated,
        "layer": _plain(mtp.block_in(spec.main), spec.hidden_size),
    }


def _plain(value: Any, width: int) -> Any:
    """Returns a part as a table and a tuple as a list. width: of the residual, which determines a head size that is not
    given.
    """
    if isinstance(value, Stack):
        return _stack(value, width)
    if isinstance(value, Part):
        width = getattr(value, "hidden_size", None) or width  # vision and audio encoders have their own width
        table = {name: _plain(getattr(value, name), width) for name in type(value).model_fields if name not in NUMERICS}
        if isinstance(value, Norm):
            table["bias"] = value.has_bias
        if isinstance(value, Attention):
            _, table["num_key_value_heads"], table["head_dim"] = value.sizes(width)
            table["v_head_dim"] = value.v_head_dim or table["head_dim"]
            if isinstance(value.position, Rope):
                table["position"] = {"type": "rope", "rotary_dim": value.position.rotary_size(table["head_dim"])}
        return table
    if isinstance(value, dict):
        return {name: _plain(one, width) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, width) for one in value]
    return value
