"""Finds the modules of a `transformers` class that correspond to the nodes of the model's tree.

The names of these modules differ from those of the reference.

The names are data: `MODULE_NAMES_BY_PATH` in `flow/module_names` for names that most classes share, and
`Family.modules` for those of one family. Nodes are found from the top down, by name and never by number or size: below
the modules of the parent node, under the node's own name unless the data says otherwise. A node that is not found is
not compared individually, and the coverage of a verdict lists it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..flow.module_names import MODULE_NAMES_BY_PATH
from ..flow.tree import Node
from ..sources.huggingface.family import ModuleNames
from ..sources.huggingface.towers.tower_modules import TOWER_MODULES


@dataclass(frozen=True, slots=True)
class NodeModules:
    """The modules of a class that correspond to a node of the tree.

    modules: the paths of modules or tensors that together correspond to it.
    subtracted_modules: the paths that are subtracted, none by default.
    node_count: the number of nodes that share them equally, 1 by default.
    """

    modules: tuple[str, ...]
    subtracted_modules: tuple[str, ...] = ()
    node_count: int = 1

    def node_share_of_counts(self, counts_by_path: Mapping[str, int]) -> int:
        """Returns the part of the modules' counts that belongs to one node; −1 if they cannot be divided equally."""
        module_total = sum(counts_by_path.get(module_path, 0) for module_path in self.modules) - sum(
            counts_by_path.get(module_path, 0) for module_path in self.subtracted_modules
        )
        return -1 if module_total % self.node_count else module_total // self.node_count


ModulesByNode: TypeAlias = dict[str, NodeModules]
"""Path of a node in the reference → the modules of the `transformers` class that match it."""

TOWERS_PREFIX = "towers."
"""Path prefix of the nodes in vision and audio encoders."""


def find_modules_of_nodes(
    model_tree: Node,
    class_paths: frozenset[str],
    model_kind: str,
    base_path: str,
    class_module_names: ModuleNames,
    context_modules: ModuleNames | None = None,
) -> ModulesByNode:
    """Finds the modules of a `transformers` class for the nodes of the model's tree.

    class_paths: the paths of the class's modules and tensors.
    model_kind: the kind of the spec.
    base_path: the path of the model without a head.
    class_module_names: the module names of its family.
    context_modules: the module names of the wrapper around it; none by default.
    """
    tower_names = {
        tower_key[len(TOWERS_PREFIX) :]: tower_module_names
        for tower_key, tower_module_names in (context_modules or class_module_names).items()
        if tower_key.startswith(TOWERS_PREFIX)
    }
    tower_modules = _ModuleSearch(class_paths, {**TOWER_MODULES, **tower_names}, tower_names).find_tower_modules(
        model_tree, base_path
    )
    return {
        **dict(
            _ModuleSearch(
                class_paths, {**MODULE_NAMES_BY_PATH, **class_module_names}, class_module_names
            ).find_modules_outside_towers(model_tree, model_kind, base_path)
        ),
        **dict(tower_modules),
    }


@dataclass(frozen=True)
class _ModuleSearch:
    existing_paths: frozenset[str]
    usual_names: ModuleNames
    family_names: ModuleNames
    """The family's module names, which take precedence over `usual_names`."""

    def find_modules_outside_towers(
        self, node_tree: Node, model_kind: str, base_path: str
    ) -> Iterator[tuple[str, NodeModules]]:
        text_modules = self._first_existing_modules(self.usual_names[""], (base_path,)) or NodeModules((base_path,))
        root_modules = tuple(dict.fromkeys((*text_modules.modules, base_path, "")))
        stacks = {
            child.name: child for child in node_tree.children if child.is_stack and model_kind == "encoder-decoder"
        }
        other_nodes = [child for child in node_tree.children if child.name not in stacks and child.optional != "towers"]
        if stacks:
            yield from self._modules_of_stack("", other_nodes, root_modules)
            for stack_name, stack_node in stacks.items():
                yield from self._modules_of_stack(
                    f"{stack_name}.", stack_node.children, self._encoder_or_decoder_modules(stack_name, root_modules)
                )
        else:
            yield from self._modules_of_stack(
                "", other_nodes, self._encoder_or_decoder_modules(model_kind, root_modules)
            )

    def find_tower_modules(self, node_tree: Node, base_path: str) -> Iterator[tuple[str, NodeModules]]:
        """Finds the modules of vision and audio encoders: in the headless model, its encoder, or the whole model.

        Such a module may contain another one (the projector), so it is not compared as a whole.
        """
        root_modules = (base_path, _join_path(base_path, "encoder"), "")
        for towers_node in (child_node for child_node in node_tree.children if child_node.optional == "towers"):
            for tower in towers_node.children:
                tower_modules = self._find_named_modules(tower, root_modules, root_modules, (tower.name,))
                if tower_modules is not None:
                    tower_prefix = f"{towers_node.name}.{tower.name}."
                    yield from self._modules_of_stack(
                        tower_prefix, tower.children, (*tower_modules.modules, *root_modules)
                    )

    def _encoder_or_decoder_modules(self, module_name: str, root_modules: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the modules in which the nodes of the encoder or of the decoder are looked up."""
        side_modules = self._first_existing_modules(self.usual_names.get(module_name, module_name), root_modules)
        return root_modules if side_modules is None else (*side_modules.modules, *root_modules)

    def _modules_of_stack(
        self, module_prefix: str, child_nodes: Sequence[Node], root_modules: tuple[str, ...]
    ) -> Iterator[tuple[str, NodeModules]]:
        stack_name = module_prefix.removeprefix(TOWERS_PREFIX)
        for child in child_nodes:
            if module_prefix.startswith(TOWERS_PREFIX) and f"{stack_name}{child.name}.layers" in self.family_names:
                yield from self._modules_of_stack(f"{module_prefix}{child.name}.", child.children, root_modules)
            elif child.name != "layers":
                table_keys = (f"{stack_name}{child.name}", child.name)
                yield from self._find_below_node(
                    f"{module_prefix}{child.name}", child, root_modules, root_modules, table_keys
                )
        layer_nodes = [child for child in child_nodes if child.name == "layers"]
        modules_by_layer = self._modules_of_layers(stack_name, layer_nodes, root_modules)
        for layer_node in layer_nodes:
            for layer_index in (layer_node.indices or ()) if modules_by_layer else ():
                if layer_index in modules_by_layer:
                    layer_modules = modules_by_layer[layer_index]
                    yield f"{module_prefix}layers.{layer_index}", NodeModules(layer_modules)
                    for sublayer in layer_node.children:
                        table_keys = (f"{stack_name}{sublayer.name}", sublayer.name)
                        yield from self._find_below_node(
                            f"{module_prefix}layers.{layer_index}.{sublayer.name}",
                            sublayer,
                            layer_modules,
                            layer_modules,
                            table_keys,
                        )

    def _modules_of_layers(
        self, stack_prefix: str, layer_nodes: Sequence[Node], root_modules: tuple[str, ...]
    ) -> dict[int, tuple[str, ...]]:
        """Returns the modules of a stack's layers, by layer index.

        A layer that uses another layer's parameters is not counted, and is not matched to its module. Layers of a kind
        with an entry of its own (`layers.KIND`) are in a list of their own.
        """
        common_layer_nodes, modules_by_layer = [], dict[int, tuple[str, ...]]()
        for layer_node in layer_nodes:
            list_key = f"{stack_prefix}layers.{layer_node.label}"
            if list_key in self.family_names:
                modules_by_layer |= self._modules_of_layers_in_list(list_key, [layer_node], root_modules)
            else:
                common_layer_nodes.append(layer_node)
        return modules_by_layer | self._modules_of_layers_in_list(
            f"{stack_prefix}layers", common_layer_nodes, root_modules
        )

    def _modules_of_layers_in_list(
        self, list_key: str, layer_nodes: Sequence[Node], root_modules: tuple[str, ...]
    ) -> dict[int, tuple[str, ...]]:
        """Returns the modules by layer index. list_key: the key of the layers' `ModuleList` in `family_names`."""
        layer_indices = sorted(
            layer_index
            for layer_node in layer_nodes
            if layer_node.role != "shared"
            for layer_index in layer_node.indices or ()
        )
        for module_name in self.family_names.get(list_key, self.usual_names["layers"]).split(" | "):
            for root_path in root_modules:
                module_lists = [
                    self._modules_of_lists(root_path, list_names, len(layer_indices))
                    for list_names in module_name.split(" & ")
                ]
                if layer_indices and all(len(list_members) == len(layer_indices) for list_members in module_lists):
                    return dict(zip(layer_indices, zip(*module_lists, strict=True), strict=True))
        return {}

    def _modules_of_lists(self, root_path: str, list_names: str, layer_count: int) -> list[str]:
        """Returns the members of one or several `ModuleList`s, all of them or only the first or last ones.

        layer_count: the number of layers in a list whose name ends with `[first]` or `[last]`.
        """
        list_names, _, list_part = list_names.partition("[")
        path_patterns = [list_name if "*" in list_name else f"{list_name}.*" for list_name in list_names.split(" + ")]
        list_members = [
            member_path
            for list_name in path_patterns
            for member_path in self._matching_paths(_join_path(root_path, list_name))
        ]
        return {"first]": list_members[:layer_count], "last]": list_members[-layer_count:]}.get(list_part, list_members)

    def _find_below_node(
        self,
        module_path: str,
        node: Node,
        parent_paths: tuple[str, ...],
        outer_modules: tuple[str, ...],
        table_keys: tuple[str, ...],
    ) -> Iterator[tuple[str, NodeModules]]:
        """Finds the modules of a node and of all nodes below it.

        parent_paths: the modules of its parent.
        outer_modules: the modules of its layer, or of the stack outside of layers.
        table_keys: its path in the layer, and every suffix of that path.
        """
        node_modules = self._find_named_modules(node, parent_paths, outer_modules, table_keys)
        paths_and_modules: list[tuple[str, tuple[str, ...]]]
        if node_modules is None:
            has_empty_name = any(self.usual_names.get(table_key) == "" for table_key in table_keys)
            paths_and_modules = [(module_path, parent_paths if has_empty_name else ())] if node.indices is None else []
        elif node.indices is None:
            yield module_path, node_modules
            paths_and_modules = [(module_path, node_modules.modules)]
        else:
            paths_and_modules = list(self._paths_of_node_repeats(module_path, node.indices, node_modules.modules))
            yield from ((repeat_path, NodeModules(node_paths)) for repeat_path, node_paths in paths_and_modules)
        for repeat_path, module_paths in paths_and_modules:
            for child_node in node.children:
                child_keys = (*(f"{table_key}.{child_node.name}" for table_key in table_keys), child_node.name)
                yield from self._find_below_node(
                    f"{repeat_path}.{child_node.name}", child_node, module_paths, outer_modules, child_keys
                )

    def _find_named_modules(
        self, node: Node, parent_paths: tuple[str, ...], outer_modules: tuple[str, ...], table_keys: tuple[str, ...]
    ) -> NodeModules | None:
        for name_table in (self.family_names, self.usual_names):
            for table_key in table_keys:
                if table_key in name_table:
                    node_modules = self._first_existing_modules(name_table[table_key], parent_paths, outer_modules)
                    if node_modules is not None or not name_table[table_key]:
                        return node_modules
        return self._first_existing_modules(node.name, parent_paths)

    def _paths_of_node_repeats(
        self, module_path: str, indices: Sequence[int], list_paths: Sequence[str]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Finds the modules of a node's repeats by their index, in one or several module lists of equal length."""
        modules_by_list = [self._module_list_members(list_path) for list_path in list_paths]
        has_equal_lists = len({len(repeat_modules) for repeat_modules in modules_by_list}) == 1
        for repeat_index in indices:
            repeat_modules = tuple(
                list_members[repeat_index]
                for list_members in modules_by_list[: None if has_equal_lists else 1]
                if repeat_index < len(list_members)
            )
            if repeat_modules:
                yield f"{module_path}.{repeat_index}", repeat_modules

    def _module_list_members(self, list_path: str) -> list[str]:
        """Returns the members of a module list, except placeholders without modules (Zamba 2)."""
        list_members = self._matching_paths(f"{list_path}.*")
        return [
            member_path
            for member_path in list_members
            if any(module_path.startswith(f"{member_path}.") for module_path in self.existing_paths)
        ] or list_members

    def _first_existing_modules(
        self, name_alternatives: str, parent_paths: tuple[str, ...], outer_modules: tuple[str, ...] = ()
    ) -> NodeModules | None:
        """Returns the first of several alternatives whose modules all exist in the class."""
        for name_alternative in name_alternatives.split(" | ") if name_alternatives else ():
            module_names, _, divisor_text = name_alternative.partition("/")
            module_paths: list[str] = []
            subtracted_names: list[str] = []
            for module_name in module_names.replace(" - ", " + -").split(" + "):
                existing_modules = self._modules_below(module_name.removeprefix("-"), parent_paths, outer_modules)
                (subtracted_names if module_name.startswith("-") else module_paths).extend(existing_modules)
                if not existing_modules:
                    break
            else:
                return NodeModules(tuple(module_paths), tuple(subtracted_names), int(divisor_text or 1))
        return None

    def _modules_below(
        self, module_name: str, parent_paths: tuple[str, ...], outer_modules: tuple[str, ...]
    ) -> list[str]:
        """Returns the modules with this name below the first parent module that has any.

        A name with a leading dot is searched in `outer_modules`.
        """
        if module_name.startswith("&"):  # one of the modules of a layer
            return [module_path for module_path in outer_modules if module_name[1:] in module_path.split(".")][:1]
        for parent_path in outer_modules if module_name.startswith(".") else parent_paths:
            module_paths = self._matching_paths(_join_path(parent_path, module_name.removeprefix(".")))
            if module_paths:
                return module_paths
        return []

    def _matching_paths(self, path: str) -> list[str]:
        """Returns the class's module paths that match a path with `*` for any index."""
        if "*" not in path:
            return [path] if path in self.existing_paths else []
        path_pattern = re.compile(re.escape(path).replace(r"\*", r"(\d+)"))
        matched_paths = [
            path_match for module_path in self.existing_paths if (path_match := path_pattern.fullmatch(module_path))
        ]
        return [
            path_match[0]
            for path_match in sorted(
                matched_paths, key=lambda path_match: [int(layer_index) for layer_index in path_match.groups()]
            )
        ]


def _join_path(parent_path: str, child_name: str) -> str:
    return f"{parent_path}.{child_name}" if parent_path and child_name else parent_path or child_name


def nodes_called_once(
    modules_of_nodes: ModulesByNode, calls_by_module: Mapping[str, int], tensor_paths: Container[str]
) -> ModulesByNode:
    """Returns the nodes whose modules were all called exactly once.

    A module that was not called (a convolution whose weights are used by name) is counted in its parent. A module that
    was called repeatedly belongs to several nodes (a layer with shared parameters).
    calls_by_module: path of a module → number of calls.
    """

    def is_called_once(node_modules: NodeModules) -> bool:
        module_paths = [module_path for module_path in node_modules.modules if module_path not in tensor_paths]
        return bool(module_paths) and all(calls_by_module.get(module_path) == 1 for module_path in module_paths)

    return {path: modules for path, modules in modules_of_nodes.items() if is_called_once(modules)}


def remove_shared_parameters(modules_of_nodes: ModulesByNode, params: Mapping[str, int]) -> dict[str, int]:
    """Returns the parameters by path, without a layer's parameters that the spec counts in the stack (T5's table)."""
    remaining_params = dict(params)
    layer_prefixes = tuple(
        f"{node_modules.modules[0]}."
        for path, node_modules in modules_of_nodes.items()
        if re.fullmatch(r"(\w+\.)?layers\.\d+", path)
    )
    paths_outside_layers = {
        tensor_path
        for path, node_modules in modules_of_nodes.items()
        if "layers." not in path
        for tensor_path in node_modules.modules
    }
    for module_path in paths_outside_layers:
        parent_path = module_path.rpartition(".")[0] if module_path.startswith(layer_prefixes) else ""
        while parent_path:
            remaining_params[parent_path] -= params.get(module_path, 0)
            parent_path = parent_path.rpartition(".")[0]
    return remaining_params
