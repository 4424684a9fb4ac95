"""The declaration of one setting of a run, which stands beside the setting's type and default.

Options of the command line, arguments of Python, fields of the page and of budgets, and the checks of all of them, are
read from these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from ..errors import InputError, short_repr, suggest
from ..frozen import frozen
from .validation import LARGEST_COUNT, validate_choice, validate_whole

Panel: TypeAlias = Literal[
    "Options", "What runs", "Precision and kernels", "Inference", "Training", "Layout", "Hardware", "Model", "Output"
]
"""The headings of option panels in `--help`, in their order."""

EVERY_PHASE = ("training", "prefill", "decode", "inference")
TRAINING_PHASES = ("training",)
INFERENCE_PHASES = ("prefill", "decode", "inference")

ValueCheck: TypeAlias = Callable[[str, Any], Any]
"""A check of a setting: (option, value) → the checked value. Raises `InputError`, with the option, for an invalid
value.
"""

MAX_BITS = 1_000
"""Largest number of bits of a whole number that is read as text; no quantity has more."""


@frozen(slots=True)
class Setting:
    """The declaration of one setting: its phases, check and help text, and its panel on the help page.

    help: what it is, a sentence without its default.
    panel: the heading of `--help` below which it stands.
    default: the default in words, with the phases, frameworks and versions that it differs by; empty for none.
    phases: the phases in which it means something.
    required_setting: the setting without which it means nothing; empty for none.
    check: what a value has to be, beside its type.
    example: a value of a setting that takes text.
    spellings: other names of the option, with their dashes.
    negative_option: the option that says no of a truth value; empty for none.
    metavar: what `--help` shows in the place of a value; by default its words, N or TEXT.
    minimum, maximum: bounds of a whole number.
    is_common: whether `--help` lists it; `--help-all` lists every option.
    completions: the words that the shell offers.
    every_framework: whether it says the same of every framework. Any other is of torch's own kernels, and a framework
        with kernels of its own refuses it, or has some of its values.
    parse_value: what reads a value, and checks it, in place of the check of its type.
    substitute: what says the same in the phases in which it means nothing; empty for nothing.
    replacements: word that it does not take → what an error says to type in its place; none by default.
    """

    help: str
    panel: Panel = "Options"
    default: str = ""
    phases: tuple[str, ...] = EVERY_PHASE
    required_setting: str = ""
    check: ValueCheck | None = None
    example: str = ""
    spellings: tuple[str, ...] = ()
    negative_option: str = ""
    metavar: str = ""
    minimum: int = 1
    maximum: int = LARGEST_COUNT
    is_common: bool = False
    completions: Callable[[], Iterable[str]] | None = None
    every_framework: bool = False
    parse_value: ValueCheck | None = None
    substitute: str = ""
    replacements: Mapping[str, str] | None = None


@frozen(slots=True)
class DeclaredSetting:
    """A setting's declaration with its name and type. value_type: the type without None."""

    name: str
    value_type: Any
    setting: Setting

    @property
    def option(self) -> str:
        """The setting's command-line option: `--lora-rank`."""
        return option(self.name)

    @property
    def allowed_words(self) -> tuple[str, ...]:
        """The words that a setting with a `Literal` type allows; empty for other types."""
        return get_args(self.value_type) if get_origin(self.value_type) is Literal else ()

    def checked_value(self, raw_value: Any, option_name: str = "") -> Any:
        """Returns the checked value; None stays None. option_name: the name in errors; default the option.

        Raises `InputError` for a value of another type, and for one that the setting does not take.
        """
        option_name = option_name or self.option
        if raw_value is None or self.value_type is Any:
            return raw_value
        if self.setting.parse_value is not None:
            if isinstance(raw_value, int) and raw_value.bit_length() > MAX_BITS:  # Python prints no such number
                raise InputError(
                    f"{option_name}: {short_repr(raw_value)} is too large; expected at most {LARGEST_COUNT:,}"
                )
            return self.setting.parse_value(option_name, raw_value)
        if self.allowed_words:
            replacement = (self.setting.replacements or {}).get(raw_value) if isinstance(raw_value, str) else None
            if replacement is not None:
                raise InputError(f"{option_name}: {short_repr(raw_value)} is not supported; expected {replacement}")
            return validate_choice(option_name, raw_value, self.value_type)
        if self.value_type is int:
            return validate_whole(
                option_name, checked_length(option_name, raw_value), self.setting.minimum, self.setting.maximum
            )
        if self.value_type is float:
            raw_value = parse_number(option_name, raw_value)
            return raw_value if self.setting.check is None else self.setting.check(option_name, raw_value)
        if self.value_type is bool:
            if not isinstance(raw_value, bool):
                raise InputError(f"{option_name}: {short_repr(raw_value)} is not a truth value; expected true or false")
            return raw_value
        if get_origin(self.value_type) is tuple:
            if not isinstance(raw_value, Iterable):
                raise InputError(
                    f"{option_name}: {short_repr(raw_value)} is no list; expected several values or a text"
                )
            raw_value = parse_names(raw_value) if isinstance(raw_value, str) else tuple(raw_value)
        elif not isinstance(raw_value, (str, self.value_type)):
            example_value = self.setting.example or "bf16"
            raise InputError(
                f"{option_name}: {short_repr(raw_value)} is not text; expected a name such as {example_value!r}"
            )
        return raw_value if self.setting.check is None else self.setting.check(option_name, raw_value)


def option(setting_name: str) -> str:
    """Returns the command-line option of a setting, such as `--lora-rank`."""
    return f"--{setting_name.replace('_', '-')}"


def checked_length(option_name: str, option_value: Any) -> Any:
    """Parses a number of sequences or tokens, such as 4096 or `32k`. option_name: the name in errors."""
    if not isinstance(option_value, str):
        return option_value
    from ..units import parse_length

    try:
        return parse_length(option_value)
    except InputError as error:
        raise InputError(f"{option_name}: {error}") from None


def parse_number(option_name: str, option_value: Any) -> float:
    """Parses a number, or a text with one. Raises `InputError` otherwise. option_name: the name in errors."""
    try:
        parsed_number = float("nan" if isinstance(option_value, bool) else option_value)
    except (TypeError, ValueError, OverflowError):
        parsed_number = float("nan")
    if not isfinite(parsed_number):
        raise InputError(f"{option_name}: {short_repr(option_value)} is not a number; expected one such as 0.1")
    return parsed_number


def parse_names(list_text: str) -> tuple[str, ...]:
    """Splits text such as `q_proj,v_proj` into a tuple of names."""
    return tuple(listed_name.strip() for listed_name in list_text.split(",") if listed_name.strip())


def declarations_of(settings_class: type) -> dict[str, DeclaredSetting]:
    """Returns setting name → declaration for a class, from its annotations `Annotated[type | None, Setting(…)]`."""
    if settings_class not in _DECLARATIONS_BY_CLASS:
        declared_settings: dict[str, DeclaredSetting] = {}
        for setting_name, type_hint in get_type_hints(settings_class, include_extras=True).items():
            if get_origin(type_hint) is Annotated:
                value_type, *annotations = get_args(type_hint)
                setting = next((annotation for annotation in annotations if isinstance(annotation, Setting)), None)
                if setting is not None:
                    declared_settings[setting_name] = DeclaredSetting(setting_name, _without_none(value_type), setting)
        _DECLARATIONS_BY_CLASS[settings_class] = declared_settings
    return _DECLARATIONS_BY_CLASS[settings_class]


_DECLARATIONS_BY_CLASS: dict[type, dict[str, DeclaredSetting]] = {}


def _without_none(union_type: Any) -> Any:
    """Returns a type without None: `int` for `int | None`."""
    union_members = get_args(union_type)
    if get_origin(union_type) is Literal or type(None) not in union_members:
        return union_type
    (remaining_type,) = [union_member for union_member in union_members if union_member is not type(None)]
    return remaining_type


def checked_values(declared_settings: Mapping[str, DeclaredSetting], raw_values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the checked values of settings by name. declared_settings: the declarations by name.

    Raises `InputError` for a name that no setting has, and for a value that it does not take.
    """
    for setting_name in raw_values:
        if setting_name not in declared_settings:
            raise InputError(
                f"{setting_name}: there is no such setting.{suggest(setting_name, list(declared_settings))} "
                "(llmcalc memory --help-all lists all)"
            )
    return {name: declared_settings[name].checked_value(raw_value) for name, raw_value in raw_values.items()}


def training_option(settings: Any) -> str:
    """Returns the first given option that only training has; empty if none is. settings: settings or a layout."""
    typed_training_options = (
        declared_setting.option
        for setting_name, declared_setting in declarations_of(type(settings)).items()
        if declared_setting.setting.phases == TRAINING_PHASES and getattr(settings, setting_name) is not None
    )
    return next(typed_training_options, "")


def check_phase(settings: Any, phase: str) -> None:
    """Raises `InputError` for a setting that another phase has, or that needs a setting which is not given."""
    for setting_name, declared_setting in declarations_of(type(settings)).items():
        if getattr(settings, setting_name) is None:
            continue
        if phase not in declared_setting.setting.phases:
            phases_text = (
                "training"
                if declared_setting.setting.phases == TRAINING_PHASES
                else " or ".join(declared_setting.setting.phases[::-1])
            )
            training_setting = training_option(settings) if phase == "training" else ""
            reason_text = f", and {training_setting} is for training only" if training_setting else ""
            exclusion_text = f" without {training_setting}" if training_setting else ""
            expected_text = declared_setting.setting.substitute or f"--phase {phases_text}{exclusion_text}"
            raise InputError(
                f"{declared_setting.option}: it is not for the phase {phase}{reason_text}; expected {expected_text}"
            )
        required_setting = declared_setting.setting.required_setting
        if required_setting and getattr(settings, required_setting) is None:
            raise InputError(
                f"{declared_setting.option}: it means nothing without {option(required_setting)}; expected "
                f"{option(required_setting)} too"
            )
