"""What every part of an architecture has: a checked spec, a flow of verbs, a PyTorch reference, tiny examples.

A part is one file in this package. Its spec holds Hugging Face's field names and nothing that is not needed to count or
run it. `flow` (arithmetic, no torch) and `reference` (torch, no arithmetic on counts) are written separately from
the same fields and share nothing else, so that comparing them proves something; a test holds them to that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, StrictBool

from ..flow.record import Flow
from ..flow.value import Value
from ..record import Record

if TYPE_CHECKING:
    from torch import nn

    from ..flow.record import Flow
    from ..flow.value import Value
    from .layers.block import Layer
    from .position import AttentionPosition

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
    """A part with costs. Subclasses define its flow, its reference and its examples.

    node_name: the name under which a layer holds it. kind: the component that it counts under.
    sides: which stacks it may mix the tokens of.
    """

    node_name: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    sides: ClassVar[tuple[str, ...]] = ("decoder",)

    def source(self) -> str:
        """Where its formula is from: paper and section."""
        return ""

    if TYPE_CHECKING:
        flow: ClassVar[Callable[..., Value]]
        reference: ClassVar[Callable[..., nn.Module]]
    else:

        def flow(self, f: Flow, x: Value) -> Value:
            """What it computes of x, verb by verb, under the names that the reference's submodules have."""
            raise TypeError(f"{type(self).__name__} has no flow")

        def reference(self, around: Around) -> nn.Module:
            """A runnable PyTorch module built from the fields alone. Imports torch."""
            raise TypeError(f"{type(self).__name__} has no reference")

    def requires(self) -> Mapping[str, Mapping[str, Any]]:
        """The parts of the stack that it cannot run without: the stack's field → what that part must say."""
        return {}

    def borrows(self) -> str:
        """The field by which it needs what another layer or the model around its layer makes; empty where none."""
        return ""

    def describe(self, hidden_size: int) -> str:
        """What a heading calls it: `GQA 32/8 × 128`, `SwiGLU 14336`."""
        return str(getattr(self, "type", ""))

    @classmethod
    def examples(cls) -> list[Self]:
        """Tiny specs that between them switch on everything the part can do; contract tests run on each."""
        raise TypeError(f"{cls.__name__} has no examples")


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """heads: of the query. kv_heads: of key and value; None where they share a latent. head_dim: of query and key."""

    heads: Any
    kv_heads: Any
    head_dim: Any


@dataclass(frozen=True, slots=True)
class ScoreBias:
    """What can be added to the scores of attention.

    heads: the number of heads that have a bias each.
    of_blocks: whether there is a second bias, on the scores of sums of blocks.
    """

    heads: Any
    of_blocks: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a part of a stack stands, for the checks that only its place decides.

    where: what an error calls it.
    width: the width of what it reads.
    side: which stack it is in, `encoder` or `decoder`.
    grid: whether tokens stand in a grid, as the patches of an image do.
    before_grid: whether a token that is no patch stands before them.
    source_width: the width of the output of the encoder beside the decoder; None where there is none to attend to.
    """

    where: str
    width: int
    side: str
    grid: bool = False
    before_grid: bool = False
    source_width: int | None = None


class Unscalable(ValueError):
    """Why a part has no member of another width in a study of shapes."""


class TokenMixer(Component):
    """A part that moves information between tokens, with what other code may ask of any of them.

    reads_encoder: of the class: it attends to the encoder's output beside its own tokens.
    """

    reads_encoder: ClassVar[bool] = False

    def heads(self, width: Any) -> HeadSizes | None:
        """Its heads in a layer of that width; None where it has none."""
        return None

    def trait(self) -> str:
        """What sets it apart from the mixers of other layers, in one word: `sliding`, `full`, `mamba2`."""
        return str(getattr(self, "type", ""))

    def reach(self) -> tuple[int, ...]:
        """The numbers of tokens after which nothing about it changes: windows, chunks, selections."""
        return ()

    def window(self) -> int | None:
        """How many tokens a token sees at most, itself included; None where all of them, or where it has no window."""
        return None

    def score_position(self) -> AttentionPosition | None:
        """How its scores know the order of tokens; None where they do not."""
        return None

    def with_kv_heads(self, number: int, width: int) -> Self:
        """The same part with so many heads of keys and values, all of which are cached; itself where it has none."""
        return self

    def without_window(self) -> Self:
        """The same part over all earlier tokens."""
        return self

    def with_heads(self, sizes: HeadSizes) -> Self:
        """The same part with other heads.

        Raises `Unscalable`, which says why, where its width is not that of its heads alone.
        """
        kind = type(self).model_fields["type"].default
        scales = "multi-head or grouped-query attention"
        raise Unscalable(f"attention.type '{kind}' does not scale with hidden_size alone; expected {scales}")

    def takes_bias(self) -> ScoreBias | None:
        """What a stack's relative_bias can add to its scores; None where it can add nothing."""
        return None

    def attends_like(self) -> tuple[Any, ...] | None:
        """What mixers must have in common for one to use what another makes (`borrows`); None where they cannot."""
        return None

    def check_place(self, place: Standing) -> None:
        """Raises `ValueError` where it cannot stand there."""
        if place.side not in self.sides:
            kind = type(self).model_fields["type"].default
            raise ValueError(f"{place.where}.type: '{kind}' is for {self.sides[0]}s; expected 'attention'")


class StackPart(Component):
    """A part that stands once in a stack: below its layers, above them, or beside them."""

    def check_layers(self, layers: Mapping[str, Layer]) -> None:
        """Raises `ValueError` where it cannot stand beside these layers. layers: by the names that a pattern has."""

    def check_place(self, place: Standing) -> None:
        """Raises `ValueError` where it cannot stand in a stack of that width, in an encoder or a decoder."""


class Network(Component):
    """A part that works on each token by itself, with what other code may ask of any of them.

    mixture: of the class: it is a mixture of experts, of which each token passes some.
    """

    mixture: ClassVar[bool] = False

    def active_width(self) -> int | None:
        """Units of the feed-forward networks that one token passes through."""
        return None

    def activation(self) -> str:
        """What papers call its activation: `SwiGLU`, `GELU`; empty where it has none of these."""
        return ""

    def widened(self, change: Callable[[Any], Any]) -> Self:
        """The same part with every width of its feed-forward networks changed.

        Raises `Unscalable`, which says why, where its width is more than that.
        """
        kind = type(self).model_fields["type"].default
        raise Unscalable(f"feed_forward.type '{kind}' does not scale with hidden_size alone")


class Nothing(Part):
    """`{ type = "none" }`: said where a layer has no such part, so that a part is never forgotten silently."""

    type: Literal["none"] = "none"

    def check_place(self, place: Standing) -> None:
        """Raises `ValueError` where a layer there needs a part that mixes tokens."""
        if place.side != "decoder":
            raise ValueError(f"{place.where}.type: 'none' is for decoders; expected 'attention'")
