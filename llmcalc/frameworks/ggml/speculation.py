"""Speculative decoding in llama-server (common/speculative.cpp): the number of drafted tokens, and the draft model.

A draft model has buffers of its own, with a context as long as the target's and caches of its own type
(`common_speculative_init_result`). So have the model's own modules of multi-token prediction (`draft-mtp`): their
tensors, a cache as long as the target's, and a graph; and recurrent states of the target are kept for every drafted
token, so that a rejected one can be taken back (src/llama-memory-recurrent.cpp). Tokens that are found in earlier ones
take nothing on a device. All make the target compute the logits of all drafted tokens of a slot
(`common_speculative_get_output_limits`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...costs.draft import check_draft, target_state_reader
from ...errors import InputError, short_repr
from ...sources.preset import Preset
from ...sources.presets import known_checkpoint
from ..engines.draft_models import read_draft_model

DRAFT_TOKENS = 3
"""Default number of drafted tokens (--spec-draft-n-max; common/common.h, `common_params_speculative_draft`)."""

MTP_DRAFT_TYPE = "draft-mtp"
"""Type of speculative decoding with the model's multi-token-prediction modules."""

TOKENS_OF_TYPES = {
    "none": ("", 0),
    "ngram-simple": ("spec_ngram_simple_size_m", 48),
    "ngram-map-k": ("spec_ngram_map_k_size_m", 48),
    "ngram-map-k4v": ("spec_ngram_map_k4v_size_m", 48),
    "ngram-mod": ("spec_ngram_mod_n_max", 64),
    "ngram-cache": ("", 8),
    "draft-simple": ("draft_max", DRAFT_TOKENS),
    MTP_DRAFT_TYPE: ("draft_max", DRAFT_TOKENS),
}
"""Type of speculative decoding → the flag for its number of drafted tokens, and the default."""

TARGET_FLAGS = {
    "n_gpu_layers_draft": "n_gpu_layers",
    "cache_type_k_draft": "cache_type_k",
    "cache_type_v_draft": "cache_type_v",
    "override_tensor_draft": "override_tensor",
    "n_cpu_moe_draft": "n_cpu_moe",
    "cpu_moe_draft": "cpu_moe",
    "device_draft": "device",
}
"""Flag of the draft model → the equivalent flag of the target model."""

INHERITED_FLAGS = (
    "flash_attn", "batch_size", "ubatch_size", "no_kv_offload", "swa_full", "device", "tensor_split", "split_mode",
    "no_op_offload",
)  # fmt: skip
"""Flags of the target model that apply to the draft model too (`common_base_params_to_speculative`)."""


def drafting_types(flags: Mapping[str, Any]) -> list[str]:
    """Returns the drafting methods in --spec-type."""
    return [drafting_type.strip() for drafting_type in str(flags.get("spec_type", "none")).lower().split(",")]


def drafted_tokens(flags: Mapping[str, Any]) -> int:
    """Returns the largest number of drafted tokens per slot. Raises `InputError` for methods that are not modelled."""
    chosen_types = drafting_types(flags)
    if flags.get("model_draft") and MTP_DRAFT_TYPE not in chosen_types:
        chosen_types.append("draft-simple")
    token_count = 0
    for drafting_type in chosen_types:
        if drafting_type not in TOKENS_OF_TYPES:
            raise InputError(
                f"--spec-type {short_repr(drafting_type)}: is not modelled; expected --model-draft, or one of "
                f"{', '.join(TOKENS_OF_TYPES)}"
            )
        flag, default_tokens = TOKENS_OF_TYPES[drafting_type]
        token_count = max(token_count, int(flags.get(flag, default_tokens)))
    return token_count


def draft_model_of(flags: Mapping[str, Any], target_model: Preset) -> Preset | None:
    """Returns the draft model; None without one. Raises `InputError` if it does not fit the target model."""
    draft_name = flags.get("model_draft")
    if not draft_name or MTP_DRAFT_TYPE in drafting_types(flags):
        return None
    named_checkpoint = _checkpoint_by_name(str(draft_name))
    if named_checkpoint is not None:
        draft_model = named_checkpoint[0]
    else:
        draft_model = read_draft_model(
            str(draft_name), "--model-draft", "a GGUF file, a folder or a hub id as its model"
        )
    if target_state_reader(draft_model.model) is not None:
        raise InputError(f"--model-draft {draft_model.name}: reads hidden states of its target, which is not modelled")
    check_draft(target_model.model, draft_model.model, target_model.name, f"--model-draft: {draft_model.name}")
    return draft_model


def draft_scheme(flags: Mapping[str, Any]) -> str | None:
    """Returns the quantization scheme that a draft file's name states, if the file is not here; else None."""
    named_checkpoint = _checkpoint_by_name(str(flags.get("model_draft") or ""))
    return None if named_checkpoint is None else named_checkpoint[1] or None


def modules_scheme(flags: Mapping[str, Any], target_model: Preset) -> str | None:
    """Returns the quantization scheme that the name of a separate file of multi-token-prediction modules states.

    Such a file has the modules and a second copy of embeddings, last norm and output matrix (`--mtp` of
    convert_hf_to_gguf.py, which names it mtp-….gguf). None without such a file. Raises `InputError` for a file whose
    name states no scheme, or a model of other widths.
    """
    file_name = str(flags.get("model_draft") or "")
    if not file_name or MTP_DRAFT_TYPE not in drafting_types(flags):
        return None
    base_name = file_name.replace("\\", "/").rpartition("/")[2].removeprefix("mtp-")
    named_checkpoint = known_checkpoint(base_name) if base_name.lower().endswith(".gguf") else None
    model_sizes = {
        (preset.model.hidden_size, preset.model.vocab_size)
        for preset in (target_model, *(() if named_checkpoint is None else named_checkpoint[:1]))
    }
    if named_checkpoint is None or not named_checkpoint[1] or len(model_sizes) > 1:
        raise InputError(
            f"--model-draft {short_repr(file_name)}: with --spec-type {MTP_DRAFT_TYPE}, expected a file of "
            f"{target_model.name}'s "
            "modules with its format in the name, such as mtp-NAME-Q8_0.gguf; or without --model-draft, for modules in "
            "the model's file"
        )
    return named_checkpoint[1]


def _checkpoint_by_name(draft_name: str) -> tuple[Preset, str] | None:
    """Returns the preset and the quantization scheme that the name of a GGUF file or of its repository states.

    None for a file that is here, and for a name that states none.
    """
    is_gguf_name = draft_name.lower().endswith(".gguf") or "gguf:" in draft_name.lower()
    return known_checkpoint(draft_name) if is_gguf_name and not Path(draft_name).is_file() else None


def draft_flags(flags: Mapping[str, Any], context_tokens: int, sequence_count: int, is_unified: bool) -> dict[str, Any]:
    """Returns the flags for the draft model as a server. context_tokens: the tokens in the target model's cache."""
    inherited_flags = {flag_name: flags[flag_name] for flag_name in INHERITED_FLAGS if flag_name in flags}
    chosen_flags = {
        target_field: flags[flag_field] for flag_field, target_field in TARGET_FLAGS.items() if flag_field in flags
    }
    return {
        **inherited_flags, **chosen_flags,
        "ctx_size": context_tokens, "parallel": sequence_count, "kv_unified": is_unified, "fit": "off",
    }  # fmt: skip
