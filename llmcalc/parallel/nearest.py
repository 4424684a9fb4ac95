"""The layouts nearest to one that a model cannot have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, product
from math import gcd, log2
from typing import Any

from ..errors import InputError
from ..flow.axis import Axis
from ..model import ModelSpec
from .divisors import divisors
from .layout import ImpossibleLayout, Layout, stages
from .layout_request import LayoutRequest
from .rank_model import axes_of_model, of_rank
from .rank_program import NEAR_ROWS, TENSOR, Shares
from .search import routed_experts, shared_out, tokens_multiple

SIZES = ("tp", "pp", "cp", "dp", "ep", "vpp", "etp")
"""The sizes of groups that may change."""

FEW = 4
"""Sizes of each group that are tried."""

FAR = 4
"""How many times as large, or as small, a size may become."""

GIVEN, UNEVEN = 2.0, 0.5
"""The weight of a size that was asked for, against 1 of others, and that of stages with uneven numbers of layers."""


@contextmanager
def with_nearest(spec: ModelSpec, asked: LayoutRequest, seq: int | None = None, most: int = 3) -> Iterator[None]:
    """Adds to the error of an impossible layout the nearest possible ones. seq: as of `nearest`."""
    try:
        yield
    except ImpossibleLayout as error:
        if not asked.anything:
            raise
        found = nearest_text(spec, asked, seq, most)
        raise InputError(f"{error}; {found}" if found else str(error)) from None


def nearest_text(spec: ModelSpec, asked: LayoutRequest, seq: int | None = None, most: int = 3) -> str:
    """`nearest layouts: --tp 4; --tp 2 --dp 2`; empty if there is none. seq: as of `nearest`."""
    found = [_options(layout) for layout in islice(nearest(spec, asked, seq), most)]
    return f"nearest layouts: {'; '.join(found)}" if found else ""


def _options(layout: Layout) -> str:
    """The options that ask for a layout; --vpp says its schedule."""
    return layout.options().replace(" --schedule interleaved", "") or "one device"


def nearest(spec: ModelSpec, asked: LayoutRequest, seq: int | None = None) -> Iterator[Layout]:
    """Yields layouts that the model can have, the nearest first.

    seq: tokens of a sequence, which ranks may divide; None (default) if they are not known.

    The distance of two sizes is the logarithm of their ratio, and counts twice where the size was asked for.
    """
    layers = sum(stack.num_hidden_layers for _, stack in spec.stacks())
    seen: set[Layout] = set()
    for _, layout in sorted(_tries(spec, asked, layers), key=lambda one: (one[0], one[1].options())):
        if layout not in seen and _divides(layout, seq) and _is_possible(spec, layout, layers):
            yield layout
        seen.add(layout)


def _tries(spec: ModelSpec, asked: LayoutRequest, layers: int) -> Iterator[tuple[float, Layout]]:
    """Layouts with sizes near those asked, each with its distance."""
    experts = routed_experts(spec)
    axes = axes_of_model(spec)
    want = {name: getattr(asked, name) or 1 for name in SIZES}
    if asked.fsdp is not None:
        want["dp"] = asked.fsdp * (asked.hsdp_replicas or 1)

    def divides(tp: int) -> bool:
        shares = Shares(layout := Layout(tp=tp), layout.at(0))
        try:
            for axis in axes:
                if axis.name != "expert_ffn":
                    shares.axis(axis)
        except InputError:
            return False
        return True

    of_experts = divisors(experts) if experts else [1]
    ep = [1] if asked.ep is None or not experts else _near(want["ep"], of_experts)
    spread = [want["ep"], 1] if asked.ep is not None and asked.tp is None else []
    tp = _near(want["tp"], filter(divides, _tensor_sizes(axes, want["tp"])), *filter(divides, spread))
    pp = _near(want["pp"], range(1, min(layers, FAR * want["pp"]) + 1), *_divisors_near(layers, want["pp"]))
    vpp = [1] if asked.vpp is None else _near(want["vpp"], range(1, min(layers, FAR * want["vpp"]) + 1), 1)
    for sizes in product(tp, pp, vpp, ep):
        own: dict[str, Any] = dict(zip(("tp", "pp", "vpp", "ep"), sizes, strict=True), cp=want["cp"])
        if own["pp"] * own["vpp"] > layers or (own["vpp"] > 1 and own["pp"] == 1):
            continue
        for etp in {asked.etp or own["tp"], 1} if own["ep"] > 1 or asked.etp else {None}:
            for dp in _replicas(asked, want["dp"], own, etp or own["tp"]):
                yield from _built(asked, layers, want, own | {"dp": dp, "etp": etp})


def _near(size: int, known: Any, *more: int) -> list[int]:
    """The few of the known sizes that are nearest to one. more: further ones."""
    return sorted({*sorted(known, key=lambda n: (abs(log2(n / size)), n))[:FEW], *more})


def _divisors_near(layers: int, size: int) -> list[int]:
    return _near(size, divisors(layers))


def _tensor_sizes(axes: set[Axis], size: int) -> Iterable[int]:
    """Sizes of a tensor group that may divide the axes: divisors of all that have to be even. size: near which."""
    even = [axis.size for axis in axes if axis.name in TENSOR - NEAR_ROWS - {"kv_heads"}]
    common = gcd(*(one for one in even if isinstance(one, int)))
    return divisors(common, FAR * size) if common else range(max(1, size - FEW), size + FEW + 1)


def _replicas(asked: LayoutRequest, dp: int, own: dict[str, Any], etp: int) -> set[int]:
    """Numbers of replicas: what is left of the devices, or what was asked for; and as many as the experts need."""
    inside = own["tp"] * own["pp"] * own["cp"]
    if asked.devices is not None:
        each = asked.devices // inside
        return {max(1, each)} if asked.devices % inside == 0 else {max(1, each), each + 1}
    needed = own["ep"] * etp // gcd(own["ep"] * etp, own["tp"] * own["cp"])
    return {dp, -(-dp // needed) * needed, max(1, dp // needed) * needed}


def _built(
    asked: LayoutRequest, layers: int, want: dict[str, int], own: dict[str, Any]
) -> Iterator[tuple[float, Layout]]:
    """The layout of these sizes and its distance, if there is one."""
    count = own["pp"] * own["vpp"]
    split = asked.pp_layout
    if split is None or len(split) != count or sum(split) != layers:
        if layers % count and (own["pp"], own["vpp"]) != (want["pp"], want["vpp"]):
            return
        split = None if layers % count == 0 else shared_out(layers, count)
    names = "sequence_parallel", "cp_comm", "reshard", "prefetch"
    kept: dict[str, Any] = {name: value for name in names if (value := getattr(asked, name)) is not None}
    schedule = asked.schedule or "1f1b"
    if own["vpp"] > 1:
        schedule = "interleaved"
    elif schedule == "interleaved" or (schedule == "dualpipe" and own["pp"] % 2):
        schedule = "1f1b"
    zero = 3 if asked.fsdp is not None else asked.zero or 0
    replicas = asked.hsdp_replicas or 1
    try:
        sizes = own | {"etp": None if own["etp"] == own["tp"] else own["etp"]}
        made = Layout(**sizes, **kept, pp_layout=split, schedule=schedule, zero=zero, hsdp_replicas=replicas)  # type: ignore[arg-type]
    except InputError:
        return
    far = UNEVEN if split is not None and split != asked.pp_layout else 0.0
    for name in ("tp", "pp", "dp", "ep", "vpp"):
        given = getattr(asked, name) is not None or (name == "dp" and asked.fsdp is not None)
        if name != "dp" or asked.devices is None:
            far += (GIVEN if given else 1.0) * abs(log2(own[name] / want[name]))
    if asked.etp is not None:
        far += GIVEN * abs(log2(made.expert_tp / asked.etp))
    elif made.expert_tp != made.tp:
        far += UNEVEN
    if asked.devices is not None:
        far += GIVEN * abs(log2(made.world / asked.devices))
    yield far, made


def _divides(layout: Layout, seq: int | None) -> bool:
    """Whether ranks can divide that many tokens evenly."""
    ranks = layout.cp * (layout.tp if layout.sequence_parallel else 1)
    return seq is None or (seq % ranks == 0 and seq % tokens_multiple(layout.cp) == 0)


def _is_possible(spec: ModelSpec, layout: Layout, layers: int) -> bool:
    """Whether every stage has a program."""
    try:
        list(stages(layout, layers))
        for stage in {0, layout.pp - 1}:
            of_rank(spec, layout, layout.rank(pp=stage)).program()
    except InputError:
        return False
    return True
