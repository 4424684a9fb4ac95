"""Conventions and phrases that several views state, in the same words in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import units
from ..costs.context_length import beyond
from ..flow.tree import Node
from ..model import ModelSpec
from ..ops.base import SPARED
from ..sources.preset import Preset
from ..workload.workload import Workload

MULTIPLY_ADD = "1 multiply-add = 2 FLOPs"
PRODUCTS = (
    f"{MULTIPLY_ADD}; matrix multiplications only, as in torch.utils.flop_counter: embedding lookups, norms, softmax "
    "and activations are not counted"
)
FULL_PAIRS = "full pairs: every query against every key (no causal-mask saving)"
CAUSAL_PAIRS = "causal pairs: only the pairs that the attention mask allows (causal, sliding-window, chunked)"
PAIRS = {"full": FULL_PAIRS, "causal": CAUSAL_PAIRS}

MLA = {
    "expanded": "MLA expanded: kv_b_proj makes keys and values of each head from the latents",
    "absorbed": "MLA absorbed: kv_b_proj is applied to queries and to outputs, and each head attends to the latents",
}
"""The two forms of latent attention, and what each of them runs (DeepSeek-V2, arXiv:2405.04434, §2.1.2)."""
ONE_OUTPUT = "decode: a convolution computes the new token's output alone, from the inputs that its state keeps"
ONE_STEP = "decode: a recurrence takes one step from the state that it keeps"
CHOSEN_KEYS = "decode: attention reads the chosen keys alone; a pass over several tokens computes all scores and masks"

_BINARY = {"KiB": "2^10", "MiB": "2^20", "GiB": "2^30", "TiB": "2^40"}


def binary(scale: units.Scale) -> str:
    """`1 GiB = 2^30 bytes`."""
    return f"1 {scale.name} = {_BINARY[scale.name]} bytes" if scale.name in _BINARY else ""


def flops_a_token(seq: int) -> str:
    """What a forward pass's FLOPs a token are, where one number stands for them."""
    return (
        f"FLOPs per token: matrix multiplications of a forward pass, {MULTIPLY_ADD}, full pairs, sequences of {seq:,} "
        "tokens, logits at every position"
    )


def cache_a_token(dtype: str) -> str:
    """What a cache's bytes a token are, where one number stands for them."""
    return f"KV cache per token: summed over all layers, before any sliding window fills, in {units.short_dtype(dtype)}"


def against(difference: float, what: str) -> str:
    """`−6.7 % against the exact count`, `equal to the exact count`."""
    return f"equal to {what}" if difference == 0 else f"{units.signed_percent(difference)} against {what}"


def plural(number: int, noun: str) -> str:
    """`1 token`, `2,048 tokens`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def tokens_of(spec: ModelSpec, w: Workload) -> str:
    """`2,048 tokens`, `16 × 1 tokens after 8,192`, `2,048 tokens, 2,048 in the encoder`."""
    new = plural(w.seq, "token") if w.batch == 1 else f"{w.batch:,} × {w.seq:,} tokens"
    after = f" after {w.context:,}" if w.context else ""
    return (
        new
        + after
        + (
            f", {w.source if spec.source_tokens is None else spec.source_tokens:,} in the encoder"
            if spec.kind == "encoder-decoder"
            else ""
        )
    )


def too_long(spec: ModelSpec, w: Workload) -> list[str]:
    """A note where a sequence has more tokens than the model was made for."""
    longest = w.context + w.seq
    if spec.kind == "encoder-decoder":
        longest = max(longest, w.source)
    text = beyond(spec, longest)
    return [text] if text else []


def warned(preset: Preset, notes: Sequence[str]) -> list[str]:
    """Notes as warnings, which stand away from the table that says whose they are."""
    return [f"{preset.name}: {note}" for note in notes]


def identity_experts(tree: Node) -> str:
    """How tokens are counted whose experts may be identity experts; empty for a model without them."""
    ops = (place.node.op for place in tree.walk())
    found: Any = dict.fromkeys(op for op in ops if op is not None and op.effects >= SPARED)
    which = ", ".join(f"{one.maps[0].top_k} of {one.maps[0].num_experts:,} beside {one.count:,}" for one in found)
    return (
        f"upper bound: every token is counted with real experts ({which} identity experts, which hold and compute "
        "nothing)"
        if found
        else ""
    )


def also_called(aliases: Sequence[str]) -> str:
    """`also called: h100, h100-80gb`."""
    return f"also called: {', '.join(aliases)}" if aliases else ""
