"""The bytes of a model's cache: keys and values, MLA latents, and the recurrent states of other architectures."""

from __future__ import annotations

from dataclasses import replace

from ..algebra import Number, exact_div
from ..errors import InputError
from ..flow.tree import Cost, Node, NodePosition
from ..frozen import frozen
from ..model import ModelSpec
from ..ops import KVCache, State
from ..units import bits_to_bytes
from ..workload.run_config import RunConfig
from ..workload.workload import Workload
from .cache_formats import cache_bits_cost, cache_format, state_bits
from .context_length import check_source_tokens, default_context_tokens, longest_sequence
from .encoders import EncodedInputs
from .model_changes import ModelChange, changed_models

DEFAULT_STATE_KIND = "recurrent_state"
"""Default name of the kind of cached state other than a KV cache."""

SHORTEST_SHOWN_CONTEXT, LONGEST_SHOWN_CONTEXT = 2**10, 2**17
"""Context lengths in tokens for which cache growth is shown: 1,024 to 131,072, or to the model's context length."""


def cache_bits_cost_by_name(format_name: str) -> Cost:
    """Returns a cost function for the cached bits of an operation, if keys and values have the named format."""
    return cache_bits_cost(cache_format(format_name))


def _tree_of_cached_nodes(spec: ModelSpec) -> Node:
    """Returns the part of the model's tree whose nodes have a cache, to be evaluated at many sequence lengths."""
    return spec.tree().with_effect("cache_bits")


@frozen(slots=True)
class CacheGroup:
    """Layers with KV caches or states of the same kind and size.

    kind: the kind of cache, such as `full_attention`.
    layers: number of layers with such a cache.
    tokens: tokens cached per sequence; None for a recurrent state.
    width: elements per token and layer; None for a recurrent state.
    bytes: size of all caches of the group.
    """

    kind: str
    layers: int
    tokens: int | None
    width: int | None
    bytes: int


@frozen
class CacheSize:
    """The size of the cache after `context + seq` tokens of each sequence.

    tree: the part of the model's tree that has caches.
    workload: batch, seq and context.
    dtype: the cache format of keys and values; default bfloat16.
    source: tokens that the encoder has read, if the caller gave them; default None (as many as the decoder).
    inputs: the images and audio whose tokens `seq` includes; None (default) for text alone.
    """

    spec: ModelSpec
    tree: Node
    workload: Workload
    dtype: str = "bfloat16"
    source: int | None = None
    inputs: EncodedInputs | None = None

    def _total_bits(self, workload: Workload, format_name: str | None = None) -> Number:
        return self.tree.total(cache_bits_cost_by_name(format_name or self.dtype), RunConfig(workload))

    @property
    def bytes(self) -> int:
        return bits_to_bytes(self._total_bits(self.workload))

    def bytes_in_format(self, format_name: str) -> int:
        """Returns the cache's bytes with keys and values in another format; recurrent states keep their format."""
        return bits_to_bytes(self._total_bits(self.workload, format_name))

    @property
    def elements(self) -> int:
        """The number of cached elements whose format is `dtype`: keys, values and latents, but not recurrent states."""
        cached_elements: int = self.tree.total(
            lambda counted_op: counted_op.cache_bits(2) - counted_op.cache_bits(1), RunConfig(self.workload)
        )
        return cached_elements

    @property
    def bytes_per_token(self) -> int:
        """The cache bytes that one token adds in all layers, before any sliding window is full."""
        one_token_workload = self.workload.with_changes(batch=1, seq=1, context=0, source=1)
        empty_workload = self.workload.with_changes(batch=1, seq=0, context=0, source=0)
        return bits_to_bytes(self._total_bits(one_token_workload) - self._total_bits(empty_workload))

    @property
    def growth_per_token(self) -> int:
        """The bytes that one more token of a sequence adds to the cache; a layer with a full window adds 0 bytes."""
        single_sequence_workload = self.workload.with_changes(batch=1)
        return bits_to_bytes(
            self._total_bits(single_sequence_workload.with_changes(seq=single_sequence_workload.seq + 1))
            - self._total_bits(single_sequence_workload)
        )

    def _cache_positions(self) -> list[NodePosition]:
        """Returns the tree positions of all operations with a cache."""
        cached_bits_of = cache_bits_cost_by_name(self.dtype)
        return [
            tree_node
            for tree_node in self.tree.walk(RunConfig(self.workload))
            if not tree_node.optional_part and tree_node.cost_of_operation(cached_bits_of)
        ]

    @property
    def state_bits(self) -> dict[str, Number]:
        """Bits per element of each state whose size does not depend on the number of tokens, by name of the state."""
        operations = (tree_node.node.op for tree_node in self._cache_positions())
        return {op.cache_kind: state_bits(op, cache_format(self.dtype)) for op in operations if isinstance(op, State)}

    @property
    def by_layer_kind(self) -> dict[str, int]:
        """The bytes by name of the cache, such as `full_attention` and `sliding_attention`."""
        bytes_by_kind: dict[str, int] = {}
        for cache_group in self.groups:
            bytes_by_kind[cache_group.kind] = bytes_by_kind.get(cache_group.kind, 0) + cache_group.bytes
        return bytes_by_kind

    @property
    def groups(self) -> list[CacheGroup]:
        """Groups of identical caches, in the order of the layers."""
        layers: dict[tuple[str, int | None, int | None], int] = {}
        bits_by_group: dict[tuple[str, int | None, int | None], Number] = {}
        cached_bits_of = cache_bits_cost_by_name(self.dtype)
        for tree_node in self._cache_positions():
            op = tree_node.node.op
            tokens, vector_width = (
                (_cached_token_count(op, tree_node), op.width) if isinstance(op, KVCache) else (None, None)
            )
            group_key = (getattr(op, "cache_kind", DEFAULT_STATE_KIND), tokens, vector_width)
            layers[group_key] = layers.get(group_key, 0) + tree_node.copies
            bits_by_group[group_key] = bits_by_group.get(group_key, 0) + tree_node.copies * tree_node.cost_of_operation(
                cached_bits_of
            )
        return [
            CacheGroup(cache_kind, layers[cache_kind, tokens, width], tokens, width, bits_to_bytes(cache_bits))
            for (cache_kind, tokens, width), cache_bits in bits_by_group.items()
        ]

    @property
    def what_if(self) -> list[WhatIf]:
        """Returns how large the cache would be with other numbers of key/value heads or without windows.

        It is empty for a model that caches nothing of its own, such as a draft that reads the target's cache.
        """
        if not self.bytes:
            return []
        changed_caches = [
            (model_change, replace(self, spec=spec, tree=_tree_of_cached_nodes(spec)))
            for model_change, spec in changed_models(self.spec)
        ]
        return [
            WhatIf(model_change, changed_size, changed_size.bytes / self.bytes)
            for model_change, changed_size in changed_caches
        ]

    @property
    def contexts(self) -> list[int]:
        """The context lengths for which `growth` is computed: powers of two from 1,024, the model's limit, and `seq`.

        The largest power of two is at most the model's context length (131,072 if it states none) or `seq`.
        """
        context_limit = longest_sequence(self.spec) or LONGEST_SHOWN_CONTEXT
        longest_context = max(context_limit, self.workload.seq)
        powers_of_two = [
            2**exponent
            for exponent in range(SHORTEST_SHOWN_CONTEXT.bit_length() - 1, longest_context.bit_length())
            if 2**exponent <= longest_context
        ]
        return sorted({*powers_of_two, context_limit, self.workload.seq})

    def size_after(self, tokens: int) -> CacheSize:
        """Returns the cache size after `tokens` tokens; an encoder reads as many unless `source_tokens` is set."""
        source_tokens = tokens if self.source is None else self.source
        return replace(self, workload=self.workload.with_changes(seq=tokens, context=0, source=source_tokens))

    @property
    def growth(self) -> dict[int, int]:
        """Returns the cache bytes of all sequences, keyed by the number of tokens per sequence."""
        return {token_count: self.size_after(token_count).bytes for token_count in self.contexts}


def _cached_token_count(cache_op: KVCache, tree_node: NodePosition) -> int:
    """Returns the number of tokens per sequence that an operation's cache holds."""
    assert tree_node.run_config is not None
    token_count: int = exact_div(cache_op.cache_bits(tree_node.run_config.with_workload(batch=1), 1), cache_op.width)
    return token_count


@frozen(slots=True)
class WhatIf:
    """The cache size of a hypothetical variant of the model. ratio: the variant's bytes / the model's bytes."""

    model_change: ModelChange
    cache: CacheSize
    ratio: float


def kv(
    spec: ModelSpec,
    batch: int = 1,
    seq: int | None = None,
    format_name: str = "bfloat16",
    source: int | None = None,
    encoded_inputs: EncodedInputs | None = None,
) -> CacheSize:
    """Computes the cache's size after `seq` tokens of each of `batch` sequences.

    seq: tokens per sequence; default `default_context_tokens`.
    source: tokens that the encoder of an encoder-decoder has read; default as many as seq.
    encoded_inputs: the images and audio whose tokens seq includes; None (default) for text alone.
    Raises `InputError` for an encoder-only model, for a source given to a model without an encoder, and for an unknown
    cache format.
    """
    if spec.one_pass_model_name:
        raise InputError(f"{spec.one_pass_model_name} keeps no KV cache: it reads a sequence in one pass")
    check_source_tokens(spec, source)
    tokens = default_context_tokens(spec) if seq is None else seq
    workload = Workload(batch=batch, seq=tokens, source=source, phase="prefill")
    return CacheSize(
        spec, _tree_of_cached_nodes(spec), workload, cache_format(format_name).name, source, encoded_inputs
    )
