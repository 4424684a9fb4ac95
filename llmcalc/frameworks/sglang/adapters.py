"""The memory of LoRA adapter slots in SGLang, allocated after the weights (srt/lora/mem_pool.py, `LoRAMemoryPool`).

Each targeted matrix of a layer has, for each of `max_loras_per_batch` slots, `max_lora_rank` rows over its inputs and
as many over its outputs. Queries, keys and values are one target, and so are gate and up-projection; each of them has
rows of its own. Adapters beyond the slots wait on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError, short_repr
from ...ops import ExpertLinear, Linear
from ..engines.rank import EngineRank

DEFAULT_SLOTS = 8
"""Default value of --max-loras-per-batch."""

QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")

MATRICES_BY_TARGET = {
    **dict.fromkeys((*QKV, "qkv_proj"), QKV), "o_proj": ("o_proj",),
    **dict.fromkeys((*GATE_UP, "gate_up_proj"), GATE_UP), "down_proj": ("down_proj",),
}  # fmt: skip
"""Value of --lora-target-modules → matrices with slots (srt/lora/utils.py, `get_normalized_target_modules`)."""


SEPARATORS = str.maketrans(",[]'\"", "     ")
"""Translation of the characters between names in --lora-target-modules (YAML or Python lists) to spaces."""


def adapted_matrices(flags: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names of the matrices that have adapter slots.

    Raises `InputError` for names that are not modelled.
    """
    target_names = flags.get("lora_target_modules")
    if target_names is None:
        raise InputError(
            "--enable-lora: SGLang takes matrices and rank from the adapters' own configs; expected "
            "--lora-target-modules all and --max-lora-rank 16, or those of the adapters"
        )
    target_words = str(target_names).translate(SEPARATORS).split()
    unknown_targets = [
        target_word for target_word in target_words if target_word not in MATRICES_BY_TARGET and target_word != "all"
    ]
    if unknown_targets or not target_words:
        wrong_target = short_repr(unknown_targets[0] if unknown_targets else "")
        raise InputError(
            f"--lora-target-modules {wrong_target}: is not modelled; expected all, or some of "
            f"{', '.join(MATRICES_BY_TARGET)}"
        )
    chosen_targets = MATRICES_BY_TARGET if "all" in target_words else target_words
    return frozenset(matrix_name for target_name in chosen_targets for matrix_name in MATRICES_BY_TARGET[target_name])


def adapter_bytes(engine_rank: EngineRank, flags: Mapping[str, Any], element_bytes: int) -> int:
    """Returns the bytes of all LoRA adapter slots on a rank; 0 without adapters.

    element_bytes: bytes of an element of the model, which the slots take.
    Raises `InputError` for a missing rank and for layers whose adapters are not modelled.
    """
    if not flags.get("enable_lora") and "lora_paths" not in flags:
        return 0
    adapted_names = adapted_matrices(flags)
    if "max_lora_rank" not in flags:
        raise InputError("--enable-lora: expected --max-lora-rank too, the largest rank of the adapters")
    if engine_rank.state_caches or engine_rank.up_projection_elements:
        raise InputError("--enable-lora: adapters of latent and of recurrent layers are not modelled; remove the flag")
    total_width = 0
    for tree_node in engine_rank.model.tree().walk():
        layer_op = tree_node.node.op
        if tree_node.optional_part or tree_node.node.name not in adapted_names:
            continue
        if isinstance(layer_op, ExpertLinear):
            raise InputError("--enable-lora: adapters of experts are not modelled; expected --lora-target-modules "
                             "qkv_proj o_proj")  # fmt: skip
        if isinstance(layer_op, Linear):
            total_width += int(tree_node.copies * (layer_op.n_in + layer_op.n_out))
    return (
        int(flags.get("max_loras_per_batch", DEFAULT_SLOTS)) * int(flags["max_lora_rank"]) * element_bytes * total_width
    )
