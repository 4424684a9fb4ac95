"""Compares two specs: whether they describe the same architecture, and their first difference.

A spec can be written in several ways: a head size or the number of key/value heads may be given or omitted, and layers
may be variants under any names. Here each is converted to one canonical form. Fields that change no count and no
function's form are ignored: the ε of norms, 1 + in their weights, the number formats of their products and of the loss,
dropout, the base of rotary angles, weights of auxiliary losses, and the context length without a position embedding of
its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from ...components.base import Part
from ...components.mixers.attention import Attention
from ...components.multi_token_prediction import MultiTokenPrediction
from ...components.norm import Norm
from ...components.rope import Rope
from ...components.stack import Stack
from ...model import ModelSpec

NUMERIC_FIELDS = frozenset(
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
        "logit_scale",
        "logit_softcapping",
        "rope_theta",
        "router_aux_loss_coef",
        "router_z_loss_coef",
    }
)


Difference: TypeAlias = tuple[str, Any, Any]
"""(path, value on one side, value on the other side)."""


def canonical_values(spec: ModelSpec) -> dict[str, Any]:
    """Returns a model as tables of plain values, which are equal for equivalent models."""
    return dict(_canonical_fields(spec))


def has_canonical_values(spec: ModelSpec, canonical_fields: Mapping[str, Any]) -> bool:
    """Whether a model's canonical values are these; computes them only up to the first difference."""
    missing_fields = set(canonical_fields)
    for field_name, field_value in _canonical_fields(spec):
        missing_fields.discard(field_name)
        if next(differences(canonical_fields.get(field_name), field_value), None) is not None:
            return False
    return all(canonical_fields[field_name] is None for field_name in missing_fields)


def _canonical_fields(spec: ModelSpec) -> Iterator[tuple[str, Any]]:
    """Yields the (name, value) pairs of `canonical_values` one at a time, each computed on demand."""
    for field_name in ModelSpec.model_fields:
        if field_name not in ("encoder", "decoder", "max_position_embeddings", "mtp", "dropout"):
            yield field_name, _plain_values(getattr(spec, field_name), spec.hidden_size)
    for stack_name, stack in spec.stacks():
        yield stack_name, _stack_tables(stack, stack.hidden_size or spec.hidden_size)
    yield "mtp", _prediction_table(spec, spec.mtp)


def differences(left_value: Any, right_value: Any, path: str = "") -> Iterator[Difference]:
    """Yields (path, left value, right value) for every difference.

    Equal differences of several layers are reported once.

    The lowest layer is named.
    """
    if isinstance(left_value, dict) and isinstance(right_value, dict):
        for field_name in dict.fromkeys((*left_value, *right_value)):
            yield from differences(
                left_value.get(field_name), right_value.get(field_name), f"{path}.{field_name}" if path else field_name
            )
    elif (
        isinstance(left_value, list)
        and isinstance(right_value, list)
        and len(left_value) == len(right_value)
        and any(isinstance(list_element, dict) for list_element in left_value)
    ):
        reported_pairs: list[tuple[Any, Any]] = []
        for element_index, element_pair in enumerate(zip(left_value, right_value, strict=True)):
            if element_pair not in reported_pairs:  # layers of one kind share one table
                reported_pairs.append(element_pair)
                yield from differences(*element_pair, f"{path}.{element_index}")
    elif left_value != right_value:
        yield path, left_value, right_value


def count_changed_values(difference: Difference) -> int:
    """Returns the number of values that differ; a component that only one spec has counts with all its fields."""
    return max(_field_values(difference[1]), _field_values(difference[2]))


def _field_values(field_value: Any) -> int:
    inner_values = (
        field_value.values() if isinstance(field_value, dict) else field_value if isinstance(field_value, list) else ()
    )
    return 1 + sum(map(_field_values, inner_values))


def _stack_tables(stack: Stack, hidden_size: int) -> dict[str, Any]:
    """Returns each layer's settings and the index of the layer whose parameters it uses (its own unless shared)."""
    layer_kinds = stack.layer_names()
    table_by_kind = {kind: _plain_values(stack.layer(kind), hidden_size) for kind in dict.fromkeys(layer_kinds)}
    field_names = (
        field_name
        for field_name in Stack.model_fields
        if field_name not in ("block", "variants", "first_layers", "pattern", "vocab_size", "hidden_size")
    )
    stack_table = {
        "vocab_size": stack.vocab_size,
        "hidden_size": stack.hidden_size,
        **{field_name: _plain_values(getattr(stack, field_name), hidden_size) for field_name in field_names},
    }
    first_layer_by_kind = {layer_kind: layer_kinds.index(layer_kind) for layer_kind in table_by_kind}
    owner_indices = [
        first_layer_by_kind[kind] if kind in stack.shared_layers else layer_index
        for layer_index, kind in enumerate(layer_kinds)
    ]
    layers = [table_by_kind[layer_kind] for layer_kind in layer_kinds]
    return {**stack_table, "shared_layers": owner_indices, "layers": layers}


def _prediction_table(spec: ModelSpec, prediction: MultiTokenPrediction | None) -> Any:
    if prediction is None:
        return None
    return {
        "num_nextn_predict_layers": prediction.num_nextn_predict_layers,
        "repeated": prediction.repeated,
        "final_norm": prediction.final_norm,
        "own_embedding": prediction.own_embedding,
        "layer": _plain_values(prediction.prediction_block(spec.main), spec.hidden_size),
    }


def _plain_values(field_value: Any, hidden_size: int) -> Any:
    """Converts components to tables, tuples to lists. hidden_size: the width from which default head sizes follow."""
    if isinstance(field_value, Stack):
        return _stack_tables(field_value, hidden_size)
    if isinstance(field_value, Part):
        hidden_size = (
            getattr(field_value, "hidden_size", None) or hidden_size
        )  # vision and audio encoders have their own width
        part_table = {
            field_name: _plain_values(getattr(field_value, field_name), hidden_size)
            for field_name in type(field_value).model_fields
            if field_name not in NUMERIC_FIELDS
        }
        if isinstance(field_value, Norm):
            part_table["bias"] = field_value.has_bias
        if isinstance(field_value, Attention):
            _, part_table["num_key_value_heads"], part_table["head_dim"] = field_value.sizes(hidden_size)
            part_table["v_head_dim"] = field_value.v_head_dim or part_table["head_dim"]
            if isinstance(field_value.position, Rope):
                rotary_dim = field_value.position.rotary_size(part_table["head_dim"])
                part_table["position"] = {"type": "rope", "rotary_dim": rotary_dim}
        return part_table
    if isinstance(field_value, dict):
        return {name: _plain_values(nested_value, hidden_size) for name, nested_value in field_value.items()}
    if isinstance(field_value, list | tuple):
        return [_plain_values(list_element, hidden_size) for list_element in field_value]
    return "gelu_tanh" if field_value == "gelu_new" else field_value
