"""The default number of sequences in a training step.

`plan` and `time` assume one micro-batch per device, at most a usual step; `cost` assumes a usual step if all weights of
a language model are trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import ModelSpec

if TYPE_CHECKING:
    from ..device_memory.estimate import Memory
    from ..parallel.layout import Layout

STEP_TOKENS = 2**22
"""Tokens of a usual training step: 4M, as for Llama 2 (arXiv:2307.09288) and the first steps of Llama 3 405B."""

LEAST_DEVICE_TOKENS = 2**10
"""Fewest tokens of a device in a usual step: Llama 3 405B had 16M tokens on 16,384 H100 (arXiv:2407.21783, table 4).

With fewer, most of a step on many devices is the pipeline's bubble and messages, so a run takes more tokens.
"""

LARGEST_STEP_TOKENS = 2**27
"""Tokens of the largest published training step: 128M, of MiniMax-01 (arXiv:2501.08313)."""

MAX_MICRO_BATCHES = 64
"""Most micro-batches of a step that nobody stated: stages of the deepest published pipeline (1T, arXiv:2104.04473)."""


def usual_step_tokens(devices: int) -> int:
    """Returns the usual tokens per training step: 4M, or 1,024 per device if that is more."""
    return max(STEP_TOKENS, LEAST_DEVICE_TOKENS * devices)


def usual_batch(seq: int, devices: int, step_tokens: int | None = None) -> int:
    """Returns the usual sequences per step: a multiple or a divisor of the number of devices.

    step_tokens: tokens of the model's published step; default `usual_step_tokens`.
    """
    sequence_count = max(1, (step_tokens or usual_step_tokens(devices)) // seq)
    if devices <= sequence_count:
        return round(sequence_count / devices) * devices
    return next(batch_size for batch_size in range(sequence_count, 0, -1) if devices % batch_size == 0)


def default_batch(seq: int, devices: int, micro_batch: int) -> int:
    """Returns a training step's default global batch size in sequences.

    Each device has one micro-batch, unless such a step has more tokens than usual pretraining steps: then it is as
    large as a usual step.
    """
    return micro_batch * min(devices, usual_batch(micro_batch * seq, devices))


def is_pretraining(spec: ModelSpec, lora_rank: int | None) -> bool:
    """Whether a run trains all weights of a language model, for which the usual step size is assumed."""
    return spec.kind == "decoder" and not spec.model_without_tokens and lora_rank is None


def usual_micro_batches(pp: int) -> int:
    """Returns the default number of micro-batches per step of a pipeline: one per stage.

    Pipelines deeper than published ones have as many micro-batches as the deepest published one.
    """
    return min(pp, MAX_MICRO_BATCHES)


def with_usual_micro_batches(model_memory: Memory, layout: Layout) -> Memory:
    """Returns a pipeline's training run with one micro-batch per stage, unless the user gave a number.

    A step of fewer micro-batches leaves stages idle, and none of them holds what it holds in a real step.
    """
    if (
        layout.pp == 1
        or model_memory.settings.phase != "training"
        or model_memory.settings.num_microbatches is not None
    ):
        return model_memory
    return model_memory.with_changes(num_microbatches=usual_micro_batches(layout.pp))
