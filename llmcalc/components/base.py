"""The base classes of components: checked fields, recorded operations, a PyTorch reference and examples.

A part is one file in this package. Its spec has Hugging Face's field names, and only the fields needed to count or run
it. `flow` (counts, without torch) and `reference` (torch, without counts) are written separately from the same fields
and share nothing else, so a comparison of the two proves something; a test checks that they stay separate.

Annotations are not strings here: pydantic would compile those of a base class once for each of its subclasses.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self, TypeAlias

from pydantic import AfterValidator, Field, StrictBool
from pydantic_core import CoreSchema, core_schema

from ..evidence import UNTESTED, Witness, source_code_witness, torch_witness
from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from ..frozen import frozen
from ..record import Record

if TYPE_CHECKING:
    from torch import nn

LARGEST_SIZE = 2**40
"""The largest value that any size field of a model description may have."""

MAX_LAYERS, MAX_EXPERTS = 100_000, 1_000_000
"""The largest numbers of layers and of experts in a model; config readers build a list with one entry for each."""


@frozen(slots=True)
class SizeSymbol:
    """The type of a size: its symbol in papers, which `llmcalc explain` prints, and its limits.

    letter: the letter.
    smallest, largest: the limits, 1 and `LARGEST_SIZE` by default.
    """

    letter: str
    smallest: int = 1
    largest: int = LARGEST_SIZE

    def __get_pydantic_core_schema__(self, source_type: Any, handler: Any) -> CoreSchema:
        return core_schema.int_schema(strict=True, ge=self.smallest, le=self.largest)


Size: TypeAlias = Annotated[int, Field(ge=1, le=LARGEST_SIZE, strict=True)]
"""The type of a positive size field that has no symbol in papers."""

HiddenSize: TypeAlias = Annotated[int, SizeSymbol("h")]
Heads: TypeAlias = Annotated[int, SizeSymbol("a")]
KVHeads: TypeAlias = Annotated[int, SizeSymbol("k")]
HeadDim: TypeAlias = Annotated[int, SizeSymbol("d")]
InnerWidth: TypeAlias = Annotated[int, SizeSymbol("f")]
Vocab: TypeAlias = Annotated[int, SizeSymbol("V")]
Layers: TypeAlias = Annotated[int, SizeSymbol("L", largest=MAX_LAYERS)]
Window: TypeAlias = Annotated[int, SizeSymbol("W")]
Experts: TypeAlias = Annotated[int, SizeSymbol("E", largest=MAX_EXPERTS)]
ZeroExperts: TypeAlias = Annotated[int, SizeSymbol("Z", largest=MAX_EXPERTS)]
TopK: TypeAlias = Annotated[int, SizeSymbol("t", largest=MAX_EXPERTS)]
Positions: TypeAlias = Annotated[int, SizeSymbol("P")]
Labels: TypeAlias = Annotated[int, SizeSymbol("C")]
LaurelRank: TypeAlias = Annotated[int, SizeSymbol("l")]
PerLayerWidth: TypeAlias = Annotated[int, SizeSymbol("p")]
PerLayerVocab: TypeAlias = Annotated[int, SizeSymbol("U")]
QueryRank: TypeAlias = Annotated[int, SizeSymbol("q")]
KVRank: TypeAlias = Annotated[int, SizeSymbol("c")]
NopeDim: TypeAlias = Annotated[int, SizeSymbol("n")]
RopeDim: TypeAlias = Annotated[int, SizeSymbol("r", 0)]
ValueDim: TypeAlias = Annotated[int, SizeSymbol("v")]
StreamCount: TypeAlias = Annotated[int, SizeSymbol("M", largest=64)]
InnerSize: TypeAlias = Annotated[int, SizeSymbol("m")]
StateSize: TypeAlias = Annotated[int, SizeSymbol("N")]
KernelSize: TypeAlias = Annotated[int, SizeSymbol("w")]
StepRank: TypeAlias = Annotated[int, SizeSymbol("R")]
StateGroups: TypeAlias = Annotated[int, SizeSymbol("G")]
ChunkSize: TypeAlias = Annotated[int, SizeSymbol("Q")]


def _check_odd(kernel_size: int) -> int:
    if kernel_size % 2 == 0:
        raise ValueError(f"{kernel_size} is even; expected an odd number")
    return kernel_size


OddKernelSize: TypeAlias = Annotated[KernelSize, AfterValidator(_check_odd)]
Flag: TypeAlias = StrictBool
FiniteNumber: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]


PartWitness: TypeAlias = Witness | Mapping[str, Witness]
"""The witness of a component's memory, or one witness for each `type` of the component."""

SINGLE_TOKEN_VOCABULARY = Axis("vocab", 1)
"""The vocabulary axis, of size 1, of a component that is recorded without its model."""

TORCH_WITNESS = torch_witness("tests/simulator/test_eager.py")
"""The witness of a component whose examples are compared with torch's own operations."""

PUBLISHED_KERNELS_WITNESS = source_code_witness(
    "published kernels of recurrent layers (llmcalc/simulator/published)", "tests/simulator/published/test_published.py"
)
"""The witness of a recurrent component that runs a library's published kernels."""


class Part(Record):
    """The base class of every component inside a model's description.

    noun: what it is called in an answer (class attribute).
    witness: what its memory was compared with, by its `type` where the class has several; each class states its own,
        and without one it is untested (class attribute).
    """

    noun: ClassVar[str] = "part"
    witness: ClassVar[PartWitness] = UNTESTED


@frozen(slots=True)
class ModelProperties:
    """The properties of the surrounding model that a component's PyTorch reference needs.

    hidden_size: the width of the residual stream.
    is_causal: whether attention is causal, true by default.
    is_cross_attention: whether keys and values come from the encoder's output, false by default.
    output_size: the width of attention's output; None where it equals the input's.
    source_size: the width of the encoder's output; None where it equals the decoder's.
    value_size: the width of the input of attention's values; None where it equals that of the keys.
    """

    hidden_size: Any
    is_causal: bool = True
    is_cross_attention: bool = False
    output_size: Any = None
    source_size: Any = None
    value_size: Any = None


def check_kv_heads(heads: int, kv_heads: int) -> None:
    """Raises `ValueError` unless the number of query heads is a multiple of `kv_heads`."""
    check_divisor("num_key_value_heads", kv_heads, "num_attention_heads", heads)


def check_divisor(field_name: str, divisor: int, dividend_name: str, dividend: int) -> None:
    """Raises `ValueError` unless one field's value divides another field's value without a remainder."""
    if dividend % divisor:
        raise ValueError(
            f"{field_name}: {divisor} does not divide {dividend_name} {dividend}; expected a divisor of {dividend}"
        )


def check_top_k(num_experts: int, num_experts_per_tok: int) -> None:
    """Raises `ValueError` if a token would use more experts than the layer has."""
    if num_experts_per_tok > num_experts:
        raise ValueError(f"num_experts_per_tok: {num_experts_per_tok} is more than num_experts {num_experts}")


class Component(Part):
    """The base class of model components with parameters or FLOPs: operations, a PyTorch reference, small examples.

    node_name: the name of its module in a layer.
    kind: the kind of component that its costs are counted under.
    allowed_stacks: the stacks that it may be used in, `encoder` or `decoder`.
    """

    node_name: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    allowed_stacks: ClassVar[tuple[str, ...]] = ("decoder",)

    @property
    def formula_source(self) -> str:
        """The paper and section, or the source file, from which the component's formulas are taken."""
        return ""

    if TYPE_CHECKING:
        flow: ClassVar[Callable[..., Value]]
        reference: ClassVar[Callable[..., nn.Module]]
    else:

        def flow(self, recorder: Flow, x: Value) -> Value:
            """Records the operations that compute the component's output, named like the reference's submodules."""
            raise TypeError(f"{type(self).__name__} has no flow")

        def reference(self, model_properties: ModelProperties) -> "nn.Module":
            """Builds the component as a runnable PyTorch module, from the component's fields alone. Imports torch."""
            raise TypeError(f"{type(self).__name__} has no reference")

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the components that a stack must have for this component: required values by field of the stack."""
        return {}

    def dependency_field(self) -> str:
        """The name of the field that makes the component depend on another layer or on the model; empty without one."""
        return ""

    def describe(self, hidden_size: int) -> str:
        """The component's short name in headings of reports: `GQA 32/8 × 128`, `SwiGLU 14336`."""
        return str(getattr(self, "type", ""))

    @classmethod
    def examples(cls) -> list[Self]:
        """Small examples of the component that together use every option of the class, for the contract tests."""
        raise TypeError(f"{cls.__name__} has no examples")


@frozen(slots=True)
class HeadSizes:
    """The numbers of query heads and of key and value heads of an attention layer, and the size of a head.

    heads: the number of query heads.
    kv_heads: the number of key and value heads; None where all heads share a latent vector.
    head_dim: the size of a query or key head.
    """

    heads: Any
    kv_heads: Any
    head_dim: Any


@frozen(slots=True)
class ScoreBias:
    """A bias that can be added to the attention scores, such as T5's relative position bias.

    heads: the number of heads; each has its own bias.
    has_block_bias: whether there is a second bias, on the scores against block sums; false by default.
    """

    heads: Any
    has_block_bias: bool = False


@frozen(slots=True)
class StackPosition:
    """The place of a component in a model: its stack, input and width, for checks that depend on the place.

    error_path: the part's path in error messages.
    width: the width of its input.
    stack_name: the stack it is in, `encoder` or `decoder`.
    tokens_form_grid: whether tokens form a grid, as the patches of an image do; false by default.
    has_token_before_grid: whether a token that is not a patch comes before the grid; false by default.
    source_width: the width of the encoder's output; None where there is no encoder to attend to.
    """

    error_path: str
    width: int
    stack_name: str
    tokens_form_grid: bool = False
    has_token_before_grid: bool = False
    source_width: int | None = None


class UnscalableError(ValueError):
    """The error for a component that cannot be scaled to another width in a study of model shapes, with the reason."""


SCALABLE_MODELS = "expected a decoder whose layers are multi-head or grouped-query attention and a feed-forward network"
"""The components that a study of shapes can scale, in words, for the messages of `UnscalableError`."""


class AttentionProtocol(Protocol):
    """The fields of attention that a component inside the attention may check."""

    @property
    def num_attention_heads(self) -> int: ...
    @property
    def v_head_dim(self) -> int | None: ...
    @property
    def sliding_window(self) -> int | None: ...
    @property
    def attention_chunk_size(self) -> int | None: ...
    @property
    def kv_shared(self) -> bool: ...


class AttentionPosition(Part):
    """A position encoding inside attention, applied to queries and keys or to scores.

    allowed_stacks: the stacks whose attention may use it (class attribute).
    requires_self_attention: whether queries and keys must be of one sequence (class attribute).
    label: its name in a heading (class attribute).
    """

    noun: ClassVar[str] = "position"
    allowed_stacks: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    requires_self_attention: ClassVar[bool] = True
    label: ClassVar[str] = ""

    def check_attention(self, attention: AttentionProtocol) -> None:
        """Raises `ValueError` if the encoding is incompatible with the attention's fields."""

    def check_stack_position(self, stack_position: StackPosition, head_dim: int) -> None:
        """Raises `ValueError` if the attention at this stack position cannot use the encoding."""
        if stack_position.stack_name not in self.allowed_stacks:
            type_name, is_causal = type(self).model_fields["type"].default, self.allowed_stacks == ("decoder",)
            direction_text, expected_stack = (
                ("that is causal", "a decoder") if is_causal else ("in both directions", "an encoder")
            )
            raise ValueError(
                f"{stack_position.error_path}.position.type: '{type_name}' is for attention {direction_text}; expected "
                f"{expected_stack}"
            )

    def check_heads(self, head_sizes: HeadSizes) -> None:
        """Raises `UnscalableError` if the encoding is incompatible with these attention heads."""

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the components that a stack must have for this encoding: required values by field of the stack."""
        return {}

    def flow(
        self, recorder: Flow, x: Value, q: Value, keys: Value, have_biases: tuple[bool, bool]
    ) -> tuple[Value, Value | None]:
        """Returns the queries for the product with the keys, and the term that is added to the scores.

        have_biases: whether the query and the key projection have a bias.
        """
        return q, None


class TokenMixer(Component):
    """The base class of token mixers: components that mix information between tokens, such as attention.

    reads_encoder: whether it attends to the encoder's output as well as to its own tokens (class attribute).
    attends_to_whole_pass: whether its tokens attend to all tokens of the same pass, as those of a drafted block do
        (class attribute).
    uncounted_operations: the part of its recurrence that is not a matrix multiplication, which FLOPs leave out; empty
        where it has no recurrence (class attribute).
    kernel_packages: the packages whose kernels its memory is counted with, and without which classes of transformers
        run its recurrence as loops of torch (class attribute).
    """

    noun: ClassVar[str] = "mixer"
    node_name: ClassVar[str] = "self_attn"
    kind: ClassVar[str] = "attention"
    reads_encoder: ClassVar[bool] = False
    attends_to_whole_pass: ClassVar[bool] = False
    uncounted_operations: ClassVar[str] = ""
    kernel_packages: ClassVar[tuple[str, ...]] = ()

    def head_sizes(self, hidden_size: Any) -> HeadSizes | None:
        """The number and the size of the heads in a layer of width `hidden_size`; None for a mixer without heads."""
        return None

    def report_label(self) -> str:
        """The name of the type of mixer in reports, such as `sliding`, `full` or `mamba2`."""
        return str(getattr(self, "type", ""))

    def cost_thresholds(self) -> tuple[int, ...]:
        """The sequence lengths at which the mixer's cost formula changes: windows, chunks, limits on selected keys."""
        return ()

    def window_size(self) -> int | None:
        """The largest number of tokens that a token attends to, including the token; None without a window."""
        return None

    def score_position_encoding(self) -> AttentionPosition | None:
        """The position encoding that the mixer applies to its scores; None without a position encoding."""
        return None

    def with_kv_heads(self, kv_heads: int, hidden_size: int) -> Self:
        """Returns the mixer with `kv_heads` cached key and value heads; unchanged if the mixer has no such heads."""
        return self

    def without_window(self) -> Self:
        """Returns the mixer without a sliding window or chunks, so that every token attends to all earlier tokens."""
        return self

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        """Returns the mixer with another number of heads and head size.

        Raises `UnscalableError`, with the reason, where its width depends on more than its heads.
        """
        type_name = type(self).model_fields["type"].default
        raise UnscalableError(
            f"attention of type '{type_name}' has sizes beside its heads, and no rule says what they are at another "
            f"width; {SCALABLE_MODELS}"
        )

    def supported_score_bias(self) -> ScoreBias | None:
        """The bias that a stack's relative_bias can add to the mixer's scores; None if the mixer accepts no bias."""
        return None

    def record_shared_bias(self, recorder: Flow, x: Value) -> None:
        """Records the bias that a stack's layers add to their attention scores, before the first layer runs.

        x: the input of the first layer.
        """

    def sharing_key(self) -> tuple[Any, ...] | None:
        """A key that is equal for layers that can share keys and values or other results; None without sharing."""
        return None

    def shared_result_fields(self) -> Mapping[tuple[Any, ...], str]:
        """Returns the field that makes a layer reuse a lower layer's result, by sharing key; empty without reuse.

        The field is empty where the mixer computes the result itself.
        """
        sharing_key = self.sharing_key()
        return {} if sharing_key is None else {sharing_key: self.dependency_field()}

    def check_stack_position(self, stack_position: StackPosition) -> None:
        """Raises `ValueError` if the mixer cannot be used at this position of the model."""
        if stack_position.stack_name not in self.allowed_stacks:
            type_name = type(self).model_fields["type"].default
            raise ValueError(
                f"{stack_position.error_path}.type: '{type_name}' is for {self.allowed_stacks[0]}s; expected "
                "'attention'"
            )


class RecurrentMixer(TokenMixer):
    """The base class of linear attention: token mixers with a state of fixed size instead of keys and values."""

    node_name: ClassVar[str] = "linear_attn"
    kind: ClassVar[str] = "linear_attention"


class LayerProtocol(Protocol):
    """The properties of a layer that other components of the stack may read."""

    @property
    def attention(self) -> Part: ...
    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the components that a stack must have for this layer: required values by field of the stack."""


class StackPart(Component):
    """A component that occurs once per stack: before, after or parallel to the layers."""

    kind: ClassVar[str] = "embedding"

    def check_layers(self, layers: Mapping[str, LayerProtocol]) -> None:
        """Raises `ValueError` if the component cannot be used with these layers.

        layers: the layers by their name in `pattern`.
        """

    def check_stack_position(self, stack_position: StackPosition) -> None:
        """Raises `ValueError` if a stack of this width, encoder or decoder, cannot have the component."""


class Network(Component):
    """The base class of networks: components that process each token separately, such as feed-forward networks.

    is_mixture_of_experts: whether it is a mixture of experts, where each token is routed to some of them (class
        attribute).
    """

    noun: ClassVar[str] = "network"
    is_mixture_of_experts: ClassVar[bool] = False

    def active_width(self) -> int | None:
        """The number of hidden units (d_ff) that process each token."""
        return None

    def activation(self) -> str:
        """The usual name of the network's activation, such as `SwiGLU` or `GELU`; may be empty."""
        return ""

    def with_scaled_widths(self, scale_width: Callable[[Any], Any]) -> Self:
        """Returns the network with the function `scale_width` applied to all feed-forward widths.

        Raises `UnscalableError`, with the reason, where it has other widths as well.
        """
        type_name = type(self).model_fields["type"].default
        raise UnscalableError(
            f"a feed-forward network of type '{type_name}' has sizes that no rule derives from another width; "
            f"{SCALABLE_MODELS}"
        )


class SingleWidthNetwork(Network):
    """A network with a single inner width, the field `intermediate_size`."""

    if TYPE_CHECKING:
        intermediate_size: int

    def active_width(self) -> int:
        return self.intermediate_size

    def with_scaled_widths(self, scale_width: Callable[[Any], Any]) -> Self:
        return self.model_copy(update={"intermediate_size": scale_width(self.intermediate_size)})


class Nothing(Part):
    """The absent component, `{ type = "none" }`, which a layer must state so that no component is forgotten."""

    type: Literal["none"] = "none"

    def check_stack_position(self, stack_position: StackPosition) -> None:
        """Raises `ValueError` for a layer without a token mixer in a stack other than a decoder."""
        if stack_position.stack_name != "decoder":
            raise ValueError(f"{stack_position.error_path}.type: 'none' is for decoders; expected 'attention'")
