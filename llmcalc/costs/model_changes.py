"""Variants of a model with other key/value heads or without sliding windows.

Multi-head, grouped-query and multi-query attention differ in `num_key_value_heads` alone (Ainslie 2023,
arXiv:2305.13245). MLA (DeepSeek-V2, arXiv:2405.04434, §2.1) with a cache of full keys and values for n heads would
store n·(qk_nope_head_dim + qk_rope_head_dim + v_head_dim) elements per token. It is counted as MLA with a latent of
that width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from ..components.base import HeadSizes, TokenMixer
from ..components.stack import Stack
from ..frozen import frozen
from ..model import ModelSpec

MixerChange: TypeAlias = Callable[[TokenMixer, int], TokenMixer]
"""A function of a token mixer and its input width that returns the changed token mixer."""


@frozen(slots=True)
class ModelChange:
    """A hypothetical change of a model. key: the name in JSON. title: the name in tables."""

    key: str
    title: str


QUERY_GROUPS = 8


def changed_models(spec: ModelSpec) -> Iterator[tuple[ModelChange, ModelSpec]]:
    """Yields hypothetical variants of the model; changes that would have no effect are left out."""
    head_counts = [
        head_sizes.heads
        for mixer, input_width in _mixers_with_input_widths(spec)
        if (head_sizes := _cached_head_sizes(mixer, input_width)) is not None
    ]
    changes_and_functions: list[tuple[ModelChange, MixerChange]] = [
        (ModelChange("mha", "as MHA"), _as_multi_head_attention)
    ]
    if head_counts and all(head_count % QUERY_GROUPS == 0 and head_count > QUERY_GROUPS for head_count in head_counts):
        changes_and_functions.append(
            (
                ModelChange("gqa_8", f"as GQA-{QUERY_GROUPS}"),
                lambda mixer, input_width: mixer.with_kv_heads(QUERY_GROUPS, input_width),
            )
        )
    changes_and_functions.append(
        (ModelChange("mqa", "as MQA"), lambda mixer, input_width: mixer.with_kv_heads(1, input_width))
    )
    changes_and_functions.append(
        (ModelChange("no_windows", "without windows"), lambda mixer, _: mixer.without_window())
    )
    for model_change, change_mixer in changes_and_functions:
        changed_spec = with_replaced_mixers(spec, change_mixer)
        if any(getattr(changed_spec, name) != getattr(spec, name) for name in type(spec).model_fields):
            yield model_change, changed_spec


def _as_multi_head_attention(mixer: TokenMixer, input_width: int) -> TokenMixer:
    head_sizes = mixer.head_sizes(input_width)
    return mixer if head_sizes is None else mixer.with_kv_heads(head_sizes.heads, input_width)


def _cached_head_sizes(mixer: TokenMixer, input_width: int) -> HeadSizes | None:
    """Returns a mixer's heads if its cache size depends on the number of key/value heads; otherwise None."""
    head_sizes = mixer.head_sizes(input_width)
    if head_sizes is None or all(
        mixer.with_kv_heads(head_count, input_width) == mixer for head_count in (1, head_sizes.heads)
    ):
        return None
    return head_sizes


def with_replaced_mixers(spec: ModelSpec, change_mixer: MixerChange) -> ModelSpec:
    """Returns the spec after a function `change_mixer` is applied to every token mixer, including cross-attention."""
    return spec.model_copy(update={name: _changed_stack(stack, change_mixer, spec) for name, stack in spec.stacks()})


def _changed_stack(stack: Stack, change_mixer: MixerChange, spec: ModelSpec) -> Stack:
    input_width = spec.hidden_size if stack.hidden_size is None else stack.hidden_size
    variants = {name: layer.with_replaced_mixers(change_mixer, input_width) for name, layer in stack.variants.items()}
    return stack.model_copy(
        update={"block": stack.block.with_replaced_mixers(change_mixer, input_width), "variants": variants}
    )


def _mixers_with_input_widths(spec: ModelSpec) -> Iterator[tuple[TokenMixer, int]]:
    """Yields every token mixer with its input width."""
    for _, stack in spec.stacks():
        for layer in (stack.block, *stack.variants.values()):
            for _, token_mixer, input_width in layer.mixers(
                spec.hidden_size if stack.hidden_size is None else stack.hidden_size
            ):
                if isinstance(token_mixer, TokenMixer):
                    yield token_mixer, input_width
