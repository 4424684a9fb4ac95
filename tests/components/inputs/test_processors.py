"""The patches and tokens of an image or a recording, against the processors of transformers.

Processors of images need torchvision or Pillow; those here are Pillow's, and of Llama 4's, which has none, the
functions that choose its tiles.
"""

from __future__ import annotations

import ast
import math
import random
from collections import defaultdict
from collections.abc import Callable
from functools import cache, lru_cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from pydantic import TypeAdapter

from llmcalc.components.inputs import IMAGE_RULES, ImageInput
from llmcalc.components.inputs.audio_chunks import AudioChunks
from llmcalc.components.inputs.audio_clips import AudioClips
from llmcalc.components.inputs.audio_recording import AudioRecording
from llmcalc.components.inputs.base import InputSizes
from llmcalc.errors import InputError
from llmcalc.sources.huggingface.towers.emu import IMAGE_RULE
from llmcalc.sources.huggingface.towers.gemma import GEMMA3N_FRAMES, GEMMA4_FRAMES
from llmcalc.sources.huggingface.towers.llava import MINIMAX_VL_DEFAULTS
from llmcalc.sources.huggingface.towers.siglip import LFM2_LIMITS

RANDOM = random.Random(7)
SIZES = [
    (768, 1024),
    (336, 336),
    (100, 3000),
    (3000, 120),
    (4096, 4096),
    (30, 30),
    (500, 500),
    *((RANDOM.randint(28, 2500), RANDOM.randint(28, 2500)) for _ in range(60)),
]
"""Height and width of images."""


class Size(NamedTuple):
    """A size as a processor has it."""

    height: int
    width: int


Measured = tuple[int, int, int]
"""Parts, patches of each part, tokens."""


def models(name: str) -> Any:
    return import_module(f"transformers.models.{name}")


def processor(**fields: Any) -> Any:
    """A processor's fields without its tokenizer, for its methods."""
    return SimpleNamespace(_merge_kwargs=lambda **kwargs: {"images_kwargs": {}}, **fields)


def counted(cls: Any, height: int, width: int, **fields: Any) -> tuple[int, int]:
    """Returns the tokens and the patches that a processor's class counts for an image."""
    found = cls._get_num_multimodal_tokens(processor(**fields), image_sizes=[[height, width]])
    return found["num_image_tokens"][0], found["num_image_patches"][0]


def smart_resize(module: str, name: str, patch: int, least: int, most: int) -> Callable[[int, int], Measured]:
    @cache
    def images() -> Any:
        cls = getattr(models(module), name)  # its import takes seconds
        return cls(size={"shortest_edge": least, "longest_edge": most}, patch_size=patch, merge_size=2)

    def measure(height: int, width: int) -> Measured:
        patches = images().get_number_of_image_patches(height, width, {})
        return 1, patches, patches // 4

    return measure


def pixtral(height: int, width: int) -> Measured:
    """Each line of tokens ends in a mark (`PixtralProcessor.replace_image_token`)."""
    import numpy as np
    from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

    rows, columns = get_resize_output_image_size(np.zeros((height, width, 3)), size=(1540, 1540), patch_size=(28, 28))
    return 1, rows // 14 * (columns // 14), rows // 28 * (columns // 28 + 1)


def llava_next(height: int, width: int) -> Measured:
    from transformers.image_processing_utils import select_best_resolution
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor as Processor

    points = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    fields = SimpleNamespace(image_processor=SimpleNamespace(image_grid_pinpoints=points), patch_size=14)
    fields.num_additional_image_tokens = 1
    fields._get_unpadded_features = lambda *sizes: Processor._get_unpadded_features(fields, *sizes)
    rows, columns = select_best_resolution((height, width), points)
    tokens = Processor._get_number_of_features(fields, height, width, 336, 336) - 1  # without the class vector
    return 1 + rows // 336 * (columns // 336), 24 * 24, tokens


def onevision(height: int, width: int) -> Measured:
    from transformers.image_processing_utils import select_best_resolution
    from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor as Processor

    points = [[384 * down, 384 * across] for down in range(1, 7) for across in range(1, 7)]
    fields = SimpleNamespace(image_processor=SimpleNamespace(image_grid_pinpoints=points), num_image_tokens=729)
    fields.vision_aspect_ratio = "anyres_max_9"
    fields._get_unpadded_features = lambda *sizes: Processor._get_unpadded_features(fields, *sizes)
    rows, columns = select_best_resolution((height, width), points)
    tokens = Processor._get_number_of_features(fields, height, width, 384, 384)
    return 1 + rows // 384 * (columns // 384), 27 * 27, tokens


def internvl(height: int, width: int) -> Measured:
    from transformers.models.internvl.processing_internvl import InternVLProcessor

    images = models("got_ocr2").GotOcr2ImageProcessorPil(
        size={"height": 448, "width": 448}, crop_to_patches=True, max_patches=12
    )
    tokens, parts = counted(InternVLProcessor, height, width, image_processor=images, image_seq_length=256)
    return parts, 32 * 32, tokens


def aya(height: int, width: int) -> Measured:
    from transformers.models.aya_vision.processing_aya_vision import AyaVisionProcessor

    images = models("got_ocr2").GotOcr2ImageProcessorPil(
        size={"height": 364, "width": 364}, crop_to_patches=True, max_patches=12
    )
    tokens, parts = counted(AyaVisionProcessor, height, width, image_processor=images, img_size=364, patch_size=28)
    return parts, 26 * 26, tokens


def idefics3(height: int, width: int) -> Measured:
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    images = models("idefics3").Idefics3ImageProcessorPil(
        size={"longest_edge": 1456}, max_image_size={"longest_edge": 364}, do_image_splitting=True
    )

    def line_ends_are_one_token(text: str, **kwargs: Any) -> dict[str, list[int]]:
        return {"input_ids": [0]}

    tokens, parts = counted(
        Idefics3Processor,
        height,
        width,
        image_processor=images,
        image_seq_len=169,
        tokenizer=line_ends_are_one_token,
    )
    return max(parts, 1), 26 * 26, tokens


def gemma4(height: int, width: int) -> Measured:
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

    rows, columns = get_aspect_ratio_preserving_size(height, width, 16, 280 * 9, 3)
    return 1, 280 * 9, rows // 48 * (columns // 48) + 2


def function_of(path: str, *names: str, **scope: Any) -> dict[str, Any]:
    """Functions of a module of transformers that needs torchvision, which they do not."""
    import numpy as np

    tree = ast.parse((Path(transformers.__file__).parent / "models" / path).read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    scope |= {"math": math, "lru_cache": lru_cache, "np": np}
    exec(compile(tree, path, "exec"), scope)
    return scope


@lru_cache(maxsize=1)
def llama4_functions() -> dict[str, Any]:
    names = "get_factors", "find_supported_resolutions", "get_best_fit"
    scope = {"torch": torch, "defaultdict": defaultdict, "SizeDict": Any}
    return function_of("llama4/image_processing_llama4.py", *names, **scope)


def llama4(height: int, width: int) -> Measured:
    functions = llama4_functions()
    resolutions = torch.tensor(functions["find_supported_resolutions"](16, Size(336, 336)))
    target = functions["get_best_fit"]((height, width), resolutions)
    down, across = (int(side) // 336 for side in target)
    from transformers.models.llama4.processing_llama4 import Llama4Processor

    text = Llama4Processor._prompt_split_image(SimpleNamespace(), (down, across), 144)
    return down * across + (down * across > 1), 24 * 24, text.count("<|")


def video_llama(height: int, width: int) -> Measured:
    module = models("video_llama_3")
    images = module.VideoLlama3ImageProcessorPil()
    tokens, patches = counted(module.VideoLlama3Processor, height, width, image_processor=images)
    return 1, patches, tokens


def emu3(height: int, width: int) -> Measured:
    """Two marks stand before the tokens, and two after (`Emu3Processor.replace_image_token`)."""
    from transformers.models.emu3.image_processing_emu3 import smart_resize as resized_sides
    from transformers.models.emu3.processing_emu3 import Emu3Processor

    images = SimpleNamespace(spatial_factor=8, min_pixels=512 * 512, max_pixels=1024 * 1024)
    tokens, parts = counted(Emu3Processor, height, width, image_processor=images, downsample_ratio=8)
    rows, columns = resized_sides(height, width, 8, images.min_pixels, images.max_pixels)
    return parts, rows // 8 * (columns // 8), tokens + 4


def aria(height: int, width: int) -> Measured:
    """Counts as `AriaImageProcessor.get_number_of_image_patches` counts: each crop has 256 tokens."""
    from transformers.image_processing_utils import select_best_resolution

    rows, columns = (math.ceil(side / 980) for side in select_best_resolution((height, width), ARIA_CROPS))
    return rows * columns, 70 * 70, 256 * rows * columns


def phi3(height: int, width: int) -> Measured:
    """Counts as Phi-3-vision's published `calc_num_image_tokens_from_image_size` counts, for 16 crops."""
    long, short = max(height, width), min(height, width)
    scale = max(scale for scale in range(1, 17) if scale * math.ceil(scale / (long / short)) <= 16)
    sides = [336 * scale, 336 * math.ceil(int(336 * scale / (long / short)) / 336)]
    rows, columns = (side // 336 for side in (sides if height > width else sides[::-1]))
    return 17, 24 * 24, (rows * columns + 1) * 144 + 1 + (rows + 1) * 12


def minimax_vl(height: int, width: int) -> Measured:
    """Counts as `MiniMaxVL01Processor._get_unpadded_features` counts, with whole numbers where LLaVA-NeXT rounds."""
    from transformers.image_processing_utils import select_best_resolution

    rows, columns = (side // 14 for side in select_best_resolution((height, width), MINIMAX_VL))
    parts = 1 + rows * columns // 24**2
    if width / height > columns / rows:
        rows -= (rows - height * columns // width) // 2 * 2
    else:
        columns -= (columns - width * rows // height) // 2 * 2
    return parts, 24 * 24, rows * columns + rows + 24 * 24


@lru_cache(maxsize=1)
def minimax_function() -> Any:
    return function_of("minimax_m3_vl/image_processing_minimax_m3_vl.py", "smart_resize")["smart_resize"]


def minimax(height: int, width: int) -> Measured:
    """A start and an end mark stand around the tokens (`MiniMaxM3VLProcessor.replace_image_token`)."""
    rows, columns = minimax_function()(height, width, 28, 4 * 28 * 28, 451_584)
    patches = rows // 14 * (columns // 14)
    return 1, patches, patches // 4 + 2


@lru_cache(maxsize=1)
def kimi_function() -> Any:
    return function_of("kimi_k25/image_processing_kimi_k25.py", "navit_resize")["navit_resize"]


def kimi(max_patches: int, max_side: int) -> Callable[[int, int], Measured]:
    def measure(height: int, width: int) -> Measured:
        _, (rows, columns) = kimi_function()(height, width, 14, 2, max_patches, max_side)
        patches = rows // 14 * (columns // 14)
        return 1, patches, patches // 4

    return measure


def minicpm(height: int, width: int, merge: int = 4) -> Measured:
    """The processor of version 4.6, whose sides are multiples of four patches."""
    from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil

    processor, patch_size = MiniCPMV4_6ImageProcessorPil(), 14 * merge / 4
    grid = processor.get_sliced_grid((height, width), 9, 448)
    sizes = processor.find_best_resize((height, width), 448, patch_size, "16x", allow_upscale=grid is None)
    patches, slices = math.prod(sizes), math.prod(grid or [0])
    if grid:
        refined = processor.get_refine_size((height, width), grid, 448, patch_size, "16x", allow_upscale=True)
        patches = max(patches, math.prod(refined) // slices)
    tokens = 3 + (1 + slices) * (64 + 2) + (grid[0] - 1 if grid else 0)
    return 1 + slices, int(patches) // 14**2, tokens


@lru_cache(maxsize=1)
def cohere_function() -> Any:
    names = "get_optimal_tiled_canvas", "get_all_supported_aspect_ratios"
    return function_of("cohere2_vision/image_processing_cohere2_vision.py", *names)["get_optimal_tiled_canvas"]


def cohere(height: int, width: int) -> Measured:
    """A line break ends each tile of 16 × 16 tokens (`Cohere2VisionProcessor.replace_image_token`)."""
    tiles = math.prod(cohere_function()((height, width), (512, 512), 1, 12))
    images = tiles + (tiles > 1)
    return images, 32 * 32, images * (256 + 1) + 2


def ovis(height: int, width: int) -> Measured:
    from transformers.models.ovis2.image_processing_pil_ovis2 import get_min_tile_covering_grid
    from transformers.models.ovis2.processing_ovis2 import Ovis2Processor

    columns, rows = get_min_tile_covering_grid((height, width), 448, 9)
    fields = SimpleNamespace(image_seq_length=256)
    text = Ovis2Processor.replace_image_token(fields, {"grids": torch.tensor([[rows, columns]])}, 0)
    return rows * columns + (rows * columns > 1), 32 * 32, text.count("<")


def lighton(height: int, width: int) -> Measured:
    from transformers.models.lighton_ocr.processing_lighton_ocr import LightOnOcrProcessor

    fields = SimpleNamespace(size={"longest_edge": 1540}, patch_size=28)
    tokens_by_kind = LightOnOcrProcessor._get_num_multimodal_tokens(
        processor(image_processor=fields, effective_patch_size=28), image_sizes=[[height, width]]
    )
    (tokens,) = tokens_by_kind["num_image_tokens"]
    return 1, 4 * tokens, tokens


def functions_of(path: Path, names: tuple[str, ...], scope: dict[str, Any]) -> Any:
    """Returns functions and methods of a file by name, without its imports. scope: what they use."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    functions: list[ast.stmt] = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name in names]
    exec(compile(ast.Module(functions, []), str(path), "exec"), scope)
    return SimpleNamespace(**scope)


@lru_cache(maxsize=1)
def lfm2_processors() -> tuple[Any, Any, Any]:
    """Returns the size of a whole image, the grid of tiles, and the text of an image in LFM2-VL's two processors."""
    from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor as Processor

    path = Path(transformers.__file__).parent / "models/lfm2_vl/image_processing_lfm2_vl.py"
    names = "round_by_factor", "find_closest_aspect_ratio", "smart_resize", "_is_image_too_large", "_target_ratios"
    functions = functions_of(path, names, {"math": math, "lru_cache": lru_cache})
    return functions, Processor, SimpleNamespace(image_token="<", image_start_token="<")


def lfm2(height: int, width: int) -> Measured:
    functions, cls, marks = lfm2_processors()
    columns = rows = 1
    if functions._is_image_too_large(None, height, width, 256, 16, 2, 2.0):
        ratios = functions._target_ratios(None, 2, 10)
        columns, rows = functions.find_closest_aspect_ratio(width / height, ratios, width, height, 512)
    resized_width, resized_height = functions.smart_resize(None, height, width, 2, 64, 256, 16)
    tokens = cls._compute_tokens_for_image(None, [resized_height, resized_width], 16, 2)
    marks.image_thumbnail_token = marks.image_end_token = "<"
    text = cls._build_image_tokens(
        marks, rows, columns, cls._compute_tokens_per_tile(None, 512, 16, 2), tokens, True, True
    )
    return rows * columns + (rows * columns > 1), max(1024, 4 * tokens), text.count("<")


@lru_cache(maxsize=1)
def phi4_functions() -> Any:
    """Returns the functions of Phi-4-multimodal's processor that choose tiles, without the pixels."""
    path = Path(transformers.__file__).parent / "models/phi4_multimodal/image_processing_phi4_multimodal.py"
    unchanged = SimpleNamespace(resize=lambda image, _: image, pad=lambda image, *_, fill: image)
    scope = {"math": math, "torch": torch, "tvF": unchanged}
    functions = functions_of(path, ("find_closest_aspect_ratio", "dynamic_preprocess"), scope)
    functions.find_closest_aspect_ratio = partial(functions.find_closest_aspect_ratio, None)
    return functions


def phi4_mask(size: int, patch_size: int, height: int, width: int) -> torch.Tensor:
    """Returns the mask of the patches of Phi-4-multimodal's tiles, in which padding is 0."""
    functions, patches = phi4_functions(), size // patch_size
    image = torch.empty(1).expand(3, height, width)
    mask: torch.Tensor = functions.dynamic_preprocess(functions, image, size, patch_size, patches, max_num=36)[1]
    return mask


def phi4(height: int, width: int) -> Measured:
    mask = phi4_mask(448, 14, height, width)
    tiles = mask.unflatten(1, (-1, 32)).unflatten(0, (-1, 32))[:, ::2, :, ::2]
    tokens = int(tiles.sum()) + int(tiles[:, :, 0, 0].sum())
    return tiles.shape[0] * tiles.shape[2] + 1, 1024, 256 + 1 + tokens + 16


@lru_cache(maxsize=1)
def hunyuan_processor() -> Any:
    images = models("hunyuan_vl").HunYuanVLImageProcessorPil()
    return processor(image_processor=images, cat_extra_token=True)


def hunyuan(height: int, width: int) -> Measured:
    cls = import_module("transformers.models.hunyuan_vl.processing_hunyuan_vl").HunYuanVLProcessor
    counts = cls._get_num_multimodal_tokens(hunyuan_processor(), image_sizes=[[height, width]])
    return 1, counts["num_image_patches"][0], counts["num_image_tokens"][0]


@lru_cache(maxsize=1)
def nemotron_function() -> Any:
    path = "nemotron_h_omni/image_processing_nemotron_h_omni.py"
    return function_of(path, "get_patch_grid_size")["get_patch_grid_size"]


def nemotron(height: int, width: int) -> Measured:
    """A start and an end mark stand around the tokens (`replace_image_token` of its processor)."""
    patches = math.prod(nemotron_function()(height, width, 16, 2, 1024, 13312))
    return 1, patches, patches // 4 + 2


QWEN, GLM = (56 * 56, 3584 * 3584), (112 * 112, 9_633_792)
LLAVA_NEXT = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
ARIA_SHAPES = [*((1, across) for across in range(2, 9)), (2, 4), (2, 3), (2, 2), (2, 1), (3, 1), (3, 2), (4, 1), (4, 2)]
ARIA_CROPS = [[490 * down, 490 * across] for down, across in (*ARIA_SHAPES, (5, 1), (6, 1), (7, 1), (8, 1))]
MINIMAX_VL = MINIMAX_VL_DEFAULTS["image_grid_pinpoints"]
ONEVISION = [[384 * down, 384 * across] for down in range(1, 7) for across in range(1, 7)]
CASES: dict[str, tuple[dict[str, Any], int, Callable[[int, int], Measured]]] = {
    "qwen2_5_vl": (
        {"type": "smart_resize", "merge": 2, "min_pixels": QWEN[0], "max_pixels": QWEN[1]},
        14,
        smart_resize("qwen2_vl", "Qwen2VLImageProcessorPil", 14, *QWEN),
    ),
    "qwen3_vl": (
        {"type": "smart_resize", "merge": 2, "min_pixels": 65536, "max_pixels": 2**20},
        16,
        smart_resize("qwen2_vl", "Qwen2VLImageProcessorPil", 16, 65536, 2**20),
    ),
    "glm4v": (
        {"type": "smart_resize", "merge": 2, "min_pixels": GLM[0], "max_pixels": GLM[1], "frames": 2, "enlarge": True},
        14,
        smart_resize("glm4v", "Glm4vImageProcessorPil", 14, *GLM),
    ),
    "minimax_m3": (
        {"type": "smart_resize", "merge": 2, "min_pixels": 4 * 28 * 28, "max_pixels": 451_584, "marks": 2},
        14,
        minimax,
    ),
    "video_llama_3": (
        {"type": "smart_resize", "merge": 1, "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280},
        14,
        video_llama,
    ),
    "emu3": (IMAGE_RULE, 8, emu3),
    "keye_vl1_5": (
        {"type": "smart_resize", "merge": 2, "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280, "rounds_sides": True},
        14,
        smart_resize("qwen2_vl", "Qwen2VLImageProcessorPil", 14, 56 * 56, 28 * 28 * 1280),
    ),
    "aria, split": ({"type": "crops", "size": 980, "resolutions": ARIA_CROPS, "tokens": 256}, 14, aria),
    "minimax_vl_01": ({"type": "pinpoints", "size": 336, "resolutions": MINIMAX_VL}, 14, minimax_vl),
    "phi3_v": ({"type": "hd_transform", "size": 336, "max_tiles": 16, "merge": 2}, 14, phi3),
    "kimi_k25": ({"type": "padded", "merge": 2, "max_patches": 16384, "max_side": 512}, 14, kimi(16384, 512)),
    "kimi_vl": (
        {"type": "padded", "merge": 2, "max_patches": 4096, "max_side": 511, "refuses_long": True},
        14,
        kimi(4096, 10**6),
    ),
    "minicpmv4_6": ({"type": "slices", "size": 448, "max_slices": 9, "tokens": 64, "merge": 4}, 14, minicpm),
    "minicpmv2_6": (
        {"type": "slices", "size": 448, "max_slices": 9, "tokens": 64},
        14,
        partial(minicpm, merge=1),
    ),
    "cohere2_vision": (
        {"type": "tiles", "size": 512, "max_tiles": 12, "tokens": 256, "tile_marks": 1, "marks": 2}
        | {"least_scaling": True},
        16,
        cohere,
    ),
    "nemotron_h_omni": (
        {"type": "patch_grid", "merge": 2, "min_patches": 1024, "max_patches": 13312, "marks": 2},
        16,
        nemotron,
    ),
    "lfm2_vl": ({"type": "native_tiles", "merge": 2, **LFM2_LIMITS}, 16, lfm2),
    "ovis2": ({"type": "covering", "size": 448, "max_tiles": 9, "merge": 2}, 14, ovis),
    "lighton_ocr": ({"type": "longest_edge", "size": 1540, "merge": 2, "line_marks": False}, 14, lighton),
    "mistral3": ({"type": "longest_edge", "size": 1540, "merge": 2}, 14, pixtral),
    "llava_next": ({"type": "pinpoints", "size": 336, "resolutions": LLAVA_NEXT}, 14, llava_next),
    "llava_onevision": (
        {"type": "pinpoints", "size": 384, "resolutions": ONEVISION, "most_tiles": 9, "several_whole": True},
        14,
        onevision,
    ),
    "internvl": ({"type": "tiles", "size": 448, "max_tiles": 12, "tokens": 256, "marks": 2}, 14, internvl),
    "aya_vision": (
        {"type": "tiles", "size": 364, "max_tiles": 12, "tokens": 169, "tile_marks": 1, "marks": 2},
        14,
        aya,
    ),
    "idefics3": ({"type": "split", "size": 364, "longest_edge": 1456, "tokens": 169}, 14, idefics3),
    "gemma4": ({"type": "budget", "max_tokens": 280, "merge": 3, "marks": 2}, 16, gemma4),
    "phi4_multimodal": ({"type": "dynamic_hd", "size": 448, "max_tiles": 36, "merge": 2}, 14, phi4),
    "ernie4_5_vl": (
        {"type": "smart_resize", "merge": 2, "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 6177},
        14,
        smart_resize("ernie4_5_vl_moe", "Ernie4_5_VLMoeImageProcessorPil", 14, 56 * 56, 28 * 28 * 6177),
    ),
    "hunyuan_vl": (
        {"type": "smart_resize", "merge": 2, "min_pixels": 2**18, "max_pixels": 2**22, "line_marks": True, "marks": 2},
        16,
        hunyuan,
    ),
    "llama4": ({"type": "canvas", "size": 336, "max_tiles": 16, "tokens": 144}, 14, llama4),
}
RULES: TypeAdapter[Any] = TypeAdapter(ImageInput)


@pytest.mark.parametrize("kind", CASES)
def test_an_image_is_cut_as_the_processor_cuts_it(kind: str) -> None:
    table, patch_size, measure = CASES[kind]
    rule = RULES.validate_python(table)
    for height, width in SIZES:
        encoded = rule.input_sizes(height, width, patch_size)
        sizes = encoded.tile_or_clip_count, encoded.rows * encoded.columns, encoded.tokens
        assert sizes == measure(height, width), (height, width)


@pytest.mark.parametrize(("height", "width", "rows", "columns"), [(20, 100, 1, 5), (27, 20, 3, 2), (28, 9, 4, 2)])
def test_keye_enlarges_a_small_side_to_a_token(height: int, width: int, rows: int, columns: int) -> None:
    """27 × 20 pixels become 28 × 21, then 37 × 28, which are enlarged to 56² pixels: 2.3 and 1.7 tokens, rounded up.

    28 × 9 pixels become 87 × 28, which are enlarged as well: 3.5 and 1.1 tokens, rounded up.
    """
    encoded = RULES.validate_python(CASES["keye_vl1_5"][0]).input_sizes(height, width, 14)
    assert (encoded.rows, encoded.columns, encoded.tokens) == (2 * rows, 2 * columns, rows * columns)


def test_an_image_without_a_side_is_refused() -> None:
    """Phi-3-vision scales the longer side to 16 tiles of 336 pixels: the shorter one has 5,376 / 6,000 pixels."""
    with pytest.raises(InputError, match="--image 6000x1: the processor makes a side without pixels"):
        RULES.validate_python(CASES["phi3_v"][0]).input_sizes(1, 6000, 14)


def test_every_rule_is_compared_with_a_processor() -> None:
    """`fixed` makes one square of every image, so there is nothing to compare."""
    assert {table["type"] for table, *_ in CASES.values()} == IMAGE_RULES.class_paths.keys() - {"fixed"}


def test_a_square_has_the_patches_of_its_side() -> None:
    """896 / 14 = 64 patches a side; Gemma 3 writes two line ends, a start and an end around 256 embeddings."""
    encoded = RULES.validate_python({"size": 896, "tokens": 256, "marks": 4}).input_sizes(10, 2000, 14)
    assert (encoded.tile_or_clip_count, encoded.rows, encoded.columns, encoded.tokens) == (1, 64, 64, 260)


def test_several_images_of_llava_onevision_are_read_whole() -> None:
    rule = RULES.validate_python(CASES["llava_onevision"][0])
    assert rule.rule_for_several_images().input_sizes(768, 1024, 14).tokens == 729 + 1
    assert rule.input_sizes(768, 1024, 14).tile_or_clip_count == 7


@pytest.mark.parametrize("seconds", [0.02, 0.5, 1, 7.13, 29.99, 30])
def test_audio_of_qwen2_audio_is_cut_as_its_processor_cuts_it(seconds: float) -> None:
    import numpy as np

    extractor = transformers.WhisperFeatureExtractor(feature_size=8)
    signal = np.zeros(round(seconds * 16_000), np.float32)
    features = extractor(
        signal, sampling_rate=16_000, return_attention_mask=True, padding="max_length", return_tensors="np"
    )
    frames = int(features["attention_mask"].sum())
    encoded = AudioClips(merge=2).input_sizes(seconds)
    assert encoded.tokens == max(1, (((frames - 1) // 2 + 1) - 2) // 2 + 1)
    assert (encoded.tile_or_clip_count, encoded.rows) == (1, features["input_features"].shape[-1])


CLASSES_OF_CLIPS = {
    "audioflamingo3": ("AudioFlamingo3Processor", 600, {"merge": 2}),
    "musicflamingo": ("MusicFlamingoProcessor", 1200, {"merge": 2, "marks": 2}),
    "glmasr": ("GlmAsrProcessor", 655, {"merge": 4}),
}
"""Processor that cuts audio into clips → its class, its longest recording, fields of its rule."""


@pytest.mark.parametrize("name", CLASSES_OF_CLIPS)
def test_audio_of_the_flamingos_is_cut_into_clips_as_their_processors_cut_it(name: str) -> None:
    import numpy as np

    module = import_module(f"transformers.models.{name}.processing_{name}")
    class_name, most_seconds, rule_fields = CLASSES_OF_CLIPS[name]
    cls: Any = getattr(module, class_name)
    extractor = transformers.WhisperFeatureExtractor(feature_size=8)
    rule = AudioClips(several=True, max_clips=most_seconds // 30, **rule_fields)
    fields = SimpleNamespace(feature_extractor=extractor, max_audio_len=most_seconds, audio_token="<")
    fields.audio_bos_token = fields.audio_eos_token = "<"
    fields._get_audio_token_length = lambda lengths: cls._get_audio_token_length(fields, lengths)
    fields.replace_audio_token = lambda inputs, audio_idx: cls.replace_audio_token(fields, inputs, audio_idx)
    for seconds in (7.13, 30, 30.5):
        signal = np.zeros(round(seconds * 16_000), np.float32)
        settings = {"sampling_rate": 16_000, "return_attention_mask": True, "padding": "max_length"}
        inputs, texts = cls._process_audio(fields, [signal], **settings, return_tensors="pt")
        encoded = rule.input_sizes(seconds)
        assert encoded.tokens == texts[0].count("<")
        assert (encoded.tile_or_clip_count, encoded.rows) == (
            len(inputs["input_features"]),
            inputs["input_features"].shape[-1],
        )
    longest = most_seconds // 30 * 30
    with pytest.raises(InputError, match=f"at most {most_seconds // 30} clips; expected at most {longest}"):
        rule.input_sizes(most_seconds + 1)


def gemma4_tokens(features: Any) -> int:
    cls = import_module("transformers.models.gemma4.processing_gemma4").Gemma4Processor
    mask = features["input_features_mask"][0]
    text = cls.replace_audio_token(
        SimpleNamespace(boa_token="<", eoa_token="<", audio_token="<"), {"input_features_mask": mask[None]}, 0
    )
    return int(text.count("<"))


RECORDINGS: dict[str, tuple[dict[str, Any], str, str, Callable[[Any], int]]] = {
    "gemma4": (GEMMA4_FRAMES, "Gemma4AudioFeatureExtractor", "input_features", gemma4_tokens),
    "gemma4_unified": (
        {"window": 1, "hop": 640, "marks": 2},
        "Gemma4UnifiedAudioFeatureExtractor",
        "input_features",
        lambda features: int(features["input_features_mask"].sum()) + 2,
    ),
    "gemma3n": (GEMMA3N_FRAMES, "Gemma3nAudioFeatureExtractor", "input_features", lambda _: 188 + 4),
    "phi4_multimodal": (
        {"window": 400, "frames_per_token": 8},
        "Phi4MultimodalFeatureExtractor",
        "audio_input_features",
        lambda features: int(features["audio_embed_sizes"][0]),
    ),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_audio_is_framed_as_the_extractor_of_its_model_frames_it(name: str) -> None:
    import numpy as np

    table, extractor, key, tokens = RECORDINGS[name]
    rule, extract = AudioRecording(**table), getattr(transformers, extractor)()
    for seconds in (0.5, 1.0013, 7.13, 30):
        signal = np.zeros(round(seconds * 16_000), np.float32)
        features = extract([signal], sampling_rate=16_000, return_tensors="pt" if "phi4" in name else "np")
        encoded = rule.input_sizes(seconds)
        assert (encoded.rows, encoded.tokens) == (features[key].shape[1], tokens(features)), seconds


@pytest.mark.parametrize(
    ("table", "padding", "processor_name"),
    [
        ({"chunk": 200, "halvings": 1, "merge": 2}, "max_length", "qwen2_5_omni"),
        ({"chunk": 100, "halvings": 3, "drops_rest": True}, True, "qwen3_omni_moe"),
        ({"chunk": 100, "halvings": 3, "drops_rest": True, "least_samples": 8000}, True, "qwen3_asr"),
    ],
)
def test_audio_is_cut_into_chunks_as_the_omni_processors_cut_it(table: Any, padding: Any, processor_name: str) -> None:
    import numpy as np

    name = "qwen3_omni_moe" if processor_name == "qwen3_asr" else processor_name  # the lengths are the same
    module = import_module(f"transformers.models.{name}.processing_{name}")
    cls = "Qwen3ASRFeatureExtractor" if processor_name == "qwen3_asr" else "WhisperFeatureExtractor"
    extract = getattr(transformers, cls)(feature_size=8)
    for seconds in (0.05, 0.3013, 1.9001, 7.13, 30):
        signal = np.zeros(round(seconds * 16_000), np.float32)
        settings = {"sampling_rate": 16_000, "return_attention_mask": True, "padding": padding}
        frames = int(extract(signal, **settings, return_tensors="np")["attention_mask"].sum())
        encoded = AudioChunks(**table).input_sizes(seconds)
        assert (encoded.rows, encoded.tokens) == (frames, module._get_feat_extract_output_lengths(frames)), seconds


@pytest.mark.parametrize(("seconds", "clips"), [(1, 1), (30, 1), (30.5, 2), (95, 4)])
def test_audio_of_voxtral_is_padded_to_clips(seconds: float, clips: int) -> None:
    """A clip of 30 s is 3,000 frames, 1,500 positions and 375 tokens."""
    encoded = AudioClips(merge=4, padded=True, several=True).input_sizes(seconds)
    assert (encoded.tile_or_clip_count, encoded.rows, encoded.tokens) == (clips, 3000, 375 * clips)


@pytest.mark.parametrize(
    ("seconds", "parts", "frames", "tokens", "padded_frames"),
    [(0.01, 1, 2, 1, 16), (4.73, 1, 473, 30, 480), (30, 1, 3000, 188, 3008), (75.2, 3, 3000, 2 * 188 + 95, 3 * 3008)],
)
def test_audio_of_ultravox_is_read_in_its_length(
    seconds: float, parts: int, frames: int, tokens: int, padded_frames: int
) -> None:
    """`audio_token_len` of its processor is ceil(frames / 16) of each chunk; the projector pads positions to eights."""
    encoded = AudioClips(merge=8, several=True, fits=True).input_sizes(seconds)
    assert encoded == InputSizes(parts, frames, 1, tokens, padded_frames)


def test_longer_audio_than_a_clip_is_refused() -> None:
    with pytest.raises(InputError, match="--audio 31: the model reads one clip of at most 30 seconds"):
        AudioClips(merge=2).input_sizes(31)


def test_an_image_that_is_too_flat_is_refused() -> None:
    table, patch_size, _ = CASES["qwen2_5_vl"]
    with pytest.raises(InputError, match="sides differ by a factor of at most 200"):
        RULES.validate_python(table).input_sizes(10, 2100, patch_size)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"type": "smart_resize", "merge": 2, "min_pixels": 9, "max_pixels": 4}, "min_pixels"),
        ({"type": "tiles", "size": 4, "min_tiles": 3, "max_tiles": 2, "tokens": 1}, "min_tiles"),
    ],
)
def test_rules_that_cannot_be(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RULES.validate_python(table)
