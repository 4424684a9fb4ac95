"""Reads `presets/engines/tensorrt_llm.toml`: rules by version, defaults, and measured memory outside torch."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import Field

from ...accelerator import Hardware
from ...record import Record
from ..engines.versions import EngineRecord, MeasuredOverhead, VersionRules, read_engine_record

MIB = 2**20


class TensorRTLLMRules(VersionRules):
    """The memory rules of a range of versions. limits: flags that cap the KV cache in addition to the fraction."""

    limits: tuple[Literal["max_tokens", "max_gpu_total_bytes"], ...]


class ServeDefaults(Record):
    """The default flag values of `trtllm-serve`."""

    free_gpu_memory_fraction: float = Field(gt=0, le=1)
    max_batch_size: int
    max_num_tokens: int
    tokens_per_block: int


class MemoryOutsideTorch(MeasuredOverhead):
    """Measured GPU memory outside torch after the dummy run, without the KV cache.

    devices: minimum of ranks. percent_of_weights: per cent of a rank's weights that are added to `mib`.
    """

    devices: int
    percent_of_weights: int = Field(ge=0)

    def bytes_beside(self, weight_bytes: int) -> int:
        """Returns the bytes outside torch on a rank with `weight_bytes` bytes of weights."""
        return self.mib * MIB + weight_bytes * self.percent_of_weights // 100


class TensorRTLLMRecord(EngineRecord[TensorRTLLMRules]):
    """The contents of `presets/engines/tensorrt_llm.toml`."""

    defaults: ServeDefaults
    non_torch: tuple[MemoryOutsideTorch, ...] = Field(min_length=1)

    def overhead_outside_torch(self, hardware: Hardware, device_count: int) -> MemoryOutsideTorch:
        """Returns the measured memory outside torch on an accelerator, or on the file's first accelerator."""
        matching_overheads = [overhead for overhead in self.non_torch if overhead.devices <= device_count]
        accelerator_overheads = [overhead for overhead in matching_overheads if hardware.name in overhead.accelerators]
        first_accelerator_overheads = [
            overhead for overhead in matching_overheads if overhead.accelerators == matching_overheads[0].accelerators
        ]
        return max(accelerator_overheads or first_accelerator_overheads, key=lambda overhead: overhead.devices)


@cache
def tensorrt_llm_record() -> TensorRTLLMRecord:
    """Returns the contents of `presets/engines/tensorrt_llm.toml`."""
    return read_engine_record(TensorRTLLMRecord, "tensorrt_llm")
