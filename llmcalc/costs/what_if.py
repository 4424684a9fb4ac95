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

Change: TypeAlias = Callable[[TokenMixer, int], TokenMixer]
"""A function of a token mixer and its input width that returns the changed token mixer."""


@frozen(slots=True)
class ModelChange:
    """A change to a model. key: the JSON name. title: the name in tables."""

    key: str
    title: str


GROUPS = 8


def changed_models(spec: ModelSpec) -> Iterator[tuple[ModelChange, ModelSpec]]:
    """Yields the changed models, without changes that have no effect on the model."""
    heads = [
        head_sizes.heads
        for mixer, width in _mixers_and_widths(spec)
        if (head_sizes := _cached_heads(mixer, width)) is not None
    ]
    changes: list[tuple[ModelChange, Change]] = [(ModelChange("mha", "as MHA"), _as_multi_head_attention)]
    if heads and all(head_count % GROUPS == 0 and head_count > GROUPS for head_count in heads):
        changes.append(
            (ModelChange("gqa_8", f"as GQA-{GROUPS}"), lambda mixer, width: mixer.with_kv_heads(GROUPS, width))
        )
    changes.append((ModelChange("mqa", "as MQA"), lambda mixer, width: mixer.with_kv_heads(1, width)))
    changes.append((ModelChange("no_windows", "without windows"), lambda mixer, _: mixer.without_window()))
    for model_change, change in changes:
        changed_spec = with_mixers(spec, change)
        if any(getattr(changed_spec, name) != getattr(spec, name) for name in type(spec).model_fields):
            yield model_change, changed_spec


def _as_multi_head_attention(mixer: TokenMixer, width: int) -> TokenMixer:
    head_sizes = mixer.head_sizes(width)
    return mixer if head_sizes is None else mixer.with_kv_heads(head_sizes.heads, width)


def _cached_heads(mixer: TokenMixer, width: int) -> HeadSizes | None:
    """Returns the heads of a mixer whose cache size depends on key/value heads; None for other mixers."""
    head_sizes = mixer.head_sizes(width)
    if head_sizes is None or all(
        mixer.with_kv_heads(head_count, width) == mixer for head_count in (1, head_sizes.heads)
    ):
        return None
    return head_sizes


def with_mixers(spec: ModelSpec, change: Change) -> ModelSpec:
    """Returns the spec after a function `change` is applied to every token mixer, including cross-attention."""
    return spec.model_copy(
        update={stack_name: _changed_stack(stack, change, spec) for stack_name, stack in spec.stacks()}
    )


def _changed_stack(stack: Stack, change: Change, spec: ModelSpec) -> Stack:
    width = spec.hidden_size if stack.hidden_size is None else stack.hidden_size
    variants = {variant_name: layer.with_mixers(change, width) for variant_name, layer in stack.variants.items()}
    return stack.model_copy(update={"block": stack.block.with_mixers(change, width), "variants": variants})


def _mixers_and_widths(spec: ModelSpec) -> Iterator[tuple[TokenMixer, int]]:
    """Yields every token mixer with its input width."""
    for _, stack in spec.stacks():
        for layer in (stack.block, *stack.variants.values()):
            for _, mixer, width in layer.mixers(spec.hidden_size if stack.hidden_size is None else stack.hidden_size):
                if isinstance(mixer, TokenMixer):
                    yield mixer, width
