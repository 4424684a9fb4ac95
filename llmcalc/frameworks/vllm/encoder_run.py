"""The memory of the image encoder in vLLM's profile run (v1/worker/gpu_model_runner.py, `profile_run`).

Before the text model runs, the encoder reads as many of the largest images as its budget of tokens allows
(multimodal/encoder_budget.py, `MultiModalBudget`; v1/core/encoder_cache_manager.py, `compute_mm_encoder_budget`). Its
outputs stay in the encoder's cache while the text model runs; on the first model runner the pixels stay beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...components.inputs.base import EncodedInput, ImageRule
from ...components.inputs.budget import Budget
from ...components.inputs.smart_resize import SmartResize
from ...components.towers.vision import VisionTower
from ...errors import InputError, shown
from ...model import ModelSpec
from .versions import VideosOfImages

DEFAULT_IMAGE_LIMIT = 999
"""Images of a prompt where `--limit-mm-per-prompt` does not say (vllm/config/multimodal.py)."""

ASPECT_RATIOS = ((1, 1), (4, 3), (3, 4), (2, 1), (1, 2), (3, 1), (1, 3))
"""Ratios of height to width of which the image with the most tokens is taken."""

LARGEST_SIDE = 12_000
"""A side in pixels by which every processor shrinks an image."""

ROTATED_VECTORS = 4
"""Further vectors of queries and keys where they are rotated: a contiguous copy of both, and both rotated
(models/qwen2_5_vl.py, `Qwen2_5_VisionAttention`)."""

ATTENTION_VECTORS = 4
"""Vectors of a patch that attention holds: query, key, value and output."""

POSITION_BYTES = 32
"""Bytes of each patch and row of the table of positions by which vLLM sizes a chunk of images (`_encoder_chunk`)."""


class EncoderRequest(NamedTuple):
    """The settings that determine the image encoder's part of the profile run.

    tokens, sequences, length: max_num_batched_tokens, max_num_seqs and max_model_len. limit: images of a prompt.
    ranks: ranks that divide the encoder's matrices; 1 where each has them whole. image_ranks: ranks that divide the
    images. element_bytes: bytes of an activation. frames: frames of the longest video, for classes whose videos have
    more tokens than their images; 0 for others. size: height and width of the image in pixels; None for the largest.
    """

    tokens: int
    sequences: int
    length: int
    limit: int
    ranks: int
    image_ranks: int
    element_bytes: int
    frames: int = 0
    size: tuple[int, int] | None = None
    videos: VideosOfImages | None = None
    chunk_bytes: int | None = None


class EncoderRun(NamedTuple):
    """The image encoder's part of the profile run.

    images: images (or videos) that it reads. tokens: tokens of each. pass_bytes: the most in a layer of the encoder.
    output_bytes, pixel_bytes: its outputs and inputs.
    """

    images: int
    tokens: int
    pass_bytes: int
    output_bytes: int
    pixel_bytes: int


def input_limit(limit: Any) -> Any:
    """Returns the largest number of inputs of a kind per request, from a number or the `count` of a table."""
    return limit.get("count", DEFAULT_IMAGE_LIMIT) if isinstance(limit, Mapping) else limit


def image_limit(limits: Mapping[str, Any]) -> int:
    """Returns the largest number of images per request (`--limit-mm-per-prompt`). Raises `InputError`."""
    limit = input_limit(limits.get("image", DEFAULT_IMAGE_LIMIT))
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= 10**6:
        raise InputError(f"--limit-mm-per-prompt: image: {shown(limit)}; expected a whole number")
    return limit


def image_size(limits: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns the image's height and width in pixels from `--limit-mm-per-prompt`; None for the largest image.

    Raises `InputError` for sizes that are no whole numbers.
    """
    table = limits.get("image")
    if not isinstance(table, Mapping) or not {"height", "width"} <= set(table):
        return None
    size = table["height"], table["width"]
    if any(isinstance(side, bool) or not isinstance(side, int) or not 0 < side <= 10**6 for side in size):
        raise InputError("--limit-mm-per-prompt: image: height and width: expected whole numbers of pixels")
    return size


def image_tower(spec: ModelSpec) -> VisionTower | None:
    """Returns the image encoder; None without an encoder with a known image processor."""
    towers = [tower for tower in spec.towers.values() if isinstance(tower, VisionTower)]
    return towers[0] if len(towers) == 1 and towers[0].image is not None else None


def patch_of_long_videos(spec: ModelSpec) -> int:
    """Returns the patch size of an encoder that merges two video frames; otherwise 0."""
    tower = image_tower(spec)
    if tower is None or not isinstance(tower.image, SmartResize):
        return 0
    return tower.patches.patch_size if tower.image.frames == 1 and tower.patches.temporal_patch_size == 2 else 0


def reads_chunks_of_images(spec: ModelSpec) -> bool:
    """Whether the encoder scales images to a budget of tokens, as Gemma 4's, which vLLM gives some at a time."""
    tower = image_tower(spec)
    return tower is not None and isinstance(tower.image, Budget)


def encoder_run(spec: ModelSpec, request: EncoderRequest, processor: Mapping[str, Any]) -> EncoderRun | None:
    """Returns the image encoder's part of a model's profile run; None if it is unknown or gets no images.

    processor: the table of `--mm-processor-kwargs`. Raises `InputError` for keys in it that are not modelled.
    """
    tower = image_tower(spec)
    if tower is None or tower.image is None or request.limit == 0:
        return None
    rule = _apply_processor_limits(tower.image, processor)
    sizes = (
        [(tiles_down * LARGEST_SIDE, tiles_across * LARGEST_SIDE) for tiles_down, tiles_across in ASPECT_RATIOS]
        if request.size is None
        else [request.size]
    )
    image = max(_processed_images(rule, sizes, tower.patches.patch_size), key=lambda encoded: encoded.tokens)
    copies = 1
    if request.frames:
        most_images = max(1, request.length // image.tokens)
        copies = min(request.frames // tower.patches.temporal_patch_size, most_images)
    marks = int(getattr(rule, "marks", 0))
    tokens, image_patches = image.tokens - marks, image.parts * image.rows * image.columns
    if request.videos is not None and isinstance(rule, Budget):
        image_patches = image_patches * request.videos.frame_tokens // rule.max_tokens
        copies, tokens, marks = request.videos.frames, request.videos.frame_tokens, request.videos.marks
    tokens, marked_tokens = copies * tokens, copies * (tokens + (marks if request.videos is not None else 0))
    budget = max(request.tokens, marked_tokens)
    prompt_images = max(1, min(request.limit, request.length // marked_tokens))
    images = max(1, min(budget // marked_tokens, request.sequences * prompt_images))
    patches = copies * image_patches
    pixel = tower.patches.num_channels * tower.patches.temporal_patch_size * tower.patches.patch_size**2
    element = request.element_bytes
    rank_patches = patches * -(-images // request.image_ranks)
    if request.chunk_bytes is not None and tower.positions is not None:
        chunk = request.chunk_bytes // (image_patches * tower.positions.rows * POSITION_BYTES)
        rank_patches = min(rank_patches, image_patches * max(1, chunk))
    return EncoderRun(
        images,
        tokens,
        rank_patches * (pixel + _layer_elements(tower, request.ranks)) * element,
        images * tokens * spec.hidden_size * element,
        images * patches * pixel * element,
    )


def _processed_images(rule: ImageRule, sizes: Iterable[tuple[int, int]], patch_size: int) -> list[EncodedInput]:
    """Returns the images of these sizes after processing, without sizes that the processor refuses."""
    images = []
    for height, width in sizes:
        try:
            images.append(rule.encode(height, width, patch_size))
        except InputError:
            continue
    if not images:
        raise InputError("--limit-mm-per-prompt: the processor reads no image of this size; expected another")
    return images


def _layer_elements(tower: VisionTower, ranks: int) -> int:
    """Returns the largest number of live elements per patch in an encoder layer, which is not compiled.

    They are the positions, the layer's input, the normalized one, and the vectors of attention or of the network.
    """
    hidden_size, block = tower.hidden_size, tower.stack.block
    attention, network = block.attention, block.feed_forward
    width = attention.num_attention_heads * (attention.head_dim or hidden_size // attention.num_attention_heads)
    vectors = ATTENTION_VECTORS + (ROTATED_VECTORS if attention.position is not None else 0)
    reduced_output = hidden_size if ranks > 1 else 0
    attention_elements = 2 * hidden_size + vectors * width // ranks + hidden_size + reduced_output
    network_elements = 3 * hidden_size + (3 if network.gated else 2) * network.intermediate_size // ranks
    return int((hidden_size if tower.positions is not None else 0) + max(attention_elements, network_elements))


def _apply_processor_limits(rule: ImageRule, processor: Mapping[str, Any]) -> ImageRule:
    """Returns the image processor with the limits of `--mm-processor-kwargs`."""
    table = dict(processor)
    size = table.pop("size", {})
    if not isinstance(size, Mapping):
        raise InputError(f"--mm-processor-kwargs: size: {shown(size)}; expected a table with longest_edge")
    most_pixels = table.pop("max_pixels", size.get("longest_edge"))
    min_pixels = table.pop("min_pixels", None)
    for name in [name for name in table if name in IDLE_PROCESSOR_KEYS]:
        table.pop(name)
    if table or (most_pixels is not None and not isinstance(rule, SmartResize)):
        raise InputError(
            f"--mm-processor-kwargs: {shown(next(iter(table), 'max_pixels'))} is not modelled for this model; "
            "remove the key"
        )
    if not isinstance(rule, SmartResize):
        return rule
    limits = {"max_pixels": most_pixels, "min_pixels": min_pixels}
    for name, value in limits.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**10):
            raise InputError(f"--mm-processor-kwargs: {name}: {shown(value)}; expected a number of pixels")
    changed_limits = {name: value for name, value in limits.items() if value is not None}
    if most_pixels is not None and min_pixels is None:
        changed_limits["min_pixels"] = min(rule.min_pixels, most_pixels)
    return rule.model_copy(update=changed_limits)


IDLE_PROCESSOR_KEYS = ("use_fast", "fps", "num_frames", "do_sample_frames", "video_max_pixels", "do_resize")
"""Keys of `--mm-processor-kwargs` that change no image."""
