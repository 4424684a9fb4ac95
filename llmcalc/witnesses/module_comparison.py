"""Compares nodes of the tree with modules of a class, one by one, or by sums if the class fuses several nodes."""

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
    for positioned_nodes in _group_nodes_by_modules(model_tree, modules_of_nodes, run_config):
        node_paths = module_paths(positioned_nodes[0])
        counts_by_path: dict[str, int | None] = {
            node_path: modules_of_nodes[node_path].node_share_of_counts(measured_by_path) for node_path in node_paths
        }
        yield from check_repeats(
            _joined_node_name(positioned_nodes),
            quantity_name,
            sum(map(closed_form, positioned_nodes)),
            counts_by_path,
            witness_label,
        )


def coverage_of_leaves(
    model_tree: Node, modules_of_nodes: ModulesByNode, params_cost: Cost, included_parts: frozenset[str]
) -> ModuleCoverage:
    """Returns which leaf nodes with parameters were compared alone, which in a sum, and which only in totals.

    params_cost: the parameters of one op in the class. included_parts: the optional parts that the class has.
    """
    group_sizes = {
        positioned_node.path: len(positioned_nodes)
        for positioned_nodes in _group_nodes_by_modules(model_tree, modules_of_nodes, None)
        for positioned_node in positioned_nodes
    }
    leaf_nodes = [
        positioned_node.path
        for positioned_node in model_tree.walk()
        if positioned_node.cost_of_operation(params_cost) and positioned_node.optional_part in {"", *included_parts}
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
    for positioned_node in model_tree.walk(run_config):
        node_paths = module_paths(positioned_node)
        if not positioned_node.path or not all(node_path in modules_of_nodes for node_path in node_paths):
            continue
        node_modules = [modules_of_nodes[node_path] for node_path in node_paths]
        is_shared = any(modules_of_node.node_count > 1 for modules_of_node in node_modules)
        node_group = positions_by_modules.setdefault((positioned_node.path,) if is_shared else tuple(node_modules), [])
        node_group[:] = [
            position for position in node_group if not positioned_node.path.startswith(f"{position.path}.")
        ] + [positioned_node]
    return positions_by_modules.values()


def _joined_node_name(positioned_nodes: list[NodePosition]) -> str:
    """Returns the joined name of fused nodes: `layers.0-3.self_attn.q_proj + k_proj + v_proj`."""
    return " + ".join(
        (positioned_nodes[0].path, *(positioned_node.node.name for positioned_node in positioned_nodes[1:]))
    )
