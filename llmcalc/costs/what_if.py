"""The same model with other key/value heads or without windows: changed specs, to be counted as any other.

Multi-head, grouped-query and multi-query attention differ in `num_key_value_heads` alone (Ainslie 2023,
arXiv:2305.13245). Latent attention (DeepSeek-V2, arXiv:2405.04434, §2.1) that cached n heads' keys and values, each of
a head's own size, would keep n·(qk_nope_head_dim + qk_rope_head_dim + v_head_dim) elements a token in place of its
latent: it is counted as a latent that wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ..components.attention import Attention
from ..components.block import Layer
from ..components.mla import MLA
from ..components.stack import Stack
from ..model import ModelSpec

if TYPE_CHECKING:
    from ..components.merged import MergedAttention

    Softmax: TypeAlias = Attention | MLA | MergedAttention

Change: TypeAlias = Callable[[Any], Any]
"""An attention part → the one in its place."""


@dataclass(frozen=True, slots=True)
class What:
    """key: its name in JSON. title: what a table calls it."""

    key: str
    title: str


GROUPS = 8


def what_ifs(spec: ModelSpec) -> Iterator[tuple[What, ModelSpec]]:
    """Every change that changes something."""
    heads = [mixer.num_attention_heads for mixer in _mixers(spec) if _changes(mixer)]
    h = spec.hidden_size
    asked = [(What("mha", "as MHA"), lambda m: with_kv_heads(m, m.num_attention_heads, h))]
    if heads and all(a % GROUPS == 0 and a > GROUPS for a in heads):
        asked.append((What("gqa_8", f"as GQA-{GROUPS}"), lambda m: with_kv_heads(m, GROUPS, h)))
    asked.append((What("mqa", "as MQA"), lambda m: with_kv_heads(m, 1, h)))
    asked.append((What("no_windows", "without windows"), without_window))
    for what, change in asked:
        changed = with_attention(spec, change)
        if changed != spec:
            yield what, changed


def with_kv_heads(mixer: Softmax, heads: int, hidden_size: int) -> Softmax:
    """The same attention with so many key/value heads, all of which are cached."""
    if isinstance(mixer, Attention):
        return (
            mixer if mixer.sizes(hidden_size)[1] == heads else mixer.model_copy(update={"num_key_value_heads": heads})
        )
    if mixer.type == "merged":
        return mixer.model_copy(update={"num_key_value_heads": heads})
    nope, rope, v = mixer.qk_nope_head_dim, mixer.qk_rope_head_dim, mixer.v_head_dim
    return mixer.model_copy(update={"kv_lora_rank": heads * (nope + rope + v) - rope})


def without_window(mixer: Softmax) -> Softmax:
    """The same attention over all tokens before."""
    if isinstance(mixer, MLA) or (
        mixer.sliding_window is None and getattr(mixer, "attention_chunk_size", None) is None
    ):
        return mixer
    return mixer.model_copy(
        update={"sliding_window": None, **({"attention_chunk_size": None} if isinstance(mixer, Attention) else {})}
    )


def with_attention(spec: ModelSpec, change: Change) -> ModelSpec:
    """The spec with `change` made to all its softmax and latent attention, cross-attention included."""
    return spec.model_copy(update={side: _changed_stack(stack, change) for side, stack in spec.stacks()})


def _changed_stack(stack: Stack, change: Change) -> Stack:
    variants = {name: _changed_block(block, change) for name, block in stack.variants.items()}
    return stack.model_copy(update={"block": _changed_block(stack.block, change), "variants": variants})


def _changed_block(block: Layer, change: Change) -> Layer:
    found = {name: getattr(block, name) for name in ("attention", "cross_attention")}
    return block.model_copy(update={name: change(mixer) for name, mixer in found.items() if _changes(mixer)})


def _changes(mixer: Any) -> bool:
    """Whether it is attention that is changed here."""
    return isinstance(mixer, Attention | MLA) or getattr(mixer, "type", "") == "merged"


def _mixers(spec: ModelSpec) -> Iterator[Any]:
    for _, stack in spec.stacks():
        for block in (stack.block, *stack.variants.values()):
            yield block.attention
            if block.cross_attention is not None:
                yield block.cross_attention
