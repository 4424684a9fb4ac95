"""Reads `presets/engines/vllm.toml`: memory rules by version, defaults by device, measured overheads."""

from __future__ import annotations

from functools import cache
from typing import Literal, TypeAlias

from pydantic import Field

from ...accelerator import Hardware
from ...algebra import round_up
from ...errors import InputError
from ...record import Record
from ..engines.engine import EngineVersion
from ..engines.versions import (
    EngineRecord,
    MeasuredCudaContext,
    MeasuredOverhead,
    VersionNumbers,
    VersionRange,
    VersionRules,
    has_link,
    measured_cuda_context,
    parse_version,
    ranges_with_version,
    read_engine_record,
)


class VLLMRules(VersionRules):
    """The memory rules of a range of vLLM versions; the TOML file explains the fields."""

    budget: str
    generation: Literal["v0", "v1"]
    gpu_memory_utilization: float = Field(gt=0, le=1)
    logit_copies: float = Field(gt=0)
    sampler_rows_per_unit: int = 0
    grouped_layers: bool = False
    counts_cuda_context: bool = False
    subtracts_graph_memory: bool = False
    checks_free_memory: bool = False
    printed_tokens: Literal["blocks x block_size", "blocks // groups x block_size", "max_concurrency x max_model_len"]
    chunk_above_32k: int = 2048
    reserves_batches_in_flight: bool = False


class SecondModelRunner(VersionRange):
    """The rules of the second model runner in a range of versions; the TOML file explains the fields."""

    models: Literal["chosen ones", "named", "named, dense and not quantized", "named, and dense ones", "all"]
    architectures: tuple[str, ...] = ()
    logit_copies: float = Field(gt=0)
    estimates_graphs: bool = False
    graphs_ratio: float = Field(default=1, gt=0)
    counts_penalties: bool = False


class FlashInferSampler(VersionRange):
    """FlashInfer's sampler in a range of versions; the TOML file explains the fields."""

    logit_copies: float = Field(gt=0)
    is_automatic: bool = False


class StateRules(VersionRange):
    """The rules for recurrent states in a range of versions; the TOML file explains the fields."""

    caches_prefixes: bool = False
    prefix_caching_mode: Literal["current", "all or align", "align"]
    aligns_drafts: bool = False
    latent_alignment: int = 64
    aligns_to_block_size: bool = False
    needs_blocks_of_sequences: bool = False
    needs_batch_of_a_block: bool = False
    checkpoints_of_mamba2: bool = False
    checkpoints_of_delta_nets: float | None = None
    reads_config_dtype: bool = False
    float32_architectures: tuple[str, ...] = ()
    chooses_delta_attention: bool = False


PageLayout: TypeAlias = Literal["tuples", "page sizes", "groups"]


class CompressedPages(VersionRange):
    """Rules for the pages of compressed attention in a block, by vLLM version; the TOML file explains the fields."""

    layout: PageLayout
    checks_tuples: bool = False


class VideoFrames(VersionRange):
    """The number of frames in the profile run's longest video, by patch size; the TOML file explains the fields."""

    patch_size: int
    frames: int
    beside_image: bool = False


class VideosAsImages(VersionRange):
    """Encoders that read a video as images with fewer tokens, by vLLM version; the TOML file explains the fields."""

    frames: int
    frame_tokens: int
    marks: int
    reads_chunks: bool = False
    must_fit_batch: bool = False
    raises_batch_tokens: bool = False

    @property
    def tokens(self) -> int:
        """The number of tokens of the longest video that the encoders read."""
        return self.frames * (self.frame_tokens + self.marks)


class BatchDefaults(VersionRange):
    """Default batch limits on devices with at least `at_least_gib` GiB of memory."""

    at_least_gib: int
    excluded_accelerators: tuple[str, ...] = ()
    max_num_seqs: int
    max_num_batched_tokens: int


class PaddedExperts(VersionRange):
    """The padding of MXFP4 experts on devices of a range of compute capabilities; the TOML file explains the fields."""

    at_least: float = 0
    below: float = 100
    vendor: str = ""
    hidden: int
    intermediate: int
    swizzle: int = 0

    def expert_bytes(self, unpadded_hidden_size: int, unpadded_intermediate_size: int) -> int:
        """Returns the bytes of one padded expert: the projections' matrices, scales per 32 elements, and biases."""
        hidden_size: int = round_up(unpadded_hidden_size, self.hidden)
        intermediate_size: int = round_up(unpadded_intermediate_size, self.intermediate)
        row_multiple, bias_element_bytes = (256, 4) if self.swizzle else (1, 2)

        def matrix_bytes(n_in: int, n_out: int) -> int:
            packed_columns: int = round_up(n_in // 2, self.swizzle or 1)
            scale_rows: int = round_up(n_out, row_multiple)
            return packed_columns * n_out + n_in // 32 * scale_rows

        up_bytes = matrix_bytes(hidden_size, 2 * intermediate_size)  # gate and up projections
        down_bytes = matrix_bytes(intermediate_size, hidden_size)
        return up_bytes + down_bytes + (bias_element_bytes - 2) * (2 * intermediate_size + hidden_size)


class MemoryOutsideTorch(VersionRange, MeasuredOverhead):
    """Measured device memory outside torch's allocator.

    devices: tensor-parallel ranks, at least. stages: stages of a pipeline, at least. link: beginning of the link's
    name; empty for any link. accelerators_with_overhead: names of the accelerators that the row is for; empty for any
    accelerator.
    """

    devices: int = 1
    link: str = ""
    stages: int = 1
    accelerators_with_overhead: tuple[str, ...] = ()


class GraphEstimate(Record):
    """The memory of a single CUDA graph in vLLM's own estimate, as start-up logs print it.

    shared_mib: the pool that the first graph leaves. mib_per_layer: of each further graph. mib_per_complex_layer: the
    same of layers with experts, recurrent states or an indexer.
    """

    shared_mib: float
    mib_per_layer: float
    mib_per_complex_layer: float
    logs: int

    @property
    def source(self) -> str:
        """The source of the estimate as text, with the number of start-up logs."""
        return f"{self.logs} logs of h100-sxm"


class ClassesWithoutFloat16(VersionRange):
    """Classes of models that refuse float16 in a range of vLLM versions."""

    classes: tuple[str, ...]


class WholeSharedExperts(VersionRange):
    """Classes of models whose shared experts are whole on tensor-parallel ranks, from a version of vLLM on.

    vendor: the accelerators' vendor; empty for all.
    """

    classes: tuple[str, ...]
    vendor: str = ""


class VLLMRecord(EngineRecord[VLLMRules]):
    """The contents of `presets/engines/vllm.toml`; the file explains the fields."""

    whole_projections: tuple[str, ...] = ()
    larger_graphs: tuple[str, ...] = ()
    triton_attention: tuple[str, ...] = ()
    float32_tables: tuple[str, ...] = ()
    whole_shared_experts: tuple[WholeSharedExperts, ...] = ()
    padded_mxfp4: tuple[str, ...] = ()
    without_float16: tuple[ClassesWithoutFloat16, ...] = ()
    last_versions: dict[str, tuple[str, ...]] = {}
    second_runner: tuple[SecondModelRunner, ...] = Field(min_length=1)
    flashinfer_sampler: tuple[FlashInferSampler, ...] = Field(min_length=1)
    recurrent_states: tuple[StateRules, ...] = Field(min_length=1)
    compressed_pages: tuple[CompressedPages, ...] = Field(min_length=1)
    video_frames: tuple[VideoFrames, ...] = ()
    videos_of_images: tuple[VideosAsImages, ...] = ()
    batch_defaults: tuple[BatchDefaults, ...] = Field(min_length=1)
    mxfp4: tuple[PaddedExperts, ...] = Field(min_length=1)
    non_torch: tuple[MemoryOutsideTorch, ...] = Field(min_length=1)
    context: tuple[MeasuredCudaContext, ...] = Field(min_length=1)
    cuda_graphs: GraphEstimate

    def defaults(self, version_numbers: VersionNumbers, hardware: Hardware) -> BatchDefaults:
        """Returns the default batch limits of a version on a device, by the device's memory and name."""
        memory_gib = hardware.capacity_bytes / 2**30
        device_names = f"{hardware.name} {hardware.title}".lower()
        return next(
            batch_defaults
            for batch_defaults in ranges_with_version(self.batch_defaults, version_numbers)
            if batch_defaults.at_least_gib <= memory_gib
            and not any(device_name_part in device_names for device_name_part in batch_defaults.excluded_accelerators)
        )

    def last_supported_version(self, class_names: tuple[str, ...], version_numbers: VersionNumbers) -> str | None:
        """Returns the last version that has a class for a model; None if the version `version_numbers` has the class.

        class_names: the classes in `architectures` of the model's config.
        """
        return next(
            (
                last_version
                for last_version, removed_classes in self.last_versions.items()
                if parse_version(last_version) < version_numbers and not {*removed_classes}.isdisjoint(class_names)
            ),
            None,
        )

    def class_notes(self, class_names: tuple[str, ...], engine_version: EngineVersion) -> list[str]:
        """Returns notes if a version lacks a class for a model: not yet added, or already removed."""
        last_version = self.last_supported_version(class_names, parse_version(engine_version.version))
        last_version_notes = [] if last_version is None else [
            f"vLLM {last_version} was the last version with a class for {class_names[0]}: a later one starts only if "
            f"transformers' own class runs in it; expected --engine vllm=={last_version}"
        ]  # fmt: skip
        return [*super().class_notes(class_names, engine_version), *last_version_notes]

    def classes_without_float16(self, version_numbers: VersionNumbers) -> tuple[str, ...]:
        """Returns the classes of models that a version refuses to run in float16."""
        version_ranges = ranges_with_version(self.without_float16, version_numbers)
        return version_ranges[-1].classes if version_ranges else ()

    def classes_with_whole_shared_experts(self, version_numbers: VersionNumbers, hardware: Hardware) -> tuple[str, ...]:
        """Returns the classes of models whose shared experts a version stores in full on every tensor-parallel rank."""
        return tuple(
            class_name
            for whole_experts in ranges_with_version(self.whole_shared_experts, version_numbers)
            if whole_experts.vendor in ("", hardware.vendor)
            for class_name in whole_experts.classes
        )

    def frames_of_videos(self, version_numbers: VersionNumbers, patch_size: int) -> VideoFrames | None:
        """Returns the frames of the longest video in the profile run for a patch size; None if none is stated."""
        version_ranges = ranges_with_version(self.video_frames, version_numbers)
        return next((video_frames for video_frames in version_ranges if video_frames.patch_size == patch_size), None)

    def videos_as_images(self, version_numbers: VersionNumbers) -> VideosAsImages | None:
        """Returns the rules by which a version reads videos as images; None for a version without such encoders."""
        version_ranges = ranges_with_version(self.videos_of_images, version_numbers)
        return version_ranges[-1] if version_ranges else None

    def state_rules(self, version_numbers: VersionNumbers) -> StateRules:
        """Returns a version's rules for recurrent states; versions before the first rules also have these."""
        return (ranges_with_version(self.recurrent_states, version_numbers) or self.recurrent_states)[-1]

    def compressed_pages_of(self, version_numbers: VersionNumbers) -> CompressedPages:
        """Returns a version's rules for the pages of compressed attention in KV cache blocks.

        Raises `InputError` for a version before those that have it.
        """
        version_ranges = ranges_with_version(self.compressed_pages, version_numbers)
        if not version_ranges:
            first_version = self.compressed_pages[0].start_version
            raise InputError(f"--engine vllm: compressed attention is modelled from vLLM {first_version} on")
        return version_ranges[-1]

    def padded_experts(self, version_numbers: VersionNumbers, hardware: Hardware) -> PaddedExperts:
        """Returns the padding of MXFP4 experts in a version on a device."""
        compute_capability = float(hardware.compute_capability or 10)  # AMD pads as Blackwell does
        version_ranges = ranges_with_version(self.mxfp4, version_numbers)
        return next(
            padded_experts_range
            for padded_experts_range in version_ranges
            if padded_experts_range.at_least <= compute_capability < padded_experts_range.below
            and padded_experts_range.vendor in ("", hardware.vendor)
        )

    def overhead_outside_torch(
        self, version_numbers: VersionNumbers, hardware: Hardware, device_count: int, stage_count: int
    ) -> MemoryOutsideTorch:
        """Returns the newest measurement of memory outside torch on at most these numbers of devices and stages.

        A row of this accelerator alone comes before rows of its link, and those before rows of all accelerators.
        """
        matching_overheads = [
            measured_overhead
            for measured_overhead in ranges_with_version(self.non_torch, version_numbers)
            if measured_overhead.devices <= device_count
            and measured_overhead.stages <= stage_count
            and (measured_overhead.stages == 1 or device_count == 1)
            and has_link(hardware, measured_overhead.link)
            and hardware.name in (measured_overhead.accelerators_with_overhead or (hardware.name,))
        ]
        return max(
            matching_overheads,
            key=lambda measured_overhead: (
                bool(measured_overhead.accelerators_with_overhead),
                bool(measured_overhead.link),
                measured_overhead.stages,
                measured_overhead.devices,
                measured_overhead.first_version,
            ),
        )

    def cuda_context(self, hardware: Hardware, device_count: int) -> MeasuredCudaContext:
        """Returns the device memory in use before the engine starts to measure, from start-up logs."""
        return measured_cuda_context(self.context, hardware, device_count)


@cache
def vllm_record() -> VLLMRecord:
    """Returns the contents of `presets/engines/vllm.toml`."""
    return read_engine_record(VLLMRecord, "vllm")
