"""The model presets that come with llmcalc: one TOML file each, found by name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from .files import parse_toml, read_text, validate
from .library_tags import LARGER_FILES, LIBRARY_NAMES, USUAL_SCHEME, LibraryName
from .preset import Preset
from .target_names import normalized, normalized_with_points


@cache
def presets_dir() -> Path:
    """Returns the folder `presets/`, inside an installed package or beside it in a checkout."""
    package_folder = Path(__file__).resolve().parent.parent
    packaged_folder = package_folder / "presets"
    return packaged_folder if packaged_folder.is_dir() else package_folder.parent / "presets"


@cache
def model_names() -> tuple[str, ...]:
    """Returns the names of all model presets, sorted."""
    file_names = os.listdir(presets_dir() / "models")
    return tuple(sorted(file_name.removesuffix(".toml") for file_name in file_names if file_name.endswith(".toml")))


@cache
def _preset_text(preset_name: str) -> str:
    """Returns the text of a preset's file, cached for the whole process."""
    return read_text(presets_dir() / "models" / f"{preset_name}.toml")


def read_preset(preset_name: str) -> dict[str, Any]:
    """Returns the description in the preset file with exactly this name."""
    return parse_toml(_preset_text(preset_name), preset_name)


def _text_before_tables(preset_name: str) -> str:
    """Returns the start of a preset's file, before the first table, which has the title and the aliases."""
    return _preset_text(preset_name).partition("\n[")[0]


@cache
def title_and_aliases(preset_name: str) -> tuple[str, tuple[str, ...]]:
    """Returns a preset's title and aliases, read without the file's tables, which take longer; cached."""
    description = parse_toml(_text_before_tables(preset_name), preset_name)
    return description["title"], tuple(description.get("aliases", ()))


def release_date(preset_name: str) -> str:
    """Returns the date of a preset's release, such as 2024-04-18; empty if it has none. It reads no tables."""
    return str(parse_toml(_text_before_tables(preset_name), preset_name).get("released", ""))


@cache
def load_preset(preset_name: str) -> Preset:
    """Loads the preset with exactly this file name."""
    return validate(Preset, {**read_preset(preset_name), "name": preset_name}, preset_name)


LONGEST_NAME = 400
"""Largest number of characters of a name that is compared with preset names; hub ids with a revision are shorter."""


@cache
def find_preset(name_or_alias: str) -> str | None:
    """Returns the preset's name for a name or an alias, compared without case and punctuation.

    A match that keeps decimal points is preferred.
    """
    if name_or_alias in model_names():
        return name_or_alias
    if len(name_or_alias) > LONGEST_NAME or not normalized(name_or_alias):
        return None
    return _preset_in_library(name_or_alias) or _preset_of_spelling(name_or_alias) or _preset_of_tag(name_or_alias)


@cache
def _preset_of_spelling(name_or_alias: str) -> str | None:
    """Returns the preset with this name or alias, spelled another way; None if there is none."""
    for normalize_name in (normalized_with_points, normalized):
        normalized_name = normalize_name(name_or_alias)
        preset = next(
            (preset_name for preset_name in model_names() if normalize_name(preset_name) == normalized_name), None
        ) or _preset_with_alias(normalized_name, normalize_name)
        if preset is not None:
            return preset
    return None


_LIBRARY_TAG = re.compile(
    r"(?P<model>[A-Za-z0-9._-]{1,60}):(?P<size>(?:[0-9]{1,3}x|e)?[0-9.]{1,6}[bm](?:-a[0-9.]{1,6}b)?)"
    r"(?:-(?:instruct|it|chat|text))?",
    re.IGNORECASE,
)


LIBRARY_ENGINE = "ollama"
"""The inference engine (Ollama) whose library has the tags in `LIBRARY`."""


NEWEST_TAG = ":latest"
"""The tag that Ollama takes for a name without one."""


def _library_tag(name: str) -> tuple[LibraryName, str] | None:
    """Returns a name's `LibraryName` and its tag without words such as `instruct`; None for names not in the library.

    `latest` and no tag are the tag of the size that `latest` has. A name without a tag is not the library's if it is a
    preset's, an alias of another model than `latest`, or a model's of which a later version is published, such as
    `mistral-large`. Overrides (`?`) are ignored.
    """
    library_name, _, tag = name.partition("?")[0].lower().partition(":")
    library_entry = LIBRARY_NAMES.get(library_name)
    if library_entry is None or (not tag and normalized(library_name) in map(normalized, model_names())):
        return None
    size_tag = library_entry.size_tag(tag)
    preset_with_alias = None if tag else _preset_of_spelling(library_name)
    size_name = f"{library_name}:{size_tag}"
    newest_preset = library_entry.presets.get(size_tag) or _preset_of_spelling(size_name) or _preset_of_tag(size_name)
    if preset_with_alias not in (None, newest_preset) or (
        not tag and newest_preset and _has_later_version(library_name, newest_preset)
    ):
        return None
    return library_entry, size_tag


@cache
def _has_later_version(library_name: str, preset_name: str) -> bool:
    """Whether a preset named `library_name-VERSION`, without a size, is later than the preset `preset_name`."""
    version_pattern = re.compile(rf"{re.escape(library_name)}-v?[0-9]+(?:\.[0-9]+)?")
    release_of_preset = load_preset(preset_name).released or ""
    versions = filter(version_pattern.fullmatch, model_names())
    return any((load_preset(version).released or "") > release_of_preset for version in versions)


def library_scheme(name: str) -> str | None:
    """Returns the quantization scheme of an Ollama tag that names no format, if it is not the usual q4_k_m."""
    library_tag = _library_tag(name)
    scheme = USUAL_SCHEME if library_tag is None else library_tag[0].scheme_of_tag(library_tag[1])
    return None if scheme == USUAL_SCHEME else scheme


def library_context(name: str) -> int | None:
    """Returns the context length in tokens that an Ollama tag stands for, if it differs from the preset's.

    It is that of the tag without its format: that of `codellama:70b` for `codellama:70b-instruct-q4_K_M`.
    """
    tag_with_format = name.partition("?")[0].lower()
    name = re.sub(rf"(?<=:)(.*?)-?{_GGUF_TYPE}$", r"\1", tag_with_format)
    library_tag, tag = _library_tag(name), name.partition(":")[2]
    if library_tag is None:
        return None
    library_entry, size_tag = library_tag
    tags = tag if name == tag_with_format else f"{tag}-", tag, size_tag
    return next((library_entry.context_lengths[tag] for tag in tags if tag in library_entry.context_lengths), None)


_TAG = re.compile(r"[A-Za-z0-9._-]{1,60}:[A-Za-z0-9._-]{1,60}")
"""Pattern of a model name and a tag, as in Ollama's library: `qwen3:30b`."""

_GGUF_REPOSITORY = re.compile(
    r"(?P<ollama>(?:hf\.co|huggingface\.co)/)?[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}[-_.]gguf(?:[:@][\w.-]{1,60})?",
    re.IGNORECASE,
)
"""A hub repository of GGUF files, with the type of one of them behind a colon, or behind `@` as in LM Studio."""


def _has_tag(name: str) -> bool:
    """Whether a name has the form of an Ollama tag, `name:tag`."""
    return _TAG.fullmatch(name) is not None and "gguf" not in name.lower()


def is_library_tag(name: str) -> bool:
    """Whether a name is one that Ollama loads, such as `qwen3:30b`, `llama3.2:3b-instruct-q8_0` or `phi3:mini`.

    A name without a tag is one if it is no preset's: `llama3.2`, but not `deepseek-r1`. So is a repository of GGUF
    files behind `hf.co/`. Overrides (`?`) are ignored.
    """
    name = name.partition("?")[0]
    if _has_tag(name):
        return bool(_LIBRARY_TAG.fullmatch(name) or find_preset(name) or checkpoint_of_tag(name))
    repository_match = _GGUF_REPOSITORY.fullmatch(name)
    return _library_tag(name) is not None or (
        repository_match is not None and repository_match["ollama"] is not None and checkpoint_of_tag(name) is not None
    )


def larger_file_gigabytes(name: str) -> float | None:
    """Returns the decimal GB of a tag's files if these have more bits than llmcalc counts; None for other tags."""
    name = name.partition("?")[0].lower()
    library_name, _, tag = name.partition(":")
    library_tag = _library_tag(name)
    size_tag = tag if library_tag is None else library_tag[1]
    return LARGER_FILES.get(f"{library_name}:{size_tag or 'latest'}")


def names_gguf_file(name: str) -> bool:
    """Whether a name is an Ollama tag, or the repository of a known model's GGUF files."""
    return is_library_tag(name) or checkpoint_of_tag(name) is not None


def checkpoint_of_tag(name: str) -> tuple[Preset, str] | None:
    """Returns preset and quantization scheme of a tag that names a format: `gemma3:4b-it-qat`; None for other names.

    A repository of GGUF files states it too: `unsloth/Qwen3-8B-GGUF:Q8_0`, and q4_k_m without a type, which llama.cpp
    and Ollama take then. A tag without a format has that of `library_scheme`. Overrides after `?` are ignored.
    """
    name = name.partition("?")[0]
    is_repository = _GGUF_REPOSITORY.fullmatch(name) is not None
    preset_and_scheme = known_checkpoint(name.replace("@", ":")) if _has_tag(name) or is_repository else None
    scheme = "" if preset_and_scheme is None else preset_and_scheme[1]
    is_read = scheme in ("none", MXFP4_OF_GGUF) or (
        re.fullmatch(_GGUF_TYPE, scheme) is not None and not scheme.startswith("ud")
    )
    if is_read:
        return preset_and_scheme
    scheme = library_scheme(name) or ""
    preset_name = find_preset(name) if scheme else None
    return None if preset_name is None else (load_preset(preset_name), scheme)


def _preset_in_library(name: str) -> str | None:
    """Returns the preset that Ollama's library lists under a name or a tag; None for other names."""
    library_name, _, tag = name.lower().partition(":")
    library_tag = _library_tag(name)
    if library_tag is None:
        return find_preset(library_name) if tag == "latest" else None
    library_entry, size_tag = library_tag
    if size_tag in library_entry.presets:
        return library_entry.presets[size_tag]
    if size_tag == tag:  # looked for as any other name
        return None
    size_name = f"{library_name}:{size_tag}" if size_tag else library_name
    return find_preset(size_name) or find_by_repository(size_name)


def _preset_of_tag(tag: str) -> str | None:
    """Returns the preset of an Ollama tag that states only a size, such as `qwen3:30b` → qwen3-30b-a3b.

    It is the one whose name goes on with the active parameters, else the only one whose name goes on; None without one.
    """
    tag_match = _LIBRARY_TAG.fullmatch(tag)
    if tag_match is None:
        return None
    tag_prefix = normalized_with_points(f"{tag_match['model']}-{tag_match['size']}")
    longer_names = [name for name in model_names() if normalized_with_points(name).startswith(tag_prefix)]
    active_size_pattern = re.compile(rf"{re.escape(tag_prefix)}a[0-9.]+b")
    names_with_active_size = [
        name for name in longer_names if active_size_pattern.fullmatch(normalized_with_points(name))
    ]
    matching_names = names_with_active_size or longer_names
    return matching_names[0] if len(matching_names) == 1 else None


def _preset_with_alias(preset_alias: str, normalize_name: Callable[[str], str]) -> str | None:
    """Returns the preset that has this alias; parses only preset files whose text contains the alias.

    normalize_name: `normalized_with_points` or `normalized`, the form in which aliases are compared.
    """
    alias_pattern = re.compile(r"[^a-z0-9/+\"]*".join(map(re.escape, preset_alias.replace(".", ""))))
    for preset_name in model_names():
        if alias_pattern.search(_text_before_tables(preset_name).lower()) and preset_alias in map(
            normalize_name, title_and_aliases(preset_name)[1]
        ):
            return preset_name
    return None


@cache
def names_by_alias() -> dict[str, str]:
    """Returns normalized alias → preset name, by reading all presets."""
    presets_by_alias: dict[str, str] = {}
    for preset_name, alias in _preset_aliases():
        presets_by_alias.setdefault(normalized(alias), preset_name)
    return presets_by_alias


def _preset_aliases() -> Iterator[tuple[str, str]]:
    """Yields (preset name, alias) for every alias of every preset."""
    for preset_name in model_names():
        for alias in title_and_aliases(preset_name)[1]:
            yield preset_name, alias


@cache
def _presets_by_spelling() -> dict[str, str]:
    """Returns presets by name, alias and repository name, normalized with decimal points kept."""
    preset_by_spelling = {
        normalized_with_points(alias.rpartition("/")[2]): preset_name for preset_name, alias in _preset_aliases()
    }
    return preset_by_spelling | {normalized_with_points(preset_name): preset_name for preset_name in model_names()}


def preset_within_name(model_name: str) -> str | None:
    """Returns the preset whose name, including a size, is the longest part of `model_name`; None without one.

    `dolphin-2.9-llama3-8b` has llama3-8b in it. A part begins and ends at words; of parts of equal length the first.
    """
    words = re.split(r"[-_ :]+", model_name[:LONGEST_NAME])[:MAX_WORDS]
    name_parts = (
        "-".join(words[first_word_index : first_word_index + word_count])
        for word_count in range(len(words), 0, -1)
        for first_word_index in range(len(words) - word_count + 1)
    )
    preset_by_spelling = _presets_by_spelling()
    return next(
        (
            preset_by_spelling[spelling]
            for name_part in name_parts
            if _has_size(name_part) and (spelling := normalized_with_points(name_part)) in preset_by_spelling
        ),
        None,
    )


MAX_WORDS = 20
"""Largest number of words in a name of which parts are compared with preset names."""


def _has_size(model_name: str) -> bool:
    """Whether a name states a number of parameters, such as 8B or 350M."""
    return re.search(r"[0-9][bm](?![a-z])", model_name, re.IGNORECASE) is not None


_HUB_CACHE_FOLDER = re.compile(r"models--([A-Za-z0-9_.-]{1,96}?--[A-Za-z0-9_.-]{1,96}?)(?:/|$)")
"""A folder of the hub's cache: `models--meta-llama--Llama-3.1-8B`."""


def _repository_name(model_path: str) -> str:
    """Returns the repository's name for a folder in the hub's cache; other names only lose a final slash."""
    cached_match = _HUB_CACHE_FOLDER.search(model_path)
    return cached_match[1].replace("--", "/") if cached_match else model_path.strip().rstrip("/")


LONGEST_PATH = 4_096
"""Largest length of a path in which a model's name is searched: Linux's limit (PATH_MAX)."""


def known_model(model_name: str) -> Preset | None:
    """Returns the preset of a model that logs and launch files state by name or path; None if unknown."""
    if len(model_name) > LONGEST_PATH:
        return None
    model_name = _repository_name(model_name)
    last_segment = model_name.rpartition("/")[2]
    owner_path = last_segment.replace("_", "/", 1)  # google_gemma-3-12b-it, as in repositories of GGUF files
    preset_name = next(
        (
            matching_preset
            for name_part in (model_name, last_segment, owner_path, owner_path.partition("/")[2])
            if name_part and (matching_preset := find_preset(name_part))
        ),
        None,
    )
    preset_name = preset_name or find_by_repository(last_segment)
    return None if preset_name is None else load_preset(preset_name)


_GGUF_TYPE = r"(?P<mix>(?:(?:ud[-_])?[it]?q[1-8]_(?:[01k]|xxs|xs|nl|s|m)(?:_[sml]|_xl)?|f16|fp16|bf16))"

_ANY_GGUF = r"(?:(?:qat|i1)[-_])?gguf"
"""A repository of GGUF files without a type; weights that were trained for 4 bits (qat) have the same sizes.

So have mradermacher's `-i1-GGUF`, whose rounding is weighted by an importance matrix.
"""

MXFP4_OF_GGUF = "mxfp4-moe"
"""The scheme of GGUF files of gpt-oss with its published experts, the other matrices in Q8_0 (llama-quantize)."""

SCHEMES_IN_NAMES = (
    (r"awq(?:[-_]?int4|[-_]?4bit)?|(?:int4|4bit)[-_]awq", "awq-int4-g128"),
    (r"gptq(?:[-_]?int4|[-_]?4b(?:it)?)?(?:[-_]128g)?|(?:int4|4bit)[-_]gptq", "gptq-int4-g128"),
    (r"gptq[-_]?int8", "gptq-int8-g128"),
    (r"(?:auto[-_]?round[-_]?)?(?:int4|(?:quantized\.)?w4a16)(?:[-_]auto[-_]?round)?(?:[-_]g128)?", "w4a16-g128"),
    (r"fp8(?:[-_](?:dynamic|kv))?", "fp8-dynamic"),
    (r"fp8[-_]block", "fp8-block128"),
    (r"(?:unsloth[-_])?bnb[-_]4bit", "nf4-double"),
    (r"(?:nvfp4|fp4)(?:[-_]v[0-9])?", "nvfp4"),
    (r"(?:quark[-_])?mxfp4(?:[-_]v[0-9])?", "mxfp4"),
    (r"(?:quark[-_])?mxfp8", "mxfp8"),
    (r"w8a8|quantized\.w8a8", "w8a8"),
    (rf"(?:qat[-_])?{_GGUF_TYPE}(?:-[0-9]{{5}}-of-[0-9]{{5}})?\.gguf", ""),
    (r"mxfp4(?:_moe)?(?:(?:-[0-9]{5}-of-[0-9]{5})?\.gguf|-gguf)|gguf:mxfp4(?:_moe)?", MXFP4_OF_GGUF),
    (rf"{_ANY_GGUF}:{_GGUF_TYPE}|(?:qat[-_])?{_GGUF_TYPE.replace('mix', 'mix_of_repository')}-gguf", ""),
    (_ANY_GGUF, "q4_k_m"),
    (r"bf16", "none"),
    (_GGUF_TYPE, ""),
)
"""End of the name of a checkpoint's folder or file → the scheme of `--quantize` that it names.

Of a GGUF file the type in its name is the scheme, and of a repository of them that of its tag; without one llama-server
takes Q4_K_M.
"""


SCHEMES_IN_TAGS = ((_GGUF_TYPE, ""), ("qat", "q4_0"))
"""End of a tag of Ollama's library, such as `llama3.3:70b-instruct-q4_K_M` → its scheme of `--quantize`."""


SCHEMES_OF_MLX = tuple((rf"(?:mlx[-_])?{bits}[-_]?bit(?:[-_](?:dwq|mlx))*", f"mlx-int{bits}-g64") for bits in "34568")
"""End of the name of a checkpoint of mlx-lm, such as `mlx-community/Qwen3-8B-4bit` → its scheme of `--quantize`."""


USUAL_GROUP, SMALLER_GROUP = "-g128", "-g32"
"""Scheme suffixes for groups of 128 columns of 4-bit or 8-bit weights, and of 32 if 128 does not divide a matrix.

cpatonn/GLM-4.5-Air-AWQ-4bit, whose first layer has 10,944 columns, has groups of 32: 59.1 GiB on disk.
"""


PUBLISHERS_OF_SMALLER_GROUPS = ("cyankiwi", "cpatonn")
"""Names of one publisher, whose checkpoints `-AWQ-4bit` and `-AWQ-INT4` have groups of 32 columns.

cyankiwi/Qwen3-Coder-30B-A3B-Instruct-AWQ-4bit (index:64191101709: "compressed-tensors AWQ gs=32"),
MiniMax-M2.7-AWQ-4bit (index:56151734414: 122 GiB on disk) and GLM-4.5-Air-AWQ-4bit.
"""


SCHEMES_OF_WHOLE_GROUPS = ("awq-int4-g128", "w4a16-g128")
"""Schemes that convert a matrix only in whole groups (AutoAWQ and llm-compressor); GPTQ's last group may be smaller."""


PUBLISHERS_OF_BLOCKS = {"qwen": "", "zai-org": "glm-5", "stepfun-ai": "step-3.7"}
"""Publisher → name prefixes of the presets whose `-FP8` checkpoints have a scale per block of 128 x 128 weights.

Qwen's model cards: "fine-grained fp8 quantization with block size of 128" (Qwen3, Qwen3-VL, Qwen3.5, 3.6, 3.8). Configs
of zai-org/GLM-5-FP8, GLM-5.1-FP8, GLM-5.2-FP8 and stepfun-ai/Step-3.7-Flash-FP8: https://github.com/ai-dynamo/
aiconfigurator (aic-core/src/aiconfigurator_core/model_configs, 2026-08-21). zai-org's GLM-4.5 to 4.7 have a scale for
each row (https://github.com/HabanaAI/vllm-hpu-extension/pull/350).
"""


def scheme_in_name(checkpoint_name: str, preset: Preset) -> str | None:
    """Returns the `--quantize` scheme in the name of a checkpoint's file or repository; None if it has none.

    preset: the model that the checkpoint has, whatever its name says.
    """
    preset_and_scheme = _checkpoint_of_name(checkpoint_name, lambda _: preset)
    return None if preset_and_scheme is None else preset_and_scheme[1] or None


def known_checkpoint(checkpoint_name: str) -> tuple[Preset, str] | None:
    """Returns the preset and the quantization scheme in the name or path of a checkpoint; None if unknown.

    `/models/Qwen3-8B-AWQ` is the preset qwen3-8b in awq-int4-g128. The group sizes are the usual ones. The scheme is
    empty for weights as they are published.
    """
    return _checkpoint_of_name(checkpoint_name, known_model)


def _has_usual_group_size(checkpoint_name: str, preset: Preset, scheme: str) -> bool:
    """Whether a checkpoint's publisher quantizes in groups of the usual number of columns (`USUAL_GROUP`)."""
    publisher = publisher_of(checkpoint_name, preset.name)
    return not (scheme.startswith("awq") and publisher in PUBLISHERS_OF_SMALLER_GROUPS)


def _checkpoint_of_name(checkpoint_name: str, find_model: Callable[[str], Preset | None]) -> tuple[Preset, str] | None:
    """Returns preset and scheme in a checkpoint's name. find_model: the function that finds a name's preset."""
    if len(checkpoint_name) > LONGEST_PATH:
        return None
    last_segment = _repository_name(checkpoint_name).rpartition("/")[2]
    schemes_of_publisher = SCHEMES_OF_MLX if "mlx" in checkpoint_name.lower() else ()
    schemes_in_tags, separators = (SCHEMES_IN_TAGS, "[-_.:]") if ":" in last_segment else ((), "[-_.]")
    for scheme_pattern, quantization_scheme in (*schemes_of_publisher, *SCHEMES_IN_NAMES, *schemes_in_tags):
        name_match = re.fullmatch(
            rf"(?P<model>.{{2,200}}?){separators}(?:{scheme_pattern})", last_segment, re.IGNORECASE
        )
        preset = None if name_match is None else find_model(name_match["model"])
        if name_match is not None and preset is not None:
            scheme_words = name_match.groupdict()
            published_config = preset.quantization_config or {}
            if scheme_pattern == _ANY_GGUF and published_config and not _is_in_fp8(published_config):
                if published_config.get("quant_method") != "mxfp4":
                    continue
                return preset, MXFP4_OF_GGUF
            quantization_scheme = (
                quantization_scheme or (scheme_words.get("mix") or scheme_words["mix_of_repository"]).lower()
            )
            if quantization_scheme == "fp8-dynamic" and not last_segment.lower().endswith("dynamic"):
                name_prefix = PUBLISHERS_OF_BLOCKS.get(publisher_of(checkpoint_name, preset.name), "none")
                has_scale_blocks = preset.name.startswith(name_prefix)
                return preset, "fp8-block128" if has_scale_blocks else quantization_scheme
            if (
                quantization_scheme in SCHEMES_OF_WHOLE_GROUPS
                and "round" not in last_segment.lower()  # AutoRound fills the last group
                and not (
                    _has_whole_column_groups(preset)
                    and _has_usual_group_size(checkpoint_name, preset, quantization_scheme)
                )
            ):
                quantization_scheme = quantization_scheme.removesuffix(USUAL_GROUP) + SMALLER_GROUP
            if quantization_scheme == "mxfp4" and not preset.model.has_experts:  # amd's cards: "MXFP4 MoE weights"
                quantization_scheme = "mxfp4-linear"
            if quantization_scheme in ("f16", "fp16", "bf16"):  # experts that are published in MXFP4 stay so
                return preset, "none" if (preset.quantization_config or {}).get("quant_method") != "mxfp4" else ""
            return preset, quantization_scheme
    return None


def _is_in_fp8(published_config: dict[str, Any]) -> bool:
    """Whether a published config has all layers in FP8; then GGUF files have the same types as for BF16."""
    return published_config.get("quant_method") == "fp8" and published_config.get("expert_dtype", "fp8") == "fp8"


def _has_whole_column_groups(preset: Preset) -> bool:
    """Whether `intermediate_size`, the input width of every down projection, is a multiple of 128 columns."""
    nested_tables = [preset.model.model_dump(mode="json", include={"encoder", "decoder"})]
    for table in nested_tables:
        for field_name, field_value in table.items():
            if field_name == "intermediate_size" and isinstance(field_value, int) and field_value % 128:
                return False
            nested_values = field_value if isinstance(field_value, list) else [field_value]
            nested_tables.extend(nested_value for nested_value in nested_values if isinstance(nested_value, dict))
    return True


def publisher_of(checkpoint_name: str, preset_name: str) -> str:
    """Returns a hub id's owner in lower case; for a path or a bare name, the owner of the preset's repository."""
    id_match = re.fullmatch(r"(?P<owner>[A-Za-z0-9_-][A-Za-z0-9_.-]*)/[^/]+", _repository_name(checkpoint_name))
    aliases = [] if id_match else read_preset(preset_name).get("aliases", ())
    owners = [id_match["owner"]] if id_match else [alias.partition("/")[0] for alias in aliases if "/" in alias]
    return owners[0].lower() if owners else ""


def find_by_repository(preset_name: str) -> str | None:
    """Returns the preset for a repository's name without the owner: `Meta-Llama-3-8B-Instruct`."""
    normalized_name = "" if len(preset_name) > LONGEST_NAME else normalized(preset_name)
    return _presets_by_repository().get(normalized_name) if normalized_name else None


_UNQUANTIZED_ENDING = re.compile(r"-(?:bf16|hf)$", re.IGNORECASE)
"""End of the name of a repository with unquantized weights, which names of its quantized versions leave out."""


_META_PREFIX = re.compile(r"^meta-", re.IGNORECASE)
"""Matches the prefix `Meta-` of the repositories of Llama 2, 3 and 3.1, which most people leave out."""

_VERSION_ENDING = re.compile(r"-(?:v[0-9]+(?:\.[0-9]+)?|[0-9]{4})$", re.IGNORECASE)
"""Version or date at the end of a repository's name: `Mixtral-8x7B-Instruct-v0.1`, `Apertus-70B-Instruct-2509`."""


@cache
def _presets_by_repository() -> dict[str, str]:
    """Returns presets by repository name without the owner, and by shorter forms that only one preset has.

    `NVIDIA-Nemotron-3-Nano-30B-A3B-BF16` is also found as `NVIDIA-Nemotron-3-Nano-30B-A3B`, and
    `Meta-Llama-3-8B-Instruct` as `Llama-3-8B-Instruct`. Of names that state a size, a version is left out too.
    """
    presets_of_short_names: dict[str, set[str]] = {}
    presets_of_full_names: dict[str, str] = {}
    for preset_name, alias in _preset_aliases():
        repository = alias.rpartition("/")[2]
        short_name = _META_PREFIX.sub("", _UNQUANTIZED_ENDING.sub("", repository))
        presets_of_full_names[normalized(repository)] = preset_name
        for shorter_name in {short_name, _VERSION_ENDING.sub("", short_name) if _has_size(short_name) else short_name}:
            presets_of_short_names.setdefault(normalized(shorter_name), set()).add(preset_name)
    unique_short_names = {
        repository_name: min(preset_names)
        for repository_name, preset_names in presets_of_short_names.items()
        if len(preset_names) == 1
    }
    return unique_short_names | presets_of_full_names
