"""Compares nodes of the tree with modules of a class: one by one, or a sum for nodes that the class fuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ..flow.tree import Cost, Node, NodePosition
from ..workload.run_config import RunConfig
from .checks import Check, ModuleCoverage, check_repeats, module_paths
from .module_search import ModulesByNode, NodeModules


def compare_modules(
    model_tree: Node,
    quantity_name: str,
    closed_form: Callable[[NodePosition], int],
    modules_of_nodes: ModulesByNode,
    measured_by_path: Mapping[str, int],
    witness_label: str,
    run_config: RunConfig | None = None,
) -> Iterator[Check]:
    """Yields a check per node with a matching module, and one check for all nodes with the same modules.

    closed_form: the count of one repeat of a node. measured_by_path: path in the class → measured number.
    """
    for node_positions in _group_nodes_by_modules(model_tree, modules_of_nodes, run_config):
        node_paths = module_paths(node_positions[0])
        counts_by_path: dict[str, int | None] = {
            node_path: modules_of_nodes[node_path].node_share_of_counts(measured_by_path) for node_path in node_paths
        }
        yield from check_repeats(
            _joined_node_name(node_positions),
            quantity_name,
            sum(map(closed_form, node_positions)),
            counts_by_path,
            witness_label,
        )


def coverage_of_leaves(
    model_tree: Node, modules_of_nodes: ModulesByNode, params_cost: Cost, included_parts: frozenset[str]
) -> ModuleCoverage:
    """Returns for each leaf node with parameters whether it was compared alone, in a sum, or only in totals.

    params_cost: the parameters of one op in the class. included_parts: the optional parts that the class has.
    """
    group_sizes = {
        node_position.path: len(node_positions)
        for node_positions in _group_nodes_by_modules(model_tree, modules_of_nodes, None)
        for node_position in node_positions
    }
    leaf_nodes = [
        node_position.path
        for node_position in model_tree.walk()
        if node_position.cost_of_operation(params_cost) and node_position.optional_part in {"", *included_parts}
    ]
    return ModuleCoverage(
        tuple(node_path for node_path in leaf_nodes if group_sizes.get(node_path) == 1),
        tuple(node_path for node_path in leaf_nodes if group_sizes.get(node_path, 1) > 1),
        tuple(node_path for node_path in leaf_nodes if node_path not in group_sizes),
    )


def _group_nodes_by_modules(
    model_tree: Node, modules_of_nodes: ModulesByNode, run_config: RunConfig | None
) -> Iterable[list[NodePosition]]:
    """Yields groups of nodes that correspond to the same modules of the class.

    If nested nodes have the same modules, only the innermost node is kept.
    """
    positions_by_modules: dict[tuple[NodeModules | str, ...], list[NodePosition]] = {}
    for node_position in model_tree.walk(run_config):
        node_paths = module_paths(node_position)
        if not node_position.path or not all(node_path in modules_of_nodes for node_path in node_paths):
            continue
        node_modules = [modules_of_nodes[node_path] for node_path in node_paths]
        is_shared = any(modules_of_node.node_count > 1 for modules_of_node in node_modules)
        node_group = positions_by_modules.setdefault((node_position.path,) if is_shared else tuple(node_modules), [])
        node_group[:] = [
            position for position in node_group if not node_position.path.startswith(f"{position.path}.")
        ] + [node_position]
    return positions_by_modules.values()


def _joined_node_name(node_positions: list[NodePosition]) -> str:
    """Returns the joined name of fused nodes: `layers.0-3.self_attn.q_proj + k_proj + v_proj`."""
    return " + ".join((node_positions[0].path, *(node_position.node.name for node_position in node_positions[1:])))
