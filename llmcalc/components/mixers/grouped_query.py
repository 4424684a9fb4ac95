"""Base classes of token mixers with grouped-query heads, or with as many key heads as query heads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from ...algebra import are_equal, exact_div
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ..base import HeadSizes, StackPosition, TokenMixer, UnscalableError, check_kv_heads

if TYPE_CHECKING:
    from torch import Tensor

    from ..rope import Rope


def record_queries_keys_values(
    recorder: Flow, x: Value, *axes: Axis | JoinedShapes, bias: bool = False
) -> Iterator[Value]:
    """Records the operations of the query, key and value projections of x, whose outputs all have x's axes."""
    return (recorder.linear(f"{projection_letter}_proj", x, *axes, bias=bias) for projection_letter in "qkv")


def copy_with_heads(mixer: Any, head_sizes: HeadSizes) -> Any:
    """Returns a mixer with other heads. Raises `UnscalableError` if its position encoding does not fit the heads."""
    if mixer.position is not None:
        mixer.position.check_heads(head_sizes)
    heads, kv_heads, head_dim = head_sizes.heads, head_sizes.kv_heads, head_sizes.head_dim
    fields = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    return mixer.model_copy(update=fields)


class GroupedQueryMixer(TokenMixer):
    """A token mixer with grouped-query heads: `num_attention_heads` query heads, `num_key_value_heads` key heads, RoPE.

    A subclass declares these fields, in this order.
    """

    if TYPE_CHECKING:
        num_attention_heads: int
        num_key_value_heads: int
        head_dim: int

        @property
        def position(self) -> Rope | None: ...

    def head_sizes(self, hidden_size: Any) -> HeadSizes:
        return HeadSizes(self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    def score_position_encoding(self) -> Rope | None:
        return self.position

    def with_kv_heads(self, kv_heads: int, hidden_size: int) -> Self:
        return self.model_copy(update={"num_key_value_heads": kv_heads})

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        return copy_with_heads(self, head_sizes)


class OptionalWindowMixer(TokenMixer):
    """Attention with an optional sliding window of sliding_window tokens, including the token."""

    if TYPE_CHECKING:
        type: str
        sliding_window: int | None

    def report_label(self) -> str:
        return self.type if self.sliding_window is None else "sliding"

    def window_size(self) -> int | None:
        return self.sliding_window

    def cost_thresholds(self) -> tuple[int, ...]:
        return () if self.sliding_window is None else (self.sliding_window,)

    def without_window(self) -> Self:
        return self.model_copy(update={"sliding_window": None})


class WindowedMixer(OptionalWindowMixer, GroupedQueryMixer):
    """A grouped-query mixer with an optional sliding window."""

    def check_fields(self) -> None:
        check_kv_heads(self.num_attention_heads, self.num_key_value_heads)
        if self.position is not None:
            self.position.check_rotary_size(self.head_dim)

    def _attention_heading(self, mixer_name: str, details: str = "") -> str:
        """Returns a report heading with the attention's name, heads, details and window."""
        details += "" if self.sliding_window is None else f", window {self.sliding_window}"
        return f"{mixer_name} {self.num_attention_heads}/{self.num_key_value_heads} × {self.head_dim}{details}"

    @property
    def cache_kind(self) -> str:
        """The name of the KV cache in tables of `llmcalc kv`: `full_attention` or `sliding_attention`."""
        return "full_attention" if self.sliding_window is None else "sliding_attention"


def check_key_heads(mixer: TokenMixer, head_sizes: HeadSizes) -> None:
    """Raises `UnscalableError` unless the number of key and value heads equals the number of query heads."""
    if not are_equal(head_sizes.kv_heads, head_sizes.heads):
        type_name = type(mixer).model_fields["type"].default
        raise UnscalableError(
            f"attention.type '{type_name}' requires as many key/value heads as query heads; expected a --kv-ratio of "
            "1, or none"
        )


class MultiHeadMixer(TokenMixer):
    """A mixer with `num_attention_heads` query heads of size `head_dim`, each with a separate key and value head.

    A subclass declares these fields, in this order.
    """

    if TYPE_CHECKING:
        num_attention_heads: int
        head_dim: int

    def head_sizes(self, hidden_size: Any) -> HeadSizes:
        return HeadSizes(self.num_attention_heads, self.num_attention_heads, self.head_dim)

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        check_key_heads(self, head_sizes)
        return self.model_copy(update={"num_attention_heads": head_sizes.heads, "head_dim": head_sizes.head_dim})


class EqualHeadsMixer(TokenMixer):
    """A mixer with `num_attention_heads` heads of size width / `num_attention_heads`; subclasses declare the field."""

    if TYPE_CHECKING:
        num_attention_heads: int

    def head_sizes(self, hidden_size: Any) -> HeadSizes:
        heads = self.num_attention_heads
        return HeadSizes(heads, heads, exact_div(hidden_size, heads))

    def with_heads(self, head_sizes: HeadSizes) -> Self:
        check_key_heads(self, head_sizes)
        return self.model_copy(update={"num_attention_heads": head_sizes.heads})

    def check_stack_position(self, stack_position: StackPosition) -> None:
        super().check_stack_position(stack_position)
        self._check_divisor(stack_position, "num_attention_heads")

    def _check_divisor(self, stack_position: StackPosition, field_name: str) -> None:
        """Raises `ValueError` unless the field divides the width of the layer."""
        head_count = getattr(self, field_name)
        if stack_position.width % head_count:
            raise ValueError(
                f"{stack_position.error_path}.{field_name}: {head_count}; "
                f"expected a divisor of hidden_size {stack_position.width}"
            )


@cache
def grouped_reference_class() -> Any:
    """Returns the base class of PyTorch references for grouped-query attention, which has the projections."""
    from torch import nn

    class GroupedReference(nn.Module):
        """The query, key, value and output projections. bias: whether each projection has a bias."""

        def __init__(self, spec: GroupedQueryMixer, hidden_size: int, bias: bool = False) -> None:
            super().__init__()
            self.spec, heads, kv_heads, head_dim = (
                spec,
                spec.num_attention_heads,
                spec.num_key_value_heads,
                spec.head_dim,
            )
            for projection_name, output_width in (
                ("q_proj", heads * head_dim),
                ("k_proj", kv_heads * head_dim),
                ("v_proj", kv_heads * head_dim),
            ):
                self.add_module(projection_name, nn.Linear(hidden_size, output_width, bias=bias))
            self.o_proj = nn.Linear(heads * head_dim, hidden_size, bias=bias)

        def _split_heads(self, projection_letter: str, x: Tensor) -> Tensor:
            """Returns queries, keys or values of x [batch, tokens, hidden] as [batch, heads, tokens, head_dim]."""
            return (
                self.get_submodule(f"{projection_letter}_proj")(x)
                .unflatten(-1, (-1, self.spec.head_dim))
                .transpose(1, 2)
            )

        def _repeat_for_query_heads(self, *tensors: Tensor, axis: int = 1) -> tuple[Tensor, ...]:
            """Repeats keys or values so that there is one for each query head. axis: the axis of heads."""
            group_size = self.spec.num_attention_heads // self.spec.num_key_value_heads
            return (
                tensors if group_size == 1 else tuple(tensor.repeat_interleave(group_size, axis) for tensor in tensors)
            )

    return GroupedReference
