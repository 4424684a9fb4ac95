"""The names that a published checkpoint gives to a model's modules, by the paths of nodes in llmcalc's tree.

`MODULE_NAMES_BY_PATH` has the names of most classes of `transformers`; a family's record has those of its own classes.
`EARLIER_NAMES` has names in checkpoints that an earlier version or another library wrote. Names are known without
building a class; the tests compare them with every class (tests/sources/test_module_names.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from ..frozen import frozen
from .tree import Node

MODULE_NAMES_BY_PATH: Mapping[str, str] = {
    "": "language_model.model | language_model | text_model | model",
    "encoder": "encoder.text_model | encoder",
    "layers": "layers",
    "embed_tokens": "embed_tokens | shared",
    "self_attn_pre_norm": "input_layernorm",
    "self_attn_post_norm": "post_attention_layernorm",
    "mlp_pre_norm": "pre_feedforward_layernorm | post_attention_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
    "pre_norm": "input_layernorm",
    "linear_attn_pre_norm": "input_layernorm",
    "mamba_pre_norm": "input_layernorm",
    "mixers_pre_norm": "input_layernorm",
    "linear_attn.norm": "norm | o_norm",
    "scan": "A_log + D + dt_bias | A_log + D",
    "router": "gate - gate.e_score_correction_bias | gate",
    "mlp.score_correction": ".mlp.gate.e_score_correction_bias",
    "shared_expert": "shared_expert | shared_experts",
    "experts.gate_proj": "gate_up_proj/2",
    "experts.up_proj": "gate_up_proj/2 | up_proj",
    "kv_a_proj": "kv_a_proj_with_mqa",
    "q_a_norm": "q_a_layernorm",
    "kv_a_norm": "kv_a_layernorm",
    "mamba": "mamba | mixer",
    "lm_head": "lm_head | language_model.lm_head",
    "classifier": "classifier | score | qa_outputs",
    "classifier.out_proj": "out_proj | .score | .classifier | .qa_outputs",
    "projection": "embedding_projection | embedding_proj_layer",
    "projection.proj": ".embedding_projection | .embedding_proj_layer",
}
"""Node name → the module name in most classes, which are modelled on Llama's class."""

EARLIER_NAMES: Mapping[str, tuple[str, ...]] = {
    "gate": ("router",),
    "router": ("gate",),
    "shared_experts": ("shared_expert",),
    "shared_expert": ("shared_experts",),
}
"""Component of a published module name → its names in checkpoints of other versions or libraries."""

EXPERT_MATRIX_NAMES: Mapping[str, tuple[str, ...]] = {
    "gate_proj": ("gate_proj", "w1"),
    "up_proj": ("up_proj", "w3"),
    "down_proj": ("down_proj", "w2"),
}
"""Weight matrix of routed experts → its names in checkpoints that store every expert as a separate module."""

CLASS_PREFIXES = ("", "model.", "model.language_model.", "language_model.model.")
"""Path prefixes of a text model's modules: alone, and in `transformers` multimodal classes of both layouts."""


class ModuleNames:
    """A table from the paths of nodes in a spec's tree to the names of modules in a published checkpoint.

    A call with the path of a node returns its names, most usual first; numbers of layers are those of the path, and of
    several experts the first stands for all.
    """

    def __init__(
        self,
        node_tree: Node,
        spec_kind: str,
        published_names: Mapping[str, str],
        earlier_names: Mapping[str, str] | None = None,
        class_prefixes: Sequence[str] = CLASS_PREFIXES,
    ) -> None:
        """Builds the names for the modules of a spec's tree. spec_kind: the kind of the spec.

        published_names: the modules of its family's record.
        earlier_names: the names of earlier checkpoints in that record.
        class_prefixes: prefixes of the modules of its classes, `` or ending with a dot.
        """
        self._earlier_patterns = [
            _name_pattern(current_name, earlier_name) for current_name, earlier_name in (earlier_names or {}).items()
        ]
        self._published_names_by_path, self._names = published_names, {**MODULE_NAMES_BY_PATH, **published_names}
        self._names_outside_layers: dict[str, tuple[str, ...]] = {}
        self._layers: dict[str, list[_LayerNames]] = {}
        text_prefixes = [
            f"{current_name}." for current_name in _split_alternatives(published_names.get("", "")) if current_name
        ]
        root_names = tuple(
            dict.fromkeys(
                (
                    *class_prefixes,
                    *(f"{prefix}{current_name}" for prefix in class_prefixes for current_name in text_prefixes),
                )
            )
        )
        stacks = {
            child.name: child for child in node_tree.children if child.is_stack and spec_kind == "encoder-decoder"
        }
        other_children = [
            child for child in node_tree.children if child.name not in stacks and child.optional != "towers"
        ]
        if stacks:
            self._add_stack_names("", other_children, root_names)
            for current_name, stack in stacks.items():
                self._add_stack_names(
                    f"{current_name}.", stack.children, self._encoder_or_decoder_prefixes(current_name, root_names)
                )
        else:
            has_one_side = spec_kind == "encoder" or any(key.startswith("decoder.") for key in published_names)
            self._add_stack_names(
                "",
                other_children,
                self._encoder_or_decoder_prefixes(spec_kind, root_names) if has_one_side else root_names,
            )

    def __call__(self, module_path: str) -> tuple[str, ...]:
        published_names = self._published_names(module_path)
        return (
            tuple(dict.fromkeys((*published_names, *map(self._earlier_name, published_names))))
            if self._earlier_patterns
            else published_names
        )

    def _earlier_name(self, current_name: str) -> str:
        for name_pattern, replacement in self._earlier_patterns:
            current_name = name_pattern.sub(replacement, current_name)
        return current_name

    def _published_names(self, module_path: str) -> tuple[str, ...]:
        layer_match = re.fullmatch(r"((?:\w+\.)?layers|mtp)\.(\d+)\.(?:block\.)?(.+)", module_path)
        path_pattern = replace_numbers(module_path if layer_match is None else layer_match[3])
        if layer_match is None:
            matching_names = self._names_outside_layers.get(path_pattern, ())
            layer_numbers = re.findall(r"(?<=\.)\d+(?=\.|$)", module_path)
            return tuple(
                _replace_stars_by_indices(name_with_stars, layer_numbers) for name_with_stars in matching_names
            ) or (module_path,)
        layer_names, names_in_layer = self._layer_names(layer_match[1], int(layer_match[2]))
        layer_numbers = re.findall(r"(?<=\.)\d+(?=\.|$)", "." + layer_match[3])
        matching_names = tuple(
            _replace_stars_by_indices(module_name, layer_numbers)
            for module_name in names_in_layer.get(path_pattern, ())
        )
        joined_names = (
            _name_in_layer(layer_name, module_name) for layer_name in layer_names for module_name in matching_names
        )
        return tuple(joined_name for joined_name in joined_names if joined_name) or (module_path,)

    def _layer_names(self, stack_path: str, layer_index: int) -> tuple[tuple[str, ...], Mapping[str, tuple[str, ...]]]:
        """Returns the published names of a layer, and the published names inside the layer by path."""
        for layers_of_type in reversed(self._layers.get(stack_path, [])):
            if layer_index in layers_of_type.indices:
                return layers_of_type.names(layer_index), layers_of_type.names_in_layer
        return (), {}

    def _encoder_or_decoder_prefixes(self, side_name: str, root_names: tuple[str, ...]) -> tuple[str, ...]:
        side_prefixes = [
            f"{root_name}{side_prefix}."
            for side_prefix in _split_alternatives(self._names.get(side_name, side_name))
            for root_name in root_names
        ]
        return (*root_names, *side_prefixes)

    def _add_stack_names(self, stack_name: str, child_nodes: Sequence[Node], root_names: tuple[str, ...]) -> None:
        """Adds the published names for a stack: of layers by module list, and of the components around the layers."""
        layers = [child_node for child_node in child_nodes if child_node.name == "layers"]
        mtp_nodes = [child_node for child_node in child_nodes if child_node.name == "mtp"]
        for child_node in child_nodes:
            if child_node.name not in ("layers", "mtp"):
                child_names = self._node_names(
                    child_node,
                    child_node.name,
                    root_names,
                    root_names,
                    (f"{stack_name}{child_node.name}", child_node.name),
                )
                self._names_outside_layers |= {
                    f"{stack_name}{path}": _add_earlier_names(path, node_names) for path, node_names in child_names
                }
        labels_with_separate_list = {
            layer_node.label
            for layer_node in layers
            if f"{stack_name}layers.{layer_node.label}" in self._published_names_by_path
        }
        common_layers = [layer_node for layer_node in layers if layer_node.label not in labels_with_separate_list]
        for layer_node in (*layers, *mtp_nodes):
            has_separate_list = layer_node.name == "layers" and layer_node.label in labels_with_separate_list
            list_key, layer_groups = (
                (f"{stack_name}layers.{layer_node.label}", [layer_node])
                if has_separate_list
                else (f"{stack_name}layers", common_layers)
            )
            layer_indices = sorted(
                i
                for layer_of_group in layer_groups
                if layer_of_group.role != "shared"
                for i in layer_of_group.indices or ()
            )
            layer_numbers = {layer_index: layer_number for layer_number, layer_index in enumerate(layer_indices)}
            list_names = _split_alternatives(self._published_names_by_path.get(list_key, self._names["layers"]))
            names_in_layer: dict[str, tuple[str, ...]] = {}
            for layer_part in _layer_parts(layer_node):
                table_keys = (f"{stack_name}{layer_part.name}", layer_part.name)
                names_in_layer |= {
                    path: _add_earlier_names(path, node_names)
                    for path, node_names in self._node_names(layer_part, layer_part.name, ("",), ("",), table_keys)
                }
            module_lists = tuple(list_part for list_name in list_names for list_part in list_name.split(" & "))
            self._layers.setdefault(f"{stack_name}{layer_node.name}", []).append(
                _LayerNames(
                    frozenset(layer_node.indices or ()),
                    layer_node in mtp_nodes,
                    layer_numbers,
                    module_lists,
                    root_names,
                    names_in_layer,
                )
            )

    def _node_names(
        self,
        node: Node,
        node_path: str,
        parent_paths: tuple[str, ...],
        outer_parents: tuple[str, ...],
        table_keys_of_node: tuple[str, ...],
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields the path and the published names of a node and of all nodes below it.

        parent_paths: the prefixes of its parent's modules.
        outer_parents: the prefixes of its layer, or of the stack outside of layers.
        table_keys_of_node: its path in the layer, and every suffix of that path.
        """
        child_keys = {
            child.name: (*(f"{key}.{child.name}" for key in table_keys_of_node), child.name) for child in node.children
        }
        outer_child_names = {
            module_name
            for child_table_keys in child_keys.values()
            for module_name in self._table_names(child_table_keys)
            if module_name.startswith(".")
        }
        layer_level_names = outer_child_names if node.children else None
        table_entry = self._first_table_entry(table_keys_of_node)
        if table_entry == "":
            module_names: tuple[str, ...] = ()
            child_prefixes = parent_paths
        else:
            alternatives = _parse_alternatives(table_entry or node.name, layer_level_names)
            # checkpoints with the parts of a fused layer apart
            separate_alternatives = [[node.name]] if "/" in (table_entry or "") else []
            module_names = tuple(
                dict.fromkeys(
                    module_name
                    for alternative in alternatives + separate_alternatives
                    for module_name in _paths_below_parents(alternative, parent_paths, outer_parents)
                )
            )
            parent_alternatives = [
                _module_names_without_parts(alternative, outer_child_names) for alternative in alternatives
            ]
            child_prefixes = tuple(
                dict.fromkeys(
                    f"{module_name}."
                    for alternative in parent_alternatives
                    for module_name in _paths_below_parents(alternative, parent_paths, outer_parents)
                )
            )
            if node.indices is not None:
                module_names = tuple(f"{module_name}.*" for module_name in module_names)
                child_prefixes = tuple(f"{module_name}*." for module_name in child_prefixes)
        node_path = node_path if node.indices is None else f"{node_path}.*"
        yield node_path, module_names
        for child in node.children:
            yield from self._node_names(
                child, f"{node_path}.{child.name}", child_prefixes, outer_parents, child_keys[child.name]
            )

    def _first_table_entry(self, table_keys: tuple[str, ...]) -> str | None:
        """Returns the first entry of the name tables for the keys, the family's table first; None without an entry."""
        return next(
            (
                name_table[table_key]
                for name_table in (self._published_names_by_path, self._names)
                for table_key in table_keys
                if table_key in name_table
            ),
            None,
        )

    def _table_names(self, table_keys: tuple[str, ...]) -> Iterator[str]:
        entry = self._first_table_entry(table_keys)
        return (module_name for alternative in _parse_alternatives(entry or "", None) for module_name in alternative)


class _LayerNames(NamedTuple):
    """The layers of one type in a stack, and a checkpoint's names for the module lists with these layers.

    indices: their indices. are_predictors: whether they are multi-token-prediction modules, numbered after the others.
    layer_numbers: index → number among the stack's layers with parameters of their own.
    list_names: names of the module lists that contain them. stack_prefixes: prefixes of the stack.
    names_in_layer: path of a node within a layer → its names.
    """

    indices: frozenset[int]
    are_predictors: bool
    layer_numbers: Mapping[int, int]
    list_names: tuple[str, ...]
    stack_prefixes: tuple[str, ...]
    names_in_layer: Mapping[str, tuple[str, ...]]

    def names(self, layer_index: int) -> tuple[str, ...]:
        """Returns the published names of the layer with this index."""
        layer_number = (
            len(self.layer_numbers) + layer_index
            if self.are_predictors
            else self.layer_numbers.get(layer_index, layer_index)
        )
        layer_names = [_layer_name(list_name, layer_number, len(self.layer_numbers)) for list_name in self.list_names]
        full_names = tuple(f"{prefix}{list_name}" for prefix in self.stack_prefixes for list_name in layer_names)
        return (
            (*full_names, f"mtp.layers.{layer_index}", f"model.mtp.layers.{layer_index}")
            if self.are_predictors
            else full_names
        )


def _name_in_layer(layer_name: str, name_in_layer: str) -> str:
    """Returns a module's full name in a checkpoint; empty if the module is only in another module list's layers."""
    if name_in_layer.startswith("&"):
        module_list, _, name_in_layer = name_in_layer[1:].partition(".")
        if module_list not in layer_name.split("."):
            return ""
    return f"{layer_name}.{name_in_layer}" if name_in_layer else layer_name


def _layer_name(joined_list_names: str, layer_number: int, layer_count: int) -> str:
    """Returns the checkpoint's name for a layer. joined_list_names: one or several equally long module lists.

    layer_number: its number among the layers with parameters of their own.
    layer_count: the number of these layers.
    """
    list_names = joined_list_names.split(" + ")
    layers_per_list = max(1, layer_count // len(list_names))
    list_name, layer_number = (
        (list_names[0], layer_number)
        if len(list_names) == 1
        else (list_names[min(layer_number // layers_per_list, len(list_names) - 1)], layer_number % layers_per_list)
    )
    return list_name.replace("*", str(layer_number)) if "*" in list_name else f"{list_name}.{layer_number}"


def _layer_parts(layer: Node) -> Iterator[Node]:
    """Yields a layer's child nodes; the block in a multi-token-prediction module is replaced by its children.

    DeepSeek-V3 stores the module after the last layer, as one layer more (README_WEIGHTS.md).
    """
    for layer_part in layer.children:
        yield from layer_part.children if layer.name == "mtp" and layer_part.name == "block" else (layer_part,)


@frozen(slots=True)
class Checkpoint:
    """A published checkpoint: its config, and the module names that its classes use.

    config: its parsed `config.json`.
    module_names: nodes of the tree whose modules have other names than those in `MODULE_NAMES_BY_PATH`, as a family's
        record has them.
    earlier_names: components of those names → their names in earlier checkpoints.
    class_prefixes: prefixes of the modules of its classes, `` or ending with a dot.
    """

    config: Mapping[str, Any]
    module_names: Mapping[str, str]
    earlier_names: Mapping[str, str]
    class_prefixes: tuple[str, ...] = CLASS_PREFIXES

    def names(self, node_tree: Node, model_kind: str) -> ModuleNames:
        """Returns the published module names for the nodes of a tree. model_kind: the kind of the tree's spec."""
        return ModuleNames(node_tree, model_kind, self.module_names, self.earlier_names, self.class_prefixes)


def config_fields(model_config: Mapping[str, Any] | Checkpoint | None) -> Mapping[str, Any] | None:
    """Returns the fields of a parsed `config.json` or of a `Checkpoint`; None for None."""
    return model_config.config if isinstance(model_config, Checkpoint) else model_config


def _parse_alternatives(joined_names: str, layer_level_names: Iterable[str] | None) -> list[list[str]]:
    """Parses an entry of a name table into alternatives, each a list of one or several module names.

    layer_level_names: names of the node's parts that the tables give from the layer down; None without parts.
    An alternative that joins several modules is only for a node with a part in one of them (`router + experts`).
    """
    alternatives_in_entry = [
        [
            module_name
            for module_name in alternative_text.partition("/")[0].replace(" - ", " + -").split(" + ")
            if not module_name.startswith("-")
        ]
        for alternative_text in _split_alternatives(joined_names)
    ]
    if layer_level_names is None:
        return alternatives_in_entry
    first_names = [part_name.removeprefix(".") for part_name in layer_level_names]
    alternatives = [
        alternative
        for alternative in alternatives_in_entry
        if len(alternative) > 1
        and any(
            f"{first_name}.".startswith(f"{module_name}.") for first_name in first_names for module_name in alternative
        )
    ]
    return (
        alternatives
        or [alternative for alternative in alternatives_in_entry if len(alternative) == 1]
        or alternatives_in_entry
    )


def _module_names_without_parts(alternative: list[str], part_names: Iterable[str]) -> list[str]:
    """Returns an alternative's module names without those of the components inside the node."""
    if len(alternative) == 1:
        return alternative
    return [
        module_name for module_name in alternative if f".{module_name.removeprefix('.')}" not in part_names
    ] or alternative


def _paths_below_parents(
    module_names: list[str], parent_paths: tuple[str, ...], outer_parents: tuple[str, ...]
) -> Iterator[str]:
    """Yields the paths of modules below their parents. A name that starts with a dot is below `outer_parents`."""
    for module_name in module_names:
        for name_prefix in outer_parents if module_name.startswith(".") else parent_paths:
            yield name_prefix + module_name.removeprefix(".")


def _name_pattern(current_name: str, earlier_name: str) -> tuple[re.Pattern[str], str]:
    """Returns a regular expression for a module's name, and its replacement. `*` is a layer index in both names."""
    name_pattern = re.escape(current_name).replace(r"\*", r"(\d+)")
    return re.compile(rf"(?<![^.]){name_pattern}(?![^.])"), earlier_name.replace("*", r"\1")


def _split_alternatives(joined_names: str) -> list[str]:
    return joined_names.split(" | ")


def _add_earlier_names(path: str, published_names: tuple[str, ...]) -> tuple[str, ...]:
    """Adds to a node's module names those of older checkpoints and those of single experts.

    A stacked tensor of experts also has the name of its module, which has no linear layers.
    """
    *outer_names, last_name = path.split(".")
    known_names = list(published_names)
    if outer_names and outer_names[-1] == "experts":
        expert_modules = [
            module_name_in_table.rpartition(".")[0]
            for module_name_in_table in published_names
            if module_name_in_table.split(".")[-2:-1] == ["experts"]
        ]
        known_names += [
            f"{module_name}.0.{last_component}"
            for module_name in expert_modules
            for last_component in EXPERT_MATRIX_NAMES.get(last_name, (last_name,))
        ] + expert_modules
    name_variants: list[str] = []
    for module_name in dict.fromkeys(known_names):
        *components_before_last, last_component = module_name.split(".")
        component_choices = [(component, *EARLIER_NAMES.get(component, ())) for component in components_before_last]
        last_names = (last_component, *EARLIER_NAMES.get(last_component, ()))
        name_variants += [".".join(name_components) for name_components in product(*component_choices, last_names)]
    return tuple(dict.fromkeys(name_variants))


def replace_numbers(module_path: str) -> str:
    """Returns a module path in which every number, such as a layer index, is replaced by `*`."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", module_path)


def _replace_stars_by_indices(name_with_stars: str, layer_numbers: Sequence[str]) -> str:
    """Replaces each `*` in a name by the next layer index, or by 0 when no index is left."""
    remaining_numbers = iter(layer_numbers)
    return re.sub(r"\*", lambda _: next(remaining_numbers, "0"), name_with_stars)
