"""What is kept between tokens: keys and values, latents, and whatever state an architecture carries along."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..algebra import Number, exact_div
from ..errors import InputError
from ..flow.tree import Cost, Node, Place, Use
from ..model import ModelSpec
from ..ops import KVCache
from ..run.sight import Sight
from ..run.workload import Workload
from ..units import bits_to_bytes
from .cache_formats import cache_bits_in, cache_format
from .limits import check_source, longest_sequence, usual_context
from .what_if import What, what_ifs

STATE = "recurrent_state"
"""The kind of whatever is kept and is no cache of tokens, where it does not say its own."""

SHORTEST, LONGEST = 2**10, 2**17
"""Contexts that growth is shown for: from 1,024 up to 131,072, or up to what the model was made for."""


def cache_bits(element_bits: Number) -> Cost:
    """Cost: bits that are kept between tokens, keys and values in elements of so many bits."""

    def cost(use: Use) -> Number:
        return use.cache_bits(element_bits)

    return cost


def cache_bits_of(format_name: str) -> Cost:
    """Cost: bits that are kept between tokens, keys and values in that format."""
    return cache_bits_in(cache_format(format_name))


def _keeping(spec: ModelSpec) -> Node:
    """The parts of the model that keep something between tokens: a cache is asked for at many lengths."""
    return spec.tree().only("cache_bits")


@dataclass(frozen=True, slots=True)
class Held:
    """Caches that are alike: `layers` of them,
    each with `tokens` entries of `width` elements (None where it has no entries).
    """

    kind: str
    layers: int
    tokens: int | None
    width: int | None
    bytes: int


@dataclass(frozen=True)
class CacheSize:
    """The cache after `context + seq` tokens of each sequence.

    tree: the parts of the model that keep something. source: what an encoder was told to read, if it was.
    """

    spec: ModelSpec
    tree: Node
    workload: Workload
    dtype: str = "bfloat16"
    source: int | None = None

    def _bits(self, workload: Workload, dtype_name: str | None = None) -> Number:
        return self.tree.total(cache_bits_of(dtype_name or self.dtype), Sight(workload))

    @property
    def bytes(self) -> int:
        return bits_to_bytes(self._bits(self.workload))

    def bytes_in(self, dtype_name: str) -> int:
        """The same cache with keys and values in another format; states keep theirs."""
        return bits_to_bytes(self._bits(self.workload, dtype_name))

    @property
    def elements(self) -> int:
        """Numbers that are stored in `dtype`: keys, values and latents, not states that keep a dtype of their own."""
        found: int = self.tree.total(lambda use: use.cache_bits(2) - use.cache_bits(1), Sight(self.workload))
        return found

    @property
    def bytes_per_token(self) -> int:
        """What the first token of a sequence adds, in all layers; windows hold it until it falls out of them."""
        one = self.workload.with_(batch=1, seq=1, context=0, source=1)
        none = self.workload.with_(batch=1, seq=0, context=0, source=0)
        return bits_to_bytes(self._bits(one) - self._bits(none))

    @property
    def growth_per_token(self) -> int:
        """What one more token of one sequence adds now, where windows are full."""
        here = self.workload.with_(batch=1)
        return bits_to_bytes(self._bits(here.with_(seq=here.seq + 1)) - self._bits(here))

    def _caches(self) -> list[Place]:
        """Every primitive that keeps something."""
        kept = cache_bits_of(self.dtype)
        return [p for p in self.tree.walk(Sight(self.workload)) if not p.optional and p.own(kept)]

    @property
    def by_layer_kind(self) -> dict[str, int]:
        """Bytes by the kind of cache: `full_attention`, `sliding_attention`, `latent_attention`,
        `cross_attention`, …
        """
        sums: dict[str, int] = {}
        for held in self.held:
            sums[held.kind] = sums.get(held.kind, 0) + held.bytes
        return sums

    @property
    def held(self) -> list[Held]:
        """The caches, those that are alike together, in the order of the layers."""
        layers: dict[tuple[str, int | None, int | None], int] = {}
        bits: dict[tuple[str, int | None, int | None], Number] = {}
        kept = cache_bits_of(self.dtype)
        for place in self._caches():
            op = place.node.op
            tokens, width = (_tokens_of(op, place), op.width) if isinstance(op, KVCache) else (None, None)
            alike = (getattr(op, "kind", STATE), tokens, width)
            layers[alike] = layers.get(alike, 0) + place.times
            bits[alike] = bits.get(alike, 0) + place.times * place.own(kept)
        return [
            Held(kind, layers[kind, tokens, width], tokens, width, bits_to_bytes(b))
            for (kind, tokens, width), b in bits.items()
        ]

    @property
    def what_if(self) -> list[WhatIf]:
        """The same model with other heads, or without windows, through the same closed form."""
        changed = [(what, replace(self, spec=spec, tree=_keeping(spec))) for what, spec in what_ifs(self.spec)]
        return [WhatIf(what, cache, cache.bytes / self.bytes) for what, cache in changed]

    @property
    def contexts(self) -> list[int]:
        """Powers of two from 1,024 up to what the model was made for (131,072 where it does not say) and at
        least `seq`; both of these too.
        """
        limit = longest_sequence(self.spec) or LONGEST
        most = max(limit, self.workload.seq)
        powers = [2**i for i in range(SHORTEST.bit_length() - 1, most.bit_length()) if 2**i <= most]
        return sorted({*powers, limit, self.workload.seq})

    def after(self, tokens: int) -> CacheSize:
        """The cache after another number of tokens. The encoder has read as many, unless it was told how many."""
        source = tokens if self.source is None else self.source
        return replace(self, workload=self.workload.with_(seq=tokens, context=0, source=source))

    @property
    def growth(self) -> dict[int, int]:
        """Tokens of each sequence → bytes of all sequences."""
        return {tokens: self.after(tokens).bytes for tokens in self.contexts}


def _tokens_of(cache: KVCache, place: Place) -> int:
    """Tokens of one sequence that a cache holds."""
    assert place.sight is not None
    tokens: int = exact_div(cache.cache_bits(place.sight.with_workload(batch=1), 1), cache.width)
    return tokens


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A changed model's cache, and how many times the model's own it is."""

    what: What
    cache: CacheSize
    ratio: float


def kv(
    spec: ModelSpec,
    batch: int = 1,
    seq: int | None = None,
    dtype_name: str = "bfloat16",
    source: int | None = None,
) -> CacheSize:
    """The cache after `seq` tokens (`usual_context`) of each of `batch` sequences; an encoder-decoder has read `source`
    (or as many).

    Raises `InputError` for an encoder-only model, which keeps none, for a source where there is no encoder, and for an
    unknown format (`cache_format`).
    """
    if spec.kind == "encoder":
        raise InputError("an encoder-only model keeps no KV cache: it reads a sequence in one pass")
    check_source(spec, source)
    tokens = usual_context(spec) if seq is None else seq
    workload = Workload(batch=batch, seq=tokens, source=source, phase="prefill")
    return CacheSize(spec, _keeping(spec), workload, cache_format(dtype_name).name, source)
