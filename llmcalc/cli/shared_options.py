"""Typer arguments and options that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Annotated, Any, TypeAlias, get_args

import typer

from ..components.head_kind import HeadKind
from ..errors import InputError
from ..optional import MTP, TOWERS, OptionalPart
from ..reports.formats import Format
from ..sources.target_names import STDIN
from ..studies.model_selection import ATTENTION_EXAMPLES, MODEL_KINDS
from ..units import parse_count, parse_length
from ..workload.counting import Pairs
from ..workload.execution import AttentionImplementation
from ..workload.inference import CACHE_FORMAT_EXAMPLES, USERS_SETTING
from ..workload.lengths import DEFAULT_TOKENS
from ..workload.recompute import RECOMPUTE_MODES
from ..workload.validation import LARGEST_COUNT, validate_choice, validate_whole_or_none
from .output import check_writable, open_atomic_output, open_stdout


def value_option(
    option_name: str, metavar: str, help: str, panel: str | None = None, *, hidden: bool = False, completion: Any = None
) -> Any:
    """Returns an option with a value, whose help page shows no default.

    metavar: placeholder of the value. help: help text. completion: function that lists values for shell completion.
    """
    return typer.Option(
        option_name,
        metavar=metavar,
        help=help,
        show_default=False,
        rich_help_panel=panel,
        hidden=hidden,
        autocompletion=completion,
    )


def shell_completion_of(possible_names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Returns a shell-completion function for names. possible_names: a function that returns all names."""
    return lambda incomplete: [candidate for candidate in possible_names() if candidate.startswith(incomplete.lower())]


def _preset_names() -> Iterable[str]:
    from ..sources.presets import model_names

    return model_names()


complete_target = shell_completion_of(_preset_names)


TARGET_HELP = (
    "A preset, .toml, config.json, hub id, or - for stdin. A preset's name or alias (llmcalc presets lists them), a "
    "path to a .toml description or a config.json, a hub id (org/name) or its URL, or - for standard input. "
    "NAME?field=value overrides a field of this target alone."
)

TargetArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="TARGET", help=TARGET_HELP, autocompletion=complete_target, show_default=False)
]
OptionalTargetArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="TARGET", help=TARGET_HELP, autocompletion=complete_target, show_default=False)
]


def _check_stdin_once(targets: list[str] | None) -> list[str] | None:
    """Raises `InputError` if more than one TARGET is standard input."""
    if (targets or []).count(STDIN) > 1:
        raise InputError(f"TARGET: '{STDIN}' is given more than once; expected it once, since standard input ends")
    return targets


_TARGETS_ARGUMENT: Any = typer.Argument(
    metavar="TARGET", help=TARGET_HELP, autocompletion=complete_target, show_default=False, callback=_check_stdin_once
)
TargetsArgument: TypeAlias = Annotated[list[str], _TARGETS_ARGUMENT]
OptionalTargetsArgument: TypeAlias = Annotated[list[str] | None, _TARGETS_ARGUMENT]
OverridesOption: TypeAlias = Annotated[
    list[str] | None,
    value_option("--set", "PATH=VALUE", "Override a field, such as num_hidden_layers=12. Repeatable.", panel="Model"),
]


def typed_option_name(option: Any) -> str:
    """Returns the name of an option as the user typed it, or the option's longest name if it was not typed."""
    typed_options = {typed_word.partition("=")[0] for typed_word in sys.argv[1:]}
    option_names: list[str] = option.opts
    return next((spelling for spelling in option_names if spelling in typed_options), max(option_names, key=len))


def _cache_option(metavar: str, canonical_name: Callable[[str], str], help_text: str) -> Any:
    """Returns the option for the number format of the KV cache.

    canonical_name: function that returns the name that the command uses; raises `InputError` without the option's name.
    help_text: help text.
    """

    def check_format(option: typer.CallbackParam, format_name: str | None) -> str | None:
        try:
            return None if format_name is None else canonical_name(format_name)
        except InputError as error:
            raise InputError(f"{typed_option_name(option)}: {error}") from None

    return typer.Option("--kv-dtype", "--dtype", metavar=metavar, callback=check_format, help=help_text)


def _known_cache_format(format_name: str) -> str:
    """Returns the name of a cache format unchanged. Raises `InputError` for an unknown name."""
    from ..costs.cache_formats import cache_format

    cache_format(format_name)
    return format_name


CacheDtypeOption: TypeAlias = Annotated[
    str, _cache_option("FORMAT", _known_cache_format, f"Format of the KV cache: {CACHE_FORMAT_EXAMPLES}")
]


def length_option(
    option_name: str,
    *other_names: str,
    help: str,
    minimum: int = 1,
    maximum: int = LARGEST_COUNT,
    panel: str | None = None,
) -> Any:
    """Returns an option for a number of sequences or tokens, such as 4096, 32k or 1M.

    help, panel: its text and its panel on the help page.
    """

    def check_length(option: typer.CallbackParam, parsed_length: int | None) -> int | None:
        return validate_whole_or_none(typed_option_name(option), parsed_length, minimum, maximum)

    return typer.Option(
        option_name,
        *other_names,
        metavar="N",
        parser=_parse_length,
        callback=check_length,
        help=help,
        rich_help_panel=panel,
    )


def _parse_length(length_text: str | int) -> int:
    """Parses a number of sequences or tokens. A default value is a number already."""
    return length_text if isinstance(length_text, int) else parse_length(length_text)


BatchOption: TypeAlias = Annotated[
    int | None, length_option("--batch", "-b", help="Sequences at once; 1 if not given.")
]
UsersOption: TypeAlias = Annotated[
    int | None, length_option("--users", "--concurrency", help=USERS_SETTING.setting.help)
]
SeqOption: TypeAlias = Annotated[
    int | None,
    length_option(
        "--seq",
        "-s",
        help=(
            f"Tokens of each sequence; {DEFAULT_TOKENS:,}, or all learned positions where they are fewer, if not given."
        ),
    ),
]
SourceOption: TypeAlias = Annotated[
    int | None,
    length_option("--source", help="Encoder tokens of an encoder-decoder; as many as decoder tokens if not given."),
]


PairsOption: TypeAlias = Annotated[
    Pairs,
    typer.Option(
        "--pairs", help="Query-key pairs to count: all (full), or those that the attention mask allows (causal)."
    ),
]


AttentionImplementationOption: TypeAlias = Annotated[
    AttentionImplementation | None,
    typer.Option(
        "--attn-implementation",
        help="How attention runs (activations only): all scores step by step (eager, if not given), the backend "
        "that torch's scaled_dot_product_attention chooses (sdpa), its fallback (sdpa-math), or a kernel that keeps no "
        "scores (flash).",
        show_default=False,
    ),
]


RECOMPUTE_HELP = (
    f"Training: modules that are recomputed in the backward pass: {', '.join(RECOMPUTE_MODES)}, every:N (every N-th "
    "layer) or nodes:A,B (modules of a layer)."
)


RecomputeOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--recompute", metavar="MODE", help=RECOMPUTE_HELP, autocompletion=shell_completion_of(lambda: RECOMPUTE_MODES)
    ),
]


HeadOption: TypeAlias = Annotated[
    HeadKind | None,
    typer.Option(
        "--head",
        help="Override the head implied by `architectures` (Hugging Face configs).",
        show_default=False,
        rich_help_panel="Model",
        hidden=True,
    ),
]


AllowUnknownOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-unknown",
        help="Ignore misspelt fields and unknown sizes of a Hugging Face config.",
        rich_help_panel="Model",
        hidden=True,
    ),
]


def phase_option(phase_type: Any, help_text: str, show_default: bool = True) -> Any:
    """Returns an option for the phase of a run: a word of a `Literal`, or `train`, which means training.

    help_text: help text.
    show_default: whether the help shows the default; if not, the text has to say it.

    Typer's own check of a `Literal` would refuse `train`, so the callback checks the value.
    """

    def check_phase(phase_text: str | None) -> Any:
        return None if phase_text is None else validate_choice("--phase", phase_text, phase_type)

    choices_text = "|".join(get_args(phase_type))
    return typer.Option(
        "--phase",
        metavar=choices_text,
        parser=str,
        callback=check_phase,
        help=help_text,
        autocompletion=shell_completion_of(lambda: get_args(phase_type)),
        show_default=show_default,
    )


def is_option_typed(context: typer.Context, parameter_name: str) -> bool:
    """Whether the user typed a parameter's option, even with the default value."""
    parameter_source = context.get_parameter_source(parameter_name)
    return parameter_source is not None and parameter_source.name != "DEFAULT"


def count_option(option_name: str, help_text: str) -> Any:
    """Returns an option for a number of parameters, such as 8e9, 8B or 350M. help_text: its help text."""

    def parse_count_text(count_text: str | int) -> int:
        return count_text if isinstance(count_text, int) else parse_count(count_text)

    return typer.Option(option_name, metavar="N", parser=parse_count_text, help=help_text, show_default=False)


KindOption: TypeAlias = Annotated[
    str | None, value_option("--kind", "KIND", f"Only models of a kind: {', '.join(MODEL_KINDS)}.")
]
AttentionKindOption: TypeAlias = Annotated[
    str | None, value_option("--attention", "KIND", f"Only models with such layers: {ATTENTION_EXAMPLES}")
]
ExpertsOption: TypeAlias = Annotated[
    bool | None, typer.Option("--moe/--dense", help="Only mixtures of experts, or none.", show_default=False)
]
LeastParamsOption: TypeAlias = Annotated[
    int | None, count_option("--min-params", "Only models with at least this many parameters.")
]
MostParamsOption: TypeAlias = Annotated[
    int | None, count_option("--max-params", "Only models with at most this many parameters, such as 10B.")
]


def _set_offline(offline: bool) -> bool:
    """Sets HF_HUB_OFFLINE before the import of huggingface_hub, which reads the variable."""
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    return offline


OfflineOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--offline", callback=_set_offline, help="Use cached hub files only.", rich_help_panel="Model", hidden=True
    ),
]
NotesOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--notes", help="Print all rows and notes. Without it, 24 lines and two notes.", rich_help_panel="Output"
    ),
]
TableOption: TypeAlias = Annotated[
    str | None,
    value_option(
        "--table",
        "NAME",
        "Table to print, if there are several; CSV holds one, by default the first.",
        panel="Output",
        hidden=True,
    ),
]
FormatOption: TypeAlias = Annotated[
    Format | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="table, json, csv or markdown [default: table]",
        show_default=False,
        rich_help_panel="Output",
        case_sensitive=False,
    ),
]

FORMATS_BY_ENDING: dict[str, Format] = {".json": "json", ".csv": "csv", ".md": "markdown", ".markdown": "markdown"}
"""Ending of an output file → the format in which an answer is written there, unless `--format` states another."""


UNWRITTEN_ENDINGS = (
    ".xlsx",
    ".xls",
    ".ods",
    ".pdf",
    ".html",
    ".htm",
    ".yaml",
    ".yml",
    ".tsv",
    ".parquet",
    ".png",
    ".svg",
)
"""Endings of formats that answers are not written in."""


def format_of_file(output_path: Path | None, default: Format = "table") -> Format:
    """Returns the format that an output file's ending names; `default` for another ending and without a file.

    Raises `InputError` for the ending of a format in which no answer is written: a table's text is none of it.
    """
    if output_path is not None and output_path.suffix.lower() in UNWRITTEN_ENDINGS:
        raise InputError(
            f"--output: {output_path}: {output_path.suffix} is not written; expected .json, .csv or .md, or .txt for "
            "the table (pictures: llmcalc plot)"
        )
    return default if output_path is None else FORMATS_BY_ENDING.get(output_path.suffix.lower(), default)


def _file_option(option_name: str) -> Any:
    """Returns the option for the output file, whose path is checked before anything is computed."""

    def check_path(output_path: Path | None) -> Path | None:
        """Returns the path unchanged if it can be written; `-` means standard output."""
        if output_path == Path("-"):
            return None
        if output_path is not None:
            if str(output_path) in get_args(Format):
                raise InputError(
                    f"{option_name}: {output_path} is a format; expected --format {output_path}, or a file such as "
                    f"answer.{output_path}"
                )
            check_writable(output_path, option_name)
        return output_path

    return typer.Option(
        option_name,
        "-o",
        metavar="FILE",
        callback=check_path,
        help="Write to FILE (.json, .csv, .md set the format). - is the terminal.",
        show_default=False,
        rich_help_panel="Output",
    )


OutputOption: TypeAlias = Annotated[Path | None, _file_option("--output")]
OutputFileOption: TypeAlias = Annotated[Path | None, _file_option("--output-file")]
"""The option for the output file in a command whose `--output` is the number of tokens of an answer."""


def _optional_part_option(optional_part: OptionalPart) -> Any:
    return typer.Option(
        optional_part.option, help=f"Include {optional_part.title}. They count in the totals.", rich_help_panel="Model"
    )


JunitOption: TypeAlias = Annotated[
    Path | None, value_option("--junit", "FILE", "Also write JUnit XML, for CI systems.")
]
DraftOption: TypeAlias = Annotated[
    str | None,
    value_option(
        "--draft",
        "TARGET",
        "A draft of speculative decoding beside it. Another model, or a draft that reads hidden states (EAGLE, "
        "DFlash, Medusa, …): what it adds to the model for which it drafts.",
        panel="Model",
        completion=complete_target,
    ),
]
WithMtpOption: TypeAlias = Annotated[bool, _optional_part_option(MTP)]
WithTowersOption: TypeAlias = Annotated[bool, _optional_part_option(TOWERS)]


def open_output(output_path: Path | None) -> AbstractContextManager[IO[str]]:
    """Opens the output file, which is written completely or not at all, or stdout."""
    return open_atomic_output(output_path, "--output") if output_path is not None else open_stdout()
