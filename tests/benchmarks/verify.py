"""Compares verifying Llama 3.1 405B on meta with building `transformers`' model of it on meta and counting one forward
pass.
"""

from __future__ import annotations

import logging
from typing import Any

import llmcalc
from llmcalc.witnesses.reference import default_seq, verify_reference

from .timing import calls, line

RUNS = 3
TARGET = "llama3.1-405b"


def transformers_forward(spec: llmcalc.ModelSpec, seq: int) -> int:
    """FLOPs of one forward pass of `LlamaForCausalLM` of the same sizes, eager attention, on meta."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import LlamaConfig, LlamaForCausalLM

    block: Any = spec.main.block
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=block.feed_forward.intermediate_size,
        num_hidden_layers=spec.main.num_hidden_layers,
        num_attention_heads=block.attention.num_attention_heads,
        num_key_value_heads=block.attention.num_key_value_heads,
        head_dim=block.attention.head_dim,
        tie_word_embeddings=spec.tie_word_embeddings,
        attn_implementation="eager",
        dtype=torch.bfloat16,
    )
    with torch.device("meta"), torch.no_grad():
        model = LlamaForCausalLM(config)
        ids = torch.empty(1, seq, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(input_ids=ids, use_cache=True)  # without a cache the masking code reads the value of a meta tensor
    return int(counter.get_total_flops())


def main() -> None:
    """Prints the two times and their ratio, after checking that both witnesses agree."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    spec = llmcalc.load(TARGET).model
    seq = default_seq(spec)
    verdict = verify_reference(spec, TARGET, "meta", seq=seq)
    measured, expected = transformers_forward(spec, seq), llmcalc.flops(spec, seq=seq).total
    ours, every, theirs = calls(
        [
            lambda: verify_reference(spec, TARGET, "meta", seq=seq),
            lambda: verify_reference(spec, TARGET, "meta", seq=seq, every_layer=True),
            lambda: transformers_forward(spec, seq),
        ],
        RUNS,
    )
    print(f"verify: {TARGET} on meta, {seq} tokens, imports not counted (median of {RUNS})")
    line("llmcalc: parameters, forward, train, prefill, decode, cache", f"{ours:.2f} s")
    line("llmcalc: the same, every one of the layers run", f"{every:.2f} s")
    line("transformers: build and count one forward pass", f"{theirs:.2f} s")
    line("ratio, layers built alike run once", f"{ours / theirs:.2f}", "< 1")
    line("ratio, every layer run", f"{every / theirs:.2f}")
    line(f"checks of llmcalc: {len(verdict.checks)}, all equal", str(all(check.ok for check in verdict.checks)))
    line("transformers' FLOPs equal the closed form", str(measured == expected))
