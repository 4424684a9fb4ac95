"""vLLM's second model runner (vllm/v1/worker/gpu): supported models and memory rules.

`presets/engines/vllm.toml` has what its versions do, with the source files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from ..engines.rank import EngineRank, architectures
from ..engines.versions import VersionNumbers, ranges_with_version
from .versions import SecondModelRunner, VLLMRecord, VLLMRules

RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
"""Environment variable that selects the model runner."""

RUNNER_DRAFTS = ("eagle", "eagle3", "mtp", "draft_model", "dflash")
"""Methods of speculative decoding that the second model runner supports."""

DSPARK_FROM = (0, 25)
"""First checked version in which DSpark, which needs the second model runner, selects it for any model."""

ANY_DRAFT_FROM = (0, 30)
"""First version in which the second model runner also supports methods outside `RUNNER_DRAFTS`."""


def second_runner(
    vllm_record: VLLMRecord, version_numbers: VersionNumbers, engine_rank: EngineRank, flags: Mapping[str, Any]
) -> SecondModelRunner | None:
    """Returns the second model runner's memory rules; None if the server uses the first model runner.

    engine_rank: the model of a rank. flags: values of vLLM's flags by their fields.
    Raises `InputError` where a variable chooses it in a version that was not read.
    """
    version_ranges = ranges_with_version(vllm_record.second_runner, version_numbers)
    chosen_runner = flags.get(RUNNER_VARIABLE)
    if not version_ranges:
        if chosen_runner:
            first_version = vllm_record.second_runner[0].start_version
            raise InputError(
                f"{RUNNER_VARIABLE}=1: the second model runner is modelled from vLLM {first_version} on; remove it"
            )
        return None
    runner_rules = version_ranges[-1]
    if chosen_runner is not None:
        return runner_rules if chosen_runner else None
    return runner_rules if _is_second_runner_default(runner_rules, version_numbers, engine_rank, flags) else None


def _is_second_runner_default(
    runner_rules: SecondModelRunner, version_numbers: VersionNumbers, engine_rank: EngineRank, flags: Mapping[str, Any]
) -> bool:
    """Whether the second model runner runs a model by default, without an environment variable."""
    if runner_rules.models == "all":
        return True
    speculative_config = flags.get("speculative_config", {})
    drafting_method = str(
        speculative_config.get("method", "draft_model" if speculative_config.get("model") else "")
        or flags.get("spec_method", "")
    )
    if drafting_method == "dspark" and version_numbers >= DSPARK_FROM:
        return True
    if runner_rules.models == "chosen ones" or (
        drafting_method and drafting_method not in RUNNER_DRAFTS and version_numbers < ANY_DRAFT_FROM
    ):
        return False
    is_dense = engine_rank.widest_network_sizes[2] is None
    is_listed_architecture = not {*architectures(engine_rank.preset)}.isdisjoint(runner_rules.architectures)
    if runner_rules.models == "named, and dense ones":
        return is_listed_architecture or (is_dense and not engine_rank.state_caches)
    is_quantized = (
        engine_rank.quantize is not None
        or engine_rank.scheme is not None
        or engine_rank.preset.storage_table is not None
    )
    return is_listed_architecture and (runner_rules.models == "named" or (is_dense and not is_quantized))


def rules_with_runner(version_rules: VLLMRules, runner_rules: SecondModelRunner) -> VLLMRules:
    """Returns the memory rules of a version with the second model runner."""
    return version_rules.model_copy(
        update={
            "logit_copies": runner_rules.logit_copies,
            "sampler_rows_per_unit": 0,
            "subtracts_graph_memory": version_rules.subtracts_graph_memory and runner_rules.estimates_graphs,
            "source": "vllm/v1/worker/gpu/model_runner.py",
            "function": "profile_run",
        }
    )


def penalty_bytes(sequence_count: int, vocab_size: int) -> int:
    """Returns the bytes of token counts for sampling penalties: 4 bytes and a bit per sequence and vocabulary entry."""
    return sequence_count * 4 * (vocab_size + -(-vocab_size // 32))
