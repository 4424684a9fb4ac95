"""What `presets/engines/tensorrt_llm.toml` says of a version: rules, defaults, and memory outside torch."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import Field

from ...accelerator import Hardware
from ...record import Record
from ..engines.engine import EngineVersion
from ..engines.versions import EngineRecord, MeasuredOverhead, RuleRange, read_engine_record


class Rules(RuleRange):
    """The rules of a range of versions. limits: the flags that cap the cache beside the fraction."""

    limits: tuple[Literal["max_tokens", "max_gpu_total_bytes"], ...]


class Defaults(Record):
    """Defaults of `trtllm-serve`."""

    free_gpu_memory_fraction: float = Field(gt=0, le=1)
    max_batch_size: int
    max_num_tokens: int
    tokens_per_block: int


class NonTorch(MeasuredOverhead):
    """Memory outside torch after the dummy run, without its cache. devices: ranks, at least."""

    devices: int


class TensorRTLLMRecord(EngineRecord[Rules]):
    """The file `presets/engines/tensorrt_llm.toml`."""

    defaults: Defaults
    non_torch: tuple[NonTorch, ...] = Field(min_length=1)

    def outside_torch(self, hardware: Hardware, devices: int) -> NonTorch:
        """Returns the memory outside torch: of the accelerator's own rows, or of those of the first accelerator."""
        rows = [row for row in self.non_torch if row.devices <= devices]
        own_rows = [row for row in rows if hardware.name in row.accelerators]
        first_rows = [row for row in rows if row.accelerators == rows[0].accelerators]
        return max(own_rows or first_rows, key=lambda row: row.devices)


@cache
def tensorrt_llm_record() -> TensorRTLLMRecord:
    """Returns the contents of the file."""
    return read_engine_record(TensorRTLLMRecord, "tensorrt_llm")


def version_of(version_text: str) -> EngineVersion:
    """Returns the version that a user wrote, or the newest, with the range that it is in."""
    return tensorrt_llm_record().version_of(version_text)
