"""Does a run fit on an accelerator, how much of it would, and what would make it fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..accelerator import Fit, Hardware
from ..costs.context_length import learned_positions
from ..device_memory.estimate import Memory
from ..device_memory.simulated_run import cache_block, kernel_choices
from ..errors import InputError
from ..workload.lora import ALL_LINEAR
from ..workload.setting import option

MOST_BATCH = 2**20
"""The largest number of sequences that is tried."""

MOST_SEQ = 2**24
"""The longest sequence that is tried."""

CHUNK = 2048
"""Tokens of a chunk of a prompt, where chunks are tried."""

NEAREST = 5
"""How many changes are told that do not suffice: those that need least."""

RANK = 16
"""Rank of the adapters that are tried: the default of many recipes."""


@dataclass(frozen=True)
class Change:
    """Settings that are tried. option: as the command line takes them. fit: what they require."""

    option: str
    fit: Fit


@dataclass(frozen=True)
class Fitting:
    """Whether a run fits.

    fit: the run as it was given. batch, seq: the most that fit, each with the other as given; 0 if none does.
    changes: what makes it fit, the cheapest first, and then what does not suffice; empty if it fits as it is.
    """

    memory: Memory
    fit: Fit
    batch: int
    seq: int
    changes: tuple[Change, ...]


def fit(memory: Memory, hardware: Hardware) -> Fitting:
    """Whether a run fits on one accelerator, and what would change that."""
    given = Fit(hardware, memory.device.device_bytes)
    capacity, use = given.capacity, memory.states.workload
    longest = learned_positions(memory.spec) or MOST_SEQ

    def needed(name: str, n: int) -> int:
        return given.needed if n == getattr(use, name) else memory.with_(**{name: n}).device.device_bytes

    batch = largest(partial(needed, "batch"), capacity, use.batch, MOST_BATCH)
    block = cache_block(memory.settings, memory.states) or 1  # most bytes come with whole blocks of the cache
    blocks = largest(lambda n: needed("seq", min(n * block, longest)), capacity, use.seq // block, -(-longest // block))
    seq = min(blocks * block, longest)
    if seq < longest:
        seq += largest(lambda n: needed("seq", seq + n), capacity, 1, min(block, longest - seq))
    changes = () if given.verdict != "no" else tuple(_changes(memory, given, batch, seq))
    return Fitting(memory, given, batch, seq, changes)


def largest(needed: Callable[[int], int], capacity: int, start: int, most: int) -> int:
    """The largest number from 1 to `most` for which no more than `capacity` bytes are needed; 0 if there is none.

    needed: bytes for a number; they grow with it. start: the number that is tried first.
    """
    known: dict[int, int] = {}

    def excess(n: int) -> int:
        if n not in known:
            known[n] = needed(n) - capacity
        return known[n]

    if excess(1) > 0:
        return 0
    low, high = 1, max(2, min(start, most))
    while excess(min(high, most)) <= 0:
        low = min(high, most)
        if low == most:
            return most
        high = min(most, max(2 * low, min(WIDEN * low, _crossing(known, low) * 51 // 50)))
    turn = 0
    while high - low > 1:
        n = max(low + 1, min(high - 1, _between(known, low, high, turn)))
        turn += 1
        low, high = (n, high) if excess(n) <= 0 else (low, n)
    return low


WIDEN = 16
"""How many times as much is tried next at most, while everything fits: bytes grow faster further on."""

NEAR = 4
"""A bracket whose ends differ by no more than so many times is searched along lines."""


def _between(known: Mapping[int, int], low: int, high: int, turn: int) -> int:
    """The next number to try in a bracket.

    Bytes grow faster and faster with a number. So a line through both ends reaches the capacity too early, and one
    through the two points up to `low` too late: by turns they close in from both sides, with a half between.
    """
    if high > NEAR * low:
        return math.isqrt(low * high)
    if turn % 3 == 0:
        return low + (high - low) * -known[low] // (known[high] - known[low])
    return _crossing(known, low) + 1 if turn % 3 == 1 else (low + high) // 2


def _crossing(known: Mapping[int, int], low: int) -> int:
    """Where the line through `low` and the point before it reaches the capacity; far away if it does not rise."""
    before = max((n for n in known if n < low), default=low)
    rise = known[low] - known[before]
    return low + (low - before) * -known[low] // rise if rise > 0 else WIDEN * low


def _changes(memory: Memory, given: Fit, batch: int, seq: int) -> Iterable[Change]:
    """Every single change, then bundles of those that cost little with one that costs more."""
    training = memory.settings.phase == "training"
    cheap, dear = (_of_training if training else _of_inference)(memory)
    dear = [*dear, *_smaller(memory, batch, seq)]
    tried = [found for changes in (*cheap, *dear) if (found := _tried(memory, given, changes)) is not None]
    if not any(one.fit.verdict != "no" for one in tried):
        together: dict[str, Any] = {}
        for changes in cheap:
            together |= changes
        for more in ({}, *dear):
            found = _tried(memory, given, {**together, **more})
            tried += [found] if found is not None else []
    fitting = [one for one in tried if one.fit.verdict != "no"]
    rest = sorted((one for one in tried if one.fit.verdict == "no"), key=lambda one: one.fit.needed)
    return list({one.option: one for one in (*fitting, *rest[:NEAREST])}.values())


def _tried(memory: Memory, given: Fit, changes: Mapping[str, Any]) -> Change | None:
    """The run with these settings; None if it cannot run so, or if that saves nothing."""
    try:
        needed = memory.with_(**changes).device.device_bytes
    except InputError:
        return None
    return Change(as_options(changes), Fit(given.hardware, needed)) if needed < given.needed else None


def as_options(changes: Mapping[str, Any]) -> str:
    """Settings as the command line takes them."""
    return " ".join(
        f"{option(name)} {','.join(value) if isinstance(value, tuple) else value}"
        for name, value in changes.items()
        if value is not None
    )


def _of_training(memory: Memory) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Changes that leave what is trained as it is, and changes of the optimizer, of formats, and of what is trained."""
    settings = memory.settings
    cheap: list[dict[str, Any]] = []
    if kernel_choices(settings).attention != "flash":
        cheap.append({"attn_implementation": "flash"})
    if settings.optimizer_impl != "fused":
        cheap.append({"optimizer_impl": "fused"})
    if settings.cross_entropy != "chunked":
        cheap.append({"cross_entropy": "chunked"})
    recompute = settings.recompute or "none"
    cheap += [{"recompute": mode} for mode in ("attention+matmuls", "full") if recompute == "none"]
    batch = memory.states.workload.batch
    if batch > 1:
        cheap.append({"batch": 1, "num_microbatches": batch * (settings.num_microbatches or 1)})
    dear: list[dict[str, Any]] = []
    if settings.lora_rank is None:
        if settings.optimizer in (None, "adamw"):
            dear.append({"optimizer": "adamw-8bit", "optimizer_impl": None})
        if settings.precision is None and settings.dtype is None:
            dear.append({"precision": "bf16"})
        adapters = {"lora_rank": RANK, "lora_targets": (ALL_LINEAR,), "master_weights": None}
        dear += [adapters, {**adapters, "base": "nf4"}]
    elif settings.base is None:
        dear.append({"base": "nf4"})
    return cheap, dear


def _of_inference(memory: Memory) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Changes that leave the results as they are, and narrower formats of cache and weights."""
    settings, use = memory.settings, memory.states
    cheap: list[dict[str, Any]] = []
    if memory.attention != "flash":
        cheap.append({"attn_implementation": "flash"})
    if settings.phase == "prefill" and settings.chunk is None and use.workload.seq > CHUNK:
        cheap.append({"chunk": CHUNK})
    dear: list[dict[str, Any]] = []
    if use.kv_dtype in ("bfloat16", "float16", "float32"):
        dear.append({"kv_dtype": "fp8"})
    if use.quantized is None and settings.dtype is None:
        dear += [{"quantize": scheme} for scheme in ("fp8", "q8_0", "q4_k_m", "awq-int4-g128")]
    return cheap, dear


def _smaller(memory: Memory, batch: int, seq: int) -> list[dict[str, Any]]:
    """Fewer sequences, or shorter ones."""
    use, found = memory.states.workload, []
    if 0 < batch < use.batch:
        found.append({"batch": batch})
    if 0 < seq < use.seq:
        found.append({"seq": seq})
    return found
