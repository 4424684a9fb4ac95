"""FlashInfer's top-k and top-p kernels in vLLM's sampler, which hold fewer copies of the logits than torch's sort.

`presets/engines/vllm.toml` has the versions, with the source files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from ..engines.versions import VersionNumbers, ranges_with_version
from .versions import VLLMRecord, VLLMRules

SAMPLER_VARIABLE = "VLLM_USE_FLASHINFER_SAMPLER"
"""Environment variable that selects FlashInfer's sampler or torch's."""


def rules_with_sampler(
    engine_record: VLLMRecord,
    version_numbers: VersionNumbers,
    base_rules: VLLMRules,
    flags: Mapping[str, Any],
    has_second_runner: bool,
) -> VLLMRules:
    """Returns the memory rules with FlashInfer's sampler if the server uses it; otherwise `base_rules`.

    The second model runner has its own dummy run, whose rules hold with either sampler.
    Raises `InputError` where FlashInfer's sampler is not modelled.
    """
    if not flags.get(SAMPLER_VARIABLE) or has_second_runner:
        return base_rules
    version_ranges = ranges_with_version(engine_record.flashinfer_sampler, version_numbers)
    if not version_ranges:
        first_version = engine_record.flashinfer_sampler[0].start_version
        raise InputError(
            f"{SAMPLER_VARIABLE}=1: FlashInfer's sampler is modelled from vLLM {first_version} on; remove the variable"
        )
    changed_rules = {"logit_copies": version_ranges[-1].logit_copies, "sampler_rows_per_unit": 0}
    return base_rules.model_copy(
        update=changed_rules | {"source": "vllm/v1/sample/ops/topk_topp_sampler.py", "function": "flashinfer_sample"}
    )


def assumes_torch_sampler(
    vllm_record: VLLMRecord, version_numbers: VersionNumbers, flags: Mapping[str, Any], has_second_runner: bool
) -> bool:
    """Whether torch's sampler is assumed, although vLLM would prefer an installed FlashInfer."""
    version_ranges = ranges_with_version(vllm_record.flashinfer_sampler, version_numbers)
    return (
        bool(version_ranges)
        and version_ranges[-1].is_automatic
        and SAMPLER_VARIABLE not in flags
        and not has_second_runner
    )
