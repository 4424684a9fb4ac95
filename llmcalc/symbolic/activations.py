"""The formulas of `llmcalc explain --quantity activations`: what a training pass keeps for its backward pass, per node.

The pass runs twice, with integers and with integers that know their formulas. A storage counts once, at the node that
first keeps it, with all of its bytes; weights and inputs do not count. Equal layers have one formula. What several
layers keep together (tables of angles, an encoder's output) is a line of its own, and so is the loss.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from ..errors import InputError
from ..flow.tree import Node
from ..model import ModelSpec
from ..optional import OPTIONAL_PARTS
from ..simulator.choices import Choices
from ..simulator.layer_loops import SHORT_RUN_REPEATS, layer_stacks
from ..simulator.strides import forget
from ..simulator.tensor import DTYPES
from ..workload.recompute import MODES
from .explain import Explanation, Section, check_kinds, components
from .formulas import DEFAULT, DEFAULT_TRAINING, Formulas, Found, Setting, TrainingSetting
from .saved_bytes import LOSS, Block, Names, Noted, Pass, Path, kept_blocks
from .symbolic import SEQUENCES, Meaning, keys, sequences, with_formulas
from .symbolic_int import Traced, formula_of

LOSS_NAMES: Names = tuple(name for name, _ in LOSS)

Side: TypeAlias = Literal["numbers", "letters"]


def explain_activations(
    spec: ModelSpec,
    node: str | None = None,
    setting: Setting = DEFAULT,
    training: TrainingSetting = DEFAULT_TRAINING,
    include: frozenset[str] = frozenset(),
) -> Explanation:
    """Formulas of what `node` (any suffix of a path in the tree) keeps, or every component of the model.

    Raises `InputError` for a node that the model does not have and for kernels that cannot run it, and
    `ArithmeticError` where a formula's value differs from the bytes of a run with integers.
    """
    check_kinds(spec)
    formulas = Formulas(spec, setting, include)
    kept = Activations(formulas, training)
    if node is None or node.lower() == "model":
        sections = [kept.section(found, depth) for depth, found in kept.components()]
        sections = [one for one in sections if one.formulas[0].value]
        return Explanation([*sections, kept.section(formulas.root)], formulas, None, training, kept.notes())
    merged: dict[Any, Section] = {}
    for found in kept.find(node):
        one = kept.section(found)
        key = found.steps[-1][0], one.formulas[0].expression
        known = merged.get(key)
        merged[key] = one if known is None else replace(known, places=(*known.places, found))
    return Explanation(list(merged.values()), formulas, node, training, kept.notes())


class Activations:
    """What a training pass of one model keeps, in numbers and in letters.

    formulas: the formulas of the model. training: how it is trained. kernels: what runs.
    """

    def __init__(self, formulas: Formulas, training: TrainingSetting, kernels: type[Noted] = Noted) -> None:
        self.formulas, self.training, self.kernels = formulas, training, kernels
        meanings = formulas.meanings
        meanings[keys()] = replace(meanings[keys()], field="tokens of a sequence")
        meanings[sequences()] = Meaning(SEQUENCES, "sequences at once", training.batch)
        self.numbers, self.letters = self.sums("numbers", training.batch), self.sums("letters", training.batch)

    def sums(self, side: Side, batch: int) -> Sums:
        """What every node keeps, with that many sequences."""
        spec, seq = self.formulas.symbolic.spec, self.formulas.setting.seq
        few = {i: SHORT_RUN_REPEATS for i, loop in enumerate(layer_stacks(spec)) if loop.can_extrapolate}
        if side == "letters":
            spec, batch, seq = with_formulas(spec), Traced(batch, sequences()), Traced(seq, keys())
        how = Pass(
            batch,
            seq,
            DTYPES[self.training.dtype],
            Choices(attention=self.training.attention, norm=self.training.norm),
            recompute=MODES[self.training.recompute],
            include=self.formulas.include,
            layers=few,
        )
        try:
            return Sums(self.formulas.root, kept_blocks(spec, how, self.kernels), side)
        finally:
            if side == "letters":
                forget()

    def section(self, found: Found, depth: int = 0) -> Section:
        """The formula of one layer, or of a part of one; of all copies of a part that is repeated inside a layer."""
        value, letters = self.numbers.of(found), self.letters.of(found)
        formula = self.formulas.of_value("activations", letters, int(value), found, by_token)
        times = self.numbers.times.get(found.at[0]) if found.at else None
        shown = found.letters if self.numbers.layers.issuperset(found.at) else replace(found.letters, repeat=1)
        return Section((replace(found, letters=shown, times=times or 1),), (formula,), depth)

    def components(self) -> list[tuple[int, Found]]:
        """The parts of the model and of its layers; what the layers of each stack share, after them; the loss."""
        listed = components(self.formulas)
        for stack in self.numbers.shared:
            last = max(i for i, (_, found) in enumerate(listed) if _names(found)[: len(stack)] == stack)
            listed.insert(last + 1, (len(stack) - 1, _further(_shared_by(stack))))
        return [*listed, (0, _further(LOSS_NAMES))]

    def find(self, node: str) -> list[Found]:
        """The nodes of that name, and what is no node of the model: what layers share, and the loss."""
        further = [found for _, found in self.components() if not found.at and _names(found)[-1] == node.lower()]
        if further:
            return further
        listed = self.formulas.find(node)
        trained = [found for found in listed if found.optional in {"", *self.formulas.include}]
        if not trained:
            part = OPTIONAL_PARTS[listed[0].optional]
            counted = f"counted with {part.option}" if part.has_flops else "not trained here; expected params"
            raise InputError(f"--quantity activations: {node} is a part of the {part.title}, which are {counted}")
        return trained

    def notes(self) -> tuple[str, ...]:
        """What does not follow from the formulas."""
        if self.training.batch > 1:
            return ()
        root, two = self.formulas.root, {sequences(): 2}
        values = {symbol: meaning.value for symbol, meaning in self.formulas.meanings.items()}
        if self.letters.of(root).xreplace({**values, **two}) == self.sums("numbers", 2).of(root):
            return ()
        return ("one sequence at a time keeps other copies than several; --batch 2 gives the formula of several",)


class Sums:
    """What every node of a model keeps, as a sum over storages.

    root: the whole model. blocks: the storages. side: whether the sums are numbers or expressions in letters.
    each: index of a node in a walk → what one layer, or one part of it, keeps, with everything below it.
    times: index of a node in a walk → the number of equal layers that it is or stands in. layers: which are layers.
    shared: names of the path of layers → what they keep together. loss: what the loss keeps.
    """

    def __init__(self, root: Found, blocks: Iterable[Block], side: Side) -> None:
        self.side: Side = side
        self.each: dict[int, Any] = {}
        self.times: dict[int, Any] = {}
        self.layers: set[int] = set()
        self.shared: dict[Names, Any] = {}
        self.loss: Any = 0
        by_turn: defaultdict[Path, Counter[int]] = defaultdict(Counter)
        turns: defaultdict[Path, set[int]] = defaultdict(set)
        for block in blocks:
            at, size = block.at, formula_of(block.bytes)
            if at.path == LOSS:
                self.loss += size
            elif at.layer and block.shared:
                self._share(at.stack, size)
            else:
                by_turn[at.path][at.turn] += size
                turns[at.layer].add(at.turn)
        self._paths = set(turns) - {()}
        own = {path: self._usual(path, found, turns) for path, found in by_turn.items()}
        self.each[root.at[0]] = self._added_up(root, (), own) + self.loss

    def of(self, found: Found) -> Any:
        """What a node keeps."""
        if found.at:
            return sum((self.each[at] for at in found.at), 0)
        further = {LOSS_NAMES: self.loss, **{_shared_by(stack): size for stack, size in self.shared.items()}}
        return further[_names(found)]

    def _share(self, stack: Names, size: Any) -> None:
        self.shared[stack] = self.shared.get(stack, 0) + size

    def _usual(self, path: Path, found: Counter[int], turns: dict[Path, set[int]]) -> Any:
        """What one layer keeps at that path. What only some of several equal layers keep counts as shared by them."""
        layer = next((path[:i] for i in range(len(path), 0, -1) if path[:i] in self._paths), ())
        if not layer:
            return sum(found.values())
        sizes = [_expanded(found[turn]) for turn in sorted(turns[layer])]
        ((usual, _),) = Counter(sizes).most_common(1)
        rest = _expanded(sum(size - usual for size in sizes))
        if rest:
            self._share(tuple(name for name, _ in layer), rest)
        return usual

    def _added_up(self, found: Found, path: Path, own: dict[Path, Any], times: Any = None) -> Any:
        """What a node keeps with everything below it.

        own: per path what no node has claimed yet; a step that is no node belongs to the module around it.
        times: the number of equal layers that it stands in; None outside the layers.
        """
        total = own.pop(path, 0)
        for child in found.children:
            node, at = child.numbers if self.side == "numbers" else child.letters, child.at[0]
            below = (*path, (child.numbers.name, child.numbers.label))
            is_layer = times is None and below in self._paths
            self.times[at] = node.repeat if is_layer else times
            self.each[at] = self._added_up(child, below, own, self.times[at])
            if is_layer:
                self.layers.add(at)
            total += self.each[at] * (node.repeat if is_layer else 1)
        total += sum(own.pop(key) for key in list(own) if key[: len(path)] == path)
        names = tuple(name for name, _ in path)
        return total + sum(size for stack, size in self.shared.items() if stack[:-1] == names)


def by_token(expression: Any) -> Any:
    """A sum in which what every token of every sequence keeps is in one bracket: B·S·(…)."""
    import sympy

    token = sequences() * keys()
    inside: list[Any] = []
    rest: list[Any] = []
    for term in sympy.Add.make_args(sympy.expand(expression)):
        each = term / token
        (rest if each.as_numer_denom()[1].has(sequences(), keys()) else inside).append(each)
    per_token = sympy.Add(*inside)
    return sympy.Add(sequences() * keys() * per_token, *(each * token for each in rest))


def _expanded(size: Any) -> Any:
    if isinstance(size, int):
        return size
    import sympy

    return sympy.expand(size)


def _names(found: Found) -> Names:
    return tuple(name for name, _, _ in found.steps)


def _shared_by(stack: Names) -> Names:
    """The names of the line of what layers share. stack: the names of their path."""
    return *stack[:-1], f"shared by {stack[-1]}"


def _further(names: Names) -> Found:
    """A line that is no node of the model."""
    node = Node(names[-1])
    return Found(tuple((name, "", ()) for name in names), ".".join(names), (), node, node, 1, "", "")
