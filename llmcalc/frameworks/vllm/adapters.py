"""Slots of LoRA adapters in vLLM (vllm/lora/layers), which `--enable-lora` allocates at load time.

Each linear layer of the rank has, for each of `max_loras` slots, a matrix of `max_lora_rank` rows over its inputs and
one over its outputs; of packed layers each slice has its own pair, and of experts each expert (read in 0.19 and 0.33).
Embedding and head have pairs over the whole vocabulary on every rank. Adapters beyond the slots wait on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from ...ops import Embedding, ExpertLinear, Linear
from ..engines.rank import EngineRank

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of --max-lora-rank (vllm/config/lora.py, `MaxLoRARanks`)."""

DEFAULT_LORA_RANK = 16
"""Default of --max-lora-rank."""

LARGEST_VOCABULARY = 258_048
"""Largest vocabulary size for which the output head has adapters (layers/logits_processor.py)."""

ADAPTS_EXPERTS_FROM = (0, 19)
"""First checked version in which experts have adapters."""


def adapter_slots(flags: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the number of adapter slots and the LoRA rank. Raises `InputError` for a rank that vLLM refuses."""
    slot_count, lora_rank = int(flags.get("max_loras", 1)), int(flags.get("max_lora_rank", DEFAULT_LORA_RANK))
    if lora_rank not in LORA_RANKS:
        raise InputError(f"--max-lora-rank {lora_rank}: expected one of {', '.join(map(str, LORA_RANKS))}")
    return slot_count, lora_rank


def adapter_bytes(
    engine_rank: EngineRank, flags: Mapping[str, Any], element_bytes: int, slot_sizes: tuple[int, ...]
) -> int:
    """Returns the bytes of all LoRA adapter slots on a rank; 0 without adapters.

    element_bytes: bytes of an element of the model, which `--lora-dtype auto` takes.
    Raises `InputError` for layers whose adapters are not modelled.
    """
    if not flags.get("enable_lora"):
        return 0
    slot_count, lora_rank = adapter_slots(flags)
    if engine_rank.state_caches or engine_rank.up_projection_elements:
        raise InputError("--enable-lora: adapters of latent and of recurrent layers are not modelled; remove the flag")
    adapter_element_bytes = element_bytes if flags.get("lora_dtype", "auto") == "auto" else 2
    return slot_count * lora_rank * adapter_element_bytes * _adapter_widths(engine_rank, slot_sizes)


def _adapter_widths(engine_rank: EngineRank, version_numbers: tuple[int, ...]) -> int:
    """Returns the sum of input and output widths over all matrices of a rank that have adapters."""
    total_width = 0
    vocab_size = engine_rank.vocab_size
    for tree_node in engine_rank.model.tree().walk():
        layer_op = tree_node.node.op
        if tree_node.optional_part:
            continue
        if tree_node.kind in ("embedding", "lm_head"):
            if isinstance(layer_op, Embedding | Linear) and vocab_size <= LARGEST_VOCABULARY:
                total_width += int(tree_node.copies) * (vocab_size + engine_rank.hidden_size)
        elif isinstance(layer_op, ExpertLinear):
            if version_numbers < ADAPTS_EXPERTS_FROM:
                raise InputError("--enable-lora: adapters of experts are modelled from vLLM 0.19 on; remove the flag")
            total_width += int(tree_node.copies * layer_op.num_experts * (layer_op.n_in + layer_op.n_out))
        elif isinstance(layer_op, Linear):
            total_width += int(tree_node.copies * (layer_op.n_in + layer_op.n_out))
    return total_width
