"""Speculative decoding in SGLang: the draft model and the number of drafted tokens.

To 0.5.13 the default fraction reserves memory for the draft, which is loaded after the cache is sized. From 0.5.14 on
its weights are loaded before, and a token of the cache has the draft's layers too, each as wide as one of the target's
(model_executor/pool_configurator.py). A draft that proposes a block of tokens in one pass (DFlash, DSpark) has a cache
of its own width from 0.5.18 on (sglang pull 34234), and neither embedding nor head (models/dflash.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...costs.draft import check_draft, target_state_reader
from ...errors import InputError, short_repr
from ...sources.preset import Preset
from ..argument_names import keyword_of
from ..engines.draft_models import read_draft_model

ALGORITHMS_WITHOUT_WEIGHTS = ("ngram",)
"""Drafting algorithms without a draft model."""

BLOCK_ALGORITHMS = {"dflash": 16, "dspark": 8}
"""Algorithm that drafts a block of tokens in one pass → number of tokens that a request verifies by default.

They are those of a config without a block size (arg_groups/speculative_hook.py, `_handle_dflash`), and of DSpark those
of blocks of 7 (`DEFAULT_DSPARK_GAMMA`), which verifies a token more than a block has.
"""

BONUS_TOKENS = {"dflash": 0, "dspark": 1}
"""Algorithm that drafts blocks → number of tokens that a request verifies in addition to a block."""

MAX_BLOCK_TOKENS = 10_000
"""Largest block size that is accepted in a draft's config."""

DEFAULT_REQUESTS_WITH_DRAFTS = 48
"""Default limit of concurrent requests with speculative decoding, unless `--max-running-requests` states another."""

DRAFT_MODEL_FLAG = "--speculative-draft-model-path"


class Speculation(NamedTuple):
    """The settings of speculative decoding in SGLang: the number of verified tokens, and the draft model.

    verified_tokens: drafted tokens that a request verifies at once; 0 without drafts.
    uses_mtp: whether the model's own modules draft. draft_model: the draft model; None without one, or if it is not
        counted.
    drafts_blocks: whether the draft proposes all tokens in one pass.
    """

    verified_tokens: int = 0
    uses_mtp: bool = False
    draft_model: Preset | None = None
    drafts_blocks: bool = False


NO_DRAFTS = Speculation()


def speculation_of(
    flags: Mapping[str, Any], preset: Preset, is_counted: bool, architectures: tuple[str, ...]
) -> Speculation:
    """Returns the settings of speculative decoding in a server's flags.

    is_counted: whether the version takes the draft from the cache's memory.
    architectures: names of the model's classes.
    Raises `InputError` where a draft is counted and cannot be read.
    """
    draft_algorithm = flags.get("speculative_algorithm")
    if draft_algorithm is None:
        return NO_DRAFTS
    verified_tokens = _verified_tokens(flags, str(draft_algorithm), architectures)
    drafts_a_block = draft_algorithm in BLOCK_ALGORITHMS
    if drafts_a_block:
        _check_block_draft(flags, str(draft_algorithm), is_counted)
    if draft_algorithm in ALGORITHMS_WITHOUT_WEIGHTS or not is_counted:
        return Speculation(verified_tokens)
    draft_path = flags.get("speculative_draft_model_path")
    if drafts_a_block and draft_path is None:
        raise InputError(
            f"--speculative-algorithm {draft_algorithm}: a draft within the target's checkpoint is not modelled; "
            f"expected {DRAFT_MODEL_FLAG} too"
        )
    if draft_path is None:
        if preset.model.mtp is None:
            raise InputError(
                f"--speculative-algorithm {draft_algorithm}: llmcalc counts no modules of multi-token prediction of "
                f"this model; expected {DRAFT_MODEL_FLAG} too, or the run without the flag"
            )
        return Speculation(verified_tokens, uses_mtp=True)
    draft_model = read_draft_model(draft_path, f"{DRAFT_MODEL_FLAG}:", "a folder or a hub id")
    states_reader = target_state_reader(draft_model.model)
    if draft_algorithm != "standalone" and states_reader is None:
        if drafts_a_block or preset.model.mtp is None:
            raise InputError(
                f"{DRAFT_MODEL_FLAG}: {draft_model.name} reads no hidden states of its target; expected "
                "--speculative-algorithm "
                "standalone"
            )
        return Speculation(verified_tokens, uses_mtp=True)  # the path of the target itself, whose modules draft
    if states_reader is not None and drafts_a_block is not (states_reader.start == "embedding"):
        expected_algorithm = "eagle3" if drafts_a_block else " or ".join(BLOCK_ALGORITHMS)
        raise InputError(
            f"--speculative-algorithm {draft_algorithm}: {draft_model.name} is another kind of draft; expected "
            f"{expected_algorithm}"
        )
    check_draft(preset.model, draft_model.model, preset.name, f"{DRAFT_MODEL_FLAG}: {draft_model.name}")
    if drafts_a_block and not _has_stated_verified_tokens(flags, str(draft_algorithm)):
        block_tokens = _block_size(draft_model)
        verified_tokens = verified_tokens if block_tokens is None else block_tokens + BONUS_TOKENS[str(draft_algorithm)]
    return Speculation(verified_tokens, draft_model=draft_model, drafts_blocks=drafts_a_block)


def _check_block_draft(flags: Mapping[str, Any], draft_algorithm: str, is_counted: bool) -> None:
    """Raises `InputError` for versions and layouts whose drafts of blocks are not modelled."""
    if not is_counted:
        raise InputError(f"--speculative-algorithm {draft_algorithm}: is modelled from SGLang 0.5.14 on")
    for layout_flag in ("--enable-dp-attention", "--pp-size"):
        layout_value = flags.get(keyword_of(layout_flag))
        if layout_value not in (None, False, 1):
            raise InputError(
                f"{layout_flag}: with --speculative-algorithm {draft_algorithm} is not modelled; remove one of them"
            )


def _has_stated_verified_tokens(flags: Mapping[str, Any], draft_algorithm: str) -> bool:
    """Whether a flag states how many tokens a request verifies per step, or the draft model's block size."""
    return not flags.keys().isdisjoint(("speculative_num_draft_tokens", f"speculative_{draft_algorithm}_block_size"))


def _block_size(draft_model: Preset) -> int | None:
    """Returns the block size of a draft's config, or of its `dflash_config` (`parse_dflash_draft_config`).

    None for a draft without one. Raises `InputError` for another value than a positive whole number.
    """
    block_size = (draft_model.config or {}).get("block_size")  # the config has the fields of that table
    if block_size is None:
        return None
    if isinstance(block_size, bool) or not isinstance(block_size, int) or not 0 < block_size <= MAX_BLOCK_TOKENS:
        raise InputError(
            f"{DRAFT_MODEL_FLAG}: {draft_model.name}: block_size: {short_repr(block_size)}; expected a whole number "
            "from 1 to "
            f"{MAX_BLOCK_TOKENS:,}"
        )
    return block_size


def _verified_tokens(flags: Mapping[str, Any], draft_algorithm: str, architectures: tuple[str, ...]) -> int:
    """Returns the number of tokens that a request verifies at once (`auto_choose_speculative_params`)."""
    if "speculative_num_draft_tokens" in flags:
        return int(flags["speculative_num_draft_tokens"])
    if draft_algorithm in BLOCK_ALGORITHMS:
        block_tokens = flags.get(f"speculative_{draft_algorithm}_block_size")
        if block_tokens is None:
            return BLOCK_ALGORITHMS[draft_algorithm]
        return int(block_tokens) + BONUS_TOKENS[draft_algorithm]
    if draft_algorithm == "ngram":
        return 12
    if "speculative_num_steps" in flags:
        return int(flags["speculative_num_steps"]) + 1
    return 8 if draft_algorithm != "standalone" and "LlamaForCausalLM" in architectures else 4


def draft_vocabulary_tables(speculation: Speculation, target_preset: Preset) -> tuple[str, ...]:
    """Returns the tables of the target's vocabulary that the class of a draft allocates: `embed_tokens`, `lm_head`.

    They are released for those of the target after the KV cache is sized (speculative/eagle_worker_v2.py,
    `alloc_memory_pool` and `init_lm_head`).
    """
    if speculation.draft_model is not None:
        return () if speculation.drafts_blocks else speculation.draft_model.model.from_target
    if not speculation.uses_mtp:
        return ()
    return ("embed_tokens",) if target_preset.model.tie_word_embeddings else ("embed_tokens", "lm_head")


def draft_layers(speculation: Speculation, preset: Preset) -> int:
    """Returns the number of the draft model's layers, each of which caches as many tokens as the target model.

    Modules with a window are those of MiMo-V2, of which its configs state no number: SGLang then counts none
    (model_executor/model_runner_components/spec_aux_hidden_state.py, `_resolve_eagle_aux_hidden_state`).
    """
    if speculation.draft_model is not None:
        return sum(int(layer_stack.num_hidden_layers) for _, layer_stack in speculation.draft_model.model.stacks())
    mtp_part = preset.model.mtp
    if mtp_part is None or not speculation.uses_mtp:
        return 0
    if getattr(mtp_part.prediction_block(preset.model.main).attention, "sliding_window", None) is not None:
        return 0
    return 1 if mtp_part.repeated else int(mtp_part.num_nextn_predict_layers)
