"""Speculative decoding in SGLang: the draft model and the number of drafted tokens.

To 0.5.13 the default fraction reserves memory for the draft, which is loaded after the cache is sized. From 0.5.14 on
its weights are loaded before, and a token of the cache has the draft's layers too, each as wide as one of the target's
(model_executor/pool_configurator.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...costs.draft import check_draft, states_reader_of
from ...errors import InputError
from ...sources.preset import Preset
from ..engines.draft_models import read_draft

ALGORITHMS_WITHOUT_WEIGHTS = ("ngram",)
"""Algorithms that draft without a model."""

DEFAULT_REQUESTS_WITH_DRAFTS = 48
"""Most requests that run at once where tokens are drafted, unless `--max-running-requests` says another number."""

FLAG = "--speculative-draft-model-path"


class Speculation(NamedTuple):
    """The settings of speculative decoding.

    verified_tokens: drafted tokens that a request verifies at once; 0 without drafts.
    with_mtp: whether the model's own modules draft. draft: the draft model; None without one, or if it is not counted.
    """

    verified_tokens: int = 0
    with_mtp: bool = False
    draft: Preset | None = None


NO_DRAFTS = Speculation()


def speculation_of(
    flags: Mapping[str, Any], preset: Preset, is_counted: bool, architectures: tuple[str, ...]
) -> Speculation:
    """Returns the speculative decoding of a server's flags.

    is_counted: whether the version takes the draft from the cache's memory.
    architectures: names of the model's classes.
    Raises `InputError` where a draft is counted and cannot be read.
    """
    draft_algorithm = flags.get("speculative_algorithm")
    if draft_algorithm is None:
        return NO_DRAFTS
    tokens = _verified_tokens(flags, str(draft_algorithm), architectures)
    if draft_algorithm in ALGORITHMS_WITHOUT_WEIGHTS or not is_counted:
        return Speculation(tokens)
    draft_path = flags.get("speculative_draft_model_path")
    if draft_path is None:
        if preset.model.mtp is None:
            raise InputError(
                f"--speculative-algorithm {draft_algorithm}: llmcalc counts no modules of multi-token prediction of "
                f"this model; expected {FLAG} too, or the run without the flag"
            )
        return Speculation(tokens, with_mtp=True)
    draft_model = read_draft(draft_path, f"{FLAG}:", "a folder or a hub id")
    if draft_algorithm != "standalone" and states_reader_of(draft_model.model) is None:
        if preset.model.mtp is None:
            raise InputError(
                f"{FLAG}: {draft_model.name} reads no hidden states of its target; expected --speculative-algorithm "
                "standalone"
            )
        return Speculation(tokens, with_mtp=True)  # the path of the target itself, whose modules draft
    check_draft(preset.model, draft_model.model, preset.name, f"{FLAG}: {draft_model.name}")
    return Speculation(tokens, draft=draft_model)


def _verified_tokens(flags: Mapping[str, Any], draft_algorithm: str, architectures: tuple[str, ...]) -> int:
    """Returns the tokens that a request verifies at once (`auto_choose_speculative_params`)."""
    if "speculative_num_draft_tokens" in flags:
        return int(flags["speculative_num_draft_tokens"])
    if draft_algorithm == "ngram":
        return 12
    if "speculative_num_steps" in flags:
        return int(flags["speculative_num_steps"]) + 1
    return 8 if draft_algorithm != "standalone" and "LlamaForCausalLM" in architectures else 4


def draft_vocabulary_tables(speculation: Speculation, preset: Preset) -> tuple[str, ...]:
    """Returns the tables of the target's vocabulary that the class of a draft allocates: `embed_tokens`, `lm_head`.

    They are released for those of the target after the KV cache is sized (speculative/eagle_worker_v2.py,
    `alloc_memory_pool` and `init_lm_head`).
    """
    if speculation.draft is not None:
        return speculation.draft.model.from_target
    if not speculation.with_mtp:
        return ()
    return ("embed_tokens",) if preset.model.tie_word_embeddings else ("embed_tokens", "lm_head")


def draft_layers(speculation: Speculation, preset: Preset) -> int:
    """Returns the number of draft layers, each of which caches the same tokens as the target model.

    Modules with a window are those of MiMo-V2, of which its configs state no number: SGLang then counts none
    (model_executor/model_runner_components/spec_aux_hidden_state.py, `_resolve_eagle_aux_hidden_state`).
    """
    if speculation.draft is not None:
        return sum(int(layer_stack.num_hidden_layers) for _, layer_stack in speculation.draft.model.stacks())
    mtp_part = preset.model.mtp
    if mtp_part is None or not speculation.with_mtp:
        return 0
    if getattr(mtp_part.prediction_block(preset.model.main).attention, "sliding_window", None) is not None:
        return 0
    return 1 if mtp_part.repeated else int(mtp_part.num_nextn_predict_layers)
