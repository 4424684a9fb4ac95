"""The seconds per decoded token of a run's users, with the time stack of today's usual serving engine."""

from __future__ import annotations

from dataclasses import replace

from ..accelerator import Hardware
from ..device_memory.estimate import Memory
from ..errors import InputError
from ..parallel.layout import ONE_DEVICE, Layout
from .run_time import TimedRun, TimeSettings, time_inference

STACK = "vllm"
"""The stack whose time is given: what most servers run."""


def decoded_token(
    memory: Memory, hardware: Hardware, layout: Layout = ONE_DEVICE, users: int | None = None, stack: str = STACK
) -> TimedRun | None:
    """Returns the range of seconds in which an inference run decodes a token of every sequence.

    memory: the run on one device. users: sequences of a replica; default those of the run. stack: what runs it.
    None for training, prompts and encoders, and for accelerators and layouts without a time.
    """
    if memory.settings.phase not in ("inference", "decode") or memory.spec.one_pass_model:
        return None
    batch = int(memory.states.workload.batch) if users is None else users
    try:
        decoding_run = memory if batch == memory.states.workload.batch else memory.with_(batch=batch)
        decoding = replace(decoding_run, settings=decoding_run.settings.with_(phase="decode"))
        return time_inference(decoding, hardware, layout, TimeSettings(stack))
    except InputError:
        return None
