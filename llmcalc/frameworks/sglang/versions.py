"""Reads `presets/engines/sglang.toml`: per version the memory rules, and defaults by device."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import Field

from ...accelerator import Hardware
from ...record import Record
from ..engines.engine import EngineVersion
from ..engines.versions import Context, EngineRecord, RuleRange, context_on, read_engine_record


class Rules(RuleRange):
    """The memory rules of a range of SGLang versions.

    divided_pools: whether windowed layers and states have pools of their own.
    draft_reserve_gib: what is reserved for a head that drafts tokens, and its CUDA graphs.
    cache_scheme_of_checkpoint: whether a checkpoint's scheme for caches is used by default.
    piecewise_graphs: whether prompts run as CUDA graphs in pieces by default, for which memory is reserved.
    """

    fraction: Literal["by_tp", "by_memory", "by_reserve"]
    divided_pools: bool = False
    cache_scheme_of_checkpoint: bool = False
    piecewise_graphs: bool = False
    draft_reserve_gib: float = 2


class FractionByTp(Record):
    """The default memory fraction for `tp` or more tensor-parallel ranks."""

    tp: int
    fraction: float


class DeviceDefaults(Record):
    """Defaults of devices with less than `below_gib` GiB of memory; the TOML file explains the fields."""

    below_gib: float
    reserve_gib: float
    reserve_gib_per_rank: float
    chunked_prefill_size: int
    cuda_graph_max_bs: tuple[int, int]


class Ratios(Record):
    """Default ratios of pool sizes: recurrent states to KV cache, tokens of window layers to tokens of full layers."""

    states: float
    window: float


class SGLangRecord(EngineRecord[Rules]):
    """The contents of `presets/engines/sglang.toml`."""

    fractions_by_tp: tuple[FractionByTp, ...] = Field(min_length=1)
    devices: tuple[DeviceDefaults, ...] = Field(min_length=1)
    context: tuple[Context, ...] = Field(min_length=1)
    ratios: Ratios

    def defaults(self, gib: float) -> DeviceDefaults:
        """Returns the defaults of a device with `gib` GiB of memory."""
        return next(
            (device_defaults for device_defaults in self.devices if gib < device_defaults.below_gib), self.devices[-1]
        )

    def context_of(self, hardware: Hardware, devices: int) -> Context:
        """Returns the device memory in use before the weights are loaded, from logs."""
        return context_on(self.context, hardware, devices)

    def fraction_of_tp(self, tp: int) -> float:
        """Returns the default memory fraction of early versions, by the number of tensor-parallel ranks."""
        return max(
            (tp_fraction for tp_fraction in self.fractions_by_tp if tp_fraction.tp <= tp),
            key=lambda tp_fraction: tp_fraction.tp,
        ).fraction


@cache
def sglang_record() -> SGLangRecord:
    """Returns the contents of `presets/engines/sglang.toml`."""
    return read_engine_record(SGLangRecord, "sglang")


def version_of(version_text: str) -> EngineVersion:
    """Returns the version that a user wrote, or the newest, with its range of versions."""
    return sglang_record().version_of(version_text)
