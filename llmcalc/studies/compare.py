"""Compares models: sizes, ratios of sizes, and costs per token.

The counts come from `costs`; this file computes ratios of them. The ratios are those that papers report: aspect ratio
h/L (Kaplan 2020, arXiv:2001.08361, §3.1), d_ff/h, heads × head size over h, key/value heads over heads (Ainslie 2023,
arXiv:2305.13245).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..components.base import HeadSizes, Network, TokenMixer
from ..components.layers.block import Layer
from ..components.stack import Stack
from ..costs.cache import kv
from ..costs.context_length import learned_positions
from ..costs.flops import flops
from ..costs.params import ParameterCount, params, total_params_of
from ..errors import InputError, suggest
from ..flow.tree import Node
from ..frozen import frozen
from ..model import ModelSpec
from ..workload.workload import Workload

if TYPE_CHECKING:
    from .timed_run import TimedRun

DENSE_BAND = (100, 130)
"""Range of h/L of most large dense decoders, rounded to a whole number.

Chinchilla and LLaMA 65B have 102, GPT-3 and Llama 3 8B 128, Llama 3.1 405B 130.
"""

VOCABULARY_PATHS = ("embed_tokens", "lm_head", "lm_head.decoder")
"""Paths of the weights with one row per token of the vocabulary."""


def is_in_dense_band(hidden_size: int, num_hidden_layers: int) -> bool:
    """Whether h/L, rounded to an integer, is in the usual range of large dense decoders (`DENSE_BAND`)."""
    lower_bound, upper_bound = DENSE_BAND
    return lower_bound <= round(hidden_size / num_hidden_layers) <= upper_bound


@frozen
class StackShape:
    """The width, depth and head sizes of a stack of layers, taken from its most frequent kind of layer.

    feed_forward_width: active width of the FFN per token; in a mixture of experts, experts per token × expert width +
        width of the shared experts.
    head_dim: size of one head's query and key.
    num_key_value_heads: number of key/value heads; None for latent attention.
    The attention fields are None if no layer has heads.
    """

    num_hidden_layers: int
    layer_kinds: dict[str, int]
    block: Layer
    hidden_size: int
    feed_forward_width: int | None
    mixture_of_experts: bool
    num_attention_heads: int | None
    num_key_value_heads: int | None
    head_dim: int | None

    @property
    def aspect_ratio(self) -> float:
        """The aspect ratio h/L of width to depth."""
        return self.hidden_size / self.num_hidden_layers

    @property
    def is_in_dense_band(self) -> bool:
        return is_in_dense_band(self.hidden_size, self.num_hidden_layers)

    @property
    def feed_forward_ratio(self) -> float | None:
        """The ratio d_ff/h; in a mixture of experts, the active expert width over h."""
        return None if self.feed_forward_width is None else self.feed_forward_width / self.hidden_size

    @property
    def head_ratio(self) -> float | None:
        """The ratio heads × head_dim / h."""
        if self.num_attention_heads is None or self.head_dim is None:
            return None
        return self.num_attention_heads * self.head_dim / self.hidden_size

    @property
    def kv_ratio(self) -> float | None:
        """The ratio of key/value heads to query heads."""
        if self.num_attention_heads is None or self.num_key_value_heads is None:
            return None
        return self.num_key_value_heads / self.num_attention_heads


@frozen
class ModelQuantities:
    """The compared sizes and costs of one model.

    shape: shape of the stack that computes the output.
    encoder: shape of the encoder of an encoder-decoder; None for other models.
    vocabulary_parameters: parameters of all weights with one row per vocabulary token, tied ones once.
    forward_flops_per_token: forward FLOPs per token at `seq` tokens, with full pairs and logits at every position; the
        encoder of an encoder-decoder reads as many tokens.
    kv_bytes_per_token: bytes of cache per token; None for an encoder, which has no cache.
    kv_bytes: bytes of the cache of one sequence of `seq` tokens, where windows and states end its growth; None for an
        encoder.
    context_length: number of learned positions; None without a learned position embedding.
    decoding: a decoded token of every user on an accelerator; None where none is named, for an encoder, and where
        weights and cache do not fit.
    """

    spec: ModelSpec
    seq: int
    dtype: str
    parameters: int
    active: int
    vocab_size: int
    vocabulary_parameters: int
    shape: StackShape
    encoder: StackShape | None
    forward_flops_per_token: float
    kv_bytes_per_token: int | None
    kv_bytes: int | None
    context_length: int | None
    decoding: TimedRun | None = None

    @property
    def vocabulary_share(self) -> float:
        return self.vocabulary_parameters / self.parameters

    @property
    def shapes(self) -> tuple[StackShape, ...]:
        """The depth, widths and heads of every stack of layers, in the order in which the stacks run."""
        return (self.shape,) if self.encoder is None else (self.encoder, self.shape)


SORT_KEYS: dict[str, Callable[[ModelQuantities], float | None]] = {
    "params": lambda quantities: quantities.parameters,
    "active": lambda quantities: quantities.active,
    "h": lambda quantities: quantities.shape.hidden_size,
    "L": lambda quantities: quantities.shape.num_hidden_layers,
    "h/L": lambda quantities: quantities.shape.aspect_ratio,
    "d_ff/h": lambda quantities: quantities.shape.feed_forward_ratio,
    "heads": lambda quantities: quantities.shape.num_attention_heads,
    "head_dim": lambda quantities: quantities.shape.head_dim,
    "heads/h": lambda quantities: quantities.shape.head_ratio,
    "kv_heads": lambda quantities: quantities.shape.num_key_value_heads,
    "kv_ratio": lambda quantities: quantities.shape.kv_ratio,
    "vocab": lambda quantities: quantities.vocab_size,
    "vocab_share": lambda quantities: quantities.vocabulary_share,
    "flops": lambda quantities: quantities.forward_flops_per_token,
    "kv": lambda quantities: quantities.kv_bytes_per_token,
}
"""Value of `--sort` → the quantity to sort by."""


def quantities_of_model(
    spec: ModelSpec, seq: int = 2048, dtype: str = "bfloat16", parameter_count: ParameterCount | None = None
) -> ModelQuantities:
    """Computes all compared quantities of one model.

    seq: tokens per sequence for the FLOPs; default 2048.
    dtype: number format of the cache; default bfloat16.
    parameter_count: the model's parameters, if they are already counted; default None, which counts them.
    Raises `InputError` for an unknown dtype.
    """
    parameter_count, workload = params(spec) if parameter_count is None else parameter_count, Workload(batch=1, seq=seq)
    cache_size = None if spec.one_pass_model_name else kv(spec, seq=seq, format_name=dtype)
    encoder_stack = spec.encoder if spec.kind == "encoder-decoder" else None
    return ModelQuantities(
        spec=spec,
        seq=seq,
        dtype=dtype,
        parameters=parameter_count.total,
        active=parameter_count.active,
        vocab_size=spec.vocab_size,
        vocabulary_parameters=_vocabulary_params(parameter_count.tree),
        shape=stack_shape(spec.main, spec.hidden_size),
        encoder=None if encoder_stack is None else stack_shape(encoder_stack, spec.hidden_size),
        forward_flops_per_token=flops(spec, workload).per_token,
        kv_bytes_per_token=None if cache_size is None else cache_size.bytes_per_token,
        kv_bytes=None if cache_size is None else cache_size.bytes,
        context_length=learned_positions(spec),
    )


def _vocabulary_params(model_tree: Node) -> int:
    return sum(
        node_position.copies * node_position.cost_of_operation(total_params_of)
        for node_position in model_tree.walk()
        if node_position.path in VOCABULARY_PATHS
    )


def stack_shape(stack: Stack, hidden_size: int) -> StackShape:
    """Returns the `StackShape` of a stack, from its most frequent kind of layer.

    Heads are those of the most frequent attention layer; in a stack without attention, those of another token mixer.
    """
    layer_groups = [
        (group_name, common_layer, count) for group_name, common_layer, count, _ in stack.layer_groups() if count
    ]
    common_layer = max(layer_groups, key=lambda layer_group: layer_group[2])[1]
    groups_with_heads = [
        (layer, head_sizes, layer_count)
        for _, layer, layer_count in layer_groups
        if (head_sizes := _head_sizes(layer, hidden_size)) is not None
    ]
    attention_groups = [
        layer_group
        for layer_group in groups_with_heads
        if isinstance(layer_group[0].attention, TokenMixer) and layer_group[0].attention.kind == "attention"
    ] or groups_with_heads
    _, head_sizes, _ = max(attention_groups, key=lambda group: group[2]) if attention_groups else (None, None, 0)
    feed_forward = common_layer.feed_forward
    return StackShape(
        num_hidden_layers=stack.num_hidden_layers,
        layer_kinds={kind_name: layer_count for kind_name, _, layer_count in layer_groups},
        block=common_layer,
        hidden_size=hidden_size,
        feed_forward_width=feed_forward.active_width() if isinstance(feed_forward, Network) else None,
        mixture_of_experts=isinstance(feed_forward, Network) and feed_forward.is_mixture_of_experts,
        num_attention_heads=None if head_sizes is None else head_sizes.heads,
        num_key_value_heads=None if head_sizes is None else head_sizes.kv_heads,
        head_dim=None if head_sizes is None else head_sizes.head_dim,
    )


def _head_sizes(layer_spec: Layer, input_width: int) -> HeadSizes | None:
    return layer_spec.attention.head_sizes(input_width) if isinstance(layer_spec.attention, TokenMixer) else None


def check_sort_key(sort_key: str | None) -> None:
    """Raises `InputError` for an unknown quantity to sort by; None is no quantity."""
    if sort_key is not None and sort_key not in SORT_KEYS:
        raise InputError(
            f"--sort: there is no '{sort_key}'; expected one of "
            f"{', '.join(SORT_KEYS)}.{suggest(sort_key, list(SORT_KEYS))}"
        )


def sort_order(compared_models: list[ModelQuantities], sort_key: str | None) -> list[int]:
    """Returns the indices of models sorted by a quantity, smallest first; models without the quantity come last.

    Without a key the order is unchanged. Raises `InputError` for an unknown key.
    """
    check_sort_key(sort_key)
    model_indices = list(range(len(compared_models)))
    if sort_key is None:
        return model_indices
    sort_values = [SORT_KEYS[sort_key](model_quantities) for model_quantities in compared_models]
    return sorted(model_indices, key=lambda i: (1, 0.0) if sort_values[i] is None else (0, sort_values[i]))
