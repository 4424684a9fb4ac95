"""What tells one model's shape from another's: sizes, ratios of sizes, and cost a token.

Nothing is counted here that another file of this package counts; this one puts those counts over one another. Ratios
are those that papers report: aspect ratio h/L (Kaplan 2020, arXiv:2001.08361, §3.1), d_ff/h, heads × head size over h,
key/value heads over heads (Ainslie 2023, arXiv:2305.13245).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..components.base import HeadSizes, Network, TokenMixer
from ..components.layers.block import Layer
from ..components.stack import Stack
from ..costs.cache import kv
from ..costs.flops import flops
from ..costs.limits import learned_positions
from ..costs.params import params, total_of
from ..errors import InputError, suggest
from ..flow.tree import Node
from ..model import ModelSpec
from ..run.workload import Workload

DENSE_BAND = (100, 130)
"""h/L, rounded to a whole number, of most large dense decoders:
Chinchilla and LLaMA 65B 102, GPT-3 and Llama 3 8B 128, Llama 3.1 405B 130.
"""

VOCABULARY_PATHS = ("embed_tokens", "lm_head", "lm_head.decoder")
"""Where a weight with a row for each token of the vocabulary stands."""


def in_dense_band(hidden_size: int, num_hidden_layers: int) -> bool:
    """Whether h/L, rounded to a whole number, lies in the band of dense decoders."""
    least, most = DENSE_BAND
    return least <= round(hidden_size / num_hidden_layers) <= most


@dataclass(frozen=True)
class StackShape:
    """The shape of one stack of layers, and of the most frequent kind of its layers.

    feed_forward_width: of the network that one token passes through; in a mixture of experts, experts a token × expert
    width + width of the shared experts. head_dim: of a query and key. num_key_value_heads: None for latent attention.
    Fields of attention are None where no layer has heads.
    """

    num_hidden_layers: int
    layer_kinds: dict[str, int]
    block: Layer
    attention_block: Layer | None
    hidden_size: int
    feed_forward_width: int | None
    mixture_of_experts: bool
    num_attention_heads: int | None
    num_key_value_heads: int | None
    head_dim: int | None

    @property
    def aspect_ratio(self) -> float:
        """h/L."""
        return self.hidden_size / self.num_hidden_layers

    @property
    def in_dense_band(self) -> bool:
        return in_dense_band(self.hidden_size, self.num_hidden_layers)

    @property
    def feed_forward_ratio(self) -> float | None:
        """d_ff/h; active width over h in a mixture of experts."""
        return None if self.feed_forward_width is None else self.feed_forward_width / self.hidden_size

    @property
    def head_ratio(self) -> float | None:
        """heads × head_dim over h."""
        if self.num_attention_heads is None or self.head_dim is None:
            return None
        return self.num_attention_heads * self.head_dim / self.hidden_size

    @property
    def kv_ratio(self) -> float | None:
        """key/value heads over heads."""
        if self.num_attention_heads is None or self.num_key_value_heads is None:
            return None
        return self.num_key_value_heads / self.num_attention_heads


@dataclass(frozen=True)
class Quantities:
    """One model's sizes and costs.

    shape: of the stack that makes the output; encoder: of an encoder that stands beside it. vocabulary_parameters:
    every weight with a row a token, tied ones once. forward_flops_per_token: at `seq` tokens, full pairs, logits at
    every position; an encoder-decoder reads as many in its encoder. kv_bytes_per_token: None for an encoder, which
    keeps none.
    longest: tokens that a table of learned positions has, None where there is no table.
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
    longest: int | None

    @property
    def vocabulary_share(self) -> float:
        return self.vocabulary_parameters / self.parameters

    @property
    def shapes(self) -> tuple[StackShape, ...]:
        """Of every stack, in the order in which they run."""
        return (self.shape,) if self.encoder is None else (self.encoder, self.shape)


SORT_KEYS: dict[str, Callable[[Quantities], float | None]] = {
    "params": lambda q: q.parameters,
    "active": lambda q: q.active,
    "h": lambda q: q.shape.hidden_size,
    "L": lambda q: q.shape.num_hidden_layers,
    "h/L": lambda q: q.shape.aspect_ratio,
    "d_ff/h": lambda q: q.shape.feed_forward_ratio,
    "heads": lambda q: q.shape.num_attention_heads,
    "head_dim": lambda q: q.shape.head_dim,
    "heads/h": lambda q: q.shape.head_ratio,
    "kv_heads": lambda q: q.shape.num_key_value_heads,
    "kv_ratio": lambda q: q.shape.kv_ratio,
    "vocab": lambda q: q.vocab_size,
    "vocab_share": lambda q: q.vocabulary_share,
    "flops": lambda q: q.forward_flops_per_token,
    "kv": lambda q: q.kv_bytes_per_token,
}
"""What `--sort` can be told to sort by."""


def quantities(spec: ModelSpec, seq: int = 2048, dtype: str = "bfloat16") -> Quantities:
    """Everything that is compared, of one model. seq: tokens of the sequence that FLOPs are given for.

    Raises `InputError` for an unknown dtype.
    """
    count, workload = params(spec), Workload(batch=1, seq=seq)
    cache = None if spec.kind == "encoder" else kv(spec, dtype_name=dtype)
    encoder = spec.encoder if spec.kind == "encoder-decoder" else None
    return Quantities(
        spec=spec,
        seq=seq,
        dtype=dtype,
        parameters=count.total,
        active=count.active,
        vocab_size=spec.vocab_size,
        vocabulary_parameters=_vocabulary(count.tree),
        shape=stack_shape(spec.main, spec.hidden_size),
        encoder=None if encoder is None else stack_shape(encoder, spec.hidden_size),
        forward_flops_per_token=flops(spec, workload).per_token,
        kv_bytes_per_token=None if cache is None else cache.bytes_per_token,
        longest=learned_positions(spec),
    )


def _vocabulary(tree: Node) -> int:
    return sum(place.times * place.own(total_of) for place in tree.walk() if place.path in VOCABULARY_PATHS)


def stack_shape(stack: Stack, hidden_size: int) -> StackShape:
    """The shape of a stack, by its most frequent kind of layer (of equals, the lowest in the stack).

    Heads are those of the most frequent layer with attention; of a stack without any, those of another mixer.
    """
    groups = [(name, block, count) for name, block, count, _ in stack.groups() if count]
    block = max(groups, key=lambda g: g[2])[1]
    headed = [(one, sizes, count) for _, one, count in groups if (sizes := _heads(one, hidden_size)) is not None]
    attending = [g for g in headed if _attends(g[0])] or headed
    attention_block, sizes, _ = max(attending, key=lambda g: g[2]) if attending else (None, None, 0)
    network = block.feed_forward
    return StackShape(
        num_hidden_layers=stack.num_hidden_layers,
        layer_kinds={name: count for name, _, count in groups},
        block=block,
        attention_block=attention_block,
        hidden_size=hidden_size,
        feed_forward_width=network.active_width() if isinstance(network, Network) else None,
        mixture_of_experts=isinstance(network, Network) and network.mixture,
        num_attention_heads=None if sizes is None else sizes.heads,
        num_key_value_heads=None if sizes is None else sizes.kv_heads,
        head_dim=None if sizes is None else sizes.head_dim,
    )


def _attends(layer: Layer) -> bool:
    return isinstance(layer.attention, TokenMixer) and layer.attention.kind == "attention"


def _heads(layer: Layer, width: int) -> HeadSizes | None:
    return layer.attention.heads(width) if isinstance(layer.attention, TokenMixer) else None


def sort_key(name: str) -> Callable[[Quantities], float | None]:
    """The quantity that `--sort` names.

    Raises `InputError` with the list of names for one that is not known.
    """
    if name not in SORT_KEYS:
        raise InputError(
            f"--sort: there is no '{name}'; expected one of {', '.join(SORT_KEYS)}.{suggest(name, list(SORT_KEYS))}"
        )
    return SORT_KEYS[name]


def sort_order(models: list[Quantities], key: str | None) -> list[int]:
    """Indices of the models by a quantity, smallest first, those that lack it last; as given where no key is.

    Raises `InputError` for an unknown key.
    """
    order = list(range(len(models)))
    if key is None:
        return order
    measure = sort_key(key)
    values = [measure(model) for model in models]
    return sorted(order, key=lambda i: (1, 0.0) if values[i] is None else (0, values[i]))
