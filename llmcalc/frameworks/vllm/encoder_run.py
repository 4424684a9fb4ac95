"""The memory of the image encoder in vLLM's profile run (v1/worker/gpu_model_runner.py, `profile_run`).

Before the text model runs, the encoder reads as many of the largest images as its budget of tokens allows
(multimodal/encoder_budget.py, `MultiModalBudget`; v1/core/encoder_cache_manager.py, `compute_mm_encoder_budget`). Its
outputs stay in the encoder's cache while the text model runs; on the first model runner the pixels stay beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...components.inputs.base import ImageRule, InputSizes
from ...components.inputs.smart_resize import SmartResize
from ...components.inputs.token_budget import TokenBudget
from ...components.towers.vision import VisionTower
from ...errors import InputError, short_repr
from ...model import ModelSpec
from .versions import VideoFrames, VideosAsImages

DEFAULT_IMAGE_LIMIT = 999
"""Default number of images per prompt without `--limit-mm-per-prompt` (vllm/config/multimodal.py)."""

ASPECT_RATIOS = ((1, 1), (4, 3), (3, 4), (2, 1), (1, 2), (3, 1), (1, 3))
"""Ratios of height to width that are tried to find the image with the most tokens."""

LARGEST_SIDE = 12_000
"""Side of an image in pixels, so large that every processor shrinks the image."""

ROTATED_VECTORS = 4
"""Additional vectors per patch for rotated queries and keys: a contiguous copy and the rotated result of each
(models/qwen2_5_vl.py, `Qwen2_5_VisionAttention`).
"""

ATTENTION_VECTORS = 4
"""Vectors per patch that attention keeps: query, key, value and output."""

POSITION_BYTES = 32
"""Bytes per patch and row of the position table, with which vLLM sizes a chunk of images (`_encoder_chunk`)."""


SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""Gemma 4's possible numbers of tokens per image (transformers: models/gemma4/image_processing_gemma4.py)."""


class EncoderRunSettings(NamedTuple):
    """The settings that determine how the image encoder runs in vLLM's profile run.

    max_num_batched_tokens, max_num_seqs, max_model_len: the values of these flags.
    images_per_prompt: largest number of images of a prompt.
    matrix_rank_count: number of ranks that divide the encoder's matrices; 1 where each has them whole.
    image_rank_count: number of ranks that divide the images.
    element_bytes: bytes of an element of activations.
    video_frames: frames of the longest video, for classes whose videos have more tokens than their images; None for
        others.
    image_size: height and width of the image in pixels; None for the largest.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    images_per_prompt: int
    matrix_rank_count: int
    image_rank_count: int
    element_bytes: int
    video_frames: VideoFrames | None = None
    image_size: tuple[int, int] | None = None
    videos_as_images: VideosAsImages | None = None
    video_chunk_bytes: int | None = None


class EncoderRun(NamedTuple):
    """The image encoder's inputs and memory in vLLM's profile run.

    image_count: images (or videos) that it reads. tokens_per_input: tokens of each. pass_bytes: the most in a layer of
        the encoder.
    output_bytes, pixel_bytes: its outputs and inputs. input_medium: what it reads, images or video.
    """

    image_count: int
    tokens_per_input: int
    pass_bytes: int
    output_bytes: int
    pixel_bytes: int
    input_medium: str = "images"


def input_limit(limit_value: Any) -> Any:
    """Returns the largest number of inputs of a kind per request, from a number or the `count` of a table."""
    return limit_value.get("count", DEFAULT_IMAGE_LIMIT) if isinstance(limit_value, Mapping) else limit_value


def image_limit(inputs_per_prompt: Mapping[str, Any]) -> int:
    """Returns the largest number of images per request (`--limit-mm-per-prompt`). Raises `InputError`."""
    image_count = input_limit(inputs_per_prompt.get("image", DEFAULT_IMAGE_LIMIT))
    if isinstance(image_count, bool) or not isinstance(image_count, int) or not 0 <= image_count <= 10**6:
        raise InputError(f"--limit-mm-per-prompt: image: {short_repr(image_count)}; expected a whole number")
    return image_count


def image_size(inputs_per_prompt: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns the image's height and width in pixels from `--limit-mm-per-prompt`; None for the largest image.

    Raises `InputError` for sizes that are no whole numbers.
    """
    image_settings = inputs_per_prompt.get("image")
    if not isinstance(image_settings, Mapping) or not {"height", "width"} <= set(image_settings):
        return None
    image_size_in_pixels = image_settings["height"], image_settings["width"]
    if any(
        isinstance(side_pixels, bool) or not isinstance(side_pixels, int) or not 0 < side_pixels <= 10**6
        for side_pixels in image_size_in_pixels
    ):
        raise InputError("--limit-mm-per-prompt: image: height and width: expected whole numbers of pixels")
    return image_size_in_pixels


def image_tower(spec: ModelSpec) -> VisionTower | None:
    """Returns the image encoder; None without an encoder with a known image processor."""
    vision_towers = [vision_tower for vision_tower in spec.towers.values() if isinstance(vision_tower, VisionTower)]
    return vision_towers[0] if len(vision_towers) == 1 and vision_towers[0].image is not None else None


def long_video_patch_size(spec: ModelSpec) -> int:
    """Returns the patch size of an encoder that merges two video frames; otherwise 0."""
    tower = image_tower(spec)
    if tower is None or not isinstance(tower.image, SmartResize):
        return 0
    return tower.patches.patch_size if tower.image.frames == 1 and tower.patches.temporal_patch_size == 2 else 0


def has_chunked_images(spec: ModelSpec) -> bool:
    """Whether the encoder scales images to a token budget, as in Gemma 4; vLLM then encodes a few images at a time."""
    vision_tower = image_tower(spec)
    return vision_tower is not None and isinstance(vision_tower.image, TokenBudget)


def tokens_of_whole_images(spec: ModelSpec) -> int:
    """Returns the tokens of the largest image whose tokens all see each other in Gemma 4; 0 for other models.

    The configs of 12B, 26B-A4B and 31B state it (`use_bidirectional_attention`: vision). Those of E2B and E4B, which
    have an embedding of every layer, do not.
    """
    image_rules = [getattr(tower, "image", None) for tower in spec.towers.values()]
    if any(stack.per_layer_embedding is not None for _, stack in spec.stacks()):
        return 0
    return max((image_rule.max_tokens for image_rule in image_rules if isinstance(image_rule, TokenBudget)), default=0)


def encoder_run(
    spec: ModelSpec, encoder_settings: EncoderRunSettings, processor_settings: Mapping[str, Any]
) -> EncoderRun | None:
    """Returns the image encoder's memory in the profile run; None if it is unknown or the server reads no images.

    processor_settings: the table of `--mm-processor-kwargs`. Raises `InputError` for keys in it that are not modelled.
    """
    tower = image_tower(spec)
    if tower is None or tower.image is None or encoder_settings.images_per_prompt == 0:
        return None
    image_resizing = _apply_processor_limits(tower.image, processor_settings)
    image_sizes = (
        [(tiles_down * LARGEST_SIDE, tiles_across * LARGEST_SIDE) for tiles_down, tiles_across in ASPECT_RATIOS]
        if encoder_settings.image_size is None
        else [encoder_settings.image_size]
    )
    largest_input = max(
        _processed_images(image_resizing, image_sizes, tower.patches.patch_size),
        key=lambda processed_input: processed_input.tokens,
    )
    images_per_input = 1
    if encoder_settings.video_frames is not None:
        image_limit = (
            encoder_settings.max_model_len // largest_input.tokens - encoder_settings.video_frames.beside_image
        )
        images_per_input = max(
            1, min(encoder_settings.video_frames.frames // tower.patches.temporal_patch_size, image_limit)
        )
    timestamp_tokens = int(getattr(image_resizing, "marks", 0))
    image_tokens = largest_input.tokens - timestamp_tokens
    image_patches = largest_input.tile_or_clip_count * largest_input.rows * largest_input.columns
    if encoder_settings.videos_as_images is not None and isinstance(image_resizing, TokenBudget):
        image_patches = image_patches * encoder_settings.videos_as_images.frame_tokens // image_resizing.max_tokens
        images_per_input = encoder_settings.videos_as_images.frames
        image_tokens = encoder_settings.videos_as_images.frame_tokens
        timestamp_tokens = encoder_settings.videos_as_images.marks
    image_tokens, tokens_with_timestamps = (
        images_per_input * image_tokens,
        images_per_input * (image_tokens + (timestamp_tokens if encoder_settings.videos_as_images is not None else 0)),
    )
    token_budget = max(encoder_settings.max_num_batched_tokens, tokens_with_timestamps)
    prompt_image_count = max(
        1, min(encoder_settings.images_per_prompt, encoder_settings.max_model_len // tokens_with_timestamps)
    )
    image_count = max(
        1, min(token_budget // tokens_with_timestamps, encoder_settings.max_num_seqs * prompt_image_count)
    )
    patches_per_input = images_per_input * image_patches
    patch_elements = tower.patches.num_channels * tower.patches.temporal_patch_size * tower.patches.patch_size**2
    element_bytes = encoder_settings.element_bytes
    rank_patches = patches_per_input * -(-image_count // encoder_settings.image_rank_count)
    if encoder_settings.video_chunk_bytes is not None and tower.positions is not None:
        images_per_chunk = encoder_settings.video_chunk_bytes // (image_patches * tower.positions.rows * POSITION_BYTES)
        rank_patches = min(rank_patches, image_patches * max(1, images_per_chunk))
    return EncoderRun(
        image_count,
        image_tokens,
        rank_patches * (patch_elements + _layer_elements(tower, encoder_settings.matrix_rank_count)) * element_bytes,
        image_count * image_tokens * spec.hidden_size * element_bytes,
        image_count * patches_per_input * patch_elements * element_bytes,
        "video" if images_per_input > 1 else "images",
    )


def _processed_images(
    image_resizing: ImageRule, image_sizes: Iterable[tuple[int, int]], patch_size: int
) -> list[InputSizes]:
    """Returns images of the given sizes after processing, without sizes that the processor refuses."""
    processed_images = []
    for image_height, image_width in image_sizes:
        try:
            processed_images.append(image_resizing.input_sizes(image_height, image_width, patch_size))
        except InputError:
            continue
    if not processed_images:
        raise InputError("--limit-mm-per-prompt: the processor reads no image of this size; expected another")
    return processed_images


def _layer_elements(vision_tower: VisionTower, rank_count: int) -> int:
    """Returns the largest number of live tensor elements per patch in an encoder layer without torch.compile.

    They are the positions, the layer's input, the normalized one, and the vectors of attention or of the network.
    """
    hidden_size, encoder_layer = vision_tower.hidden_size, vision_tower.stack.block
    attention, feed_forward = encoder_layer.attention, encoder_layer.feed_forward
    query_width = attention.num_attention_heads * (attention.head_dim or hidden_size // attention.num_attention_heads)
    attention_vector_count = ATTENTION_VECTORS + (ROTATED_VECTORS if attention.position is not None else 0)
    reduced_elements = hidden_size if rank_count > 1 else 0
    attention_elements = (
        2 * hidden_size + attention_vector_count * query_width // rank_count + hidden_size + reduced_elements
    )
    network_elements = 3 * hidden_size + (3 if feed_forward.gated else 2) * feed_forward.intermediate_size // rank_count
    return int((hidden_size if vision_tower.positions is not None else 0) + max(attention_elements, network_elements))


def _apply_processor_limits(image_resizing: ImageRule, processor_settings: Mapping[str, Any]) -> ImageRule:
    """Returns the image processor with the limits of `--mm-processor-kwargs`."""
    processor_limits = dict(processor_settings)
    size_settings = processor_limits.pop("size", {})
    if not isinstance(size_settings, Mapping):
        raise InputError(
            f"--mm-processor-kwargs: size: {short_repr(size_settings)}; expected a table with longest_edge"
        )
    most_pixels = processor_limits.pop("max_pixels", size_settings.get("longest_edge"))
    min_pixels = processor_limits.pop("min_pixels", None)
    if isinstance(image_resizing, TokenBudget) and "max_soft_tokens" in processor_limits:
        image_tokens = processor_limits.pop("max_soft_tokens")
        if isinstance(image_tokens, bool) or image_tokens not in SOFT_TOKENS:
            raise InputError(
                f"--mm-processor-kwargs: max_soft_tokens: {short_repr(image_tokens)}; expected one of "
                f"{', '.join(map(str, SOFT_TOKENS))}"
            )
        image_resizing = image_resizing.model_copy(update={"max_tokens": image_tokens})
    for limit_name in [limit_name for limit_name in processor_limits if limit_name in IDLE_PROCESSOR_KEYS]:
        processor_limits.pop(limit_name)
    if processor_limits or (most_pixels is not None and not isinstance(image_resizing, SmartResize)):
        raise InputError(
            f"--mm-processor-kwargs: {short_repr(next(iter(processor_limits), 'max_pixels'))} is not modelled for this "
            "model; remove the key"
        )
    if not isinstance(image_resizing, SmartResize):
        return image_resizing
    pixel_limits = {"max_pixels": most_pixels, "min_pixels": min_pixels}
    for limit_name, pixel_limit in pixel_limits.items():
        if pixel_limit is not None and (
            isinstance(pixel_limit, bool) or not isinstance(pixel_limit, int) or not 0 < pixel_limit < 10**10
        ):
            raise InputError(
                f"--mm-processor-kwargs: {limit_name}: {short_repr(pixel_limit)}; expected a number of pixels"
            )
    changed_limits = {name: pixel_limit for name, pixel_limit in pixel_limits.items() if pixel_limit is not None}
    if most_pixels is not None and min_pixels is None:
        changed_limits["min_pixels"] = min(image_resizing.min_pixels, most_pixels)
    return image_resizing.model_copy(update=changed_limits)


IDLE_PROCESSOR_KEYS = ("use_fast", "fps", "num_frames", "do_sample_frames", "video_max_pixels", "do_resize")
"""Keys of `--mm-processor-kwargs` that do not change image sizes."""
