"""Speculative decoding in TensorRT-LLM (_torch/speculative/utils.py): MTP modules or a draft model, and the cache.

Modules of multi-token prediction cache one layer each; a single module is replayed for every drafted token
(`get_num_spec_layers`). A draft of Eagle 3 adds its weights and its own layers of cache (_torch/pyexecutor/_util.py,
`_get_kv_size_per_token`). Tokens that are found in earlier ones take nothing on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...costs.draft import check_draft, target_state_reader
from ...errors import InputError, short_repr
from ...sources.preset import Preset
from ..engines.draft_models import read_draft_model

SPECULATION_FLAG = "--speculative_config"

EAGLE_TYPES = ("eagle", "eagle3")
"""Values of `decoding_type` whose draft reads the target's hidden states."""

MODEL_KEYS = ("speculative_model", "speculative_model_dir")
"""Keys that name the draft model, in 1.2 and later and in earlier versions."""

UNMODELLED_KEYS = {"mtp_eagle_one_model": False, "use_mtp_vanilla": True, "eagle3_model_arch": "mistral_large3"}
"""Key → value that selects a drafting method whose memory is not modelled."""


class Speculation(NamedTuple):
    """The settings of speculative decoding in TensorRT-LLM: multi-token-prediction modules or a draft model.

    uses_mtp: whether the model's own modules draft. draft_model: the draft model; None without one.
    """

    uses_mtp: bool = False
    draft_model: Preset | None = None


def speculation_of(flags: Mapping[str, Any], preset: Preset) -> Speculation:
    """Returns the settings of speculative decoding in a server's flags. Raises `InputError` for unmodelled methods."""
    config = flags.get("speculative_config", {})
    if not config:
        return Speculation()
    decoding_type = str(config.get("decoding_type", "")).lower()
    for unmodelled_key, unmodelled_value in UNMODELLED_KEYS.items():
        if str(config.get(unmodelled_key)).lower() == str(unmodelled_value).lower():
            raise InputError(
                f"{SPECULATION_FLAG}: {unmodelled_key}: {short_repr(config[unmodelled_key])} "
                "is not modelled; remove the key"
            )
    model_table = next(
        (config[unmodelled_key] for unmodelled_key in MODEL_KEYS if config.get(unmodelled_key) is not None), None
    )
    if decoding_type == "ngram":
        return Speculation()
    if decoding_type == "mtp" and model_table is None:
        if preset.model.mtp is None:
            raise InputError(
                f"{SPECULATION_FLAG}: decoding_type MTP: llmcalc counts no modules of multi-token prediction of this "
                "model; "
                "expected the run without speculative_config"
            )
        return Speculation(uses_mtp=True)
    if not decoding_type:
        raise InputError(
            f"{SPECULATION_FLAG}: states no decoding_type; expected MTP, Eagle3 with speculative_model, or NGram"
        )
    if decoding_type not in EAGLE_TYPES or not isinstance(model_table, str | Preset):
        named_model = "" if model_table is None else f" with {short_repr(model_table)}"
        raise InputError(
            f"{SPECULATION_FLAG}: decoding_type {short_repr(config.get('decoding_type'))}{named_model} is not "
            "modelled; expected "
            "MTP without a model, Eagle3 with speculative_model, or NGram"
        )
    draft_model = read_draft_model(model_table, f"{SPECULATION_FLAG}: speculative_model", "a folder or a hub id")
    if target_state_reader(draft_model.model) is None:
        raise InputError(
            f"{SPECULATION_FLAG}: {draft_model.name} reads no hidden states of its target; expected a draft of Eagle 3"
        )
    check_draft(preset.model, draft_model.model, preset.name, f"{SPECULATION_FLAG}: {draft_model.name}")
    return Speculation(draft_model=draft_model)
