"""Names of linear layers that get low-rank adapters, and projections that classes of transformers fuse into one layer.

PEFT finds layers by the names in the model's class (peft/tuners/tuners_utils.py, `check_target_module_exists`), where
queries, keys and values may be one layer with one adapter (`c_attn` of GPT-2, `qkv_proj` of Phi-3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..flow.module_names import ModuleNames
from ..flow.tree import Node, NodePosition
from ..ops import ChunkedScan, Linear
from ..workload.lora import GATE_AND_UP, PROJECTIONS, SCAN_OUTPUT_PROJECTION
from .trained_tensors import is_in_layer

PROJECTIONS_BY_OTHER_NAME: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("query_key_value", "Wqkv", "c_attn", "W_pack", "qkv_proj", "wqkv", "linear_qkv"), PROJECTIONS),
    **dict.fromkeys(("dense", "out_proj", "wo", "linear_proj"), ("o_proj",)),
    "c_proj": ("o_proj", "down_proj"),
    **dict.fromkeys(("dense_h_to_4h", "c_fc", "fc1", "fc_in"), ("up_proj",)),
    **dict.fromkeys(("dense_4h_to_h", "fc2", "fc_out", "linear_fc2"), ("down_proj",)),
    **dict.fromkeys(("gate_up_proj", "linear_fc1"), GATE_AND_UP),
    "linear_q_proj": ("q_proj",),
    "linear_q_down_proj": ("q_a_proj",),
    "linear_q_up_proj": ("q_b_proj",),
    "linear_kv_down_proj": ("kv_a_proj",),
    "linear_kv_up_proj": ("kv_b_proj",),
}
"""Name of a fused layer in classes of several families → the names of its projections in llmcalc."""

USUAL_LAYER_NAMES = {**dict.fromkeys(PROJECTIONS, "qkv_proj"), **dict.fromkeys(GATE_AND_UP, "gate_up_proj")}
"""Projection → the usual name of the fused layer in which transformers classes compute it together with others."""


class ClassLayer(NamedTuple):
    """The layer of a transformers class that computes a projection, such as `qkv_proj` for `q_proj`.

    module, projection: names in the spec.
    layer: the layer's name in the class.

    is_joined: whether the class has the projection in one layer with other projections of the module.
    """

    module: str
    projection: str
    layer: str
    is_joined: bool


def linear_layers(
    node_tree: Node, included_parts: frozenset[str], is_in_layers: bool = True
) -> Iterator[tuple[NodePosition, Linear]]:
    """Yields each linear layer and its operation, inside the transformer layers (`is_in_layers`) or outside of them."""
    for tree_node in node_tree.walk():
        op = tree_node.node.op
        if (
            isinstance(op, Linear)
            and tree_node.optional_part in {"", *included_parts}
            and is_in_layer(tree_node) == is_in_layers
        ):
            yield tree_node, op


def has_weight_read_by_scan(tree_node: NodePosition) -> bool:
    """Whether the layer is Mamba-2's output projection, whose weight the fused scan kernel reads directly.

    Unsloth leaves it out of its quantized weights (models/llama.py for Falcon-H1, models/vision.py for Nemotron-H);
    elsewhere `llm_int8_skip_modules` has to name it.
    """
    return tree_node.node.name == SCAN_OUTPUT_PROJECTION and any(
        isinstance(sibling_node.op, ChunkedScan)
        for sibling_node in (() if tree_node.parent is None else tree_node.parent.node.children)
    )


def layers_of_projections(
    node_tree: Node, included_parts: frozenset[str], module_names_of: ModuleNames | None
) -> frozenset[ClassLayer]:
    """Returns, for each projection inside the model's layers, which layer of the transformers class computes it.

    module_names_of: names of the modules in the class; None to take the fields `fused_qkv` and `fused_gate` alone.
    """
    layer_names: dict[tuple[str, str], tuple[str, str]] = {}
    for tree_node, _ in linear_layers(node_tree, included_parts):
        node, parent_tree_node = tree_node.node, tree_node.parent
        class_layer_name = node.name
        published_names = () if module_names_of is None else module_names_of(_path_of_first_index(tree_node))
        if published_names:
            class_layer_name = published_names[0].rpartition(".")[2]
        elif node.is_fused:
            class_layer_name = USUAL_LAYER_NAMES[node.name]
        module_name, module_path = (
            ("", "")
            if parent_tree_node is None
            else (parent_tree_node.node.name, _path_of_first_index(parent_tree_node))
        )
        layer_names.setdefault((module_name, node.name), (class_layer_name, module_path))
    name_counts = Counter(layer_names.values())
    return frozenset(
        ClassLayer(module_name, projection, layer[0], name_counts[layer] > 1)
        for (module_name, projection), layer in layer_names.items()
    )


def _path_of_first_index(tree_node: NodePosition) -> str:
    """Returns a node's path with index 0 for each repeated module: `layers.0.self_attn.q_proj`."""
    node, parent_tree_node = tree_node.node, tree_node.parent
    if parent_tree_node is None:
        return ""
    node_path_name = node.name if node.indices is None else f"{node.name}.{node.indices[0]}"
    return ".".join(filter(None, (_path_of_first_index(parent_tree_node), node_path_name)))


def split_matched_targets(
    targets: Sequence[str], linear_names: Sequence[str], layers_of_class: frozenset[ClassLayer]
) -> tuple[list[str], list[str]]:
    """Returns (the projections that the adapter targets name, the targets that match no layer).

    targets: names here, of the model's class, or of classes of other families. linear_names: the model's projections.
    """
    projections: dict[str, None] = {}
    unknown_targets = []
    for target_name in targets:
        target_projections = [layer.projection for layer in layers_of_class if layer.layer == target_name]
        target_projections = (
            [target_name]
            if target_name in linear_names
            else target_projections
            or [
                other_name
                for other_name in PROJECTIONS_BY_OTHER_NAME.get(target_name, ())
                if other_name in linear_names
            ]
        )
        projections |= dict.fromkeys(target_projections)
        if not target_projections:
            unknown_targets.append(target_name)
    return list(projections), unknown_targets


def joined_layers(target_projections: Sequence[str], layers_of_class: frozenset[ClassLayer]) -> frozenset[ClassLayer]:
    """Returns the projections that a fused layer computes jointly, except if a target names one of them separately.

    Who names `q_proj` has a class with that layer, such as Unsloth's copy of Phi-3 in the layout of Llama.
    """
    joined_projections = [layer for layer in layers_of_class if layer.is_joined]
    separate_layers = {
        (layer.module, layer.layer) for layer in joined_projections if layer.projection in target_projections
    }
    return frozenset(layer for layer in joined_projections if (layer.module, layer.layer) not in separate_layers)
