"""Loads the model of a TARGET, with the overrides of `--set path=value`.

A TARGET is a preset's name or alias, a path to a `.toml`, a `config.json` or a `.gguf`, a hub id or its URL, or `-` for
standard input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from ..errors import MAX_SUGGESTIONS, InputError, MissingExtra, one_line, suggest
from ..identity_cache import IdentityCache
from .files import is_json_object, parse_toml, read_stdin, read_text, require_shallow_nesting, validate
from .hardware import preset_with_spelling
from .preset import LOADED_FIELDS, Preset
from .presets import (
    LONGEST_NAME,
    NEWEST_TAG,
    checkpoint_of_tag,
    find_by_repository,
    find_preset,
    is_library_tag,
    known_checkpoint,
    library_context,
    load_preset,
    model_names,
    names_by_alias,
    preset_within_name,
    read_preset,
    release_date,
    scheme_in_name,
)
from .target_names import LIBRARY_TAG_PREFIX, STDIN, hub_id_of, is_checkpoint, is_hub_id, normalized

if TYPE_CHECKING:
    from ..components.head_kind import HeadKind
    from .checkpoints.header import Checkpoint


def load(
    model_target: str, overrides: tuple[str, ...] = (), head: HeadKind | None = None, allow_unknown: bool = False
) -> Preset:
    """Loads the model of a TARGET. The overrides `path=value` are applied before validation.

    overrides: added to those in the TARGET itself (`llama3-8b?num_hidden_layers=16&hidden_size=2048`).
    head: replaces the head implied by `architectures` of a Hugging Face config.
    allow_unknown: whether to ignore misspelt fields and unknown sizes in a Hugging Face config.
    Raises `InputError` for an unknown name, a file that is not a model description, or a wrong field.
    """
    name_or_path, target_overrides = _split_overrides(model_target)
    model_name, error_location, preset_description = _read_description(name_or_path, head, allow_unknown)
    if head is not None and "config" not in preset_description:
        raise InputError(
            f"--head: {name_or_path} is not a Hugging Face config; expected one, or --set head.type={head}"
        )
    return _validate_preset(
        model_name,
        error_location,
        {**_apply_overrides(preset_description, (*target_overrides, *overrides)), "asked": name_or_path},
    )


def _apply_overrides(preset_description: dict[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    """Applies `--set` overrides to the model table of a description.

    Published figures are removed, because they do not hold for the changed model.
    """
    if not overrides:
        return preset_description
    model_table: Any = preset_description.get("model")
    for override in overrides if isinstance(model_table, dict) else ():
        model_table = _set_field(model_table, override)
    return {**preset_description, "model": model_table, "changes": overrides, "published": {}}


def _split_overrides(model_target: str) -> tuple[str, tuple[str, ...]]:
    """Splits a TARGET `name?path=value&path=value` into the name or path and the overrides."""
    library_name = re.sub(LIBRARY_TAG_PREFIX, "", model_target)
    if library_name != model_target and not re.search("[/:?]", library_name):
        library_name += NEWEST_TAG
    model_target = library_name
    hub_id = hub_id_of(model_target)
    if hub_id and not is_library_tag(model_target):
        return hub_id, ()
    name_or_path, question_mark, override_text = model_target.partition("?")
    if not question_mark or _is_true_of_path(Path(model_target).exists):
        return model_target, ()
    return name_or_path, tuple(filter(None, override_text.split("&")))


LIBRARY_MODELS: IdentityCache[Preset] = IdentityCache(128)
"""Models of llmcalc's own presets by their names and descriptions: what is kept of a model serves each load of it."""


def _validate_preset(preset_name: str, error_location: str, preset_description: dict[str, Any]) -> Preset:
    """Validates a description as a preset; errors also name the config fields from which a field was computed."""

    def validated_preset() -> Preset:
        return validate(Preset, {**preset_description, "name": preset_name}, error_location)

    try:
        if preset_name == error_location and preset_name in model_names():
            return LIBRARY_MODELS.result((), (preset_name, repr(preset_description)), validated_preset)
        return validated_preset()
    except InputError as error:
        if not isinstance(preset_description.get("config"), dict):
            raise
        from .huggingface.field_origin import origin_fields_of

        raise InputError(f"{error}{origin_fields_of(preset_description['config'], str(error))}") from None


def load_text(
    model_text: str,
    preset_name: str,
    error_location: str,
    overrides: tuple[str, ...] = (),
    head_kind: HeadKind | None = None,
    allow_unknown: bool = False,
) -> Preset:
    """Loads a model from the text of a config or a native description. error_location: the text's name in errors.

    Raises `InputError` as `load` does.
    """
    preset_description = _describe_text(model_text, error_location, head_kind, allow_unknown)
    return _validate_preset(
        preset_name, error_location, {**_apply_overrides(preset_description, overrides), "asked": error_location}
    )


def load_config(
    config: Mapping[str, Any],
    overrides: tuple[str, ...] = (),
    head: HeadKind | None = None,
    allow_unknown: bool = False,
) -> Preset:
    """Loads the model of a parsed `config.json`. Raises `InputError`, which names the wrong field."""
    from .huggingface.config_file import describe_config_data

    require_shallow_nesting(dict(config), "config")
    preset_description = describe_config_data(dict(config), head, allow_unknown)
    preset_name = str(config.get("_name_or_path") or config.get("model_type") or "config")
    return _validate_preset(preset_name, "config", _apply_overrides(preset_description, overrides))


def _read_description(model_target: str, head: HeadKind | None, allow_unknown: bool) -> tuple[str, str, dict[str, Any]]:
    """Returns a TARGET's model name, its name in error messages, and its description as a dict."""
    if not model_target.strip():  # Path("") would be the current folder
        raise InputError(
            f"TARGET: '{model_target}' is empty; expected a preset's name or a path (llmcalc presets lists all presets)"
        )
    if model_target == STDIN:
        return "stdin", "standard input", _describe_text(read_stdin(), "standard input", head, allow_unknown)
    path = Path(model_target)
    if model_target == "/dev/stdin" or (model_target.startswith("/dev/fd/") and _is_true_of_path(path.is_fifo)):
        raise InputError(f"{model_target}: a pipe is no file of a model; expected -, and the text on standard input")
    if path.suffix == ".gguf":
        return _describe_gguf(path, head, allow_unknown)
    if is_checkpoint(path):
        raise InputError(
            f"{model_target}: a checkpoint's header does not describe an architecture; expected its config.json, or a "
            ".gguf file (llmcalc params and check read headers)"
        )
    if path.suffix == ".json":
        return _read_config(path, head, allow_unknown)
    if path.suffix == ".toml" or _is_true_of_path(path.is_file):
        if path.suffix in (".yaml", ".yml"):
            raise InputError(
                f"{model_target}: YAML files of models are not read; expected the config.json beside litgpt's "
                "model_config.yaml or the hub id in its hf_config, the config.json that GPT-NeoX's converter writes or "
                "memory --launch for its run, or a .toml description (llmcalc convert writes one of a config.json)"
            )
        if path.suffix != ".toml":
            raise InputError(f"{model_target}: expected a .toml description, a config.json or a folder that holds one")
        return path.stem, model_target, _parse_native(read_text(path, allows_stdin=True), model_target)
    preset = find_preset(model_target)
    if preset is not None:
        return preset, preset, _with_context_of_tag(read_preset(preset), model_target)
    for config_name in ("config.json", "params.json", "adapter_config.json"):
        if _is_true_of_path((path / config_name).is_file):
            return _read_config(path / config_name, head, allow_unknown)
    if _is_true_of_path(path.is_dir):
        raise InputError(
            f"{model_target}: is a folder without a config.json or params.json; expected a preset's name, a .toml or a "
            "config.json"
        )
    tagged_checkpoint = checkpoint_of_tag(model_target)
    if tagged_checkpoint is not None:
        preset = tagged_checkpoint[0].name
        return preset, preset, _with_context_of_tag(read_preset(preset), model_target)
    if is_hub_id(model_target):
        return _describe_hub_model(model_target, head, allow_unknown)
    preset = find_by_repository(model_target)
    if preset is not None:
        return preset, preset, read_preset(preset)
    raise InputError(_unknown_target_error(model_target))


def _with_context_of_tag(preset_description: dict[str, Any], model_target: str) -> dict[str, Any]:
    """Returns a description with the context length of the model file that an Ollama tag stands for."""
    context_tokens = library_context(model_target)
    if context_tokens is None:
        return preset_description
    return {**preset_description, "model": {**preset_description["model"], "max_position_embeddings": context_tokens}}


def _describe_hub_model(
    model_target: str, head: HeadKind | None, allow_unknown: bool
) -> tuple[str, str, dict[str, Any]]:
    """Describes a hub id's model from its config, or without access to the hub from the preset in the id."""
    from .hub import UnreachableHub, fetch_config

    try:
        _, error_location, preset_description = _read_config(fetch_config(model_target), head, allow_unknown)
    except (UnreachableHub, MissingExtra) as error:
        from .checkpoint_name import describe_named_checkpoint

        named_description = describe_named_checkpoint(model_target)
        if named_description is None:
            raise InputError(f"{error}{_advice_on_name(model_target)}") from None
        return named_description
    return model_target, error_location, preset_description


def load_named_checkpoint(checkpoint_path: str) -> Preset | None:
    """Loads the preset that a checkpoint folder's name contains, in the weight format that the name states.

    None for a name that states no preset.
    """
    from .checkpoint_name import describe_named_checkpoint

    named_description = describe_named_checkpoint(checkpoint_path.rstrip("/").rpartition("/")[2])
    if named_description is None:
        return None
    preset_name, error_location, preset_description = named_description
    return _validate_preset(preset_name, error_location, {**preset_description, "notes": ()})


def read_checkpoint_of_target(path: Path) -> Checkpoint:
    """Reads a checkpoint's header. If the file is absent, the error suggests the preset that its name states."""
    from .checkpoints.read import read_checkpoint

    try:
        return read_checkpoint(path)
    except InputError as error:
        if path.suffix != ".gguf" or _is_true_of_path(path.exists):
            raise
        raise InputError(f"{error}{_advice_on_checkpoint(_repository_of_gguf(PureWindowsPath(path).stem))}") from None


def _describe_gguf(path: Path, head: HeadKind | None, allow_unknown: bool) -> tuple[str, str, dict[str, Any]]:
    """Describes the model of a GGUF file from the sizes in its metadata."""
    from .checkpoints.gguf_config import gguf_config
    from .huggingface.config_file import LONGEST_NAME, describe_config_data

    config = gguf_config(read_checkpoint_of_target(path), str(path))
    try:
        preset_description = describe_config_data(config, head, allow_unknown)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return one_line(str(config["_name_or_path"]))[:LONGEST_NAME], str(path), preset_description


def _repository_of_gguf(file_stem: str) -> str:
    """Returns repository and format for a GGUF file's name: `Qwen3-8B-GGUF:Q4_K_M` for `Qwen3-8B-Q4_K_M`."""
    format_pattern = r"[-.](?=(?:UD-I?Q|(?<!UD-)I?Q)\d\w*$|B?F16$|MXFP4$)"
    return re.sub(format_pattern, "-GGUF:", file_stem, flags=re.IGNORECASE)


def _describe_text(model_text: str, error_location: str, head: HeadKind | None, allow_unknown: bool) -> dict[str, Any]:
    """Parses a `config.json` or a native description, distinguished by the first character."""
    if not is_json_object(model_text):
        return _parse_native(model_text, error_location)
    from .huggingface.config_file import describe_config_data, parse_config

    config_data = parse_config(model_text, error_location)
    try:
        return describe_config_data(config_data, head, allow_unknown)
    except InputError as error:
        raise InputError(f"{error_location}: {error}") from None


def _parse_native(model_text: str, error_location: str) -> dict[str, Any]:
    """Parses a native description. Raises `InputError` for fields that only a loaded preset has."""
    preset_description = parse_toml(model_text, error_location)
    for field_name in LOADED_FIELDS:
        if field_name in preset_description:
            raise InputError(f"{error_location}: {field_name}: unknown field; remove it or correct its name")
    return preset_description


def _read_config(path: Path, head: HeadKind | None, allow_unknown: bool) -> tuple[str, str, dict[str, Any]]:
    from .huggingface.config_file import describe_config

    model_name, preset_description = describe_config(path, head, allow_unknown)
    return model_name, str(path), preset_description


def _is_true_of_path(path_test: Callable[[], bool]) -> bool:
    """Returns the result of `path_test`; False if the text cannot be a path, for example if it is too long."""
    try:
        return path_test()
    except OSError:
        return False


VARIANT_WORD = re.compile(
    r"^meta-|[-_ :](?:instruct|chat|it|base|hf|pt|gguf|awq|gptq|fp8|bnb-4bit|v[0-9.]+)(?=[-_ :]|$)", re.I
)
"""Words in a repository's name that say how the model was tuned or stored."""


MEMORY_MESSAGE_WORD = re.compile(r"\bmemory\b|\ballocat|Error:|max[_ ](?:model|seq)[_ ]len", re.I)
"""Matches words of a printed error message about memory, which no model's name contains."""


def _is_kind_of_drafts(name: str) -> bool:
    """Whether a name is a draft method's, such as `eagle3`; false without config readers, as on the web page."""
    with suppress(ModuleNotFoundError):
        from .huggingface.drafts import CLASS_PATTERN_BY_TYPE

        return name.lower().replace("-", "_") in CLASS_PATTERN_BY_TYPE
    return False


UNPUBLISHED_MODEL = re.compile(
    r"(?:chat-?gpt|claude|gemini(?!.*nano)|gpt-?(?:3\.5|[45]))(?:[-_. o0-9].*)?|o[134](?:-(?:mini|pro|preview))?", re.I
)
"""Models whose makers publish no size: OpenAI's since GPT-3.5, Anthropic's, and Google's Gemini but Nano.

Sources: https://arxiv.org/abs/2303.08774, section 2, of GPT-4; the cards of the others state no parameters
(https://www.anthropic.com/system-cards, https://deepmind.google/models/model-cards).
"""


def _unknown_target_error(model_target: str) -> str:
    if " " in model_target and MEMORY_MESSAGE_WORD.search(model_target[:LONGEST_NAME]):
        return (
            "TARGET: is a message that a program printed; expected a model's name, or llmcalc explain-log with the "
            "message or its log, which compares its sizes"
        )
    target_names = [target_name.strip() for target_name in model_target.split(",")]
    known_names = {**names_by_alias(), **dict.fromkeys(model_names())}
    if len(target_names) > 1 and all(target_name in known_names for target_name in target_names):
        return f"'{model_target}': models are separate words; expected {' '.join(target_names)}"
    if size_match := re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([bBmM])", model_target):
        model_size, size_unit = float(size_match[1]), size_match[2].upper()
        return (
            f"'{model_target}' is a size and no model; expected a model's name (llmcalc presets --min-params "
            f"{0.9 * model_size:g}{size_unit} --max-params {1.1 * model_size:g}{size_unit} lists some), "
            f"or llmcalc shape --params {model_target} for shapes"
        )
    if UNPUBLISHED_MODEL.fullmatch(model_target):
        return (
            f"'{model_target}': its maker publishes no size or config, so that nothing can be counted; expected "
            "a model with a published config (llmcalc presets lists all)"
        )
    if model_target in ("mtp", "ngram"):
        return (
            f"'{model_target}' drafts tokens without a model, for llmcalc serve --draft alone; expected a model's name"
        )
    if _is_kind_of_drafts(model_target):
        return (
            f"'{model_target}' is a kind of draft models; expected a draft's own config: its hub id, "
            "folder or config.json"
        )
    if len(model_target) <= LONGEST_NAME and preset_with_spelling(model_target) is not None:
        return f"'{model_target}' is an accelerator; expected a model's name (llmcalc hardware has their figures)"
    checkpoint_advice = _advice_on_checkpoint(model_target)
    if checkpoint_advice:
        return f"{model_target}: has no config{checkpoint_advice}"
    base_preset = _base_preset(model_target)
    if base_preset is not None:
        return f"no preset, file or hub id called '{model_target}'.{_advice_on_base(model_target, base_preset)}"
    suggestion = _suggest_newest(model_target) or suggest(
        model_target, names_by_alias() | {preset_name: preset_name for preset_name in model_names()}
    )
    suggestion = suggestion or _suggest_relatives(model_target)
    if re.search("gguf(?::|$)", model_target[:LONGEST_NAME], re.IGNORECASE) and not suggestion:
        return (
            f"{model_target}: a repository of GGUF files of a model that is no preset; expected one of its files "
            "(.gguf), or the model's own config.json or hub id with --quantize"
        )
    return f"no preset, file or hub id called '{model_target}'.{suggestion} (llmcalc presets lists all)"


def _base_preset(model_name: str) -> str | None:
    """Returns the preset that a fine-tune is based on, by its name; None without one."""
    return find_preset(VARIANT_WORD.sub("", model_name)) or preset_within_name(model_name)


def _advice_on_base(model_name: str, base_preset: str) -> str:
    """Returns a sentence that advises to use `base_preset` in place of this fine-tune.

    A name that starts with another wrapper's model type (`blip2-opt-2.7b`) is a model with further modules.
    """
    if wrapper_types := _wrapper_types(model_name, normalized(base_preset)):
        wrapper = max(wrapper_types, key=len)
        return f" Its text model may be {base_preset}, beside modules of {wrapper}: expected its own config.json"
    scheme = scheme_in_name(model_name, load_preset(base_preset))
    target = f"{base_preset} --quantize {scheme}" if scheme else base_preset
    return f" Most fine-tunes have the shape of their base: expected {target}, or its own config.json"


def _wrapper_types(model_name: str, preset_name: str) -> list[str]:
    """Returns the model types of wrappers with which the model's name starts and the preset's name does not.

    Empty where no configs are read, as on the page.
    """
    with suppress(ModuleNotFoundError):
        from .huggingface.registry import FILE_BY_TYPE, family_of

        return [
            model_type
            for model_type in FILE_BY_TYPE
            if _starts_with_type(model_name, model_type)
            and not preset_name.startswith(normalized(model_type))
            and family_of(model_type).text_type
        ]
    return []


FEWEST_LETTERS_OF_TYPE = 4
"""Least length of a model type, in letters and digits, for a name that starts with it to be of that type."""


def _starts_with_type(model_name: str, model_type: str) -> bool:
    """Whether a model's name, without its organisation, starts with a model type as a whole word.

    The word ends before a separator or a digit: `clipper` is not `clip`. Separators and case may differ.
    """
    type_characters = [character for character in model_type if character.isalnum()]
    type_pattern = "[-_. ]?".join(map(re.escape, type_characters)) + "(?![a-z])"
    is_word = len(type_characters) >= FEWEST_LETTERS_OF_TYPE
    return is_word and re.match(type_pattern, model_name.rpartition("/")[2], re.I) is not None


def _advice_on_checkpoint(model_target: str) -> str:
    """Returns the end of an error about a quantized checkpoint without a config: which preset and scheme to use.

    Empty for a name that states no scheme.
    """
    preset_and_scheme = known_checkpoint(model_target)
    if preset_and_scheme is None or not preset_and_scheme[1]:
        return ""
    model_name, scheme_name = preset_and_scheme[0].name, preset_and_scheme[1]
    if scheme_name.startswith("ud"):
        return (
            ", and Unsloth's dynamic files have types of their own; expected the .gguf file, or a mix "
            f"near it: {model_name} --quantize q4_k_m"
        )
    return f"; by its name it is {model_name} --quantize {scheme_name}: type these"


def _advice_on_name(hub_id: str) -> str:
    """Returns a sentence with presets that an unreadable hub id may mean; empty if no preset's name is similar.

    Near are the presets whose name is a part of the repository's, else those of its family: `Qwen3-Reranker-4B` has the
    letters of qwen3-reranker-0.6b before the first digit.
    """
    checkpoint_advice = _advice_on_checkpoint(hub_id) or _advice_on_checkpoint(hub_id.replace("@", "-GGUF:"))
    if checkpoint_advice:
        return checkpoint_advice  # a format may stand behind @, as in LM Studio
    repository = hub_id.partition("/")[2].partition("@")[0]
    base_preset = _base_preset(repository)
    if base_preset is not None:
        return f".{_advice_on_base(repository, base_preset)}"
    suggestion = _suggest_relatives(repository)
    return f".{suggestion} Any other model needs its own config.json" if suggestion else ""


def _suggest_newest(model_name: str) -> str:
    """Returns ` Did you mean a, b?` with the newest presets of a family without its version: `llama`, `llama-70b`."""
    lowercase_name = model_name[:LONGEST_NAME].lower()
    name_match = re.fullmatch(r"(?P<family>[a-z]{2,})(?:[-_ ]?(?P<size>[0-9.]+[bm]))?", lowercase_name)
    if name_match is None:
        return ""
    size_pattern = "(?:-.+)?" if name_match["size"] is None else f"-{re.escape(name_match['size'])}"
    preset_pattern = re.compile(rf"{name_match['family']}-?v?[0-9.]*{size_pattern}")
    presets = sorted(filter(preset_pattern.fullmatch, model_names()), key=len)
    presets.sort(key=release_date, reverse=True)
    return f" Did you mean {', '.join(presets[:MAX_SUGGESTIONS])}?" if presets else ""


def _suggest_relatives(model_name: str) -> str:
    """Returns ` Did you mean a, b?` with presets of the model's family; empty if none has a similar name.

    Words of tuning and storage are left out. If the rest is like no name, near are the presets with the longest
    beginning of it, which has more than the family's letters: `Phi-4-multimodal-instruct` begins as phi-4-mini.
    """
    bare_name = VARIANT_WORD.sub("", model_name[:LONGEST_NAME])
    family_letters, normalized_name = _letters_before_digits(bare_name), normalized(bare_name)
    presets = [preset_name for preset_name in model_names() if _letters_before_digits(preset_name) == family_letters]
    prefixes = (
        normalized_name[:prefix_length] for prefix_length in range(len(normalized_name), len(family_letters), -1)
    )
    spellings = list(map(normalized, presets))
    longest_prefix = next(
        (prefix for prefix in prefixes if any(spelling.startswith(prefix) for spelling in spellings)), ""
    )
    return suggest(bare_name, presets) or (suggest(longest_prefix, presets) if longest_prefix else "")


def _letters_before_digits(model_name: str) -> str:
    """Returns the letters at the beginning of a name, in lower case: `qwen` of `Qwen3-8B`."""
    name_match = re.match(r"[a-z]+", model_name.lower())
    return name_match[0] if name_match else ""


def _set_field(model_table: dict[str, Any], override: str) -> dict[str, Any]:
    """Returns a table with one field replaced. The path may leave out leading tables if one field matches."""
    path, equals_sign, value_text = override.partition("=")
    path = path.strip()
    if not equals_sign or not path:
        raise InputError(f"--set {override}: expected path=value, such as num_hidden_layers=12")
    key_path = _resolve_path(model_table, path.split("."), override)
    # here `none` is the name of a type
    field_value = value_text.strip() if key_path[-1] == "type" else _override_value(value_text.strip())
    require_shallow_nesting(field_value, f"--set {path}")
    return _with_field_replaced(model_table, key_path, field_value)


def _override_value(value_text: str) -> Any:
    """Parses `12`, `true`, `0.5`, `["a", "b"]` as JSON; `none` is None; any other text is a string."""
    if value_text.lower() in ("none", "null"):
        return None
    import json

    try:
        return json.loads(value_text)
    except (ValueError, RecursionError):
        return value_text


OTHER_FIELD_NAMES = {
    "num_hidden_layers": "layers num_layers n_layer n_layers depth",
    "hidden_size": "d_model n_embd dim model_dim hidden_dim embed_dim",
    "intermediate_size": "d_ff n_inner ffn_dim mlp_dim ffn_hidden_size",
    "num_attention_heads": "num_heads n_head n_heads",
    "num_key_value_heads": "n_kv_head n_kv_heads num_kv_heads num_query_groups",
    "head_dim": "head_size d_head kv_channels",
    "max_position_embeddings": "n_positions n_ctx max_seq_len context_length block_size seq_length",
    "num_experts": "n_experts n_routed_experts num_local_experts",
}
"""Field of a description → the names of the field in other configs and programs, separated by spaces."""


def _resolve_path(model_table: dict[str, Any], field_path: list[str], override: str) -> list[str]:
    """Returns the full path of an overridden field, from a path that may omit leading tables."""
    from .description_fields import all_field_names, field_paths

    table_paths = _table_paths(model_table)
    matching_paths = _paths_ending_with(field_path, table_paths) or _paths_ending_with(
        field_path, field_paths(model_table)
    )
    if field_path in matching_paths:
        return field_path
    if len(matching_paths) > 1:  # the block's field applies to all layers, so it wins over a variant's
        block_paths = [model_path for model_path in matching_paths if "variants" not in model_path]
        matching_paths = block_paths or matching_paths
    if len(matching_paths) == 1:
        return matching_paths[0]
    if not matching_paths:
        field_name, model_field_names = (
            field_path[-1],
            {matching_path[-1] for matching_path in (*table_paths, *field_paths(model_table))},
        )
        usual_name = next(
            (name for name in model_field_names if field_name in OTHER_FIELD_NAMES.get(name, "").split()), ""
        )
        suggestion = f" Did you mean {usual_name}?" if usual_name else suggest(field_name, sorted(model_field_names))
        if field_name in all_field_names():
            problem_text = f"no part of this model has a field '{'.'.join(field_path)}'; expected a field of its parts."
            raise InputError(f"--set {override}: {problem_text}{suggestion}")
        suggestion = suggestion or suggest(field_name, sorted(all_field_names()))
        suggestion = suggestion or " llmcalc convert TARGET prints the fields that it has"
        raise InputError(f"--set {override}: the model has no field '{'.'.join(field_path)}'.{suggestion}")
    raise InputError(
        f"--set {override}: '{'.'.join(field_path)}' is ambiguous; expected one of "
        + ", ".join(".".join(matching_path) for matching_path in matching_paths)
    )


def _table_paths(model_table: dict[str, Any], parent_keys: tuple[str, ...] = ()) -> list[list[str]]:
    """Returns the paths of all tables and fields, each table before its fields."""
    table_paths: list[list[str]] = []
    for field_name, field_value in model_table.items():
        table_paths.append([*parent_keys, field_name])
        if isinstance(field_value, dict):
            table_paths += _table_paths(field_value, (*parent_keys, field_name))
    return table_paths


def _paths_ending_with(field_path: list[str], candidate_paths: list[list[str]]) -> list[list[str]]:
    return [path for path in candidate_paths if path[-len(field_path) :] == field_path]


def _with_field_replaced(model_table: dict[str, Any], key_path: list[str], field_value: Any) -> dict[str, Any]:
    new_table = dict(model_table)
    if len(key_path) == 1:
        new_table[key_path[0]] = field_value
    else:
        subtable = new_table.get(key_path[0])
        new_table[key_path[0]] = _with_field_replaced(
            subtable if isinstance(subtable, dict) else {}, key_path[1:], field_value
        )
    return new_table
