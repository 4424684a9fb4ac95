"""Zamba: state-space layers, before some of which one transformer block runs again and again with the same weights.

Zamba (Glorioso 2024, arXiv:2405.16712): the block reads the stream beside the embedded tokens, twice as wide together,
and a map of the layer's own adds what it gives to what the layer's mixer reads. Zamba 2 (Glorioso 2024,
arXiv:2411.15242): several such blocks in turn, with a low-rank adapter for each layer that runs one. A block's adapters
stand, as in the checkpoints, with its weights: in the first layer that runs it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from .. import ops
from ..algebra import Number
from ..flow.tree import Node, Role
from .attention import Attention
from .base import MOST_LAYERS, Around, Component, Flag, Inner, Nothing, Part
from .block import Layer
from .feed_forward import FeedForward, activate
from .mamba import Mamba
from .mamba2 import Mamba2
from .norm import Norm
from .position import Rope
from .runtime import Run

if TYPE_CHECKING:
    from torch import Tensor, nn

BLOCK, ADAPTERS = "transformer", "adapters"
QKV = ("q_proj", "k_proj", "v_proj")


class SharedBlock(Part):
    """The transformer block: a norm, attention, a norm, a gated feed-forward network, and no residual stream of its
    own.

    attention: its head_dim is 2 · hidden_size / num_attention_heads, if not given. adapter_rank: of the adapters beside
    the maps up of the feed-forward network; none, if not given. attention_adapters: beside the query, key and value
    maps too. idle_adapters: of other layers, that a block which no layer shares holds all the same (Zamba 2's classes
    where nothing is tied).
    """

    attention: Attention
    feed_forward: FeedForward
    adapter_rank: Inner | None = None
    attention_adapters: Flag = False
    idle_adapters: int = Field(default=0, ge=0, le=MOST_LAYERS, strict=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (
            not self.feed_forward.gated
            or self.feed_forward.sub_norm is not None
            or self.feed_forward.hidden_act == "xielu"
        ):
            raise ValueError(
                "feed_forward.gated: the shared block's network is a plain gated one; expected true, without sub_norm"
            )
        if (self.attention_adapters or self.idle_adapters) and self.adapter_rank is None:
            raise ValueError("adapter_rank: missing; attention_adapters and idle_adapters need one")
        if self.attention.kv_shared or self.attention.block_indexer is not None:
            raise ValueError(
                "attention: the shared block makes keys and values of its own, and chooses none; expected no "
                "kv_shared and no block_indexer"
            )
        return self


class ZambaLayer(Layer):
    """A mixer layer before which a shared block runs.
    Stack.shared_layers names the kinds of layer that share their block.
    """

    alone: ClassVar[bool] = False
    shares_all: ClassVar[bool] = False

    type: Literal["zamba"] = "zamba"
    feed_forward: Nothing = Nothing()
    transformer: SharedBlock
    norm_placement: Literal["pre"] = "pre"
    parallel: None = None
    cross_attention: None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.attention, Nothing):
            raise ValueError(
                "attention: the layer has a mixer of its own after the shared block; expected another type than 'none'"
            )
        return self

    def mixers(self, width: int) -> list[tuple[str, Any, int]]:
        return [("transformer.attention", self.transformer.attention, 2 * width), *super().mixers(width)]

    def _mixer(self) -> Component:
        assert not isinstance(self.attention, Nothing)
        mixer: Component = self.attention
        return mixer

    def anatomy(self, name: str, around: Around) -> Node:
        h, block = around.hidden_size, self.transformer
        wide = replace(around, hidden_size=2 * h, output_size=h)
        attention, network = block.attention.anatomy("self_attn", wide), block.feed_forward.anatomy("mlp", around)
        r, f = block.adapter_rank, block.feed_forward.intermediate_size
        if r is not None:
            network = replace(network, children=(*network.children, _adapter(h, r, 2 * f)))
        if block.attention_adapters:
            maps = tuple(
                replace(p, children=(_adapter(p.op.n_in, r, p.op.n_out),))
                if isinstance(p.op, ops.Linear) and p.name in QKV
                else p
                for p in attention.children
            )
            attention = replace(attention, children=maps)
        norms = self.norm.anatomy("self_attn_pre_norm", wide), self.norm.anatomy("mlp_pre_norm", around)
        shared_block = Node(BLOCK, children=(norms[0], attention, norms[1], network), source="Glorioso et al. 2024, §2")
        shared_block = _keeping(shared_block, block.idle_adapters, "idle") if block.idle_adapters else shared_block
        mixer = self._mixer().anatomy("mixer", around)
        parts = (
            shared_block,
            Node("linear", ops.Linear(h, h), kind="attention"),
            self.norm.anatomy("mixer_pre_norm", around),
            mixer,
        )
        return Node(name, children=parts, source="Glorioso et al. 2024, §2")

    def first_of(self, node: Node, others: Number) -> Node:
        return _with_block(node, lambda block: _keeping(block, others))

    def other_of(self, node: Node) -> Node:
        return _with_block(node, lambda block: replace(block, role="shared"))

    def describe(self, hidden_size: int) -> str:
        return f"shared {self.transformer.attention.describe(2 * hidden_size)}"

    def reference(self, around: Around) -> nn.Module:
        return _reference()(self, around)

    @classmethod
    def examples(cls) -> list[Self]:
        attention, network = (
            Attention(num_attention_heads=4),
            FeedForward(intermediate_size=20, hidden_act="gelu", gated=True),
        )
        rotary = attention.model_copy(update={"position": Rope()})
        blocks: list[tuple[Any, SharedBlock]] = [
            (Mamba.examples()[0], SharedBlock(attention=attention, feed_forward=network)),
            (Mamba2.examples()[0], SharedBlock(attention=rotary, feed_forward=network, adapter_rank=3)),
            (
                Mamba2.examples()[1],
                SharedBlock(attention=rotary, feed_forward=network, adapter_rank=3, attention_adapters=True),
            ),
            (
                Mamba2.examples()[1],
                SharedBlock(
                    attention=rotary, feed_forward=network, adapter_rank=3, attention_adapters=True, idle_adapters=2
                ),
            ),
        ]
        return [cls(attention=mixer, transformer=block, norm=Norm(type="rmsnorm")) for mixer, block in blocks]


def _adapter(n_in: Number, rank: Number, n_out: Number) -> Node:
    """The low-rank map beside a shared one that this layer runs."""
    maps = (Node("down", ops.Linear(n_in, rank)), Node("up", ops.Linear(rank, n_out)))
    return Node(ADAPTERS, children=maps, indices=range(1), kind="adapter", source="Glorioso et al. 2024 (Zamba 2), §2")


def _with_block(layer: Node, change: Any) -> Node:
    return replace(layer, children=tuple(change(child) if child.name == BLOCK else child for child in layer.children))


def _keeping(node: Node, others: Number, role: Role = "kept") -> Node:
    """The node with the adapters of the other layers beside its own, which run where those do, or nowhere."""
    children: list[Node] = []
    for child in node.children:
        children.append(_keeping(child, others, role))
        if child.name == ADAPTERS:
            which = range(1, others + 1) if isinstance(others, int) else None
            children.append(replace(child, repeat=others, indices=which, role=role))
    return replace(node, children=tuple(children))


@cache
def _reference() -> type[nn.Module]:
    import torch
    from torch import nn

    class Adapter(nn.Module):
        """x: [..., n_in] → [..., n_out]."""

        def __init__(self, n_in: int, rank: int, n_out: int) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(n_in, rank, bias=False), nn.Linear(rank, n_out, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.up(self.down(x))
            return out

    def adapters(spec: SharedBlock, n_in: int, n_out: int) -> nn.ModuleList:
        """The layer's own, which runs, and those that it holds for nothing."""
        return nn.ModuleList(Adapter(n_in, spec.adapter_rank or 0, n_out) for _ in range(1 + spec.idle_adapters))

    class Adapted(nn.Linear):
        """A map and, beside it, the adapter of the layer that runs it; further ones are kept for other layers."""

        def __init__(self, n_in: int, n_out: int, spec: SharedBlock, bias: bool) -> None:
            super().__init__(n_in, n_out, bias=bias)
            self.adapters = adapters(spec, n_in, n_out)

        def forward(self, x: Tensor) -> Tensor:
            adapted: Tensor = super().forward(x) + self.adapters[0](x)
            return adapted

    class Network(nn.Module):
        def __init__(self, spec: SharedBlock, around: Around) -> None:
            super().__init__()
            self.act = spec.feed_forward.hidden_act
            for name, child in spec.feed_forward.reference(around).named_children():
                self.add_module(name, child)
            if spec.adapter_rank is not None:
                self.adapters = adapters(spec, around.hidden_size, 2 * spec.feed_forward.intermediate_size)

        def forward(self, x: Tensor) -> Tensor:
            gate, up = self.get_submodule("gate_proj")(x), self.get_submodule("up_proj")(x)
            if hasattr(self, "adapters"):
                to_gate, to_up = self.adapters[0](x).chunk(2, -1)
                gate, up = gate + to_gate, up + to_up
            out: Tensor = self.get_submodule("down_proj")(activate(self.act, gate) * up)
            return out

    class BlockReference(nn.Module):
        """The stream beside the embedded tokens, [batch, tokens, 2 · hidden] → [batch, tokens, hidden]."""

        def __init__(self, spec: ZambaLayer, around: Around) -> None:
            super().__init__()
            block, hidden = spec.transformer, around.hidden_size
            wide = Around(2 * hidden, output_size=hidden)
            self.self_attn_pre_norm, self.mlp_pre_norm = spec.norm.reference(wide), spec.norm.reference(around)
            self.self_attn, self.mlp = block.attention.reference(wide), Network(block, around)
            for name in ("q_proj", "k_proj", "v_proj") if block.attention_adapters else ():
                old: Any = getattr(self.self_attn, name)
                setattr(self.self_attn, name, Adapted(old.in_features, old.out_features, block, old.bias is not None))

        def forward(self, x: Tensor, run: Run) -> Tensor:
            y = self.self_attn(self.self_attn_pre_norm(x), run)
            out: Tensor = self.mlp(self.mlp_pre_norm(y))
            return out

    class ZambaReference(nn.Module):
        """x: [batch, tokens, hidden] → the same."""

        def __init__(self, spec: ZambaLayer, around: Around) -> None:
            super().__init__()
            self.transformer = BlockReference(spec, around)
            self.linear = nn.Linear(around.hidden_size, around.hidden_size, bias=False)
            assert isinstance(spec.attention, Component)
            self.mixer_pre_norm, self.mixer = spec.norm.reference(around), spec.attention.reference(around)

        def share(self, first: ZambaReference) -> None:
            """Takes the first such layer's block for its own, and leaves its adapters with it."""
            if first is self:
                return
            for path, module in list(self.transformer.named_modules()):
                if not path.endswith("adapters"):
                    continue
                mine: Any = module.get_submodule("0")
                keeper: Any = first.transformer.get_submodule(path)
                kept = Adapter(mine.down.in_features, mine.down.out_features, mine.up.out_features)
                kept.down.weight, kept.up.weight = mine.down.weight, mine.up.weight
                keeper.append(kept)
            for path, parameter in list(first.transformer.named_parameters()):
                holder, _, name = path.rpartition(".")
                if "adapters." not in path:
                    setattr(self.transformer.get_submodule(holder), name, parameter)

        def forward(self, x: Tensor, run: Run) -> Tensor:
            assert run.embedded is not None
            added = self.linear(self.transformer(torch.cat([x, run.embedded], -1), run))
            out: Tensor = x + self.mixer(self.mixer_pre_norm(x + added), run)
            return out

    return ZambaReference
