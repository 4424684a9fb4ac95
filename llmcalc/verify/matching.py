"""The nodes of a tree compared with what of a class they are: each by itself, or several as a sum where the class holds
them in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..flow.tree import Cost, Node, Place
from ..run.sight import Sight
from .checks import Check, Coverage, agreed, module_paths
from .modules import Found, Standing


def compared(
    tree: Node,
    quantity: str,
    closed_form: Callable[[Place], int],
    found: Found,
    measured: Mapping[str, int],
    witness: str,
    sight: Sight | None = None,
) -> Iterator[Check]:
    """A check for every node that was found, one for all of those that are the same modules.

    closed_form: one repeat of a node. measured: by the class's own paths.
    """
    for standings, places in _matched(tree, found, sight).items():
        paths = module_paths(tree, places[0].path)
        readings: dict[str, int | None] = {
            path: standing.measured(measured) for path, standing in zip(paths, standings, strict=False)
        }
        yield from agreed(_joined(places), quantity, sum(map(closed_form, places)), readings, witness)


def coverage(tree: Node, found: Found, params: Cost, include: frozenset[str]) -> Coverage:
    """How the leaves that hold parameters are compared.

    params: of one op, as the class has it. include: the optional parts that the class has.
    """
    matched = _matched(tree, found, None)
    together = {place.path: len(places) for places in matched.values() for place in places}
    leaves = [place.path for place in tree.walk() if place.own(params) and place.optional in {"", *include}]
    return Coverage(
        tuple(path for path in leaves if together.get(path) == 1),
        tuple(path for path in leaves if together.get(path, 1) > 1),
        tuple(path for path in leaves if path not in together),
    )


def _matched(tree: Node, found: Found, sight: Sight | None) -> dict[tuple[Standing, ...], list[Place]]:
    """What of the class → the places that it is; of nodes one in another that are the same the inner one."""
    matched: dict[tuple[Standing, ...], list[Place]] = {}
    for place in tree.walk(sight):
        paths = list(module_paths(tree, place.path))
        if not place.path or not all(path in found for path in paths):
            continue
        key = tuple(found[path] for path in paths)
        if any(standing.share > 1 for standing in key):  # each is a part of its own
            key = (*key, Standing((place.path,)))
        others = matched.setdefault(key, [])
        others[:] = [other for other in others if not place.path.startswith(f"{other.path}.")] + [place]
    return matched


def _joined(places: list[Place]) -> str:
    """`layers.0-3.self_attn.q_proj + k_proj + v_proj`."""
    return " + ".join((places[0].path, *(place.node.name for place in places[1:])))
