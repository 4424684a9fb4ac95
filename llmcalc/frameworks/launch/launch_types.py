"""The training run of a launch file, in one form for all frameworks, and the kinds of launch files."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ...algebra import ceil_div
from ...errors import InputError, short_repr
from ...frozen import frozen
from ...parallel.layout import (
    ONE_DEVICE,
    Layout,
    stage_sizes_between_ends,
    stage_sizes_of_most_layers,
    stage_sizes_with_counted_ends,
)
from ..frozen_model import FrozenModel, SecondLoss

if TYPE_CHECKING:
    from ...model import ModelSpec
    from ...workload.loaded_encoders import LoadedEncoders
    from .rollout import Rollout

Table: TypeAlias = Mapping[str, Any]

ReadTables: TypeAlias = Callable[[str], Table]
"""A function that reads the tables of a file named in another file."""

FP16_NOTE = (
    "fp16 is counted as bf16, whose tensors have the same sizes; GradScaler unscales gradients in place and keeps "
    "numbers of 4 bytes (torch/amp/grad_scaler.py)"
)
"""Note on autocast to fp16."""

NO_SHIPPED_FILES: Mapping[str, Table] = {}
"""No files shipped with a program."""


ReadText: TypeAlias = Callable[[str], tuple[str, str]]
"""A function that reads a file named in another file, and returns its path for messages and its text."""


@frozen
class Launch:
    """The training run that a launch file describes.

    name_in_errors: the file's name in messages.
    kind: the name of its `LaunchFile`, which `options.read_with_options` fills in.
    framework: the name of the framework.
    spec: the model; None if the file names none.
    model_name: the model's name in the file, such as a hub id; empty without one.
    layout: the layout over devices.
    settings: option of `llmcalc memory` → value; absent options have their defaults.
    framework_settings: the framework's own settings; None without any.
    env: environment variables that the file sets.
    unknown_arguments: argument → why it is not modelled. Empty unless unknown arguments are allowed.
    ignored_arguments: arguments that do not change memory.
    notes: values that were assumed.
    program: the program whose file it is, from its `LaunchFile`.
    version: the version of the program whose defaults are filled in, from its `LaunchFile` or from the file.
    assumed_defaults: argument that the file leaves out → the program's default.
    option_overrides: option typed beside the file → its value, and the file's.
    rollout: the engine and models that share the devices in reinforcement learning; None (default) for none.
    frozen_model: a frozen copy of the model on the same devices, outside of reinforcement learning; None (default)
        without.
    keeps_checkpoint_dtype: whether weights keep the number format of the checkpoint. The settings are then those of a
        checkpoint in fp32.
    end_stage_layers: layers of the first and of the last rank of a pipeline; None (default) for as many as others.
    ends_counted_as_layers: whether the embedding, and whether the loss, takes the place of a layer in a pipeline's
        stages.
    layers_per_stage: the most layers of a pipeline's stage, where the model's layers decide how many stages there are:
        one per rank, or at least two in an interleaved schedule. None (default) where the file states stages.
    rounds_stages_up: whether the number of those stages is rounded up to a multiple of the ranks, or down; None
        (default) where another number is an error.
    counts_longest_samples: whether samples that may be shorter are counted at the file's longest; false by default.
    calls_torch_attention: whether the program calls torch's attention, whose version chooses a kernel; default false.
        The settings then say `flash`, which keeps as much.
    written_options: option → the file's own argument with its value, where an error may name the option.
    score_head_num_labels: the number of scores per token of the head that replaces the language model's, 0 for no head;
        None (default) for the model's own head.
    logits_per_chunk: the most logits that a chunked loss computes at once, where the program states a chunk by its
        bytes; None (default) where the settings say its tokens.
    software_stack: the name of the software stack of the program's kernels in training; empty (default) for the
        framework's.
    accelerator_name: the accelerator on which the file starts the run, by its name with the memory size; empty
        (default) if it names none, or several.
    encoders: use of the encoders of images and sound of a model that has them; None (default) if the program does not
        load them.
    trains_encoders: whether the file has them trained or frozen; None (default) for the program's default.
    loads_causal_class: whether `AutoModelForCausalLM` loads the model, a class that may lack them; false by default.
    unread_files_text: the end of a message, on files that a script sources and that are not here; empty (default) for
        none.
    """

    name_in_errors: str
    kind: str
    framework: str
    spec: ModelSpec | None = None
    model_name: str = ""
    layout: Layout = ONE_DEVICE
    settings: Mapping[str, Any] = field(default_factory=dict)
    framework_settings: Any = None
    env: Mapping[str, str] = field(default_factory=dict)
    unknown_arguments: Mapping[str, str] = field(default_factory=dict)
    ignored_arguments: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    program: str = ""
    version: str = ""
    assumed_defaults: Mapping[str, Any] = field(default_factory=dict)
    option_overrides: Mapping[str, OptionOverride] = field(default_factory=dict)
    keeps_checkpoint_dtype: bool = False
    frozen_model: FrozenModel | SecondLoss | None = None
    rollout: Rollout | None = None
    end_stage_layers: tuple[int | None, int | None] = (None, None)
    ends_counted_as_layers: tuple[bool, bool] = (False, False)
    layers_per_stage: int | None = None
    rounds_stages_up: bool | None = None
    counts_longest_samples: bool = False
    calls_torch_attention: bool = False
    written_options: Mapping[str, str] = field(default_factory=dict)
    score_head_num_labels: int | None = None
    logits_per_chunk: int | None = None
    software_stack: str = ""
    accelerator_name: str = ""
    encoders: LoadedEncoders | None = None
    trains_encoders: bool | None = None
    loads_causal_class: bool = False
    unread_files_text: str = ""

    def error_in_file_terms(self, error: InputError) -> InputError:
        """Returns an error about an option in the words of the launch file, if the file sets that option."""
        option_match = re.match(r"--([a-z0-9-]+) (\S+): ", str(error))
        setting_name = option_match[1].replace("-", "_") if option_match else ""
        if option_match is None or setting_name in self.option_overrides or setting_name not in self.settings:
            return error
        option_text = option_match[0].removesuffix(": ")
        written_text = self.written_options.get(setting_name)
        argument_text = f"{option_text} of the file" if written_text is None else f"{written_text} ({option_text})"
        return InputError(f"{self.name_in_errors}: {argument_text}: {str(error)[option_match.end() :]}")

    def with_stage_sizes(self, layer_count: int) -> Launch:
        """Returns the run with the number of layers in each pipeline stage."""
        if self.layers_per_stage is not None:
            error_prefix = f"{self.name_in_errors}: layers_per_stage {self.layers_per_stage}"
            stage_sizes = stage_sizes_of_most_layers(
                layer_count, self.layout.pp, self.layers_per_stage, self.rounds_stages_up, error_prefix
            )
            chunk_count = len(stage_sizes) // self.layout.pp
            is_interleaved = self.layout.schedule == "interleaved"
            if is_interleaved != (chunk_count > 1):
                layer_limit = layer_count // (2 * self.layout.pp)
                advice_text = f"2 or more in an interleaved schedule (at most {layer_limit})"
                if not is_interleaved:
                    advice_text = f"1 in 1F1B (at least {ceil_div(layer_count, self.layout.pp)})"
                elif not layer_limit:
                    advice_text = (
                        f"the schedule 1F1B, since {2 * self.layout.pp} interleaved stages need as many layers"
                    )
                raise InputError(
                    f"{error_prefix}: {chunk_count} stage{'s' * (chunk_count > 1)} of {layer_count} layers per rank; "
                    f"expected {advice_text}"
                )
            return replace(self, layout=replace(self.layout, vpp=chunk_count, pp_layout=stage_sizes))
        stage_count = self.layout.pp * self.layout.vpp
        if any(self.ends_counted_as_layers) and stage_count > 1 and self.layout.pp_layout is None:
            option_names = f"{self.name_in_errors}: stages that count embedding or loss as a layer"
            stage_sizes = stage_sizes_with_counted_ends(
                layer_count, stage_count, *self.ends_counted_as_layers, option_names
            )
            return replace(self, layout=replace(self.layout, pp_layout=stage_sizes))
        if self.end_stage_layers == (None, None):
            return self
        error_prefix = f"{self.name_in_errors}: layers of the first and of the last stage"
        stage_sizes = stage_sizes_between_ends(
            layer_count, self.layout.pp, self.layout.vpp, *self.end_stage_layers, error_prefix
        )
        return replace(self, layout=replace(self.layout, pp_layout=stage_sizes))

    def with_chunked_loss(self, vocabulary: int) -> Launch:
        """Returns the run with the number of tokens per chunk of the loss. vocabulary: logits per token.

        Several chunks are a multiple of four (unsloth_zoo/fused_losses/cross_entropy_loss.py, `get_chunk_size`).
        """
        if self.logits_per_chunk is None or self.settings.get("cross_entropy") != "chunked":
            return self
        token_count = self.settings.get("batch", 1) * self.settings.get("seq", 1)
        fewest_chunks = ceil_div(token_count * vocabulary, self.logits_per_chunk)
        chunk_count = 1 if fewest_chunks <= 1 else 4 * ceil_div(fewest_chunks, 4)
        return replace(self, settings={"loss_chunk": max(1, ceil_div(token_count, chunk_count)), **self.settings})

    def json_data(self) -> dict[str, Any]:
        """Returns the launch file's values as part of a JSON document."""
        return {
            "file": self.name_in_errors,
            "kind": self.kind,
            "program": self.program or None,
            "version": self.version or None,
            "filled_in": {name: json_value_of(default_value) for name, default_value in self.assumed_defaults.items()},
            "overridden": {name: override.json_data() for name, override in self.option_overrides.items()},
            "env": dict(self.env),
            "ignored": list(self.ignored_arguments),
            "unknown": dict(self.unknown_arguments),
            "notes": list(self.notes),
            **({} if self.frozen_model is None else {"frozen_model": self.frozen_model.json_data()}),
            **({} if self.rollout is None else {"rollout": self.rollout.json_data()}),
        }


class OptionOverride(NamedTuple):
    """An option that replaces a value of a launch file.

    option_value: the option's value.
    file_value: the file's value; None if the file leaves it open.
    """

    option_value: Any
    file_value: Any

    def json_data(self) -> dict[str, Any]:
        """Returns the file's value and the option's value as part of a JSON document."""
        return {"file": json_value_of(self.file_value), "option": json_value_of(self.option_value)}


def json_value_of(launch_value: Any) -> Any:
    """Returns a value of a launch file with JSON types, a tuple as a list."""
    return list(launch_value) if isinstance(launch_value, tuple) else launch_value


@frozen
class LaunchSource:
    """The name of a launch file, and options for reading the file.

    name_in_errors: the file's name in messages.
    world_size: number of devices; None (default) for that of the file, or the smallest that its layout allows.
    allow_unknown: whether to accept arguments that may change memory and are not modelled.
    release_date: date of the framework's version; None (default) for the newest.
    gpu: name of the device; empty if unknown.
    read_named_tables: reads a file that this one names; None (default) if none can be read.
    env: environment variables outside of the file.
    script_name: name of the Python file that a script runs.
    unset_variables: variables of a script that it does not set.
    arguments: words that are typed behind the file's name.
    read_text: reads the text of a file that this one names; None (default) if none can be read.
    launcher: the words of a script's command before the program that it starts.
    has_typed_device_count: whether the number of devices is typed beside the file, and not the launcher's.
    unset_count_variables: variables of the launcher's numbers of machines and processes that the script does not set.
    """

    name_in_errors: str
    world_size: int | None = None
    allow_unknown: bool = False
    release_date: datetime.date | None = None
    gpu: str = ""
    read_named_tables: ReadTables | None = None
    env: Table = field(default_factory=dict)
    script_name: str = ""
    unset_variables: Sequence[str] = ()
    arguments: Sequence[str] = ()
    read_text: ReadText | None = None
    launcher: Sequence[str] = ()
    has_typed_device_count: bool = True
    unset_count_variables: Sequence[str] = ()

    @property
    def typed_device_count(self) -> int | None:
        """The number of devices that the user typed beside the launch file; None if the user typed none."""
        return self.world_size if self.has_typed_device_count else None

    def device_count_advice(self) -> str:
        """Returns advice on how to state the number of devices, with the script's unset variables."""
        if not self.unset_count_variables:
            return "--devices says another number"
        variable_names_text = ", ".join(self.unset_count_variables)
        assignments_text = " ".join(
            f"{count_variable}={8 if variable_index == 0 else 1}"
            for variable_index, count_variable in enumerate(self.unset_count_variables)
        )
        launch_example = f"--launch '{assignments_text} FILE'"
        return f"{variable_names_text} of the launcher is not set: --devices, or {launch_example}, says another number"


class CommandLine(NamedTuple):
    """A command of a shell script that starts a program.

    launcher: the words before the program, such as `torchrun --nproc-per-node 8`.
    program: the name of the Python file or module, or of an installed program.
    words: the words after it.
    line: line number in the script.
    loop_values: variables of the loops around it, with their values.
    path: the path of the Python file, as the script writes it; empty for a module or an installed program.
    env: the variables that are set for the command; none by default.
    """

    launcher: Sequence[str]
    program: str
    words: Sequence[str]
    line: int = 1
    loop_values: Sequence[tuple[str, str]] = ()
    path: str = ""
    env: Mapping[str, str] = MappingProxyType({})


@frozen
class LaunchFile:
    """A kind of launch file, with the functions that recognize and read a file of this kind.

    name: the kind's name in JSON documents.
    title: the kind's name in messages.
    matches_tables: whether tables are of this kind; by default never.
    read_tables: reads tables. Raises `InputError`, which names file and field. None (default) if no tables are read.
    program_of_arguments: the program whose arguments may be in a script's command instead; empty (default) for none.
    has_program_arguments: whether the words of a command are arguments of that program.
    read_arguments: reads the arguments of a command: argument → value, True without a value, a list for several.
    starts_program: whether a command starts the program of this kind; it is asked before `has_program_arguments` of
        other kinds.
    read_command: reads such a command; None (default) if no command is read.
    is_training_command: whether a command of this kind trains; commands that do not are left out beside one that does.
    reads_first_command: whether the first of several commands is read; by default several different ones are an error.
    is_python: whether the text of a Python file is of this kind.
    read_python: reads the text of a Python file without running it; None (default) if none is read.
    program: the program whose files they are; empty (default) if the title says it.
    version: the version of the program whose defaults are filled in; empty (default) if the file states it.
    with_options: (arguments, options, the run of the arguments, file's name) → the arguments with options typed beside
        the file in the place of the file's; None (default) if options replace settings of the run.
    commands: command of the program whose arguments are keys of its config files → keys with values that the command
        implies; none by default.
    launcher: the installed program whose commands start a process on each visible device, if no number is stated; empty
        (default) for none.
    with_launcher: (a command of the installed program) → the command with the launcher that it starts; by default the
        same.
    encoders: as in `Launch`.
    """

    name: str
    title: str
    matches_tables: Callable[[Table], bool] = lambda _: False
    read_tables: Callable[[Table, LaunchSource], Launch] | None = None
    program_of_arguments: str = ""
    has_program_arguments: Callable[[Sequence[str]], bool] = lambda _: False
    read_arguments: Callable[[Table, LaunchSource], Launch] | None = None
    starts_program: Callable[[CommandLine], bool] = lambda _: False
    read_command: Callable[[CommandLine, LaunchSource], Launch] | None = None
    is_training_command: Callable[[CommandLine], bool] = lambda _: True
    reads_first_command: bool = False
    is_python: Callable[[str], bool] = lambda _: False
    read_python: Callable[[str, LaunchSource], Launch] | None = None
    program: str = ""
    version: str = ""
    with_options: Callable[[Table, Table, Launch, str], Table] | None = None
    commands: Mapping[str, Table] = field(default_factory=dict)
    launcher: str = ""
    with_launcher: Callable[[CommandLine], CommandLine] = lambda command_line: command_line
    encoders: LoadedEncoders | None = None


class LaunchSettings(NamedTuple):
    """The layout and settings that the functions of a launch-file reader pass on, with the same fields as `Launch`."""

    layout: Layout
    settings: dict[str, Any]
    framework_settings: Any = None


@frozen
class Plugin:
    """The keys in accelerate's and the Trainer's arguments that select a framework, with functions that read them.

    distributed_type: accelerate's name of the framework.
    section_name: accelerate's table of the framework's settings.
    read_accelerate: (reading, the file's tables, devices, settings without the framework) → the run.
    trainer_keys: arguments of the Trainer that select the framework if one is set; empty (default) for none.
    read_trainer: the same as `read_accelerate`, for arguments of the Trainer.
    """

    distributed_type: str
    section_name: str
    read_accelerate: Callable[[LaunchReader, Table, int, dict[str, Any]], LaunchSettings]
    trainer_keys: tuple[str, ...] = ()
    read_trainer: Callable[[LaunchReader, Table, int, dict[str, Any]], LaunchSettings] | None = None


DATA_ARGUMENT = re.compile(
    r"(?:(?:train|eval|valid|val|validation|test|dev|hf|sft|custom|local)(?:ing)?_)?(?:data|dataset|datasets)"
    r"(?:_(?:id|or|name|path|paths|dir|file|files|folder|root|url|split|config|subset))*"
)
"""Pattern of arguments that name the data of a user's script, which change no memory."""


@dataclass
class LaunchReader:
    """Reads values of a launch file, and collects notes, unknown and ignored arguments while reading.

    source: the file.
    unknown_arguments: argument → why it is not modelled.
    ignored_arguments: arguments that do not change memory.
    notes: values that were assumed.
    written_options: option → the file's own argument with its value.
    assumed_defaults: argument that the file leaves out → the program's default.
    frozen_model: a frozen copy of the trained model; None (default) without one.
    requests_expandable_segments: whether the program asks torch's allocator for expandable segments, where the
        environment does not say; false by default.
    end_stage_layers, ends_counted_as_layers, layers_per_stage, rounds_stages_up, counts_longest_samples,
        calls_torch_attention, score_head_num_labels, logits_per_chunk, trains_encoders: as in `Launch`.
    """

    source: LaunchSource
    unknown_arguments: dict[str, str] = field(default_factory=dict)
    ignored_arguments: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    written_options: dict[str, str] = field(default_factory=dict)
    assumed_defaults: dict[str, Any] = field(default_factory=dict)
    frozen_model: FrozenModel | SecondLoss | None = None
    requests_expandable_segments: bool = False
    end_stage_layers: tuple[int | None, int | None] = (None, None)
    ends_counted_as_layers: tuple[bool, bool] = (False, False)
    layers_per_stage: int | None = None
    rounds_stages_up: bool | None = None
    counts_longest_samples: bool = False
    calls_torch_attention: bool = False
    score_head_num_labels: int | None = None
    logits_per_chunk: int | None = None
    trains_encoders: bool | None = None

    @property
    def name_in_errors(self) -> str:
        """The name of the launch file in error messages."""
        return self.source.name_in_errors

    def check_unknown_arguments(self) -> None:
        """Raises `InputError` if the file has arguments that are not modelled, unless these are allowed."""
        if not self.unknown_arguments or self.source.allow_unknown:
            return
        arguments_text = "; ".join(
            f"{argument_name} ({unknown_reason})"
            for argument_name, unknown_reason in list(self.unknown_arguments.items())[:MAX_LISTED_ARGUMENTS]
        )
        unlisted_count = len(self.unknown_arguments) - MAX_LISTED_ARGUMENTS
        raise InputError(
            f"{self.name_in_errors}: not understood, and may change memory: {arguments_text}"
            f"{f'; and {unlisted_count} more' if unlisted_count > 0 else ''}; expected a run without, or "
            "--allow-unknown"
        )

    def record_argument_names(
        self,
        config: Table,
        known_names: Iterable[str],
        ignored_names: Collection[str],
        unknown_reason: str = "no argument that is known",
    ) -> None:
        """Records arguments without an effect on memory as ignored, and unrecognized arguments as unknown.

        known_names: names of arguments that are read. unknown_reason: why the others are unknown.
        """
        data_names = [name for name in config if DATA_ARGUMENT.fullmatch(str(name)) is not None]
        known_names = [*known_names]
        ignored_names = (*ignored_names, *(name for name in data_names if name not in known_names))
        self.ignored_arguments += [argument_name for argument_name in config if argument_name in ignored_names]
        record_unknown_keys(self, config, (*known_names, *ignored_names), "", unknown_reason)

    def refuse(self, argument_name: str, refusal_reason: str) -> None:
        """Records an argument as not modelled, so that `check_unknown_arguments` raises an error."""
        self.unknown_arguments[argument_name] = refusal_reason

    def refuse_if_set(self, config: Table, refusal_reasons: Mapping[str, str], name_prefix: str = "") -> None:
        """Records as unknown each argument that is set (neither false nor 0). refusal_reasons: argument → reason."""
        for argument_name, refusal_reason in refusal_reasons.items():
            if config.get(argument_name):
                self.refuse(f"{name_prefix}{argument_name}", refusal_reason)

    def refuse_other_values(
        self, config: Table, allowed_values: Mapping[str, Sequence[Any]], name_prefix: str = "", suffix: str = ""
    ) -> None:
        """Records as unknown each argument whose value is not modelled.

        allowed_values: argument → its modelled values. suffix: the end of the reason.
        """
        for argument_name, modelled_values in allowed_values.items():
            if argument_name in config and config[argument_name] not in modelled_values:
                self.refuse(
                    f"{name_prefix}{argument_name}", f"{short_repr(config[argument_name])[:60]} is not modelled{suffix}"
                )

    def value(self, config: Table, argument_name: str, default_value: Any) -> Any:
        """Returns an argument's value, or `default_value` if the argument is absent or null."""
        if config.get(argument_name) is not None:
            return config[argument_name]
        self.assumed_defaults[argument_name] = default_value
        return default_value

    def integer(self, config: Table, argument_name: str, default_value: int, *, minimum: int = 1) -> int:
        """Returns the value of an argument as a whole number of at least `minimum`, or the program's default."""
        return read_integer(self, argument_name, self.value(config, argument_name, default_value), minimum=minimum)

    def choice(
        self, config: Table, argument_name: str, choices: Sequence[str], default_choice: str, name_prefix: str = ""
    ) -> str:
        """Returns the value of an argument that must be one of `choices`, or the program's default.

        name_prefix: what precedes the argument in the file; empty by default.
        """
        written_choice = str(self.value(config, argument_name, default_choice))
        if written_choice not in choices:
            expected_text = f"{', '.join(choices[:-1])} or {choices[-1]}"
            raise self.value_error(f"{name_prefix}{argument_name}", written_choice, expected_text)
        return written_choice

    def optional_integer(self, config: Table, argument_name: str) -> int | None:
        """Returns an argument's value as a whole number of at least 1; None if not set."""
        written_number = config.get(argument_name)
        return None if written_number is None else read_integer(self, argument_name, written_number)

    def device_count_of_nodes(
        self, config: Table, nodes_name: str, devices_name: str, name_prefix: str = "", *, devices_per_node: int = 8
    ) -> int:
        """Returns the number of devices of all nodes of a config, by default of 1 node.

        nodes_name, devices_name: the arguments with the number of nodes, and of devices per node.
        name_prefix: what precedes the arguments in the file; empty by default.
        devices_per_node: the program's default; by default 8.
        `--devices` replaces the file's number, with a note.
        """
        node_and_device_counts = [
            read_integer(self, name_prefix + argument_name, self.value(config, argument_name, default_count))
            for argument_name, default_count in ((devices_name, devices_per_node), (nodes_name, 1))
        ]
        world_size = node_and_device_counts[0] * node_and_device_counts[1]
        typed_devices = self.source.typed_device_count
        if typed_devices not in (None, world_size):
            self.notes.append(
                f"--devices {typed_devices} replaces the file's {nodes_name} · {devices_name} = "
                f"{node_and_device_counts[1]} · {node_and_device_counts[0]}"
            )
            return typed_devices
        return world_size

    def sequence_ranks(self, config: Table, argument_name: str, world_size: int, name_prefix: str = "") -> int:
        """Returns the number of ranks that divide each sequence, with a note. Raises `InputError` for a wrong number.

        name_prefix: what precedes the argument in the file; empty by default.
        """
        rank_count = self.integer(config, argument_name, 1)
        if world_size % rank_count:
            raise self.argument_error(
                name_prefix + argument_name,
                f"{rank_count} on {world_size} devices; expected --devices with a multiple of {rank_count}",
            )
        if rank_count > 1:
            self.notes.append(
                f"{name_prefix}{argument_name} {rank_count}: each rank has 1/{rank_count} of a sequence; "
                "what it sends is not counted"
            )
        return rank_count

    def flag(self, config: Table, argument_name: str, default_flag: bool = False) -> bool:
        """Returns an argument's value as a boolean, or the default.

        A default of false is not listed as assumed.
        """
        if config.get(argument_name) is None and not default_flag:
            return False
        return read_boolean(self, argument_name, self.value(config, argument_name, default_flag))

    def read_frozen_encoders(self, config: Table, argument_name: str, is_frozen: bool | None = None) -> None:
        """Records whether the run trains the image and audio encoders, from the argument that freezes the encoders.

        is_frozen: the value of an absent argument; None (default) for the program's default.
        """
        if config.get(argument_name) is not None:
            is_frozen = self.flag(config, argument_name)
        if is_frozen is not None:
            self.trains_encoders = not is_frozen

    def argument_error(self, argument_name: str, description: str) -> InputError:
        """Creates the error about an argument, with the file's name."""
        return InputError(f"{self.name_in_errors}: {argument_name}: {description}")

    def value_error(self, argument_name: str, argument_value: Any, expected_text: str) -> InputError:
        """Creates the error about an argument's value. expected_text: the values that the argument may have."""
        return self.argument_error(argument_name, f"{short_repr(argument_value)}; expected {expected_text}")

    def device_count(self, world_size: int | None) -> int:
        """Returns the number of devices; if `world_size` is missing, 1 with a note on this assumption."""
        if world_size is None:
            self.notes.append(f"1 device is assumed; {self.source.device_count_advice()}")
        return world_size or 1

    def tables_of_named_file(
        self,
        argument_name: str,
        file_name: Any,
        expected_file_kind: str,
        shipped_tables: Mapping[str, Table] = NO_SHIPPED_FILES,
    ) -> Table:
        """Returns the parsed tables of a file that an argument names.

        expected_file_kind: the kind of file, for the error.
        shipped_tables: path → tables of the program's own files, read where the user has no file of that path.
        """
        if not isinstance(file_name, str) or self.source.read_named_tables is None:
            raise self.value_error(argument_name, file_name, f"the path of {expected_file_kind} that can be read")
        shipped_text = shipped_tables.get(file_name.removeprefix("./"))
        if shipped_text is None:  # a path in a container that has the program, such as /workspace/axolotl
            shipped_text = next(
                (
                    shipped_table
                    for shipped_name, shipped_table in shipped_tables.items()
                    if file_name.endswith(f"/{shipped_name}")
                ),
                None,
            )
        try:
            return self.source.read_named_tables(file_name)
        except InputError:
            if shipped_text is None:
                raise
        self.notes.append(
            f"{argument_name}: {file_name[:80]} is not here; the file of that name that comes with the program is read"
        )
        return shipped_text

    def table(self, config: Table, argument_name: str) -> Table:
        """Returns the table under a key; empty if the key is absent. Raises `InputError` for other values."""
        inner_table = config.get(argument_name)
        if inner_table in (None, []):
            return {}
        if not isinstance(inner_table, Mapping):
            raise self.value_error(argument_name, inner_table, "a table")
        return inner_table

    def refuse_parallel_groups(self, config: Table) -> None:
        """Adds sizes above 1 in `parallelism_config` to the unknown arguments of a run without FSDP."""
        for size_name, rank_count in self.table(config, "parallelism_config").items():
            if str(size_name).endswith("_size") and rank_count not in (None, 1):
                self.refuse(f"parallelism_config.{size_name}"[:100], "groups of ranks are modelled with FSDP alone")

    def frozen_model_in_layout(self, layout: Layout) -> FrozenModel | SecondLoss | None:
        """Returns the frozen copy of the model, sharded under ZeRO 3 and FSDP; None without a frozen copy."""
        if not isinstance(self.frozen_model, FrozenModel) or layout.zero != 3:
            return self.frozen_model
        return replace(self.frozen_model, rank_count=layout.dp // layout.hsdp_replicas)

    def create_launch(self, framework_name: str, launch_settings: LaunchSettings, **launch_fields: Any) -> Launch:
        """Returns the training run under a framework. launch_fields: additional fields of `Launch`.

        Raises `InputError` as `check_unknown_arguments` does.
        """
        self.check_unknown_arguments()
        return Launch(
            name_in_errors=self.name_in_errors,
            kind="",
            framework=framework_name,
            layout=launch_settings.layout,
            settings={**self._allocator_setting(), **launch_settings.settings},
            framework_settings=launch_settings.framework_settings,
            unknown_arguments=self.unknown_arguments,
            ignored_arguments=tuple(self.ignored_arguments),
            notes=tuple(self.notes),
            assumed_defaults=dict(self.assumed_defaults),
            frozen_model=self.frozen_model_in_layout(launch_settings.layout),
            end_stage_layers=self.end_stage_layers,
            ends_counted_as_layers=self.ends_counted_as_layers,
            layers_per_stage=self.layers_per_stage,
            rounds_stages_up=self.rounds_stages_up,
            counts_longest_samples=self.counts_longest_samples,
            calls_torch_attention=self.calls_torch_attention,
            written_options=dict(self.written_options),
            score_head_num_labels=self.score_head_num_labels,
            logits_per_chunk=self.logits_per_chunk,
            trains_encoders=self.trains_encoders,
            **launch_fields,
        )

    def with_recorded_arguments(self, launched_run: Launch) -> Launch:
        """Returns another reader's training run with the notes and arguments that this reader has recorded."""
        return replace(
            launched_run,
            unknown_arguments={**self.unknown_arguments, **launched_run.unknown_arguments},
            ignored_arguments=(*self.ignored_arguments, *launched_run.ignored_arguments),
            notes=(*self.notes, *launched_run.notes),
            assumed_defaults={**launched_run.assumed_defaults, **self.assumed_defaults},
            score_head_num_labels=launched_run.score_head_num_labels
            if self.score_head_num_labels is None
            else self.score_head_num_labels,
            trains_encoders=launched_run.trains_encoders if self.trains_encoders is None else self.trains_encoders,
        )

    def _allocator_setting(self) -> dict[str, str]:
        """The setting of torch's allocator, from the environment or the program; empty for torch's default."""
        environment = self.source.env
        set_variables = [variable_name for variable_name in ALLOCATOR_VARIABLES if environment.get(variable_name)]
        if not set_variables and self.requests_expandable_segments:
            self.assumed_defaults[ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"
        is_expandable = (
            allocator_segment_type(environment) == "expandable" if set_variables else self.requests_expandable_segments
        )
        return {"allocator": "expandable"} if is_expandable else {}


ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables of torch's allocator; torch 2.9 reads the first, or the second if the first is not set."""

MAX_LISTED_ARGUMENTS = 12
"""Largest number of arguments that a message lists."""


@contextmanager
def launch_reader(source_file: LaunchSource) -> Iterator[LaunchReader]:
    """Provides a launch file's reader in a `with` block, and puts the file's name before each error message."""
    name_in_errors = source_file.name_in_errors
    try:
        yield LaunchReader(source_file)
    except InputError as error:
        error_text = str(error)
        raise (
            error if error_text.startswith(f"{name_in_errors}: ") else InputError(f"{name_in_errors}: {error_text}")
        ) from None


ATTENTION_ARGUMENT = "attn_implementation"


def assume_default_attention(reader: LaunchReader) -> dict[str, Any]:
    """Adds transformers' default attention (sdpa) to the assumed defaults, and returns no attention setting."""
    reader.assumed_defaults[ATTENTION_ARGUMENT] = "sdpa"
    return {}


def allocator_segment_type(environment: Mapping[str, str]) -> Literal["segments", "expandable"]:
    """Returns the segment type of torch's allocator from environment variables (docs: `PYTORCH_CUDA_ALLOC_CONF`)."""
    for variable_name in ALLOCATOR_VARIABLES:
        allocator_options = environment.get(variable_name, "").replace(" ", "").lower().split(",")
        if "expandable_segments:true" in allocator_options:
            return "expandable"
    return "segments"


def record_allocator_options(reader: LaunchReader, environment: Mapping[str, str]) -> None:
    """Records options of torch's allocator that change memory and are not modelled, as unknown arguments."""
    for variable_name in ALLOCATOR_VARIABLES:
        for allocator_option in filter(None, environment.get(variable_name, "").replace(" ", "").split(",")):
            option_name = allocator_option.partition(":")[0].lower()
            if option_name not in ("expandable_segments", *HARMLESS_ALLOCATOR_OPTIONS):
                reader.refuse(f"{variable_name}={allocator_option}"[:80], "the allocator is modelled without it")


HARMLESS_ALLOCATOR_OPTIONS = ("garbage_collection_threshold", "backend")
"""Options of torch's allocator that do not matter before memory runs out, or that select another allocator."""


def read_integer(reader: LaunchReader, argument_name: str, written_value: Any, *, minimum: int = 1) -> int:
    """Returns a value as a whole number of at least `minimum`. Raises `InputError`, which names the argument."""
    parsed_number = written_value
    if (
        isinstance(written_value, str)
        and len(written_value) < 20
        and written_value.strip().lstrip("+-").isdecimal()
        and written_value.isascii()
    ):
        parsed_number = int(written_value)
    if isinstance(written_value, float) and written_value.is_integer() and abs(written_value) < LARGEST_SIZE:
        parsed_number = int(written_value)
    if (
        isinstance(parsed_number, bool)
        or not isinstance(parsed_number, int)
        or not minimum <= parsed_number < LARGEST_SIZE
    ):
        raise reader.value_error(argument_name, written_value, f"a whole number of at least {minimum}")
    return parsed_number


def read_fraction(reader: LaunchReader, argument_name: str, config: Table, default_share: float) -> float:
    """Returns the value of an argument as a fraction above 0 and at most 1, or the program's default."""
    written_share = reader.value(config, argument_name, default_share)
    try:
        parsed_share = float(str(written_share)[:20])
    except ValueError:
        parsed_share = 0.0
    if not 0 < parsed_share <= 1:
        raise reader.value_error(argument_name, written_share, "a share above 0, at most 1")
    return parsed_share


def read_boolean(reader: LaunchReader, argument_name: str, written_flag: Any) -> bool:
    """Returns the value as a boolean. Raises `InputError`, which names the field."""
    booleans_by_word = {
        "true": True,
        "yes": True,
        "1": True,
        "on": True,
        "false": False,
        "no": False,
        "0": False,
        "off": False,
    }
    if isinstance(written_flag, bool):
        return written_flag
    truth_value = booleans_by_word.get(str(written_flag).strip().lower()[:10])
    if truth_value is None:
        raise reader.value_error(argument_name, written_flag, "true or false")
    return truth_value


LARGEST_SIZE = 2**40
"""A number above all sizes in launch files."""


def record_unknown_keys(
    reader: LaunchReader,
    config_table: Mapping[str, Any],
    known_names: Iterable[str],
    place_in_file: str,
    reason: str = "no key that is known",
) -> None:
    """Records set keys that are not in `known_names` as unknown arguments. reason: why they are refused."""
    known_keys = set(known_names)
    for config_key, config_value in config_table.items():
        if config_key not in known_keys and config_value is not None:
            reader.refuse(f"{place_in_file}.{config_key}".strip(".")[:100], reason)
