"""Compares two specs: whether they describe the same architecture, and their first difference.

A spec can be written in several ways: a head size or the number of key/value heads may be given or omitted, and layers
may be variants under any names. Here each is converted to one canonical form. Fields that change no count and no
function's form are ignored: the ε of norms, 1 + in their weights, the number formats of their products and of the loss,
dropout, the base of rotary angles, weights of auxiliary losses, and the context length without a position embedding of
its size.
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

NUMERICS = frozenset(
    {
        "eps",
        "norm_eps",
        "unit_offset",
        "concatenated",
        "float32_product",
        "float32_softmax",
        "float32_scores",
        "float32_weights",
        "repeat_kv",
        "copies_heads",
        "floors_scores",
        "names_scores",
        "bias_in_sdpa",
        "scales_x",
        "fused_qkv",
        "fused_gate",
        "expert_loop",
        "sliced_experts",
        "float32_loss",
        "logit_softcapping",
        "rope_theta",
        "router_aux_loss_coef",
        "router_z_loss_coef",
    }
)


Difference: TypeAlias = tuple[str, Any, Any]
"""(path, value on one side, value on the other side)."""


def canonical_values(spec: ModelSpec) -> dict[str, Any]:
    """Returns a model as plain values, which are equal for equivalent models."""
    table = {
        name: getattr(spec, name)
        for name in ModelSpec.model_fields
        if name not in ("encoder", "decoder", "max_position_embeddings", "mtp", "dropout")
    }
    table = {name: _plain_values(value, spec.hidden_size) for name, value in table.items()}
    for stack_name, stack in spec.stacks():
        table[stack_name] = _stack_tables(stack, stack.hidden_size or spec.hidden_size)
    return {**table, "mtp": _prediction_table(spec, spec.mtp)}


def differences(left: Any, right: Any, path: str = "") -> Iterator[Difference]:
    """Yields (path, left value, right value) for every difference.

    Equal differences of several layers are reported once.

    The lowest layer is named.
    """
    if isinstance(left, dict) and isinstance(right, dict):
        for name in dict.fromkeys((*left, *right)):
            yield from differences(left.get(name), right.get(name), f"{path}.{name}" if path else name)
    elif (
        isinstance(left, list)
        and isinstance(right, list)
        and len(left) == len(right)
        and any(isinstance(element, dict) for element in left)
    ):
        reported_pairs: list[tuple[Any, Any]] = []
        for i, pair in enumerate(zip(left, right, strict=True)):
            if pair not in reported_pairs:  # layers of one kind share one table
                reported_pairs.append(pair)
                yield from differences(*pair, f"{path}.{i}")
    elif left != right:
        yield path, left, right


def count_of_values(difference: Difference) -> int:
    """Returns the number of different values. A part that only one spec has counts with all fields."""
    return max(_field_values(difference[1]), _field_values(difference[2]))


def _field_values(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_field_values, children))


def _stack_tables(stack: Stack, width: int) -> dict[str, Any]:
    """Returns a table per layer, with the index of the layer that owns the layer's parameters."""
    layer_kinds = stack.layer_names()
    layers = {name: _plain_values(stack.layer(name), width) for name in dict.fromkeys(layer_kinds)}
    fields = (
        name
        for name in Stack.model_fields
        if name not in ("block", "variants", "first_layers", "pattern", "vocab_size", "hidden_size")
    )
    table = {
        "vocab_size": stack.vocab_size,
        "hidden_size": stack.hidden_size,
        **{name: _plain_values(getattr(stack, name), width) for name in fields},
    }
    first_index = {name: layer_kinds.index(name) for name in layers}
    owners = [first_index[name] if name in stack.shared_layers else i for i, name in enumerate(layer_kinds)]
    return {**table, "shared_layers": owners, "layers": [layers[name] for name in layer_kinds]}


def _prediction_table(spec: ModelSpec, mtp: MultiTokenPrediction | None) -> Any:
    if mtp is None:
        return None
    return {
        "num_nextn_predict_layers": mtp.num_nextn_predict_layers,
        "repeated": mtp.repeated,
        "layer": _plain_values(mtp.prediction_block(spec.main), spec.hidden_size),
    }


def _plain_values(value: Any, width: int) -> Any:
    """Converts components to tables and tuples to lists. width: the residual width, for a default head size."""
    if isinstance(value, Stack):
        return _stack_tables(value, width)
    if isinstance(value, Part):
        width = getattr(value, "hidden_size", None) or width  # vision and audio encoders have their own width
        table = {
            name: _plain_values(getattr(value, name), width)
            for name in type(value).model_fields
            if name not in NUMERICS
        }
        if isinstance(value, Norm):
            table["bias"] = value.has_bias
        if isinstance(value, Attention):
            _, table["num_key_value_heads"], table["head_dim"] = value.sizes(width)
            table["v_head_dim"] = value.v_head_dim or table["head_dim"]
            if isinstance(value.position, Rope):
                table["position"] = {"type": "rope", "rotary_dim": value.position.rotary_size(table["head_dim"])}
        return table
    if isinstance(value, dict):
        return {name: _plain_values(element, width) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_values(element, width) for element in value]
    return "gelu_tanh" if value == "gelu_new" else value
