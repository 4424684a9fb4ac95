"""Reads `presets/engines/sglang.toml`: per version the memory rules, and defaults by device."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import Field

from ...accelerator import Hardware
from ...record import Record
from ..engines.versions import (
    EngineRecord,
    MeasuredCudaContext,
    VersionNumbers,
    VersionRange,
    VersionRules,
    measured_cuda_context,
    ranges_with_version,
    read_engine_record,
)


class SGLangRules(VersionRules):
    """The memory rules of a range of SGLang versions.

    has_state_pools: whether recurrent states have pools of their own.
    draft_reserve_gib: GiB reserved for a head that drafts tokens, and the head's CUDA graphs.
    counts_draft_memory: whether a draft's weights and cache are taken from the cache's memory.
    sizes_block_drafts: whether a draft that proposes a block has a cache of its own width, and not of the target's.
    exchange_mib, exchange_prompt_mib: MiB that are reserved for DeepEP's buffers beside graphs of decoding steps, and
        for graphs of prompts with breaks.
    cache_scheme_of_checkpoint: whether a checkpoint's scheme for caches is used by default.
    aiter_fraction_factor: factor of the fraction where AMD's kernels run attention and requests are long (`aiter`).
    raw_latents_on_amd: whether AMD's kernels read latents of 8 bits without scales.
    prompt_graphs: whether prompts run as CUDA graphs by default, for which memory is reserved: off, compiled in pieces,
        or with breaks.
    latent_prompt_graphs: models with latent attention whose prompts do so too: off, those with an indexer, or all.
    kda_prompt_graphs: whether those with Kimi delta attention do.
    encoder_prompt_graphs: classes with encoders whose prompts do.
    switches_all_graphs: whether `--disable-cuda-graph` disables graphs of prompts too.
    reserves_used_graphs: whether memory is reserved only for graphs that are captured.
    limits_graph_sequences: whether no graph has more sequences than `--max-running-requests`, by default.
    multimodal_mib: MiB of the cache that encoders' outputs take.
    has_state_share: whether recurrent states take a share of the memory, not a fixed number of slots.
    draft_state_storage: copies of states for drafted tokens: of each slot, of each request, or within the states'
        share.
    has_overlap_states: whether a request has two further slots of states by default, where its kind of layer allows it.
    has_padding_slot: whether the pool of states has a slot more.
    compressed_states: states of compressed attention (DeepSeek-V4): not supported; with the pages of windows; those of
        long entries with requests; and so with padded pages.
    """

    fraction: Literal["by_tp", "by_memory", "by_reserve"]
    has_state_pools: bool = False
    cache_scheme_of_checkpoint: bool = False
    draft_reserve_gib: float = 2
    counts_draft_memory: bool = False
    sizes_block_drafts: bool = False
    exchange_mib: int = 0
    exchange_prompt_mib: int = 0
    aiter_fraction_factor: float = 1
    raw_latents_on_amd: bool = False
    prompt_graphs: Literal["off", "compiled", "breakable"] = "off"
    latent_prompt_graphs: Literal["off", "selected", "all"] = "all"
    kda_prompt_graphs: bool = True
    encoder_prompt_graphs: tuple[str, ...] = ()
    switches_all_graphs: bool = False
    reserves_used_graphs: bool = False
    limits_graph_sequences: bool = False
    multimodal_mib: int = 0
    has_state_share: bool = True
    draft_state_storage: Literal["slots", "requests", "budget"] = "slots"
    has_overlap_states: bool = False
    has_padding_slot: bool = False
    compressed_states: Literal["off", "pages", "requests", "paged"] = "off"
    keeps_loader_scales: bool = False


class TpMemoryFraction(Record):
    """The default memory fraction for `tp` or more tensor-parallel ranks."""

    tp: int
    fraction: float


class DeviceDefaults(VersionRange):
    """Defaults for devices with less than `below_gib` GiB of memory; the TOML file explains the fields."""

    below_gib: float
    reserve_gib: float
    reserve_gib_per_rank: float
    chunked_prefill_size: int
    cuda_graph_max_bs: tuple[int, int]


class PoolRatios(Record):
    """Default ratios of pool sizes: recurrent states to KV cache, window layers' tokens to full layers' tokens."""

    states: float
    window: float


class WindowPools(VersionRange):
    """Classes whose windowed layers have a separate pool since a version, sized by `--swa-full-tokens-ratio`."""

    architectures: tuple[str, ...]


class SGLangRecord(EngineRecord[SGLangRules]):
    """The contents of `presets/engines/sglang.toml`.

    unscaled_tables: classes whose tables of cosines and sines ignore scaled positions.
    replaced_projections: classes that free MLA's up-projections once they have copies of them.
    whole_projections: classes whose layers all have projections of keys and values, used or not.
    """

    unscaled_tables: tuple[str, ...]
    replaced_projections: tuple[str, ...]
    whole_projections: tuple[str, ...]
    fractions_by_tp: tuple[TpMemoryFraction, ...] = Field(min_length=1)
    devices: tuple[DeviceDefaults, ...] = Field(min_length=1)
    context: tuple[MeasuredCudaContext, ...] = Field(min_length=1)
    ratios: PoolRatios
    window_pools: tuple[WindowPools, ...]

    def classes_with_window_pools(self, version_numbers: VersionNumbers) -> frozenset[str]:
        """Returns the classes whose windowed layers have a separate pool in a version."""
        return frozenset(
            class_name
            for window_pools in ranges_with_version(self.window_pools, version_numbers)
            for class_name in window_pools.architectures
        )

    def defaults(self, version_numbers: VersionNumbers, memory_gib: float) -> DeviceDefaults:
        """Returns a version's defaults of a device with `memory_gib` GiB of memory."""
        version_ranges = ranges_with_version(self.devices, version_numbers)
        return next(
            (device_defaults for device_defaults in version_ranges if memory_gib < device_defaults.below_gib),
            version_ranges[-1],
        )

    def cuda_context(self, hardware: Hardware, device_count: int) -> MeasuredCudaContext:
        """Returns the device memory in use before the weights are loaded, from logs."""
        return measured_cuda_context(self.context, hardware, device_count)

    def memory_fraction_of_tp(self, tp: int) -> float:
        """Returns the default memory fraction of early versions, by the number of tensor-parallel ranks."""
        return max(
            (tp_fraction for tp_fraction in self.fractions_by_tp if tp_fraction.tp <= tp),
            key=lambda tp_fraction: tp_fraction.tp,
        ).fraction


@cache
def sglang_record() -> SGLangRecord:
    """Returns the contents of `presets/engines/sglang.toml`."""
    return read_engine_record(SGLangRecord, "sglang")
