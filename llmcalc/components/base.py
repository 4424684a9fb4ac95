"""What every part of an architecture has: a checked spec, an anatomy in primitives, a PyTorch reference, tiny examples.

A part is one file in this package. Its spec holds Hugging Face's field names and nothing that is not needed to count or
run it. `anatomy` (arithmetic, no torch) and `reference` (torch, no arithmetic on counts) are written separately from
the same fields and share nothing else, so that comparing them proves something; a test holds them to that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, StrictBool

from ..algebra import is_zero
from ..ops import Idle, Shared
from ..record import Record
from ..tree import Node

if TYPE_CHECKING:
    from torch import nn

LARGEST = 2**40
"""Of any size."""

MOST_LAYERS, MOST_EXPERTS = 100_000, 1_000_000
"""What stands in a list somewhere: each layer, each expert that a layer names."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """The letter that papers write for a field; `llmcalc explain` prints it."""

    letter: str


def size_named(letter: str, least: int = 1) -> Any:
    return Annotated[int, Field(ge=least, le=LARGEST, strict=True), Symbol(letter)]


if TYPE_CHECKING:
    HiddenSize: TypeAlias = int
    Heads: TypeAlias = int
    KVHeads: TypeAlias = int
    HeadDim: TypeAlias = int
    Width: TypeAlias = int
    Vocab: TypeAlias = int
    Layers: TypeAlias = int
    Window: TypeAlias = int
    Experts: TypeAlias = int
    ZeroExperts: TypeAlias = int
    TopK: TypeAlias = int
    Positions: TypeAlias = int
    Labels: TypeAlias = int
    LaurelRank: TypeAlias = int
    PerLayer: TypeAlias = int
    PerLayerVocab: TypeAlias = int
    QueryRank: TypeAlias = int
    KVRank: TypeAlias = int
    NopeDim: TypeAlias = int
    RopeDim: TypeAlias = int
    ValueDim: TypeAlias = int
    Streams: TypeAlias = int
    Inner: TypeAlias = int
    StateSize: TypeAlias = int
    Kernel: TypeAlias = int
    StepRank: TypeAlias = int
    StateGroups: TypeAlias = int
    ChunkSize: TypeAlias = int
else:
    HiddenSize = size_named("h")
    Heads = size_named("a")
    KVHeads = size_named("k")
    HeadDim = size_named("d")
    Width = size_named("f")
    Vocab = size_named("V")
    Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS, strict=True), Symbol("L")]
    Window = size_named("W")
    Experts = Annotated[int, Field(ge=1, le=MOST_EXPERTS, strict=True), Symbol("E")]
    ZeroExperts = Annotated[int, Field(ge=1, le=MOST_EXPERTS, strict=True), Symbol("Z")]
    TopK = Annotated[int, Field(ge=1, le=MOST_EXPERTS, strict=True), Symbol("t")]
    Positions = size_named("P")
    Labels = size_named("C")
    LaurelRank = size_named("l")
    PerLayer = size_named("p")
    PerLayerVocab = size_named("U")
    QueryRank = size_named("q")
    KVRank = size_named("c")
    NopeDim = size_named("n")
    RopeDim = size_named("r")
    ValueDim = size_named("v")
    Streams = Annotated[int, Field(ge=1, le=64, strict=True), Symbol("M")]
    Inner = size_named("m")
    StateSize = size_named("N")
    Kernel = size_named("w")
    StepRank = size_named("R")
    StateGroups = size_named("G")
    ChunkSize = size_named("Q")

Flag: TypeAlias = StrictBool
Real: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class Part(Record):
    """A piece of a spec."""


@dataclass(frozen=True, slots=True)
class Around:
    """What a part needs to know of the model it stands in.

    hidden_size: width of the residual stream. causal: a token sees only those before it. cross: keys and values come
    from the encoder's output. output_size: width of what attention gives back, where it is not what it reads.
    source_size: width of the encoder's output, where it is not the decoder's.
    """

    hidden_size: Any
    causal: bool = True
    cross: bool = False
    output_size: Any = None
    source_size: Any = None


def check_groups(heads: int, kv_heads: int) -> None:
    """Raises `ValueError` where queries cannot be grouped by as many keys and values."""
    if heads % kv_heads:
        raise ValueError(
            f"num_key_value_heads: {kv_heads} does not divide num_attention_heads {heads}; expected a divisor of "
            f"{heads}"
        )


class Component(Part):
    """A part with costs. Subclasses define all three of these.

    node_name: the name under which a layer holds it. sides: which stacks it may mix the tokens of.
    """

    node_name: ClassVar[str] = ""
    sides: ClassVar[tuple[str, ...]] = ("decoder",)

    def anatomy(self, name: str, around: Around) -> Node:
        """The tree of primitives, under the names the reference's submodules have."""
        raise TypeError(f"{type(self).__name__} has no anatomy")

    def reference(self, around: Around) -> nn.Module:
        """A runnable PyTorch module built from the fields alone. Imports torch."""
        raise TypeError(f"{type(self).__name__} has no reference")

    def describe(self, hidden_size: int) -> str:
        """What a heading calls it: `GQA 32/8 × 128`, `SwiGLU 14336`."""
        return str(getattr(self, "type", ""))

    @classmethod
    def examples(cls) -> list[Self]:
        """Tiny specs that between them switch on everything the part can do; contract tests run on each."""
        raise TypeError(f"{cls.__name__} has no examples")


def shared(node: Node) -> Node:
    """The same node with the parameters of another: it costs what that one costs and holds nothing."""
    holds = node.op is not None and (node.op.tensors() or not is_zero(node.op.buffers()))
    return replace(
        node, op=Shared(node.op) if holds else node.op, children=tuple(shared(child) for child in node.children)
    )


def idle(node: Node) -> Node:
    """The same node, held and never run: all its parameters, and no cost."""
    holds = node.op is not None and (node.op.tensors() or not is_zero(node.op.buffers()))
    return replace(node, op=Idle(node.op) if holds else None, children=tuple(idle(child) for child in node.children))


class Nothing(Part):
    """`{ type = "none" }`: said where a layer has no such part, so that a part is never forgotten silently."""

    type: Literal["none"] = "none"
