"""Speculative decoding in vLLM (vllm/config/speculative.py): the draft model and the number of drafted tokens.

Modules of multi-token prediction add their weights and one layer of cache each; a draft model adds its own, and one
that reads hidden states shares the target's embedding or head (v1/spec_decode/eagle.py). Tokens that are found in the
prompt or in earlier answers take nothing on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...components.draft_heads import MedusaHeads, SpeculatorHeads
from ...components.head import LMHead
from ...costs.draft import check_draft, target_state_reader
from ...errors import InputError, short_repr
from ...sources.preset import Preset
from ..engines.draft_models import read_draft_model

METHODS_WITHOUT_WEIGHTS = ("ngram", "suffix")
"""Drafting methods without a draft model."""

MEDUSA_METHOD = "medusa"

STATE_METHODS = ("eagle", "eagle3", "dflash", "dspark", MEDUSA_METHOD)
"""Methods whose draft reads the target's hidden states; Medusa's is heads without layers and cache."""

SPECULATION_FLAG = "--speculative-config"

KEYS_OF_FLAGS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
"""Field of a separate flag → the equivalent key in the table of `--speculative-config`."""

UNMODELLED_KEYS = ("draft_tensor_parallel_size", "max_model_len", "quantization")
"""Keys that change the draft model's memory and are not modelled."""


class Speculation(NamedTuple):
    """The settings of speculative decoding in vLLM: the number of drafted tokens, and the draft model.

    drafted_tokens: tokens that are drafted for a step. uses_mtp: whether the model's own modules draft.
    draft_model: the draft model; None without one.
    """

    drafted_tokens: int = 0
    uses_mtp: bool = False
    draft_model: Preset | None = None


NO_SPECULATION = Speculation()


def speculation_of(flags: Mapping[str, Any], preset: Preset) -> Speculation:
    """Returns the speculative decoding of a server's flags. Raises `InputError` for unmodelled methods."""
    values_by_key = {key: flags[field_name] for field_name, key in KEYS_OF_FLAGS.items() if field_name in flags}
    speculative_config = {**flags.get("speculative_config", {}), **values_by_key}
    if not speculative_config:
        return NO_SPECULATION
    draft_tokens = speculative_config.get("num_speculative_tokens", 1)
    if isinstance(draft_tokens, bool) or not isinstance(draft_tokens, int) or not 0 < draft_tokens <= 1000:
        raise InputError(
            f"{SPECULATION_FLAG}: num_speculative_tokens: {short_repr(draft_tokens)}; expected a whole number up to "
            "1,000"
        )
    drafting_method, model_table = speculative_config.get("method"), speculative_config.get("model")
    if drafting_method is None:
        drafting_method = "ngram" if model_table == "[ngram]" else "draft_model" if model_table else None
    if drafting_method is None:
        raise InputError(
            f"{SPECULATION_FLAG}: states neither a method nor a model; expected one beside num_speculative_tokens, "
            "such as "
            '{"method": "mtp", "num_speculative_tokens": 3}'
        )
    if drafting_method in METHODS_WITHOUT_WEIGHTS:
        return Speculation(draft_tokens)
    if str(drafting_method).endswith("mtp") and model_table is None:
        if preset.model.mtp is None:
            raise InputError(
                f"{SPECULATION_FLAG}: method {short_repr(drafting_method)}: llmcalc counts no modules of multi-token "
                "prediction of "
                "this model; expected ngram, or a draft model"
            )
        return Speculation(draft_tokens, uses_mtp=True)
    if drafting_method in STATE_METHODS and model_table is None:
        raise InputError(
            f"{SPECULATION_FLAG}: method {drafting_method}: a draft within the target's checkpoint is not modelled; "
            'expected "model" too, {"method": "mtp"} or the run without the flag'
        )
    if drafting_method not in ("draft_model", *STATE_METHODS) or not isinstance(model_table, str | Preset):
        model_text = "" if model_table is None else f" with {short_repr(model_table)}"
        raise InputError(
            f"{SPECULATION_FLAG}: method {short_repr(drafting_method)}{model_text} is not modelled; expected mtp "
            "without a model, "
            f"draft_model, {', '.join(STATE_METHODS)} with one, ngram or suffix"
        )
    unmodelled_key = next((key for key in UNMODELLED_KEYS if speculative_config.get(key) is not None), None)
    if unmodelled_key is not None:
        raise InputError(f"{SPECULATION_FLAG}: {unmodelled_key} is not modelled; remove the key")
    draft_model = read_draft_model(
        model_table, f"{SPECULATION_FLAG}: the draft model", "a folder or a hub id as its model"
    )
    needs_same_vocabulary = drafting_method == "draft_model" and not speculative_config.get("use_heterogeneous_vocab")
    _check_draft(preset, draft_model, str(drafting_method), needs_same_vocabulary)
    return Speculation(draft_tokens, draft_model=draft_model)


def draft_flags(drafting_method: str, draft_model: Preset | None, draft_tokens: int) -> dict[str, Any]:
    """Returns the flags of speculative decoding. drafting_method: `mtp`, `ngram` or `model`."""
    if draft_model is not None:
        drafting_method = "draft_model" if target_state_reader(draft_model.model) is None else STATE_METHODS[1]
    return {
        "speculative_config": {"method": drafting_method, "model": draft_model, "num_speculative_tokens": draft_tokens}
    }


def _check_draft(
    target_model: Preset, draft_model: Preset, drafting_method: str, requires_same_vocabulary: bool
) -> None:
    """Raises `InputError` if a draft model does not fit the target model or the drafting method.

    requires_same_vocabulary: whether the draft's vocabulary has to have the target's size, as vLLM's own check
        requires of a draft model (`verify_equal_vocab_size_if_draft_model`).

    A draft of DFlash 2 has the method dflash too, as a start-up of 0.29 shows.
    """
    output_head = draft_model.model.head
    draft_heads = output_head.draft_heads if isinstance(output_head, LMHead) else None
    if isinstance(draft_heads, SpeculatorHeads):
        raise InputError(
            f"{SPECULATION_FLAG}: {draft_model.name}: MLP speculators are not modelled in vLLM; remove the flag"
        )
    if isinstance(draft_heads, MedusaHeads) is not (drafting_method == MEDUSA_METHOD):
        raise InputError(
            f"{SPECULATION_FLAG}: method {drafting_method}: {draft_model.name} is {'a' if draft_heads else 'no'} "
            "draft of Medusa; "
            f"expected the method {MEDUSA_METHOD} for such drafts alone"
        )
    if drafting_method in STATE_METHODS and target_state_reader(draft_model.model) is None:
        raise InputError(
            f"{SPECULATION_FLAG}: method {drafting_method}: the model {draft_model.name} reads no hidden states of "
            "its target; "
            "expected draft_model for a model of its own"
        )
    check_draft(
        target_model.model,
        draft_model.model,
        target_model.name,
        f"{SPECULATION_FLAG}: {draft_model.name}",
        requires_same_vocabulary,
    )
