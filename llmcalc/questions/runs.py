"""Answers about a run: a model with settings and, for several devices, a layout or a launch file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from ..accelerator import Hardware, MemoryFit
from ..costs.context_length import default_sequence_tokens
from ..device_memory.cuda_runtime import CudaRuntime, cuda_runtime_of
from ..device_memory.estimate import Memory, memory
from ..device_memory.settings import (
    PRODUCT_FORMAT_BY_PRECISION,
    SERVING_PHASES,
    Settings,
    settings_of,
    users_in_training_error,
)
from ..errors import InputError, short_repr
from ..parallel.layout import Layout
from ..parallel.layout_request import NO_LAYOUT_OPTIONS, LayoutRequest, version_date
from ..reports.memory_answer import ASSUMED_ACCELERATOR, DeviceMemoryAnswer
from ..sources.hardware import accelerators_and_devices, find_hardware
from ..sources.preset import Preset
from ..sources.presets import LIBRARY_ENGINE, is_library_tag, known_model, names_gguf_file
from ..sources.target import load_named_checkpoint
from ..units import DTYPE_BITS
from ..workload.execution import FRAMEWORK_LOSSES
from ..workload.recompute import SELECTIVE_MODE
from ..workload.setting import option, training_option

if TYPE_CHECKING:
    from ..device_memory.device_memory import UnreplayedBytes
    from ..frameworks.framework import Framework
    from ..frameworks.launch.launch_types import Launch
    from ..reports.ranks_answer import RanksMemoryAnswer
    from ..studies.draft import DraftCosts
    from ..studies.fit_serving import ReplicaFit


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a training or inference run, except its model.

    settings: settings of the run.
    layout: parallelism options; default none.
    include: optional parts of the model that count.
    accelerators: accelerators on which the run has to fit; the runtime of the first is used, or that of an H100.
    workspace: value of CUBLAS_WORKSPACE_CONFIG; default None.
    """

    settings: Settings
    layout: LayoutRequest = NO_LAYOUT_OPTIONS
    include: frozenset[str] = frozenset()
    accelerators: tuple[Hardware, ...] = ()
    workspace: str | None = None

    def on_accelerators(self, hardware_arguments: Sequence[str]) -> Self:
        """Returns the options with the accelerators of `--hardware`, and with as many devices as `2x3090` names.

        Raises `InputError` for unknown names and for a number of devices that contradicts `--devices`.
        """
        accelerators, devices = accelerators_and_devices(hardware_arguments, self.layout.devices)
        layout = replace(self.layout, devices=devices)
        if self.layout.devices is None and layout.undivided_devices_text:  # the number is that of a name
            raise InputError(
                f"--hardware {' '.join(hardware_arguments)}: {layout.undivided_devices_text}; expected another number "
                f"of accelerators, such as --hardware {accelerators[0].name} without one, or other sizes"
            )
        return replace(self, accelerators=tuple(accelerators), layout=layout)


@dataclass(frozen=True, kw_only=True)
class RunQuestion(RunOptions):
    """A question about a run: the model, the options of the run, a launch file and a draft model.

    preset: the model.
    launch: the file that starts the run; default None.
    draft: a draft of speculative decoding beside the model; default None.
    is_trial: whether many runs like this one are tried, as in a search; false by default.
    default_context: accelerators of a replica → the context in tokens, where Ollama decides it by default; None
        (default) elsewhere.
    """

    preset: Preset
    launch: Launch | None = None
    draft: Preset | None = None
    is_trial: bool = False
    default_context: Callable[[int], int] | None = None

    def with_selective_modules_of_framework(self, framework_record: Framework) -> RunQuestion:
        """Returns the question in which the framework's recomputed modules replace `--recompute selective`.

        Raises `InputError` for modules of Megatron-Core under another framework.
        """
        if framework_record.recomputed_modules is None:
            _refuse_megatron_modules(self.settings)
        if self.settings.recompute != SELECTIVE_MODE:
            return self
        return replace(self, settings=self.settings.with_changes(recompute=framework_record.selective_recompute))

    def frameworks_for_plans(self) -> Iterator[tuple[Framework, InputError | None]]:
        """Yields the usual frameworks of plans, each with the reason why it cannot train the run; None if it can.

        Raises `InputError` for an accelerator that trains alone.
        """
        from ..frameworks.registry import frameworks_for_plans

        for framework_record in frameworks_for_plans(self.layout, self.hardware):
            try:
                framework_record.check_run(
                    self.with_selective_modules_of_framework(framework_record).memory_on_one_device(), ""
                )
            except InputError as error:
                yield framework_record, error
            else:
                yield framework_record, None

    def planned_run(self) -> tuple[Memory, LayoutRequest]:
        """Returns the first run that `planned_runs` yields, with its layout options. Raises the same `InputError`s."""
        run_memory, layout, _ = next(self.planned_runs())
        return run_memory, layout

    def planned_runs(self) -> Iterator[tuple[Memory, LayoutRequest, bool]]:
        """Yields each run of a plan: memory on one device, layout options, and whether its answer ends the plan.

        The framework is the named or implied one, else each usual framework that supports the model and the optimizer,
        of which the next one is for a run without an answer. Runs with adapters are tried as whole replicas first if
        the weights fit, then with ZeRO-2 and with ZeRO-3.
        Raises `InputError` for a run that no framework has, and for one that only whole replicas have, without room.
        """
        from ..frameworks.registry import ADAPTER_PLAN_ZERO_STAGES, framework, frameworks_for_plans

        layout_request, refusal_error, has_planned_run = self.layout, None, False
        first_framework, *other_frameworks = frameworks_for_plans(layout_request, self.hardware)
        if self.settings.recompute_choice().modules:  # which Megatron alone has
            other_frameworks = []
        yields_every_framework = self.settings.lora_rank is not None and bool(other_frameworks)
        if yields_every_framework:
            other_frameworks = [*map(framework, ADAPTER_PLAN_ZERO_STAGES), other_frameworks[0]]
        for framework_record in (first_framework, *other_frameworks):
            run_layout, run_memory = (
                layout_request,
                self.with_selective_modules_of_framework(framework_record).memory_on_one_device(),
            )
            try:
                framework_record.check_run(run_memory, layout_request.framework_version or "")
            except InputError as error:
                refusal_error = error
                continue
            if refusal_error is not None and framework_record.name in ADAPTER_PLAN_ZERO_STAGES:
                if self.hardware is not None and run_memory.states.total_bytes > self.hardware.capacity_bytes:
                    continue
                is_divided = any(
                    getattr(layout_request, size_name) not in (None, 1)
                    for size_name in framework_record.layout_rules.untried_size_names
                )
                if is_divided or (layout_request.zero and ADAPTER_PLAN_ZERO_STAGES[framework_record.name] is None):
                    continue
                group_sizes: dict[str, Any] = {
                    group_name: getattr(layout_request, group_name) or 1 for group_name in ("tp", "cp", "pp", "ep")
                }
                run_layout = replace(
                    layout_request,
                    **group_sizes,
                    zero=layout_request.zero or ADAPTER_PLAN_ZERO_STAGES[framework_record.name],
                )
            has_planned_run = True
            ends_plan = framework_record is first_framework or not yields_every_framework
            yield run_memory, replace(run_layout, framework=framework_record.name), ends_plan
        if not has_planned_run:
            assert refusal_error is not None
            raise refusal_error

    def with_defaults_of_tag(self) -> RunQuestion:
        """Returns the question with the weight format and context length that a GGUF file's name implies by default.

        The question is unchanged for other names and in training. The format is the name's or the library's if none is
        stated or published; of names that Ollama loads, the context is Ollama's if accelerators of one kind are named
        and no number of tokens is.
        """
        if self.launch is not None or self.settings.phase == "training" or not names_gguf_file(self.preset.target):
            return self
        from .usual_engines import usual_scheme_of

        run_question, run_memory = self, self.memory_on_one_device()
        usual_scheme = usual_scheme_of(run_memory, LIBRARY_ENGINE, self.preset.target)
        if usual_scheme is not None:
            settings = self.settings.with_changes(quantize=usual_scheme[0])
            if usual_scheme[0] == "none" and DTYPE_BITS[run_memory.published_dtype] != 16:
                settings = settings.with_changes(dtype="bfloat16")  # a file in 16 bits of a model published in 8 or 32
            run_question = replace(self, settings=settings)
        return run_question._with_ollama_context()

    def _with_ollama_context(self) -> RunQuestion:
        """Returns the question about an Ollama tag with Ollama's default context; other questions unchanged."""
        from ..frameworks.engines.registry import engine

        settings, layout_request, ollama_engine = self.settings, self.layout, engine(LIBRARY_ENGINE)
        if (
            settings.seq is not None
            or not is_library_tag(self.preset.target)
            or settings.phase not in SERVING_PHASES
            or len(self.accelerators) != 1
            or not ollama_engine.runs_on(self.accelerators[0])
            or layout_request.framework is not None
            or ollama_engine.default_context is None
            or not self.memory_on_one_device().has_gguf_weights
        ):
            return self
        replica_devices = (layout_request.tp or 1) * (layout_request.pp or 1)  # of a replica
        if layout_request.devices is not None and layout_request.dp is not None:
            replica_devices = max(1, layout_request.devices // layout_request.dp)
        elif (
            layout_request.devices is not None and layout_request.tp is None and layout_request.pp is None
        ):  # on as few as hold its weights
            weight_bytes = self.memory_on_one_device().states.weights
            replica_devices = max(
                1, min(layout_request.devices, -(-weight_bytes // self.accelerators[0].capacity_bytes))
            )
        default_context = cache(partial(ollama_engine.default_context, self.preset, self.accelerators[0]))
        try:
            context_tokens = default_context(replica_devices)
        except InputError:  # Ollama has no such model
            return self
        return replace(
            self,
            preset=self.preset_with_ollama_context(context_tokens),
            settings=settings.with_changes(seq=settings.seq_in_context(context_tokens)),
            default_context=default_context,
        )

    def preset_with_ollama_context(self, context_tokens: int) -> Preset:
        """Returns the preset with a note on Ollama's context length, in tokens, in place of an earlier such note."""
        from ..frameworks.engines.registry import engine

        context_note = engine(LIBRARY_ENGINE).default_context_note(context_tokens)
        earlier_notes = self.preset.run_notes if self.default_context is None else self.preset.run_notes[:-1]
        return self.preset.model_copy(update={"run_notes": (*earlier_notes, context_note)})

    def refuse_images_and_audio(self, command: str) -> None:
        """Raises `InputError` for images and audio in a command that does not count encoders."""
        option_name = self.settings.inputs.option
        if option_name:
            raise InputError(
                f"{option_name}: {command} does not count encoders; expected the tokens in --seq (llmcalc kv "
                f"and memory "
                f"take {option_name})"
            )

    def require_one_accelerator(self) -> None:
        """Raises `InputError` for several accelerators in a question whose answer is for a single accelerator."""
        from ..sources.hardware import require_one_accelerator

        require_one_accelerator([hardware.name for hardware in self.accelerators])

    @property
    def hardware(self) -> Hardware | None:
        """The first named accelerator, whose CUDA runtime is counted; None if none is named."""
        return self.accelerators[0] if self.accelerators else None

    @property
    def tokens(self) -> int:
        """The number of tokens per sequence, by default from the model; errors suggest layouts that divide it."""
        return default_sequence_tokens(self.preset.model) if self.settings.seq is None else self.settings.seq

    def memory_on_one_device(self) -> Memory:
        """Computes the memory on one device. Raises `InputError` for contradictory settings."""
        preset, cuda_runtime = self.preset, self.cuda_runtime_on(self.hardware)
        draft_model_bytes: list[UnreplayedBytes] = []
        if self.draft is not None:
            from ..studies.draft import draft_bytes

            draft_model_bytes = draft_bytes(self.draft, self.settings)
        settings = self.settings
        if settings.phase == "training" and settings.lora_rank is not None and settings.base is None:
            settings = settings.with_changes(base=base_setting_of_checkpoint(preset.storage_table))
            if (
                (preset.storage_table or {}).get("quant_method") in INTEGER_METHODS
                and settings.keeps_experts_in_16_bits
                and not settings.lora_experts
                and preset.model.has_experts
            ):  # GPTQ and AWQ store each expert as linear layers of 4 bits, unlike bitsandbytes
                settings = settings.with_changes(quantized_experts=True)
            settings = settings if self.launch is not None else settings.with_usual_recomputation()
        if self._is_float16_training:
            settings = settings.with_changes(precision="fp16-master")
        run_memory = memory(
            preset.model, settings, preset.dtype, self.include, preset.checkpoint, cuda_runtime, draft_model_bytes
        )
        return replace(run_memory, names_gguf_file=self.launch is None and names_gguf_file(preset.target))

    @property
    def _is_float16_training(self) -> bool:
        """Whether training in 16 bits without a stated format runs in float16, on an accelerator without bfloat16."""
        settings = self.settings
        has_format = settings.precision is not None or settings.dtype is not None or self.launch is not None
        has_only_float16_peak = self.hardware is not None and self.hardware.has_only_float16_peak
        return settings.phase == "training" and has_only_float16_peak and not has_format

    def cuda_runtime_on(self, hardware: Hardware | None) -> CudaRuntime:
        """Returns the run's CUDA runtime on an accelerator; for None, the runtime of an assumed accelerator."""
        cuda_runtime = cuda_runtime_of(hardware, self.workspace, self.settings.allocator == "expandable")
        return replace(cuda_runtime, belongs_to_search=self.is_trial)


def default_scheme_of_ollama_tag(preset: Preset) -> str | None:
    """Returns the quantization scheme of an Ollama tag that names no format; None for other names."""
    return RunQuestion(preset=preset, settings=settings_of()).with_defaults_of_tag().settings.quantize


INTEGER_METHODS = ("gptq", "awq")
"""Quantization methods with integer weights on which transformers can train adapters (quantizers, `is_trainable`)."""


def base_setting_of_checkpoint(stored_config: Mapping[str, Any] | None) -> str | None:
    """Returns the `base` setting that corresponds to a checkpoint's format of 4 or 8 bits; None for other checkpoints.

    GPTQ and AWQ have a scale of 16 bits and a zero point of 4 bits per group: per 128 weights as many bytes as the
    scales of NF4 with double quantization, per 32 as many as those of NF4. Their layers also decode a whole matrix for
    a product.
    stored_config: the table `quantization_config` of the checkpoint; None without one.
    """
    quant_table = stored_config or {}
    if quant_table.get("quant_method") in INTEGER_METHODS:
        bits_per_weight = quant_table.get("bits", quant_table.get("w_bit"))
        group_size = quant_table.get("group_size", quant_table.get("q_group_size"))
        has_small_groups = isinstance(group_size, int) and 0 < group_size <= 64
        if bits_per_weight == 4:
            return "nf4" if has_small_groups else "nf4-dq"
        return "int8" if bits_per_weight == 8 else None
    if quant_table.get("quant_method", "bitsandbytes") == "bitsandbytes" and quant_table.get("load_in_4bit"):
        return "nf4-dq" if quant_table.get("bnb_4bit_use_double_quant") else "nf4"
    return "int8" if quant_table.get("quant_method") == "bitsandbytes" and quant_table.get("load_in_8bit") else None


def with_implied_phase(
    settings: Settings, layout: LayoutRequest, is_setting_given: Callable[[str], bool], training_option_name: str = ""
) -> Settings:
    """Returns the settings, for training if a typed option only applies to training, with the usual recomputation.

    The phase is the typed one, else training if an option only applies to training. The recomputation is the default
    of the option's tool.

    Options of the settings were already applied by `settings_with_shorthands`.

    is_setting_given: parameter → whether the user gave it.
    training_option_name: an option of the command itself that asks for training; default none.
    Raises `InputError` for users of a run that is training.
    """
    typed_training_option = training_option(layout) or _training_framework_option(layout) or training_option_name
    if is_setting_given("phase") or not typed_training_option:
        return settings.with_usual_recomputation()
    if is_setting_given("users"):
        raise users_in_training_error(typed_training_option)
    return settings.with_changes(phase="training").with_usual_recomputation()


def _training_framework_option(layout: LayoutRequest) -> str:
    """Returns the option that names a training-only framework; empty without such an option."""
    if layout.framework is None:
        return ""
    from ..frameworks.registry import framework

    return "" if framework(layout.framework).runs_inference else f"--framework {layout.framework}"


def build_run_question(
    target: Any,
    read_model: Callable[[Any], Preset],
    run_options: RunOptions,
    *,
    launch_file: str | Path | None = None,
    is_setting_given: Callable[[str], bool] = lambda option_name: False,
    allow_unknown: bool = False,
    command: str = "memory",
    **model_options: Any,
) -> RunQuestion:
    """Returns the question of `memory` or `time`, about TARGET or about the run that a launch file starts.

    target: the TARGET; None if none was given.
    read_model: function that reads it.
    run_options: the other options.
    launch_file: the file that starts the run; default None.
    is_setting_given: parameter → whether the user gave it.
    allow_unknown: whether unknown arguments of the file are ignored.
    command: the name of the command.
    model_options: name → value of the options that change the model.
    Raises `InputError` without a model, and for an option that the file sets.
    """
    if launch_file is None:
        run_options = replace(
            run_options, settings=with_implied_phase(run_options.settings, run_options.layout, is_setting_given)
        )
        return RunQuestion(preset=read_model(_require_target(target, command)), **vars(run_options))
    from ..frameworks.launch.adapter_targets import translate_adapter_targets
    from ..frameworks.launch.read_launch_file import read_launch

    gpu_name = run_options.accelerators[0].name.upper() if run_options.accelerators else ASSUMED_ACCELERATOR
    release_date = version_date(run_options.layout.framework_version or "")
    typed_options = _typed_settings_and_layout_options(run_options.settings, run_options.layout)
    launched_run = read_launch(
        launch_file,
        run_options.layout.devices,
        allow_unknown,
        release_date=release_date,
        gpu_name=gpu_name,
        options=typed_options,
    )
    if launched_run.accelerator_name and not run_options.accelerators:
        from ..frameworks.server_files.accelerators import accelerator_of_label

        hardware_name = accelerator_of_label(launched_run.accelerator_name)
        if hardware_name:  # the file is read anew, since frameworks choose kernels by the accelerator
            return build_run_question(
                target,
                read_model,
                replace(run_options, accelerators=(find_hardware(hardware_name),)),
                launch_file=launch_file,
                is_setting_given=is_setting_given,
                allow_unknown=allow_unknown,
                command=command,
                **model_options,
            )
        name_text = short_repr(launched_run.accelerator_name)
        hardware_note = f"the file's accelerator, {name_text}, is not known: --hardware names one"
        launched_run = replace(launched_run, notes=(*launched_run.notes, hardware_note))
    if is_setting_given("phase") and run_options.settings.phase != "training":
        raise InputError(f"--phase: {launched_run.name_in_errors} starts training; remove the option")
    for option_name, option_value in model_options.items() if launched_run.spec is not None else ():
        if option_value:
            raise InputError(
                f"{option(option_name)}: {launched_run.name_in_errors} defines the model that it trains; remove "
                f"the option"
            )
    if launched_run.spec is None:
        preset = model_of_launch_file(
            target,
            launched_run.model_name,
            launched_run.name_in_errors,
            read_model,
            error_end=launched_run.unread_files_text,
        )
        model_notes = (note for note in preset.notes if launched_run.name_in_errors in note)
        launched_run = replace(launched_run, notes=(*launched_run.notes, *model_notes))
        if (
            target is not None
            and is_plain_model_name(launched_run.model_name)
            and launched_run.model_name not in (preset.name, *preset.aliases)
        ):
            replacement_note = f"the model of the file, {short_repr(launched_run.model_name)}, is replaced by TARGET"
            launched_run = replace(launched_run, notes=(*launched_run.notes, replacement_note))
    elif target is None:
        preset = Preset(name=str(launch_file), model=launched_run.spec)
    else:
        raise InputError(f"TARGET {target}: {launch_file} defines the model that it trains; remove TARGET")
    if launched_run.score_head_num_labels is not None:
        typed_setting = next((setting_name for setting_name in LOGIT_SETTINGS if setting_name in typed_options), "")
        if typed_setting:
            raise InputError(
                f"{option(typed_setting)}: {launched_run.name_in_errors} trains a model without logits; "
                "remove the option"
            )
        preset = _with_classification_head(preset, launched_run.score_head_num_labels)
        launched_run = replace(launched_run, settings=_settings_without_logits(launched_run.settings))
    launched_run = translate_adapter_targets(
        with_published_weights(launched_run, preset), preset.model, preset.checkpoint
    )
    launched_run = launched_run.with_stage_sizes(preset.model.main.num_hidden_layers)
    launched_run = launched_run.with_chunked_loss(preset.model.vocab_size)
    run_options = replace(run_options, settings=Settings(**{"phase": "training", **launched_run.settings}))
    return RunQuestion(preset=preset, **vars(run_options), launch=launched_run)


def _with_classification_head(preset: Preset, score_head_num_labels: int) -> Preset:
    """Returns the preset with a classification head (`ForSequenceClassification`) instead of the language-model head.

    score_head_num_labels: the number of scores per token; 0 for no head, as `AutoModel` has none. A model without a
        language model's head keeps its own.
    """
    if preset.model.head.type != "lm":
        return preset
    if score_head_num_labels == 0:
        from ..components.no_head import NoHead

        return preset.model_copy(update={"model": preset.model.model_copy(update={"head": NoHead()})})
    from ..components.classifier import Classifier

    score_head = Classifier(num_labels=score_head_num_labels, bias=False, over="token")
    return preset.model_copy(update={"model": preset.model.model_copy(update={"head": score_head})})


def _settings_without_logits(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's settings without those of token logits, which a classification head does not have."""
    other_settings = {
        setting_name: setting_value
        for setting_name, setting_value in settings.items()
        if setting_name not in LOGIT_SETTINGS
    }
    return other_settings if settings.get("cross_entropy") is None else {**other_settings, "cross_entropy": "eager"}


LOGIT_SETTINGS = ("cross_entropy", "logits_dtype", "loss_chunk", "logits_to_keep", "divide_logits", "keep_logits")
"""Settings of the language-model loss and its logits."""


def _require_target(target: Any, command: str) -> Any:
    """Returns the TARGET. Raises `InputError` without a TARGET."""
    if target is None or target == "":
        raise InputError(
            f"missing argument TARGET, or --launch FILE with a model in it (llmcalc {command} --help explains)"
        )
    return target


def is_plain_model_name(model_name: str) -> bool:
    """Whether a launch file names its model as plain text, or in a folder that a shell variable names."""
    is_computed = model_name.startswith(("$", "`")) and _FOLDER_OF_VARIABLE.fullmatch(model_name) is None
    return bool(model_name) and not is_computed


def _model_in_named_format(model_name: str) -> Preset | None:
    """Returns the model of a folder's name, in the weight format in the name; None for an unknown name."""
    return known_model(model_name) or load_named_checkpoint(model_name)


def model_of_launch_file(
    target: Any,
    model_name: str,
    place_in_error: str,
    read_model: Callable[[Any], Preset],
    find_by_name: Callable[[str], Preset | None] = _model_in_named_format,
    *,
    error_end: str = "",
) -> Preset:
    """Returns the TARGET, or the model that a launch file names.

    model_name: the model's name in the file; empty if it names none. place_in_error: the file's name in messages.
    find_by_name: finds the model of a folder that is not here by the folder's name.
    error_end: the end of the message about a name that a script computes; empty by default.
    Raises `InputError` if there is no TARGET and the file names no model that can be read.
    """
    if target not in (None, ""):
        return read_model(target)
    if not model_name:
        raise InputError(f"missing argument TARGET: {place_in_error} names no model; add TARGET, the model's name")
    computed_name_error = InputError(
        f"{place_in_error}: the model, '{model_name[:80]}', is known only when the script runs; add TARGET, the "
        f"model's name{error_end}"
    )
    if not is_plain_model_name(model_name):
        raise computed_name_error
    try:
        preset = read_model(model_name)
        if not preset.named_checkpoint:
            return preset
        return preset.model_copy(update={"notes": tuple(f"{place_in_error}: {note}" for note in preset.notes)})
    except InputError as error:
        is_in_variable = _FOLDER_OF_VARIABLE.match(model_name) is not None
        known_preset = find_by_name(model_name) if is_in_variable or _PATH.match(model_name) else None
        if known_preset is None and is_in_variable:
            raise computed_name_error from None
        if known_preset is None:
            raise InputError(
                f"{place_in_error}: its model, {short_repr(model_name)}, cannot be read ({str(error)[:300]}); add "
                "TARGET, a preset, a config.json or a hub id"
            ) from None
        model_name_note = (
            f"the model of {place_in_error}, {short_repr(model_name)}, is not here; by its name it is the preset "
            f"{known_preset.name}"
        )
        return known_preset.model_copy(update={"notes": (*known_preset.notes, model_name_note)})


_PATH = re.compile(r"(?:/|\./|\.\./|~/|models?/|checkpoints?/|weights/).*[^/]")
"""Pattern of a model's path in a launch file, possibly on another machine."""

_FOLDER_OF_VARIABLE = re.compile(r"\$\w+/(?:[^$`/]+/)*[^$`/]+/?")
"""Pattern of a path that begins with a shell variable: `$MODELS/Llama-3-8B`."""


def _typed_settings_and_layout_options(settings: Settings, layout: LayoutRequest) -> dict[str, Any]:
    """Returns the settings and layout options that the user typed in addition to a launch file."""
    return {
        option_field.name: option_value
        for option_group, excepted_fields in ((settings, ("phase",)), (layout, ("devices", "framework_version")))
        for option_field in fields(option_group)
        if option_field.name not in excepted_fields
        and (option_value := getattr(option_group, option_field.name)) is not None
    }


SIXTEEN_BIT_FORMATS = ("bfloat16", "float16")
"""16-bit number formats; weights that are published in one of them are trained in it."""


def with_published_weights(launched_run: Launch, preset: Preset) -> Launch:
    """Returns the training run with weights in the published number format, if the program keeps that format.

    transformers 5 loads weights in the checkpoint's format (`dtype="auto"`); `bf16: true` adds autocast, which changes
    no product of weights in bf16. Adapters stay in fp32 beside them, under autocast where the file has it.
    """
    if not launched_run.keeps_checkpoint_dtype or preset.dtype not in SIXTEEN_BIT_FORMATS:
        return launched_run
    if launched_run.settings.get("lora_rank") is not None:
        is_autocast = launched_run.settings.get("precision") == "autocast"
        adapter_settings = {
            setting_name: setting_value
            for setting_name, setting_value in launched_run.settings.items()
            if setting_name != "precision" or is_autocast
        }
        dtype_note = f"frozen weights in {preset.dtype}, the checkpoint's number format"
        return replace(
            launched_run, settings={**adapter_settings, "dtype": preset.dtype}, notes=(*launched_run.notes, dtype_note)
        )
    other_settings = {
        setting_name: setting_value
        for setting_name, setting_value in launched_run.settings.items()
        if setting_name != "precision"
    }
    dtype_note = f"weights, gradients and states in {preset.dtype}, the checkpoint's number format"
    notes = (*launched_run.notes, dtype_note)
    return replace(
        launched_run, settings={**other_settings, "dtype": preset.dtype, "master_weights": "none"}, notes=notes
    )


def check_loss_implementation(settings: Settings, framework_record: Framework) -> None:
    """Raises `InputError` for a cross-entropy implementation that belongs to the library of another framework."""
    loss_implementation = settings.cross_entropy
    if loss_implementation in FRAMEWORK_LOSSES and loss_implementation not in framework_record.library_losses:
        from ..frameworks.registry import FRAMEWORK_NAMES, framework

        frameworks_text = " or ".join(
            framework_name
            for framework_name in FRAMEWORK_NAMES
            if loss_implementation in framework(framework_name).library_losses
        )
        raise InputError(
            f"--cross-entropy {loss_implementation}: {framework_record.title} has no such loss; expected "
            f"--framework {frameworks_text}"
        )


def _refuse_megatron_modules(settings: Settings) -> None:
    """Raises `InputError` for `--recompute` with names of Megatron-Core's modules."""
    if settings.recompute_choice().modules:
        raise InputError(
            f"--recompute {settings.recompute}: these are modules of Megatron-Core; expected --framework megatron, or "
            "nodes:A,B"
        )


def check_loss_and_precision_of_framework(settings: Settings, framework_record: Framework) -> None:
    """Raises `InputError` for a loss or a precision whose memory is not modelled under a framework."""
    check_loss_implementation(settings, framework_record)
    _check_precision(settings, framework_record)


def _check_precision(settings: Settings, framework_record: Framework) -> None:
    """Raises `InputError` for an 8-bit or 4-bit precision whose memory is not modelled under the framework."""
    precision = settings.precision or ""
    if precision in PRODUCT_FORMAT_BY_PRECISION and precision not in framework_record.low_precision_formats:
        from ..frameworks.registry import FRAMEWORK_NAMES, framework

        supporting_frameworks = [
            framework_name
            for framework_name in FRAMEWORK_NAMES
            if precision in framework(framework_name).low_precision_formats
        ]
        expected_text = "llmcalc time, which has it, or bf16-master"
        if supporting_frameworks:
            expected_text = f"--framework {' or '.join(supporting_frameworks)}"
        raise InputError(
            f"--precision {precision}: the memory of its products is not modelled under {framework_record.title}; "
            f"expected {expected_text}"
        )


def _with_draft_model(run_question: RunQuestion, draft_preset: Preset) -> RunQuestion:
    """Returns the question with a draft model. Raises `InputError` if a draft model does not apply."""
    from ..costs.draft import check_draft

    if run_question.launch is not None or run_question.settings.phase == "training":
        raise InputError("--draft: drafts tokens in inference; expected --phase inference, prefill or decode")
    if run_question.layout.has_options:
        raise InputError("--draft: counts a whole draft beside a whole model; expected no layout")
    check_draft(run_question.preset.model, draft_preset.model, run_question.preset.name, f"--draft {draft_preset.name}")
    return replace(run_question, draft=draft_preset)


def _draft_costs_of_run(run_question: RunQuestion, target_memory: Memory) -> DraftCosts | None:
    """Returns a run's draft model with the memory of its weights and cache; None without a draft model."""
    if run_question.draft is None:
        return None
    from ..studies.draft import draft_costs

    workload = target_memory.states.workload
    seq = workload.seq + (target_memory.states.phase == "decode")
    return draft_costs(
        run_question.preset, run_question.draft, workload.batch, seq, target_memory.states.kv_dtype or "bfloat16"
    )


Parameters = ParamSpec("Parameters")
QuestionAnswer = TypeVar("QuestionAnswer")


def name_file_in_errors(
    question_function: Callable[Concatenate[RunQuestion, Parameters], QuestionAnswer],
) -> Callable[Concatenate[RunQuestion, Parameters], QuestionAnswer]:
    """Wraps a question's function so that errors about options of a launch file name the file and its argument."""

    @wraps(question_function)
    def ask(run_question: RunQuestion, /, *arguments: Parameters.args, **options: Parameters.kwargs) -> QuestionAnswer:
        try:
            return question_function(run_question, *arguments, **options)
        except InputError as error:
            raise error if run_question.launch is None else run_question.launch.error_in_file_terms(error) from None

    return ask


def _preferred_framework_if_other(run_question: RunQuestion, framework_record: Framework) -> Framework | None:
    """Returns the framework that `fit`, `plan` and `time` choose if none is named; None if it is `framework_record`."""
    from ..frameworks.registry import framework_of

    layout = run_question.layout
    if run_question.settings.phase != "training" or layout.devices in (None, 1) or layout.framework is not None:
        return None
    try:
        planned_framework = framework_of(run_question.planned_run()[1])
    except InputError:  # of accelerators that train alone, or of a run that no framework has
        return None
    return None if planned_framework is framework_record else planned_framework


def layout_check_of_framework(
    run_memory: Memory, framework_record: Framework, layout_request: LayoutRequest
) -> Callable[[Layout], None]:
    """Returns a function that raises `InputError` for a layout of the run that the framework refuses.

    Layouts are completed by the framework's defaults for the options that the request leaves open.
    """

    trains_experts = run_memory.settings.phase == "training" and run_memory.spec.routed_experts > 0
    layout_rules = framework_record.layout_rules

    def check_layout(layout: Layout) -> None:
        completed_layout = layout_rules.with_divided_tokens(layout, layout_request, trains_experts=trains_experts)
        framework_record.check_layout(run_memory, completed_layout)

    return check_layout


def _engine_fit_function(
    run_question: RunQuestion, run_memory: Memory
) -> Callable[[Hardware], MemoryFit | None] | None:
    """Returns a function that tells whether the run fits on an accelerator under llama.cpp; None in training.

    None for training, and where engines are not read, as on the page.
    """
    if run_memory.settings.phase == "training":
        return None
    with suppress(ModuleNotFoundError):
        from .usual_engines import fit_under_usual_engine

        return partial(fit_under_usual_engine, run_question.preset, run_memory)
    return None


def _replica_under_engine(run_question: RunQuestion, run_memory: Memory) -> ReplicaFit | None:
    """Returns the best replica on the named accelerators under llama.cpp, as in `fit`; None if torch runs the model.

    None for several kinds of accelerators, and where engines are not read, as on the page.
    """
    hardware = run_question.hardware
    if hardware is None or len(run_question.accelerators) > 1:
        return None
    with suppress(ModuleNotFoundError):
        from .usual_engines import best_replica_under_usual_engine

        return best_replica_under_usual_engine(
            run_question.preset, run_memory, hardware, run_question.layout, run_question.default_context
        )
    return None


@name_file_in_errors
def ask_memory(run_question: RunQuestion, draft_preset: Preset | None = None) -> DeviceMemoryAnswer | RanksMemoryAnswer:
    """Computes the memory of one device or of a layout's ranks, and the accelerators that fit.

    draft_preset: a draft of speculative decoding beside the model; default None.
    Raises `InputError` for settings that contradict each other or the model, and for a framework that has no kernels
    for the model.
    """
    if draft_preset is not None:
        run_question = _with_draft_model(run_question, draft_preset)
    run_question = run_question.with_defaults_of_tag()
    layout, launched_run = run_question.layout, run_question.launch
    answer_fields: dict[str, Any] = {
        "preset": run_question.preset,
        "accelerators": run_question.accelerators,
        "workspace": run_question.workspace,
    }
    if launched_run is None and not layout.has_options:
        if run_question.settings.recompute == SELECTIVE_MODE:  # without a framework
            run_question = replace(run_question, settings=run_question.settings.with_changes(recompute="attention"))
        _refuse_megatron_modules(run_question.settings)
        settings = run_question.settings  # the page has no frameworks at first
        if settings.precision in PRODUCT_FORMAT_BY_PRECISION or settings.cross_entropy in FRAMEWORK_LOSSES:
            from ..frameworks.registry import framework_of

            check_loss_and_precision_of_framework(settings, framework_of(layout))
        memory_on_one_device = run_question.memory_on_one_device()
        return DeviceMemoryAnswer.of_result(
            memory_on_one_device,
            **answer_fields,
            draft=_draft_costs_of_run(run_question, memory_on_one_device),
            find_engine_fit=None if draft_preset else _engine_fit_function(run_question, memory_on_one_device),
        )
    from ..frameworks.ranks import Cluster
    from ..frameworks.registry import framework, framework_of, layout_of
    from ..parallel.nearest_layouts import suggest_nearest_layouts
    from ..reports.ranks_answer import RanksMemoryAnswer
    from ..studies.step_size import with_usual_micro_batches

    framework_record = framework_of(layout) if launched_run is None else framework(launched_run.framework)
    check_loss_and_precision_of_framework(run_question.settings, framework_record)
    framework_version = layout.framework_version or ""
    run_memory = run_question.with_selective_modules_of_framework(framework_record).memory_on_one_device()
    with suggest_nearest_layouts(
        run_question.preset.model,
        layout if launched_run is None else NO_LAYOUT_OPTIONS,
        run_question.tokens,
        check_layout=layout_check_of_framework(run_memory, framework_record, layout),
    ):
        if launched_run is not None:
            from ..sources.text_class import has_text_class

            lacks_encoders = launched_run.loads_causal_class and has_text_class(run_question.preset)
            cluster = Cluster.with_framework(
                run_memory,
                launched_run.layout,
                framework_record,
                framework_version,
                launched_run.framework_settings,
                launched_run.frozen_model,
                encoders=None if lacks_encoders else launched_run.encoders,
            )
        elif run_question.settings.phase != "training" and layout.is_undivided:
            from ..studies.fit_serving import serving_replicas

            hardware = run_question.hardware or find_hardware(ASSUMED_ACCELERATOR.lower())
            best_replica = _replica_under_engine(run_question, run_memory)
            answer_fields["engine_fit"] = None if best_replica is None else best_replica.fit
            best_replica = best_replica or serving_replicas(run_memory, hardware, layout)[1]
            if run_question.default_context is not None:
                context_tokens = run_question.default_context(best_replica.layout.replica_devices)
                run_memory = run_memory.with_changes(seq=run_memory.settings.seq_in_context(context_tokens))
                answer_fields["preset"] = run_question.preset_with_ollama_context(context_tokens)
            cluster = Cluster.with_framework(run_memory, best_replica.layout, framework_record, framework_version)
            answer_fields["hardware_of_chosen_layout"] = hardware
        else:
            trained_spec = run_memory.spec if run_question.settings.phase == "training" else None
            stated_layout = layout_of(layout, trained_spec)
            answer_fields["planned_framework"] = _preferred_framework_if_other(run_question, framework_record)
            cluster = Cluster.with_framework(
                with_usual_micro_batches(run_memory, stated_layout), stated_layout, framework_record, framework_version
            )
        ranks_answer = RanksMemoryAnswer.of_result(cluster, **answer_fields, launch=launched_run)
        _ = ranks_answer.fits  # replays every rank that differs, so that an impossible layout raises here
        return ranks_answer
