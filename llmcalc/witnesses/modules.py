"""Finds the modules of a `transformers` class that correspond to the nodes of the tree; their names differ from those
of the reference.

The names are data: `USUAL` in `flow/module_names` for names that most classes share, and `Family.modules` for those of
one family. Nodes are found from the top down, by name and never by number or size: below the modules of the parent
node, under the node's own name unless the data says otherwise. A node that is not found is not compared individually,
and the coverage of a verdict lists it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..flow.module_names import USUAL
from ..flow.tree import Node
from ..sources.huggingface.family import Modules
from ..sources.huggingface.towers.names import TOWER_MODULES


@dataclass(frozen=True, slots=True)
class Standing:
    """The modules of a class that correspond to a node.

    modules: the paths of modules or tensors that together correspond to it.
    less: the paths that are subtracted, none by default.
    share: the number of nodes that share them equally, 1 by default.
    """

    modules: tuple[str, ...]
    less: tuple[str, ...] = ()
    share: int = 1

    def measured(self, by_path: Mapping[str, int]) -> int:
        """Their measurement; −1 if it cannot be divided equally."""
        whole = sum(by_path.get(m, 0) for m in self.modules) - sum(by_path.get(m, 0) for m in self.less)
        return -1 if whole % self.share else whole // self.share


Found: TypeAlias = dict[str, Standing]
"""Path of a node in the reference → its modules in the class."""

TOWERS = "towers."
"""The prefix of the path of nodes in a vision or audio encoder."""


def places(
    tree: Node, known: frozenset[str], kind: str, base: str, names: Modules, context: Modules | None = None
) -> Found:
    """Finds the modules of the class for the nodes of the tree.

    known: the paths of the class's modules and tensors.
    kind: the kind of the spec.
    base: the path of the model without a head.
    names: the module names of its family.
    context: the module names of the wrapper around it; none by default.
    """
    towers = {key[len(TOWERS) :]: name for key, name in (context or names).items() if key.startswith(TOWERS)}
    beside = _Search(known, {**TOWER_MODULES, **towers}, towers).towers(tree, base)
    return {**dict(_Search(known, {**USUAL, **names}, names).all(tree, kind, base)), **dict(beside)}


@dataclass(frozen=True)
class _Search:
    known: frozenset[str]
    names: Modules
    own: Modules
    """Of the family: they come before the usual ones."""

    def all(self, tree: Node, kind: str, base: str) -> Iterator[tuple[str, Standing]]:
        text = self._first(self.names[""], (base,)) or Standing((base,))
        roots = tuple(dict.fromkeys((*text.modules, base, "")))
        sides = {child.name: child for child in tree.children if child.is_stack and kind == "encoder-decoder"}
        beside = [child for child in tree.children if child.name not in sides and child.optional != "towers"]
        if sides:
            yield from self._stack("", beside, roots)
            for name, stack in sides.items():
                yield from self._stack(f"{name}.", stack.children, self._side(name, roots))
        else:
            yield from self._stack("", beside, self._side(kind, roots))

    def towers(self, tree: Node, base: str) -> Iterator[tuple[str, Standing]]:
        """The modules of towers: each is below the model without a head, its encoder, or the whole model.

        Such a module may contain another one (the projector), so it is not compared as a whole.
        """
        roots = (base, _joined(base, "encoder"), "")
        for towers in (child for child in tree.children if child.optional == "towers"):
            for tower in towers.children:
                at = self._standing(tower, roots, roots, (tower.name,))
                if at is not None:
                    path = f"{towers.name}.{tower.name}."
                    yield from self._stack(path, tower.children, (*at.modules, *roots))

    def _side(self, name: str, roots: tuple[str, ...]) -> tuple[str, ...]:
        """The modules to search for the nodes of an encoder or a decoder, which may be a module of its own."""
        side = self._first(self.names.get(name, name), roots)
        return roots if side is None else (*side.modules, *roots)

    def _stack(self, prefix: str, children: Sequence[Node], roots: tuple[str, ...]) -> Iterator[tuple[str, Standing]]:
        side = prefix.removeprefix(TOWERS)
        for child in children:
            if child.name != "layers":
                keys = (f"{side}{child.name}", child.name)
                yield from self._node(f"{prefix}{child.name}", child, roots, roots, keys)
        layers = [child for child in children if child.name == "layers"]
        modules = self._layers(side, layers, roots)
        for layer in layers:
            for i in (layer.indices or ()) if modules else ():
                if i in modules:
                    at = (modules[i],)
                    yield f"{prefix}layers.{i}", Standing(at)
                    for part in layer.children:
                        keys = (f"{side}{part.name}", part.name)
                        yield from self._node(f"{prefix}layers.{i}.{part.name}", part, at, at, keys)

    def _layers(self, side: str, layers: Sequence[Node], roots: tuple[str, ...]) -> dict[int, str]:
        """Index of a layer → its module, in a list with exactly as many modules as there are layers with parameters of
        their own. A layer with another layer's parameters has its module too, but is not matched to it.
        """
        numbers = sorted(i for layer in layers if layer.role != "shared" for i in layer.indices or ())
        for name in self.own.get(f"{side}layers", self.names["layers"]).split(" | "):
            wanted = name if "*" in name else f"{name}.*"
            for root in roots:
                found = self._matching(_joined(root, wanted))
                if found and len(found) == len(numbers):
                    return dict(zip(numbers, found, strict=True))
        return {}

    def _node(
        self, path: str, node: Node, parents: tuple[str, ...], outer: tuple[str, ...], keys: tuple[str, ...]
    ) -> Iterator[tuple[str, Standing]]:
        """Finds a node and the nodes below it.

        parents: the modules of its parent.
        outer: the modules of its layer, or of the stack outside of layers.
        keys: its path in the layer, and every suffix of that path.
        """
        standing = self._standing(node, parents, outer, keys)
        places: list[tuple[str, tuple[str, ...]]]
        if standing is None:
            open_ = any(self.names.get(key) == "" for key in keys)
            places = [(path, parents if open_ else ())] if node.indices is None else []
        elif node.indices is None:
            yield path, standing
            places = [(path, standing.modules)]
        else:
            places = list(self._members(path, node.indices, standing.modules[0]))
            yield from ((place, Standing(at)) for place, at in places)
        for place, inside in places:
            for child in node.children:
                deeper = (*(f"{key}.{child.name}" for key in keys), child.name)
                yield from self._node(f"{place}.{child.name}", child, inside, outer, deeper)

    def _standing(
        self, node: Node, parents: tuple[str, ...], outer: tuple[str, ...], keys: tuple[str, ...]
    ) -> Standing | None:
        for names in (self.own, self.names):
            for key in keys:
                if key in names:
                    found = self._first(names[key], parents, outer)
                    if found is not None or not names[key]:
                        return found
        return self._first(node.name, parents)

    def _members(self, path: str, indices: Sequence[int], whole: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Finds the repeats of a node: each is the member of a module list with its index."""
        members = self._matching(f"{whole}.*")
        holding = [at for at in members if any(path.startswith(f"{at}.") for path in self.known)]
        members = holding or members  # Zamba 2's lists have placeholders
        for i in indices:
            if i < len(members):
                yield f"{path}.{i}", (members[i],)

    def _first(self, wanted: str, parents: tuple[str, ...], outer: tuple[str, ...] = ()) -> Standing | None:
        """The first alternative whose modules all exist in the class."""
        for alternative in wanted.split(" | ") if wanted else ():
            words, _, share = alternative.partition("/")
            modules: list[str] = []
            less: list[str] = []
            for word in words.replace(" - ", " + -").split(" + "):
                below = self._below(word.removeprefix("-"), parents, outer)
                (less if word.startswith("-") else modules).extend(below)
                if not below:
                    break
            else:
                return Standing(tuple(modules), tuple(less), int(share or 1))
        return None

    def _below(self, name: str, parents: tuple[str, ...], outer: tuple[str, ...]) -> list[str]:
        """The modules of that name below the first parent that has one; a name with a leading dot is searched in
        `outer`.
        """
        for parent in outer if name.startswith(".") else parents:
            found = self._matching(_joined(parent, name.removeprefix(".")))
            if found:
                return found
        return []

    def _matching(self, path: str) -> list[str]:
        """The path itself if the class has it; for a path with stars for numbers, all matches in order."""
        if "*" not in path:
            return [path] if path in self.known else []
        pattern = re.compile(re.escape(path).replace(r"\*", r"(\d+)"))
        matches = [match for known in self.known if (match := pattern.fullmatch(known))]
        return [match[0] for match in sorted(matches, key=lambda match: [int(n) for n in match.groups()])]


def _joined(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent and name else parent or name


def run_by_themselves(found: Found, calls: Mapping[str, int], tensors: Container[str]) -> Found:
    """The nodes whose modules were each called exactly once.

    A module that was not called (a convolution whose weights are used by name) is counted in its parent. A module that
    was called repeatedly belongs to several nodes (a layer with shared parameters). calls: path of a module → number of
    calls.
    """

    def by_itself(standing: Standing) -> bool:
        modules = [m for m in standing.modules if m not in tensors]
        return bool(modules) and all(calls.get(m) == 1 for m in modules)

    return {path: standing for path, standing in found.items() if by_itself(standing)}


def without_shared(found: Found, held: Mapping[str, int]) -> dict[str, int]:
    """Parameters by path, without parameters in a layer that belong to the stack (T5's table of positions)."""
    own = dict(held)
    layers = tuple(f"{s.modules[0]}." for path, s in found.items() if re.fullmatch(r"(\w+\.)?layers\.\d+", path))
    outside = {m for path, standing in found.items() if "layers." not in path for m in standing.modules}
    for module in outside:
        above = module.rpartition(".")[0] if module.startswith(layers) else ""
        while above:
            own[above] -= held.get(module, 0)
            above = above.rpartition(".")[0]
    return own
