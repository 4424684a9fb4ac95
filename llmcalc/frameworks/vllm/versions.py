"""What `presets/engines/vllm.toml` says of a version: rules, defaults by device, and overheads of start-up logs."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import Field

from ...accelerator import Hardware
from ...record import Record
from ..engines.engine import EngineVersion
from ..engines.versions import (
    Context,
    EngineRecord,
    MeasuredOverhead,
    Numbers,
    RuleRange,
    VersionRange,
    context_on,
    has_link,
    ranges_at,
    read_engine_record,
)


class Rules(RuleRange):
    """The rules of a range of versions; the file explains the fields."""

    budget: str
    generation: Literal["v0", "v1"]
    gpu_memory_utilization: float = Field(gt=0, le=1)
    logits_copies: float = Field(gt=0)
    sampler_rows_per_unit: int = 0
    grouped_layers: bool = False
    subtracts_graphs: bool = False
    checks_free_memory: bool = False
    printed_tokens: Literal["blocks x block_size", "blocks // groups x block_size", "max_concurrency x max_model_len"]
    chunk_above_32k: int = 2048


class SecondRunner(VersionRange):
    """What the second model runner does in a range of versions; the file explains the fields."""

    models: Literal["chosen ones", "named", "named, dense and not quantized", "named, and dense ones", "all"]
    architectures: tuple[str, ...] = ()
    logits_copies: float = Field(gt=0)
    estimates_graphs: bool = False
    counts_penalties: bool = False


class StateRules(VersionRange):
    """How recurrent states are kept in a range of versions; the file explains the fields."""

    caches_prefixes: bool = False
    mode_of_prefixes: Literal["current", "all or align", "align"]
    aligns_drafts: bool = False
    latent_alignment: int = 64
    aligns_to_block_size: bool = False
    needs_blocks_of_sequences: bool = False
    needs_batch_of_a_block: bool = False
    checkpoints_of_mamba2: bool = False
    checkpoints_of_delta_nets: float | None = None


class VideoFrames(VersionRange):
    """Frames of the longest video in the profile run, of encoders with patches of that size; the file explains them."""

    patch_size: int
    frames: int


class BatchDefaults(VersionRange):
    """Defaults of the server on devices with at least that much memory."""

    at_least_gib: int
    not_on: tuple[str, ...] = ()
    max_num_seqs: int
    max_num_batched_tokens: int


class PaddedExperts(VersionRange):
    """The padding of MXFP4 experts on devices of a range of compute capabilities; the file explains the fields."""

    at_least: float = 0
    below: float = 100
    hidden: int
    intermediate: int
    swizzle: int = 0

    def bytes_of(self, hidden: int, intermediate: int) -> int:
        """Bytes of one expert: matrices of both projections, a scale per 32 elements, and biases."""
        h, i = _up(hidden, self.hidden), _up(intermediate, self.intermediate)
        rows, bias = (256, 4) if self.swizzle else (1, 2)
        first = _up(h // 2, self.swizzle or 1) * 2 * i + h // 32 * _up(2 * i, rows)  # gate and up projections
        second = _up(i // 2, self.swizzle or 1) * h + i // 32 * _up(h, rows)
        return first + second + (bias - 2) * (2 * i + h)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


class NonTorch(VersionRange, MeasuredOverhead):
    """Memory outside torch.

    devices: tensor-parallel ranks, at least. stages: stages of a pipeline, at least. link: beginning of the link's
    name; empty for any link.
    """

    devices: int = 1
    link: str = ""
    stages: int = 1


class GraphEstimate(Record):
    """The estimate of CUDA graphs: a constant and an amount per layer, at `sequences` sequences or more."""

    constant_mib: float
    mib_per_layer: float
    sequences: int
    logs: int

    @property
    def source(self) -> str:
        """The logs behind the figure, in words."""
        return f"{self.logs} logs of h100-sxm"


class VLLMRecord(EngineRecord[Rules]):
    """The file `presets/engines/vllm.toml`."""

    second_runner: tuple[SecondRunner, ...] = Field(min_length=1)
    recurrent_states: tuple[StateRules, ...] = Field(min_length=1)
    video_frames: tuple[VideoFrames, ...] = ()
    batch_defaults: tuple[BatchDefaults, ...] = Field(min_length=1)
    mxfp4: tuple[PaddedExperts, ...] = Field(min_length=1)
    non_torch: tuple[NonTorch, ...] = Field(min_length=1)
    context: tuple[Context, ...] = Field(min_length=1)
    cuda_graphs: GraphEstimate

    def defaults(self, version: Numbers, hardware: Hardware) -> BatchDefaults:
        """Returns the defaults of a version on a device, which depend on its memory and its name."""
        gib = hardware.capacity_bytes / 2**30
        names = f"{hardware.name} {hardware.title}".lower()
        return next(
            row
            for row in ranges_at(self.batch_defaults, version)
            if row.at_least_gib <= gib and not any(part in names for part in row.not_on)
        )

    def frames_of_videos(self, version: Numbers, patch_size: int) -> int:
        """Returns the frames of the longest video whose tokens are not limited as those of an image are; 0 for none."""
        rows = ranges_at(self.video_frames, version)
        return max((row.frames for row in rows if row.patch_size == patch_size), default=0)

    def state_rules(self, version: Numbers) -> StateRules:
        """Returns how a version keeps recurrent states; of versions before them the first row."""
        return (ranges_at(self.recurrent_states, version) or self.recurrent_states)[-1]

    def padded_experts(self, version: Numbers, hardware: Hardware) -> PaddedExperts:
        """Returns the padding of MXFP4 experts on a device."""
        capability = float(hardware.compute_capability or 10)  # AMD pads as Blackwell does
        rows = ranges_at(self.mxfp4, version)
        return next(row for row in rows if row.at_least <= capability < row.below)

    def outside_torch(self, version: Numbers, hardware: Hardware, devices: int, stages: int) -> NonTorch:
        """Returns the memory outside torch: of the newest row with the most ranks that are no more than these."""
        rows = [
            row
            for row in ranges_at(self.non_torch, version)
            if row.devices <= devices
            and row.stages <= stages
            and (row.stages == 1 or devices == 1)
            and has_link(hardware, row.link)
        ]
        return max(rows, key=lambda row: (row.stages, row.devices, row.first))

    def context_of(self, hardware: Hardware, devices: int) -> Context:
        """Returns the memory that is in use before the engine measures."""
        return context_on(self.context, hardware, devices)


@cache
def vllm_record() -> VLLMRecord:
    """Returns the contents of the file."""
    return read_engine_record(VLLMRecord, "vllm")


def version_of(version_text: str) -> EngineVersion:
    """Returns the version that a user wrote, or the newest, with the range that it is in."""
    return vllm_record().version_of(version_text)
