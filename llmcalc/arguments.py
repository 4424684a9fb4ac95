"""Arguments of the Python API: models given in any way, and options with the command line's names and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from .errors import InputError, short_repr
from .model import ModelSpec
from .optional import included_part_names
from .sources.preset import Preset
from .sources.target import load as load_target
from .sources.target import load_config
from .workload.inference import batch_of_users
from .workload.inputs import Inputs
from .workload.setting import checked_length, checked_values, declarations_of
from .workload.validation import (
    LARGEST_COUNT,
    number_text,
    validate_choice,
    validate_path,
    validate_text,
    validate_texts,
    validate_whole,
)

if TYPE_CHECKING:
    from .parallel.counted_rank import RankRequest
    from .questions.engines import EngineQuestion
    from .questions.runs import RunOptions, RunQuestion
    from .studies.model_selection import ModelFilter

CommandOptions = TypeVar("CommandOptions")

Model: TypeAlias = str | Path | Mapping[str, Any] | Preset | ModelSpec | Any
"""The forms in which a function accepts a model; `Any` is a configuration object of `transformers`."""


def load(target: str | Path | Mapping[str, Any] | Any, *, allow_unknown: bool = False, **overrides: object) -> Preset:
    """Loads a model and overrides some of its fields, as in `load("llama3-8b", num_hidden_layers=2)`.

    target: a preset's name, a path, a hub id, a parsed `config.json` or a configuration object of `transformers`.
    allow_unknown: whether to ignore misspelt fields and size fields that the config's model type does not have.
    Raises `InputError`; its message names the field and the fix.
    """
    import json

    try:
        override_texts = tuple(
            f"{field_path}={json.dumps(field_value)}" for field_path, field_value in overrides.items()
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"overrides: {error}; expected numbers, text, truth values or lists of them") from None
    if isinstance(target, str | Path):
        return load_target(str(target), override_texts, allow_unknown=allow_unknown)
    return load_config(config_dict_of(target), override_texts, allow_unknown=allow_unknown)


def config_dict_of(model: Any) -> Mapping[str, Any]:
    """Returns the dict of a `config.json` or of a configuration object. Raises `InputError` for other types."""
    config_dict = model.to_dict() if hasattr(model, "to_dict") else model
    if not isinstance(config_dict, Mapping):
        raise InputError(
            f"model: {short_repr(model)}; expected a preset's name, a path, a parsed config.json, a configuration of "
            f"transformers, a Preset or a ModelSpec{', each an argument' if isinstance(model, list | tuple) else ''}"
        )
    wrong_key = next((config_key for config_key in config_dict if not isinstance(config_key, str)), None)
    if wrong_key is not None:
        raise InputError(f"config: the key {short_repr(wrong_key)} is not text; expected a parsed config.json")
    return config_dict


def head_kind_of(head_name: Any) -> Any:
    from .components.head_kind import HeadKind

    return validate_choice("--head", head_name, HeadKind)


def preset_of(
    model: Model, set: str | Iterable[str] = (), head: str | None = None, allow_unknown: bool = False
) -> Preset:
    """Returns the `Preset` of a model that is given as a name, path, config dict, configuration object or `ModelSpec`.

    set: changes of fields, each `path=value`. head: replaces the head of a config. allow_unknown: whether to ignore
    misspelt fields and unknown sizes of a config.
    Raises `InputError` for an unknown name, for a file or a config that is not supported, and for changes of a model
    that is loaded already.
    """
    field_changes = validate_texts("--set", set, "num_hidden_layers=12")
    head = None if head is None else head_kind_of(head)
    if isinstance(model, Preset | ModelSpec):
        for changed_option, field_value in (("--set", field_changes), ("--head", head)):
            if field_value:
                raise InputError(
                    f"{changed_option}: the model is loaded already; expected its name, a path or a config"
                )
        return model if isinstance(model, Preset) else Preset.model_construct(name="model", model=model)
    if isinstance(model, str | Path):
        return load_target(str(model), field_changes, head, allow_unknown)
    return load_config(config_dict_of(model), field_changes, head, allow_unknown)


def spec_of(model: Model) -> ModelSpec:
    """Returns the `ModelSpec` of a model that is given in any accepted way, such as by name or as a config."""
    return preset_of(model).model


class CallOptions(NamedTuple):
    """The options of a Python API call, sorted by subject: reading the model, a rank, a run, a layout."""

    reading_options: dict[str, Any]
    rank_options: dict[str, Any]
    setting_values: dict[str, Any]
    layout_options: dict[str, Any]

    def read_model(self, model: Model) -> Preset:
        """Reads the model, with the changes that the call's options request."""
        return preset_of(model, **self.reading_options)

    def read_draft_model(self, draft: Model | None) -> Preset | None:
        """Reads the draft model, which keeps its fields when options change the target model; None without a draft."""
        if draft is None:
            return None
        return preset_of(draft, allow_unknown=self.reading_options.get("allow_unknown", False))

    def setting_given_test(self, phase: Any) -> Callable[[str], bool]:
        """Returns a function that tells whether the call sets a named setting. phase: the call's phase, if any."""
        return lambda setting_name: (
            (phase if setting_name == "phase" else self.setting_values.get(setting_name)) is not None
        )

    def rank_request(self) -> RankRequest | None:
        """Returns the request to count one rank of a layout; None if the call asks for the whole model."""
        if not self.rank_options:
            return None
        from .parallel.counted_rank import RankRequest, rank_settings

        return RankRequest(**checked_values(rank_settings(), self.rank_options))


READING_OPTIONS = ("set", "head", "allow_unknown")
"""Options that every function of a model takes: changes of its fields, its head, whether unknown fields are ignored."""


def pop_reading_options(options: dict[str, Any]) -> dict[str, Any]:
    """Removes the options that control how a model is read from a call's options, and returns these options."""
    return {option_name: options.pop(option_name) for option_name in READING_OPTIONS if option_name in options}


def sort_options(
    options_by_name: Mapping[str, Any],
    function: Callable[..., Any],
    *,
    accepts_rank: bool = False,
    accepts_run: bool = False,
    accepts_layout: bool = False,
) -> CallOptions:
    """Sorts an API call's options by what they set: how the model is read, the rank, the run, or the layout.

    function: the called function, whose arguments an error may suggest.
    accepts_rank, accepts_run, accepts_layout: whether the function takes such options.

    Raises `InputError` for an option that the function does not take.
    """
    names_by_subject: list[Iterable[str]] = [READING_OPTIONS, (), (), ()]
    if accepts_rank and not options_by_name.keys() <= {*READING_OPTIONS}:
        from .parallel.counted_rank import rank_settings

        names_by_subject[1] = rank_settings()
    if accepts_run:
        from .device_memory.settings import SETTINGS_BY_SHORTHAND, Settings

        names_by_subject[2] = [*declarations_of(Settings), *SETTINGS_BY_SHORTHAND]
    if accepts_layout:
        from .parallel.layout_request import LayoutRequest

        names_by_subject[3] = declarations_of(LayoutRequest)
    known_names = [option_name for subject_names in names_by_subject for option_name in subject_names]
    for option_name in options_by_name:
        if option_name not in known_names:
            from .questions.other_names import unknown_name_suggestion

            argument_names = [
                parameter_name
                for parameter_name, parameter in signature(function).parameters.items()
                if parameter.kind is not Parameter.VAR_KEYWORD
            ]
            suggestion = unknown_name_suggestion(option_name, [*argument_names, *known_names])
            raise InputError(f"{option_name}: there is no such option{suggestion}")
    return CallOptions(
        *(
            {
                parameter_name: option_value
                for parameter_name, option_value in options_by_name.items()
                if parameter_name in names
            }
            for names in names_by_subject
        )
    )


def checked_options_instance(options_class: type[CommandOptions], arguments: Mapping[str, Any]) -> CommandOptions:
    """Returns an instance of `options_class` with values from a function's arguments, after the declared checks.

    arguments: all arguments by name; those that the class does not declare are left out.
    """
    declarations = declarations_of(options_class)
    return options_class(
        **checked_values(declarations, {option_name: arguments[option_name] for option_name in declarations})
    )


def parse_optional_length(option_name: str, length: Any, minimum: int = 1, maximum: int = LARGEST_COUNT) -> int | None:
    """Parses a number of sequences or tokens, such as 4096 or `32k`; None stays None."""
    return (
        None if length is None else validate_whole(option_name, checked_length(option_name, length), minimum, maximum)
    )


def checked_optional_text(option_name: str, text_value: Any, example_text: str) -> str | None:
    """Validates an optional text; None stays None. example_text: a valid text, for the error message."""
    return None if text_value is None else validate_text(option_name, text_value, example_text)


def checked_optional_choice(option_name: str, word_value: Any, allowed_words: Any) -> Any:
    """Validates an optional value of a `Literal` type; None stays None."""
    return None if word_value is None else validate_choice(option_name, word_value, allowed_words)


def optional_path_text(option_name: str, path: Any) -> str | None:
    """Returns a path as text; None stays None."""
    return None if path is None else validate_path(option_name, path)


def parse_optional_count(option_name: str, count_value: Any) -> int | None:
    """Parses a count such as `15T`; None stays None."""
    from .units import parse_count

    return None if count_value is None else parse_count(number_text(option_name, count_value), option_name)


def batch_size_of_phase(batch: Any, users: Any, phase: str) -> int:
    return batch_of_users(parse_optional_length("--batch", batch), parse_optional_length("--users", users), phase) or 1


def parse_optional_token_count(seq: Any) -> int | None:
    return parse_optional_length("--seq", seq)


def image_and_audio_inputs(image: Any, images: Any, audio: Any) -> Inputs:
    """Returns the images and audio of each sequence. Raises `InputError` for invalid values."""
    return Inputs(**checked_values(declarations_of(Inputs), {"image": image, "images": images, "audio": audio}))


def cache_format_of(format_name: Any) -> str:
    """Returns the name of a number format or storage format of the cache. Raises `InputError` for an unknown format."""
    from .costs.cache_formats import cache_format

    validate_text("--kv-dtype", format_name, "bf16")
    try:
        cache_format(format_name)
    except InputError as error:
        raise InputError(f"--kv-dtype: {error}") from None
    return str(format_name)


def _hardware_names(hardware: Any) -> list[str]:
    """Returns a list of accelerator names, from one name, several names or None."""
    is_single = isinstance(hardware, str | Mapping) or not isinstance(hardware, Iterable)
    hardware_names = [hardware] if is_single else list(hardware)
    return [
        validate_text("--hardware", hardware_name, "h100")
        for hardware_name in hardware_names
        if hardware_name is not None
    ]


def require_model(model: Model | None, alternative_argument: str = "") -> Model:
    """Returns the model. Raises `InputError` without a model. alternative_argument: another argument, in words."""
    if model is None:
        raise InputError(f"model: missing; expected a preset's name, a path or a config{alternative_argument}")
    return model


def require_hardware(hardware: Any) -> str:
    """Returns the name of an accelerator. Raises `InputError` without a name and for a value that is not text."""
    if hardware is None:
        raise InputError("--hardware: missing; expected the accelerator, such as h100")
    return validate_text("--hardware", hardware, "h100")


def engine_questions_of(
    model: Model | None,
    engine: Any,
    hardware: Any,
    options: dict[str, Any],
    launch: str | Path | None = None,
    receipt: str | Path | None = None,
) -> list[EngineQuestion]:
    """Returns one `EngineQuestion` per server in a launch file, or one per named engine that is to serve the model.

    options: those of reading a model, the scheme of the weights, and the engines' own flags.
    """
    from .questions.engines import ONE_ACCELERATOR_ERROR, engine_questions

    optional_path_text("--launch", launch)
    reading_options = pop_reading_options(options)
    quantize = checked_optional_text("--quantize", options.pop("quantize", None), "fp8")
    hardware_names = _hardware_names(hardware)
    if len(hardware_names) > 1:
        raise InputError(ONE_ACCELERATOR_ERROR)
    engine_names = validate_texts("--engine", engine, "vllm==0.19")
    if not (engine_names or launch):
        raise InputError("--engine: expected a name such as vllm or vllm==0.19")
    return engine_questions(
        launch,
        lambda model_name: preset_of(model_name, **reading_options),
        target=require_model(model) if launch is None else model,
        engine_names=engine_names,
        flag_values=options,
        hardware=hardware_names[0] if hardware_names else None,
        quantize=quantize,
        receipt=optional_path_text("--receipt", receipt),
        allow_unknown=bool(reading_options.get("allow_unknown")),
    )


def run_options_of(
    options: CallOptions, hardware: Any, phase: Any, included_parts: frozenset[str], workspace: str | None
) -> RunOptions:
    """Returns a description of the run to compute. hardware: names of accelerators. phase: None for the default."""
    from .device_memory.settings import settings_of
    from .parallel.layout_request import LayoutRequest
    from .questions.runs import RunOptions

    options_by_name = options.setting_values | ({} if phase is None else {"phase": phase})
    return RunOptions(
        settings=settings_of(**options_by_name),
        layout=LayoutRequest(**checked_values(declarations_of(LayoutRequest), options.layout_options)),
        include=included_parts,
        workspace=checked_optional_text("--cublas-workspace", workspace, ":4096:8"),
    ).on_accelerators(_hardware_names(hardware))


def run_question_of(
    options: CallOptions,
    model: Model | None,
    launch: str | Path | None,
    hardware: Any,
    phase: Any,
    workspace: str | None,
    with_mtp: bool,
    with_towers: bool = False,
) -> RunQuestion:
    """Returns the `RunQuestion` about a model's run or a launch file. Other parameters: as in `run_options_of`."""
    from .questions.runs import build_run_question

    optional_path_text("--launch", launch)
    return build_run_question(
        require_model(model, "; or a launch file") if launch is None else model,
        options.read_model,
        run_options_of(options, hardware, phase, included_part_names(with_mtp, with_towers), workspace),
        launch_file=launch,
        is_setting_given=options.setting_given_test(phase),
        allow_unknown=options.reading_options.get("allow_unknown", False),
        set=options.reading_options.get("set"),
        head=options.reading_options.get("head"),
        with_mtp=with_mtp,
        with_towers=with_towers,
    )


def model_filter_of(model_kind: Any, attention: Any, moe: Any, min_params: Any, max_params: Any) -> ModelFilter:
    from .studies.model_selection import ModelFilter

    checked_optional_text("--kind", model_kind, "decoder")
    checked_optional_text("--attention", attention, "gqa")
    min_param_count = parse_optional_count("--min-params", min_params)
    max_param_count = parse_optional_count("--max-params", max_params)
    return ModelFilter(model_kind, attention, moe, min_param_count, max_param_count)
