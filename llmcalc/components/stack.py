"""A stack of layers with what stands before and after them: positions, embedding norm, layers, final norm.

Layers may differ: `variants` are layers that differ from `block` in the fields they give, `first_layers` names the
layers at the bottom one by one, and `pattern` is repeated over the rest (Gemma 2: sliding, full; DeepSeek-V3: three
dense layers, then mixture-of-experts).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from ..algebra import Number, ceil_div
from ..flow.axis import Axis, Shape
from ..flow.record import Flow
from ..flow.value import Value
from .base import Around, Component, Flag, HiddenSize, Layers, Positions, Standing, Vocab, Width
from .choice import only
from .choices import AnyLayer
from .layers.block import Block, Layer, Sharing
from .mixers.attention import Attention, QKNorm
from .networks.feed_forward import FeedForward
from .norm import Norm
from .position import Position, RelativeBias, Rope
from .runtime import Run, vector

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .disentangled import RelativeEmbedding, SideConvolution
    from .layers.altup import AltUp
    from .layers.hyper import HyperStreams
    from .layers.per_layer import PerLayerEmbedding
    from .stem import ConvStem
else:
    AltUp, HyperStreams, PerLayerEmbedding = (
        only("layers.altup:AltUp"),
        only("layers.hyper:HyperStreams"),
        only("layers.per_layer:PerLayerEmbedding"),
    )
    RelativeEmbedding, SideConvolution = only("disentangled:RelativeEmbedding"), only("disentangled:SideConvolution")
    ConvStem = only("stem:ConvStem")

BASE = "block"
"""The name under which a pattern asks for `block` itself."""

MOST_KINDS = 256
"""Of layers in one stack."""

SHARED = ", shared"
"""How the label of layers ends that have the parameters of the first of their kind."""


class Stack(Component):
    """num_hidden_layers layers. Every layer is `block` where no pattern is given.

    position: added to the input. type_vocab_size: BERT's segments. task_type_vocab_size: ERNIE's tasks. embedding_norm:
    on the sum of the embeddings.
    input_size: width of all these, where a map to hidden_size follows them (ELECTRA, ALBERT). stem: what an encoder has
    in place of a token embedding. vocab_size, hidden_size: of an encoder that has a token embedding of its own, and
    perhaps another width than the decoder (T5Gemma). shared_layers: kinds of layer whose every layer has the parameters
    of the first (ALBERT).
    second_stream: the vector is held that a second stream of predictions starts from, which pretraining alone has
    (XLNet).
    hyper_streams: the residual stream is several, as layers of type `hyper` have it.
    """

    num_hidden_layers: Layers
    block: AnyLayer
    variants: dict[str, AnyLayer] = Field(default={}, max_length=MOST_KINDS)
    first_layers: tuple[str, ...] = ()
    pattern: tuple[str, ...] = (BASE,)
    shared_layers: tuple[str, ...] = ()
    stem: ConvStem | None = None
    vocab_size: Vocab | None = None
    hidden_size: HiddenSize | None = None
    position: Position | None = None
    type_vocab_size: Positions | None = None
    task_type_vocab_size: Positions | None = None
    embedding_norm: Norm | None = None
    input_size: Width | None = None
    relative_bias: RelativeBias | None = None
    relative_embedding: RelativeEmbedding | None = None
    side_convolution: SideConvolution | None = None
    per_layer_embedding: PerLayerEmbedding | None = None
    streams: AltUp | None = None
    second_stream: Flag = False
    hyper_streams: HyperStreams | None = None
    final_norm: Norm | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_variants(cls, data: Any) -> Any:
        """A variant says only what differs from `block`."""
        variants, block = (data.get("variants"), data.get("block")) if isinstance(data, dict) else (None, None)
        if not isinstance(variants, dict) or not isinstance(block, dict):
            return data
        filled = {
            name: merged(block, changes) if isinstance(changes, dict) else changes for name, changes in variants.items()
        }
        return {**data, "variants": filled}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if BASE in self.variants:
            raise ValueError(f"variants.{BASE}: that is what a pattern calls the block itself; expected another name")
        known = dict.fromkeys((BASE, *self.variants))
        for field in ("first_layers", "pattern", "shared_layers"):
            for name in getattr(self, field):
                if name not in known:
                    raise ValueError(f"{field}: there is no layer called '{name}'; expected one of {', '.join(known)}")
        if not self.pattern:
            raise ValueError("pattern: names no layer; expected at least one")
        self._check_sharing()
        blocks = (self.block, *self.variants.values())
        width, streams = "hidden_size_per_layer_input", "altup_num_inputs"
        if {getattr(getattr(b, "per_layer_input", None), width, None) for b in blocks} != {
            getattr(self.per_layer_embedding, width, None)
        }:
            raise ValueError(
                f"per_layer_embedding: stands where every layer has a per_layer_input of its {width}, and nowhere else"
            )
        if {getattr(b, streams, None) for b in blocks} != {getattr(self.streams, streams, None)}:
            raise ValueError(
                f"streams: stand where every layer is of type 'altup' with their {streams}, and nowhere else"
            )
        hyper = None if self.hyper_streams is None else self.hyper_streams.hc_mult
        if {getattr(b, "hc_mult", None) for b in blocks} != {hyper}:
            raise ValueError(
                "hyper_streams: stand where every layer is of type 'hyper' with their hc_mult, and nowhere else"
            )
        table = self.relative_embedding
        for position in (getattr(b.attention, "position", None) for b in blocks):
            if (
                position is not None
                and position.type == "disentangled"
                and (table is None or table.span != position.span)
            ):
                raise ValueError("relative_embedding: disentangled attention needs a table of its span")
        if self.relative_bias is not None:
            for block in blocks:
                heads = getattr(block.attention, "num_attention_heads", None)
                if heads != self.relative_bias.num_attention_heads:
                    raise ValueError(
                        f"relative_bias.num_attention_heads: {self.relative_bias.num_attention_heads} is not the "
                        f"layers' {heads}"
                    )
                if (getattr(block.attention, "global_block_size", None) is not None) != self.relative_bias.of_blocks:
                    raise ValueError(
                        "relative_bias.of_blocks: stands where every layer has a global_block_size, and nowhere else"
                    )
        return self

    def _check_sharing(self) -> None:
        """Raises `ValueError` where a layer shares keys and values that no layer below makes,
        or a block holds what only unshared ones do.
        """
        for name in self.shared_layers:
            if getattr(getattr(self.layer(name), "transformer", None), "idle_adapters", 0):
                raise ValueError(
                    f"shared_layers: the layers called '{name}' share a block; idle_adapters stand only in blocks "
                    "that no layer shares"
                )
        made: set[object] = set()
        mixers = {name: block.attention for name, block in {BASE: self.block, **self.variants}.items()}
        sharing = {name for name, mixer in mixers.items() if getattr(mixer, "kv_shared", False)}
        for name in self.layer_names() if sharing else ():
            mixer = mixers[name]
            if isinstance(mixer, Attention) and name not in sharing:
                made.add(mixer.attends_like())
            elif isinstance(mixer, Attention) and mixer.attends_like() not in made:
                raise ValueError(f"kv_shared: no layer below '{name}' attends alike and makes keys and values to share")

    def check_mixers(self, where: str, width: int, side: str, grid: bool) -> None:
        """Raises `ValueError` where a layer of that width cannot mix tokens as its spec says, in an encoder or a
        decoder. grid: tokens stand in one.
        """
        for name, block in {BASE: self.block, **self.variants}.items():
            of = f"{where}.{BASE}" if name == BASE else f"{where}.variants.{name}"
            for field, mixer, seen in block.mixers(width):
                mixer.check_place(Standing(f"{of}.{field}", seen, side, grid))
        if self.side_convolution is not None and width % self.side_convolution.conv_groups:
            raise ValueError(
                f"{where}.side_convolution.conv_groups: {self.side_convolution.conv_groups} does not divide "
                f"hidden_size {width}"
            )
        if self.side_convolution is not None and side == "decoder":
            raise ValueError(f"{where}.side_convolution: it sees tokens on both sides; expected an encoder")

    def layer_names(self) -> list[str]:
        """The variant that each layer is, bottom first."""
        rest = max(0, self.num_hidden_layers - len(self.first_layers))
        repeated = self.pattern * (rest // len(self.pattern) + 1)
        return [*self.first_layers, *repeated][: self.num_hidden_layers]

    def layer(self, name: str) -> Layer:
        """The layer of that name."""
        found: Layer = self.block if name == BASE else self.variants[name]
        return found

    def groups(self) -> Iterator[tuple[str, Layer, Number, list[int] | range | None]]:
        """Each kind of layer: (name, block, how many, which). A depth that is no integer gives no `which`."""
        depth: Number = self.num_hidden_layers
        if not self.first_layers and len(set(self.pattern)) == 1:
            name = self.pattern[0]
            yield name, self.layer(name), depth, range(depth) if isinstance(depth, int) else None
            return
        if isinstance(depth, int):
            at: dict[str, list[int]] = {}
            for i, name in enumerate(self.layer_names()):
                at.setdefault(name, []).append(i)
            for name, which in at.items():
                yield name, self.layer(name), len(which), which
            return
        rest, period = depth - len(self.first_layers), len(self.pattern)
        for name in dict.fromkeys((*self.first_layers, *self.pattern)):
            repeats = sum(ceil_div(rest - i, period) for i, n in enumerate(self.pattern) if n == name)
            yield name, self.layer(name), self.first_layers.count(name) + repeats, None

    def flow(self, f: Flow, x: Value, width: Axis | None = None) -> Value:
        """x: embedded tokens, or what the stem or the stack's own embedding reads in their place.

        width: of the layers, where it is not that of x.
        """
        hidden: Shape = x.axes if width is None else (width,)
        below = hidden if self.input_size is None else (Axis("embedding", self.input_size),)
        x = self._embedded(f, x, hidden, below)
        if self.relative_bias is not None:
            f.part("relative_bias", self.relative_bias, x)
        if self.relative_embedding is not None:
            f.memo["relative_embedding"] = f.part("relative_embedding", self.relative_embedding, x)
        if self.per_layer_embedding is not None:
            embedding = self.per_layer_embedding
            f.memo["per_layer"] = f.part("per_layer_embedding", embedding, x, layers=self.num_hidden_layers)
        if self.second_stream:
            f.vector("second_stream", *hidden, kind="embedding", role="idle", source="Yang et al. 2019 (XLNet), §2.3")
        x = x if self.streams is None else f.part("streams_in", self.streams, x)
        f.memo["embedded"] = x
        x = x if self.hyper_streams is None else self.hyper_streams.copied(f, x)
        if self.side_convolution is not None:
            # It stands between the first layer and the second. The layers are recorded once for all of them, and have
            # no such place: so it changes the first layer's input here, in place of its output.
            x = f.part("side_convolution", self.side_convolution, x)
        for label, block, repeat, which in self.groups():
            x = self._layers(f, x, label, block, repeat, which)
        x = x if self.hyper_streams is None else f.part("hyper_streams", self.hyper_streams, x)
        x = x if self.streams is None else f.part("streams_out", self.streams, x, top=True)
        return x if self.final_norm is None else f.part("norm", self.final_norm, x)

    def _embedded(self, f: Flow, x: Value, hidden: Shape, below: Shape) -> Value:
        """What the first layer reads."""
        if self.stem is not None:
            x = f.part("stem", self.stem, x, width=hidden)
        if self.vocab_size is not None:
            x, _ = f.table("embed_tokens", Axis("vocab", self.vocab_size), *hidden, of=x.rows, kind="embedding")
        x = x.seen(*below)
        if self.position is not None:
            x = f.add(x, f.part("embed_positions", self.position, x))
        for name, types in (("embed_types", self.type_vocab_size), ("embed_tasks", self.task_type_vocab_size)):
            if types is not None:
                x = f.add(x, f.table(name, Axis("types", types), *below, of=x.rows, kind="embedding")[0])
        x = x if self.embedding_norm is None else f.part("embed_norm", self.embedding_norm, x)
        return x if self.input_size is None else f.linear("input_proj", x, *hidden, bias=True, kind="embedding")

    def _layers(self, f: Flow, x: Value, label: str, block: Layer, repeat: Number, which: Any) -> Value:
        """The layers of one kind. Of those that share parameters the first holds them."""
        shown, about = "" if label == BASE else label, {"kind": "layer", "source": block.source()}
        if label not in self.shared_layers:
            return f.layers(x, lambda v: block.flow(f, v), repeat, which, label=shown, **about)
        first, others = (None, None) if which is None else (which[:1], which[1:])
        alone = isinstance(repeat, int) and repeat == 1
        more = 0 if alone else repeat - 1
        sharing = None if alone else Sharing(first=True, others=more)
        x = f.layers(x, lambda v: block.flow(f, v, sharing), 1, first, label=shown, **about)
        if alone:
            return x
        role = {"role": "shared"} if block.shares_all else {}
        further = (shown or BASE) + SHARED
        again = Sharing(first=False, others=more)
        return f.layers(x, lambda v: block.flow(f, v, again), more, others, label=further, **about, **role)

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around)

    @classmethod
    def examples(cls) -> list[Self]:
        from .layers.altup import AltUp, AltUpLayer
        from .layers.gemma4 import Gemma4Layer
        from .layers.hyper import HyperStreams, hyper_example
        from .layers.per_layer import PerLayerEmbedding, PerLayerGate

        block = Block.examples()[0]
        kinds: dict[str, AnyLayer] = {
            "wide": block.model_copy(update={"feed_forward": FeedForward(intermediate_size=56, hidden_act="relu")})
        }
        rms, dense = Norm(type="rmsnorm"), FeedForward(intermediate_size=20, hidden_act="gelu", gated=True)
        grouped = Attention(
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            sliding_window=5,
            qk_norm=QKNorm(norm=rms),
            position=Rope(),
        )
        gate = PerLayerGate(hidden_size_per_layer_input=6, hidden_act="gelu")
        own = Gemma4Layer(attention=grouped, feed_forward=dense, norm=rms, per_layer_input=gate)
        shares: dict[str, AnyLayer] = {
            "shares": own.model_copy(update={"attention": grouped.model_copy(update={"kv_shared": True})})
        }
        table = PerLayerEmbedding(vocab_size_per_layer_input=40, hidden_size_per_layer_input=6, norm=rms)
        altup = AltUpLayer(
            attention=grouped, feed_forward=dense, norm=rms, per_layer_input=gate, laurel_rank=5, altup_num_inputs=3
        )
        return [
            cls(
                num_hidden_layers=2,
                block=altup,
                per_layer_embedding=table,
                streams=AltUp(altup_num_inputs=3),
                final_norm=rms,
            ),
            cls(
                num_hidden_layers=4,
                block=own,
                variants=shares,
                first_layers=(BASE, BASE),
                pattern=("shares",),
                per_layer_embedding=table,
            ),
            cls(num_hidden_layers=2, block=block, final_norm=Norm(type="rmsnorm")),
            cls(num_hidden_layers=2, block=hyper_example(), hyper_streams=HyperStreams(hc_mult=3), final_norm=rms),
            cls(
                num_hidden_layers=2,
                block=hyper_example(hc_sinkhorn_iters=None, hc_magnitude=1.5),
                hyper_streams=HyperStreams(hc_mult=3),
            ),
            cls(num_hidden_layers=3, block=block, shared_layers=(BASE,), embedding_norm=Norm(type="layernorm")),
            cls(
                num_hidden_layers=5,
                block=block,
                variants=kinds,
                pattern=(BASE, BASE, "wide"),
                shared_layers=(BASE, "wide"),
            ),
        ]


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, table by table; a table of another `type` replaces the one below."""
    out = dict(base)
    for key, value in changes.items():
        below = out.get(key)
        if (
            isinstance(value, dict)
            and isinstance(below, dict)
            and value.get("type", below.get("type")) == below.get("type")
        ):
            out[key] = merged(below, value)
        else:
            out[key] = value
    return out


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn

    class StackReference(nn.Module):
        """Embedded tokens [batch, tokens, hidden] → hidden states of the same shape."""

        def __init__(self, spec: Stack, around: Around) -> None:
            super().__init__()
            below = Around(spec.input_size or around.hidden_size, around.causal)
            if spec.stem is not None:
                self.stem = spec.stem.reference(around)
            if spec.vocab_size is not None:
                self.embed_tokens = nn.Embedding(spec.vocab_size, around.hidden_size)
            if spec.position is not None:
                self.embed_positions = spec.position.reference(below)
            if spec.type_vocab_size is not None:
                self.embed_types = nn.Embedding(spec.type_vocab_size, below.hidden_size)
            if spec.task_type_vocab_size is not None:
                self.embed_tasks = nn.Embedding(spec.task_type_vocab_size, below.hidden_size)
            if spec.embedding_norm is not None:
                self.embed_norm = spec.embedding_norm.reference(below)
            if spec.input_size is not None:
                self.input_proj = nn.Linear(spec.input_size, around.hidden_size)
            if spec.relative_bias is not None:
                self.relative_bias = spec.relative_bias.reference(around)
            if spec.relative_embedding is not None:
                self.relative_embedding = spec.relative_embedding.reference(around)
            if spec.side_convolution is not None:
                self.side_convolution = spec.side_convolution.reference(around)
            if spec.per_layer_embedding is not None:
                self.per_layer_embedding = spec.per_layer_embedding.reference(around, spec.num_hidden_layers)
            if spec.second_stream:
                self.second_stream = vector(torch.zeros(around.hidden_size))
            if spec.streams is not None:
                self.streams_in, self.streams_out = (
                    spec.streams.reference(around),
                    spec.streams.reference(around, top=True),
                )
            rest = spec.pattern * spec.num_hidden_layers
            names = (*spec.first_layers, *rest)[: spec.num_hidden_layers]
            kinds = {BASE: spec.block, **spec.variants}
            self.layer_kinds = names
            self.layers = nn.ModuleList(kinds[name].reference(around) for name in names)
            for i, name in enumerate(names):
                if name in spec.shared_layers:
                    self._share(self.layers[names.index(name)], self.layers[i])
            self.hyper_streams = None if spec.hyper_streams is None else spec.hyper_streams.reference(around)
            self.hyper_count = 1 if spec.hyper_streams is None else spec.hyper_streams.hc_mult
            if spec.final_norm is not None:
                self.norm = spec.final_norm.reference(around)

        def _share(self, first: nn.Module, other: nn.Module) -> None:
            """Gives a layer the parameters and buffers of the first of its kind."""
            share: Any = getattr(other, "share", None)
            if share is not None:  # a layer that shares a part of itself
                share(first)
                return
            for path, tensor in [*first.named_parameters(), *first.named_buffers()]:
                holder, _, name = path.rpartition(".")
                setattr(other.get_submodule(holder), name, tensor)

        def forward(self, x: Tensor, run: Run) -> Tensor:
            x = self.stem(x) if hasattr(self, "stem") else self.embed_tokens(x) if hasattr(self, "embed_tokens") else x
            positions = torch.arange(run.past, run.past + x.shape[1], device=x.device)
            if hasattr(self, "embed_positions"):
                x = x + self.embed_positions(positions).to(x.dtype)
            if hasattr(self, "embed_types"):
                x = x + self.embed_types(torch.zeros_like(positions))
            if hasattr(self, "embed_tasks"):
                x = x + self.embed_tasks(torch.zeros_like(positions))
            if hasattr(self, "embed_norm"):
                x = self.embed_norm(x)
            if hasattr(self, "input_proj"):
                x = self.input_proj(x)
            run.bias = getattr(self, "relative_bias", None)
            if hasattr(self, "relative_embedding"):
                run.memo["relative_embedding"] = self.relative_embedding()
            if hasattr(self, "per_layer_embedding"):
                run.per_layer = self.per_layer_embedding(x, run)
            x = self.streams_in(x) if hasattr(self, "streams_in") else x
            run.embedded = x
            x = x if self.hyper_streams is None else x[:, :, None].expand(-1, -1, self.hyper_count, -1)
            for i, layer in enumerate(self.layers):
                run.layer = i
                below, x = x, layer(x, run)
                x = self.side_convolution(below, x) if i == 0 and hasattr(self, "side_convolution") else x
            x = x if self.hyper_streams is None else self.hyper_streams(x)
            x = self.streams_out(x) if hasattr(self, "streams_out") else x
            return self.norm(x) if hasattr(self, "norm") else x

    return StackReference
