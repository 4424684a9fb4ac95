"""What the runs of all stages of ZeRO share: number formats, buckets, and the stream on which gradients are summed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...device_memory.training import Training, TrainingRun
from ...model import ModelSpec
from ...simulator.meter import Meter
from ...simulator.tensor import DTYPES, Dtype, Storage, counted_as, on_stream
from .settings import DeepSpeedSettings

REDUCTION = 1
"""The stream on which gradients are summed beside the backward pass."""

DOUBLE = 8
"""Bytes of a number in which the norm of gradients is computed (`get_norm_dtype`)."""


def number_format(name: str | None, usual: Dtype) -> Dtype:
    """A number format by one of the names that DeepSpeed has for it (`DtypeEnum`)."""
    names = {
        "fp32": "float32",
        "fp16": "float16",
        "bf16": "bfloat16",
        "bfp16": "bfloat16",
        "float": "float32",
        "half": "float16",
    }
    if name is None:
        return usual
    plain = name.removeprefix("torch.")
    return DTYPES[names.get(plain, plain)]


class ZeroRun(TrainingRun):
    """Replays steps of one rank.

    settings: DeepSpeed's. ranks: over which ZeRO divides. sums_in, sends: the formats in which gradients are added up
    over micro-batches, and sent. most: elements of a bucket of gradients. boundary: whether the micro-batch is the last
    of a step. norms: those of gradients on the host, which stay on the device until the step.
    """

    def __init__(
        self,
        spec: ModelSpec,
        training: Training,
        settings: DeepSpeedSettings,
        ranks: int,
        workspace: int = 0,
        meter: Meter | None = None,
    ) -> None:
        super().__init__(spec, training, None, workspace, meter)
        self.settings, self.ranks = settings, ranks
        self.dtype = DTYPES[training.dtype]
        self.sums_in = number_format(settings.grad_accum_dtype, self.dtype)
        self.sends = number_format(settings.communication_data_type, self.dtype)
        self.most = settings.elements("reduce_bucket_size")
        self.boundary = True
        self.norms: dict[int, Storage] = {}

    def micro_batches(self) -> None:
        """Runs the micro-batches of a step: those between the first and the last take what the last one takes."""
        number = min(self.training.microbatches, 2)
        for i in range(number):
            if i:
                self.next_batch()
            self.boundary = i == number - 1
            self.forward_and_backward()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """What is allocated here is of the stream that runs beside the backward pass, if there is one."""
        stream = REDUCTION if self.settings.overlaps else self.meter.stream
        with on_stream(self.meter, stream), counted_as(self.meter, "communication"):
            yield
