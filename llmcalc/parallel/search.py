"""The layouts of so many devices that a model may have, and why the others may not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import cast

from ..errors import InputError
from ..flow.axis import Axis
from ..model import ModelSpec
from .divisors import divisors
from .layout import Layout, Zero, stages
from .layout_request import ANY, LayoutRequest
from .layout_rules import LayoutRules
from .rank_program import Shares, axes_of, undivided
from .schedules import check

CHUNKS = (1, 2, 4)
"""Chunks a rank that are tried."""

LONG = 16384
"""Tokens of a sequence from which on it is worth dividing."""

SHORT = 1024
"""Tokens of a rank's part that is not divided further, unless --cp asks for it."""

HEADS, WIDTHS, LAYERS, BATCH, EXPERTS, ROUNDS, SEQUENCE = (
    "--tp does not divide the heads",
    "--tp does not divide a width",
    "more stages than layers",
    "--dp does not divide the global batch",
    "--ep does not divide the experts",
    "the schedule does not take the micro-batches",
    "twice --cp does not divide the tokens of a sequence",
)
"""Reasons."""


@dataclass
class Search:
    """What has been tried. found: layouts with the micro-batches of a step. refused: reason → how many. errors: those
    of the reasons that a layout's own checks gave.
    """

    found: list[tuple[Layout, int]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    errors: dict[str, InputError] = field(default_factory=dict)

    def refuse(self, error: InputError) -> None:
        """Counts a layout that is refused by an error: by its text without what is expected."""
        reason = str(error).partition(";")[0]
        self.refused[reason] += 1
        self.errors[reason] = error

    @property
    def tried(self) -> int:
        """All of them."""
        return len(self.found) + self.refused.total()


def search(
    spec: ModelSpec,
    devices: int,
    global_batch: int,
    micro_batch: int,
    seq: int,
    rules: LayoutRules,
    asked: LayoutRequest = ANY,
    node: int = 8,
) -> Search:
    """Tries every layout of that many devices which the framework has.

    global_batch: sequences of a step. micro_batch: of a pass. asked: what is given holds for all. node: devices that
    one fast link joins, which the ranks of a tensor group share.
    Raises `InputError` for what no layout has that it tries (`_possible`).
    """
    _possible(rules, asked)
    result = Search()
    layers = sum(stack.num_hidden_layers for _, stack in spec.stacks())
    experts, whole = routed_experts(spec), undivided(spec)
    axes = {axis for step in spec.program().root.steps() for value in step.outs for axis in axes_of(value.axes)}
    tensors = _sizes(asked.tp, devices, node)
    sequences = _sizes(asked.cp, math.gcd(devices, seq // 2) if seq % 2 == 0 and seq >= LONG else 1, seq // SHORT)
    for tp, cp, pp in product(tensors, sequences, _sizes(asked.pp, devices, layers)):
        if devices % (tp * cp * pp):
            continue
        if seq % tokens_multiple(cp):
            result.refused[SEQUENCE] += 1
            continue
        dp = devices // (tp * cp * pp)
        for vpp, ep in product(CHUNKS if pp > 1 else (1,), _expert_groups(experts, tp * cp * dp)):
            sizes = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "vpp": vpp, "ep": ep}
            if not _asked_for(asked, sizes) or not _has(rules, sizes, asked):
                continue
            if whole and pp > 1:
                result.refused[whole] += 1
                continue
            try:
                layout = _layout(rules, sizes, bool(experts), layers, asked)
            except InputError as error:
                result.refuse(error)
                continue
            _try(result, axes, layers, layout, global_batch, micro_batch, rules)
    return result


def _sizes(asked: int | None, whole: int, most: int | None = None) -> list[int]:
    """The sizes of a group that are tried: the one that is asked for, else the divisors of `whole` up to `most`."""
    return divisors(whole, None if most is None else max(1, most)) if asked is None else [asked]


def tokens_multiple(cp: int) -> int:
    """The number of which each sequence's length is a multiple: a rank has one part from each of its halves."""
    return 2 * cp if cp > 1 else 1


def _possible(rules: LayoutRules, asked: LayoutRequest) -> None:
    """Raises `InputError` for layers of each stage, which a search shares out itself, for groups that it does not try,
    and for chunks that contradict the rest."""
    if asked.pp_layout is not None:
        raise InputError("--pp-layout: layers are shared out evenly over the stages; expected no --pp-layout")
    for name in rules.untried:
        if (size := getattr(asked, name)) not in (None, 1):
            raise InputError(f"--{name} {size}: no layout with it is tried for --framework {rules.name}; expected 1")
    if asked.schedule not in (None, *RUN):
        raise InputError(
            f"--schedule {asked.schedule}: no replay runs it with --framework {rules.name}; expected {' or '.join(RUN)}"
        )
    interleaved = asked.schedule == "interleaved"
    if interleaved and "vpp" in rules.untried:
        raise InputError(f"--schedule interleaved: is not tried for --framework {rules.name}; expected 1f1b")
    if asked.pp == 1 and (interleaved or (asked.vpp or 1) > 1):
        option = "--schedule interleaved" if interleaved else f"--vpp {asked.vpp}"
        raise InputError(f"{option}: chunks of a rank need a pipeline; expected --pp of at least 2")
    if asked.schedule is not None and asked.vpp is not None and interleaved != (asked.vpp > 1):
        expected = "--vpp of at least 2" if interleaved else "--vpp 1"
        raise InputError(f"--schedule {asked.schedule}: has another number of chunks a rank; expected {expected}")


def _asked_for(asked: LayoutRequest, sizes: dict[str, int]) -> bool:
    """Whether groups of those sizes are among those that are asked for."""
    if asked.fsdp is not None and sizes["dp"] != asked.fsdp * (asked.hsdp_replicas or 1):
        return False
    if asked.schedule is not None and (asked.schedule == "interleaved") != (sizes["vpp"] > 1):
        return False
    return all(getattr(asked, name) in (None, size) for name, size in sizes.items())


def _has(rules: LayoutRules, sizes: dict[str, int], asked: LayoutRequest) -> bool:
    """Whether layouts with those groups are tried for a framework."""
    if rules.pipelines_if_asked and sizes["pp"] > 1 and not asked.pipeline:
        return False
    return all(sizes[name] == 1 for name in rules.untried)


RUN = ("1f1b", "interleaved")
"""The schedules that the frameworks' replays run."""

HELD = ("sequence_parallel", "etp", "cp_comm", "hsdp_replicas", "reshard", "prefetch", "schedule")
"""Options that are no sizes of groups, and hold for every layout where they are given."""


def _layout(
    rules: LayoutRules, sizes: dict[str, int], mixture: bool, layers: int, asked: LayoutRequest
) -> Layout | None:
    """The layout of those groups; None if a stage would have no layer."""
    count = sizes["pp"] * sizes["vpp"]
    if count > layers:
        return None
    shares = sizes["dp"] * sizes["cp"] > 1
    zero = 3 if asked.fsdp is not None else rules.zero if asked.zero is None else asked.zero
    found = Layout(
        tp=sizes["tp"],
        cp=sizes["cp"],
        pp=sizes["pp"],
        dp=sizes["dp"],
        vpp=sizes["vpp"],
        ep=sizes["ep"],
        etp=1 if mixture and rules.whole_experts else None,
        pp_layout=None if layers % count == 0 else shared_out(layers, count),
        sequence_parallel=sizes["tp"] > 1 and rules.sequence_parallel,
        zero=cast(Zero, zero) if shares else 0,
        schedule="interleaved" if sizes["vpp"] > 1 else "1f1b",
    )
    given = {name: value for name in HELD if (value := getattr(asked, name)) is not None}
    if rules.keeps_gathered(found.pp, found.zero):
        given.setdefault("reshard", False)
    found = replace(found, **given)
    if asked.prefetch is not None or asked.reshard is not None:
        asked.check(found)
    return found


def _try(
    result: Search,
    axes: Iterable[Axis],
    layers: int,
    layout: Layout | None,
    global_batch: int,
    micro_batch: int,
    rules: LayoutRules,
) -> None:
    """Adds a layout to what was found, or to what was refused."""
    if layout is None:
        result.refused[LAYERS] += 1
        return
    batches, rest = divmod(global_batch, layout.dp * micro_batch)
    reason = BATCH if rest or not batches else refusal(axes, layout, layers, batches)
    if not reason and rules.fills_pipeline and layout.schedule == "1f1b" and batches < layout.pp:
        reason = ROUNDS  # torch/distributed/pipelining/schedules.py, `PipelineScheduleSingle.__init__`
    if reason:
        result.refused[reason] += 1
    else:
        result.found.append((layout, batches))


def shared_out(layers: int, count: int) -> tuple[int, ...]:
    """Layers of so many stages, as even as may be: the ends, which have the embedding and the head, get no more."""
    each, more = divmod(layers, count)
    start = (count - more) // 2
    return tuple(each + (start <= i < start + more) for i in range(count))


def refusal(axes: Iterable[Axis], layout: Layout, layers: int, micro_batches: int) -> str:
    """Why a model with these axes and layers cannot have a layout; empty if it can."""
    try:
        list(stages(layout, layers))
    except InputError:
        return LAYERS
    shares = Shares(layout, layout.at(0))
    for axis in axes:
        try:
            shares.axis(axis)
        except InputError:
            return HEADS if "heads" in axis.name else WIDTHS
    try:
        check(layout, micro_batches)
    except InputError:
        return ROUNDS
    return ""


def routed_experts(spec: ModelSpec) -> int:
    """The routed experts of the layer that has the most; 0 without any."""
    counts = (step.options["experts"].size for step in spec.program().root.steps() if step.verb == "experts")
    return max(counts, default=0)


def _expert_groups(experts: int, ranks: int) -> list[int]:
    """The sizes of groups that divide the experts."""
    return divisors(math.gcd(experts, ranks)) if experts else [1]
