"""Compares nodes of the model's tree with the modules of a class, one by one or as the sum of fused nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ..flow.tree import Cost, Node, Place
from ..workload.run_config import RunConfig
from .checks import Check, Coverage, check_repeats, module_paths
from .modules import ModulesByNode, NodeModules


def compare_modules(
    tree: Node,
    quantity: str,
    closed_form: Callable[[Place], int],
    modules_of_nodes: ModulesByNode,
    measured_by_path: Mapping[str, int],
    witness: str,
    run_config: RunConfig | None = None,
) -> Iterator[Check]:
    """Yields a check for every node whose module was found, and one joint check for all nodes of the same modules.

    closed_form: the count of one repeat of a node. measured_by_path: path in the class → measured number.
    """
    for places in _group_by_modules(tree, modules_of_nodes, run_config):
        paths = module_paths(places[0])
        readings: dict[str, int | None] = {path: modules_of_nodes[path].measured(measured_by_path) for path in paths}
        yield from check_repeats(_joint_name(places), quantity, sum(map(closed_form, places)), readings, witness)


def coverage(tree: Node, modules_of_nodes: ModulesByNode, params: Cost, include: frozenset[str]) -> Coverage:
    """Returns for each leaf with parameters how it was compared.

    params: the parameters of one op in the class. include: the optional parts that the class has.
    """
    group_sizes = {
        place.path: len(places) for places in _group_by_modules(tree, modules_of_nodes, None) for place in places
    }
    leaves = [place.path for place in tree.walk() if place.own_cost(params) and place.optional in {"", *include}]
    return Coverage(
        tuple(path for path in leaves if group_sizes.get(path) == 1),
        tuple(path for path in leaves if group_sizes.get(path, 1) > 1),
        tuple(path for path in leaves if path not in group_sizes),
    )


def _group_by_modules(
    tree: Node, modules_of_nodes: ModulesByNode, run_config: RunConfig | None
) -> Iterable[list[Place]]:
    """Groups nodes by the class's modules that were found for them; a part of a module is a separate group.

    If nested nodes have the same modules, only the innermost node is kept.
    """
    groups: dict[tuple[NodeModules | str, ...], list[Place]] = {}
    for place in tree.walk(run_config):
        paths = module_paths(place)
        if not place.path or not all(path in modules_of_nodes for path in paths):
            continue
        node_modules = [modules_of_nodes[path] for path in paths]
        is_shared = any(modules_of_node.share > 1 for modules_of_node in node_modules)
        group = groups.setdefault((place.path,) if is_shared else tuple(node_modules), [])
        group[:] = [grouped_place for grouped_place in group if not place.path.startswith(f"{grouped_place.path}.")] + [
            place
        ]
    return groups.values()


def _joint_name(places: list[Place]) -> str:
    """Joins the names of fused nodes: `layers.0-3.self_attn.q_proj + k_proj + v_proj`."""
    return " + ".join((places[0].path, *(place.node.name for place in places[1:])))
