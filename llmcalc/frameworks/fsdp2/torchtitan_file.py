"""Reads torchtitan's jobs (TOML) of 2024 to 2026; those of 2024 have layouts in `[training]`, `[experimental]`.

Source: torchtitan/config_manager.py at 9dec370 (2024-12-26) and e7c0cae (2025-06-11), torchtitan/config/job_config.py
and distributed/pipeline_parallel.py at 9810191bb^ (2026-02-22), the last version with such files.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal

from ...errors import InputError, short_repr
from ...model import ModelSpec
from ...parallel.layout import ContextExchange, Layout, Schedule
from ..launch.launch_types import (
    Launch,
    LaunchReader,
    LaunchSettings,
    LaunchSource,
    Table,
    launch_reader,
    read_boolean,
    read_integer,
)
from .settings import Float8Recipe, Float8Settings, TitanSettings
from .torchtitan_models import spec_of_flavor

SECTIONS = ("job", "model", "training", "parallelism", "experimental", "activation_checkpoint", "optimizer", "metrics")

DEFAULT_DEVICE_COUNT = 8
"""Default number of devices in torchtitan's `run_train.sh` (`NGPU`)."""

RESHARD_POLICIES = {"default": None, "always": True, "never": False}

SCHEDULES: dict[str, Schedule] = {"1F1B": "1f1b", "Interleaved1F1B": "interleaved"}
"""Value of torchtitan's `pipeline_parallel_schedule` → llmcalc's name of the schedule, for modelled schedules."""

EXCHANGE_BY_ROTATE_METHOD: dict[str, ContextExchange] = {"allgather": "allgather", "alltoall": "p2p"}
"""torchtitan's exchange of keys and values → the layout's; torchtitan's all-to-all sends shards round a ring."""

OPTIMIZER_IMPLEMENTATIONS: dict[str, Literal["fused", "foreach", "loop"]] = {
    "fused": "fused",
    "foreach": "foreach",
    "for-loop": "loop",
}
"""Value of torchtitan's `implementation` of the optimizer → value of `--optimizer-impl`."""


def _parse_keys_by_section(list_text: str) -> dict[str, frozenset[str]]:
    """Parses lines `section_name: key key …` and returns the list of keys by section."""
    keys_by_section: dict[str, set[str]] = {}
    for key_or_section in list_text.split():
        if key_or_section.endswith(":"):
            section_keys: set[str] = keys_by_section.setdefault(key_or_section[:-1], set())
        else:
            section_keys.add(key_or_section)
    return {section_name: frozenset(section_keys) for section_name, section_keys in keys_by_section.items()}


KEYS_READ = _parse_keys_by_section(
    """
    model: name flavor converters
    training: batch_size local_batch_size global_batch_size seq_len compile dtype mixed_precision_param
        enable_cpu_offload data_parallel_replicate_degree data_parallel_shard_degree
        data_parallel_degree tensor_parallel_degree pipeline_parallel_degree disable_loss_parallel
    parallelism: data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward
        tensor_parallel_degree disable_loss_parallel enable_async_tensor_parallel enable_compiled_autograd
        pipeline_parallel_degree pipeline_parallel_first_stage_less_layers pipeline_parallel_last_stage_less_layers
        pipeline_parallel_layers_per_stage pipeline_parallel_schedule pipeline_parallel_split_points
        pipeline_parallel_microbatch_size context_parallel_degree context_parallel_rotate_method
        expert_parallel_degree expert_tensor_parallel_degree
    experimental: context_parallel_degree context_parallel_rotate_method pipeline_parallel_degree
        pipeline_parallel_schedule pipeline_parallel_split_points pipeline_parallel_microbatches
        enable_async_tensor_parallel enable_compiled_autograd
    activation_checkpoint: mode selective_ac_option
    compile: enable components
    optimizer: name fused implementation early_step_in_backward
    float8: enable_fsdp_float8_all_gather recipe_name filter_fqns enable_float8_linear
    """
)
"""Section of a job → keys that are read."""

MODELLED_VALUES: dict[str, tuple[Any, ...]] = {
    "model.norm_type": ("rmsnorm", "compiled_rmsnorm", "fused_rmsnorm"),
    "parallelism.pipeline_parallel_schedule_csv": ("",),
    "experimental.pipeline_parallel_schedule_csv": ("",),
    "parallelism.expert_parallel_comm_backend": ("standard",),
    "training.mixed_precision_reduce": ("float32",),
    "experimental.custom_import": ("",),
    "experimental.custom_args_module": ("",),
    "job.custom_config_module": ("",),
    "memory_estimation.enabled": (False,),
    "memory_estimation.enable": (False,),
    "fault_tolerance.enable": (False,),
    "validation.enable": (False,),
    "validation.enabled": (False,),
    "activation_checkpoint.early_stop": (False,),
    "debug.moe_force_load_balance": (False, True),
    "float8.scaling_type_input": ("dynamic",),
    "float8.scaling_type_weight": ("dynamic",),
    "float8.scaling_type_grad_output": ("dynamic",),
}
"""Key → the only values that are modelled."""

KEYS_IGNORED = _parse_keys_by_section(
    """
    job: config_file save_config_file dump_folder description use_for_integration_test print_args print_config
    model: tokenizer_path hf_assets_path print_after_conversion
    optimizer: lr beta1 beta2 eps weight_decay
    training: seed deterministic dataloader decay_ratio decay_type data_parallel_type dataset dataset_path
        warmup_steps max_norm steps gc_freq gc_debug
    parallelism: pipeline_parallel_expert_parallel_overlap context_parallel_load_balancer
    activation_checkpoint: per_op_sac_force_recompute_mm_shapes_by_fqns preserve_rng_state determinism_check debug
        memory_budget visualize_memory_budget_pareto
    compile: backend model_backend_override
    """
)
"""Section of a job → keys that do not change the memory of a step."""

IGNORED_SECTIONS = ("profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "debug", "job", "logging")
"""Sections of a job whose other keys do not change the memory of a step."""

LOW_PRECISION_SECTIONS = ("float8", "mx", "quantize")
"""Sections of low-precision matrix products, which have no effect without a converter in `model.converters`."""


SWITCHED_OFF_SECTIONS = ("validation", "fault_tolerance", "memory_estimation")
"""Sections that have no effect unless enabled; `MODELLED_VALUES` refuses enabled ones."""


def is_torchtitan(config: Mapping[str, Any]) -> bool:
    """Whether a parsed file is a torchtitan job."""
    job_sections = [section_name for section_name in SECTIONS if isinstance(config.get(section_name), Mapping)]
    model = config.get("model")
    return len(job_sections) > 1 and ("flavor" in model if isinstance(model, Mapping) else "training" in job_sections)


class _JobConfig:
    """A torchtitan job's keys, found in whichever section the job's version of torchtitan has them."""

    def __init__(self, config: Mapping[str, Any], reader: LaunchReader) -> None:
        self.job_sections, self.reader = config, reader

    def find_key(self, job_key: str, *section_names: str) -> tuple[str, Any]:
        """Returns (section.key, value) from the first section that has the key; the value is None if none has it."""
        for section_name in section_names:
            section_table = self.job_sections.get(section_name)
            if isinstance(section_table, Mapping) and job_key in section_table:
                return f"{section_name}.{job_key}", section_table[job_key]
        return f"{section_names[0]}.{job_key}", None

    def integer(self, job_key: str, default_value: int, *section_names: str, minimum: int = 1) -> int:
        """Returns a key's value as an integer."""
        full_key, job_value = self.find_key(job_key, *section_names)
        return default_value if job_value is None else read_integer(self.reader, full_key, job_value, minimum=minimum)

    def flag(self, job_key: str, default_value: bool, *section_names: str) -> bool:
        """Returns a key's value as a boolean."""
        full_key, job_value = self.find_key(job_key, *section_names)
        return default_value if job_value is None else read_boolean(self.reader, full_key, job_value)

    def choice(self, job_key: str, default_value: str, allowed_values: Mapping[str, Any], *section_names: str) -> str:
        """Returns a key's value, which must be one of the texts in `allowed_values`."""
        full_key, job_value = self.find_key(job_key, *section_names)
        if job_value is None:
            return default_value
        value_text = str(job_value)[:60]
        if value_text not in allowed_values:
            raise self.reader.value_error(full_key, job_value, f"one of {', '.join(allowed_values)}")
        return value_text


def read_torchtitan(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run that a torchtitan job describes. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        return _read_sections(_JobConfig(config, reader), source_file.world_size)


def read_job(config: Table, reader: LaunchReader, spec: ModelSpec) -> Launch:
    """Returns the training run of a job for a known model. Raises `InputError`, which names the key."""
    return _read_sections(_JobConfig(config, reader), reader.source.world_size, spec)


def _read_sections(job_config: _JobConfig, world_size: int | None, spec: ModelSpec | None = None) -> Launch:
    """Returns the training run that a job's sections describe: model, layout and settings."""
    reader = job_config.reader
    for section_name, section_table in job_config.job_sections.items():
        _record_section_keys(reader, section_name, section_table)
    is_2024_form = "parallelism" not in job_config.job_sections
    if spec is None:
        section_name, model_size = job_config.find_key("name", "model")[1], job_config.find_key("flavor", "model")[1]
        if not isinstance(model_size, str):
            raise reader.value_error("model.flavor", model_size, "the name of a flavour, such as 8B")
        spec = spec_of_flavor(
            "llama3" if section_name is None else str(section_name),
            model_size,
            reader.name_in_errors,
            is_2024_form=is_2024_form,
        )
    layout = _job_layout(job_config, spec.main.num_hidden_layers, world_size)
    settings = _command_settings(job_config, layout)
    titan_config = _titan_settings(job_config, layout, is_2024_form)
    reader.notes.append("the file does not say the allocator's setting; run_train.sh asks for expandable segments")
    framework_name: str = "fsdp2" if layout.zero else "torch"
    return reader.create_launch(framework_name, LaunchSettings(layout, settings, titan_config), spec=spec)


def _record_section_keys(reader: LaunchReader, section_name: str, section_table: Any) -> None:
    """Reports ignored, unknown and unmodelled keys in a section of a torchtitan job."""
    if not isinstance(section_table, Mapping):
        raise reader.value_error(section_name[:60], section_table, "a table")
    for section_key, section_value in section_table.items():
        dotted_key = f"{section_name}.{section_key}"[:80]
        if section_key in KEYS_READ.get(section_name, ()):
            continue
        if dotted_key in MODELLED_VALUES:
            if section_value not in MODELLED_VALUES[dotted_key]:
                reader.refuse(dotted_key, f"{short_repr(section_value)} is not modelled")
        elif section_name in (
            *LOW_PRECISION_SECTIONS,
            *SWITCHED_OFF_SECTIONS,
            *IGNORED_SECTIONS,
        ) or section_key in KEYS_IGNORED.get(section_name, ()):
            reader.ignored_arguments.append(dotted_key)
        else:
            reader.refuse(dotted_key, "no key that is known")


def _job_layout(job_config: _JobConfig, layer_count: int, world_size: int | None) -> Layout:
    """Returns the parallel layout of a torchtitan job."""
    reader, section_names = job_config.reader, ("parallelism", "training")
    tp = job_config.integer("tensor_parallel_degree", 1, *section_names)
    pp = job_config.integer("pipeline_parallel_degree", 1, "parallelism", "experimental", "training")
    cp = job_config.integer("context_parallel_degree", 1, "parallelism", "experimental")
    ep = job_config.integer("expert_parallel_degree", 1, "parallelism")
    replica_count = job_config.integer("data_parallel_replicate_degree", 1, *section_names)
    full_key, shard_value = job_config.find_key("data_parallel_shard_degree", *section_names)
    if shard_value is None:
        full_key, shard_value = job_config.find_key("data_parallel_degree", "training")
    dp_shards = -1 if shard_value is None else read_integer(reader, full_key, shard_value, minimum=-1)
    if dp_shards == 0:
        raise reader.argument_error(full_key, "0; expected -1 or at least 1")
    other_ranks = tp * pp * cp * replica_count
    if world_size is None:
        world_size = (
            other_ranks * dp_shards if dp_shards > 0 else max(1, -(-DEFAULT_DEVICE_COUNT // other_ranks)) * other_ranks
        )
        reader.notes.append(f"{world_size} devices are assumed")
    if dp_shards < 0:
        dp_shards = max(1, world_size // other_ranks)
    if other_ranks * dp_shards != world_size:
        raise InputError(
            f"--devices: {world_size}; expected {other_ranks * dp_shards} = shards {dp_shards} · replicas "
            f"{replica_count} · tensor {tp} · pipeline {pp} · context {cp}"
        )
    schedule, vpp, stage_sizes = _pipeline_stages(job_config, pp, layer_count)
    reshards_after_forward = RESHARD_POLICIES[
        job_config.choice("fsdp_reshard_after_forward", "default", RESHARD_POLICIES, "parallelism")
    ]
    expert_tp = job_config.integer("expert_tensor_parallel_degree", 1, "parallelism") if ep > 1 else None
    rotate_method = job_config.choice(
        "context_parallel_rotate_method", "allgather", EXCHANGE_BY_ROTATE_METHOD, "parallelism", "experimental"
    )
    return Layout(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp_shards * replica_count,
        ep=ep,
        etp=expert_tp,
        vpp=vpp,
        sequence_parallel=tp > 1,
        cp_comm=EXCHANGE_BY_ROTATE_METHOD[rotate_method],
        zero=3 if dp_shards * cp > 1 else 0,
        hsdp_replicas=replica_count,
        reshard=pp == 1 if reshards_after_forward is None else reshards_after_forward,
        schedule=schedule,
        pp_layout=stage_sizes,
    )


def _pipeline_stages(job_config: _JobConfig, pp: int, layer_count: int) -> tuple[Schedule, int, tuple[int, ...] | None]:
    """Returns the pipeline schedule, the number of stages per rank, and the layers of each stage.

    In a job of 2024 the first stage has no extra layer (parallelisms/pipelining_utils.py, `generate_split_points`).
    Later the embedding counts as a layer of the first stage and the head as one of the last
    (`generate_llm_fqn_per_model_part`).
    """
    if pp == 1:
        return "1f1b", 1, None
    full_key, schedule_text = job_config.find_key("pipeline_parallel_schedule", "parallelism", "experimental")
    schedules_by_name = {schedule_name.lower(): schedule for schedule_name, schedule in SCHEDULES.items()}
    schedule_name = "1f1b" if schedule_text is None else str(schedule_text).lower()[:60]
    if schedule_name not in schedules_by_name:
        raise job_config.reader.argument_error(
            full_key, f"{short_repr(schedule_text)} is not supported; expected 1F1B or Interleaved1F1B"
        )
    is_interleaved = schedules_by_name[schedule_name] == "interleaved"
    first_stage_reduction = job_config.integer("pipeline_parallel_first_stage_less_layers", 1, "parallelism", minimum=0)
    last_stage_reduction = job_config.integer("pipeline_parallel_last_stage_less_layers", 1, "parallelism", minimum=0)
    layers_per_stage = job_config.find_key("pipeline_parallel_layers_per_stage", "parallelism")[1]
    chunks_per_rank = 2 if is_interleaved else 1
    split_layers = _stage_layers_from_split_points(job_config, pp, is_interleaved, layer_count)
    if split_layers is not None:
        return schedules_by_name[schedule_name], len(split_layers) // pp, split_layers
    if "parallelism" not in job_config.job_sections:
        layers_per_chunk, remaining_layers = divmod(layer_count, pp * chunks_per_rank)
        if layers_per_chunk < 1:
            raise job_config.reader.argument_error(
                "experimental.pipeline_parallel_degree", f"{pp * chunks_per_rank} stages for {layer_count} layers"
            )
        middle_stages = [
            layers_per_chunk + (stage_index < remaining_layers) for stage_index in range(pp * chunks_per_rank - 2)
        ]
        return (
            schedules_by_name[schedule_name],
            chunks_per_rank,
            (layers_per_chunk, *middle_stages, layer_count - layers_per_chunk - sum(middle_stages)),
        )
    if layers_per_stage is not None:
        stage_layers = read_integer(
            job_config.reader, "parallelism.pipeline_parallel_layers_per_stage", layers_per_stage
        )
        stage_count = -(-(layer_count + first_stage_reduction + last_stage_reduction) // stage_layers)
        if stage_count % pp or (stage_count // pp == 1) == is_interleaved:
            raise job_config.reader.argument_error(
                "parallelism.pipeline_parallel_layers_per_stage",
                f"{stage_layers} makes {stage_count} stages for {pp} ranks",
            )
        chunks_per_rank = stage_count // pp
    base_layers, remaining_units = divmod(
        layer_count + first_stage_reduction + last_stage_reduction, pp * chunks_per_rank
    )
    if base_layers < max(1, first_stage_reduction, last_stage_reduction):
        raise job_config.reader.argument_error(
            "parallelism.pipeline_parallel_degree", f"{pp * chunks_per_rank} stages for {layer_count} layers"
        )
    stage_sizes = [base_layers + (stage_index < remaining_units) for stage_index in range(pp * chunks_per_rank)]
    stage_sizes[0] -= first_stage_reduction
    stage_sizes[-1] -= last_stage_reduction
    return schedules_by_name[schedule_name], chunks_per_rank, tuple(stage_sizes)


def _stage_layers_from_split_points(
    job_config: _JobConfig, pp: int, is_interleaved: bool, layer_count: int
) -> tuple[int, ...] | None:
    """Returns the layers per stage that a job's split points imply; None if the job has no split points.

    The split points name the first layer of every stage but the first.
    """
    full_key, split_points = job_config.find_key("pipeline_parallel_split_points", "parallelism", "experimental")
    if isinstance(split_points, str):
        split_points = [split_point.strip() for split_point in split_points.split(",") if split_point.strip()]
    if not split_points:
        return None
    layer_numbers = [
        layer_name.removeprefix("layers.") if isinstance(layer_name, str) else "" for layer_name in split_points
    ]
    stage_bounds = [
        0,
        *(int(split_point) if split_point.isdigit() else -1 for split_point in layer_numbers),
        layer_count,
    ]
    if sorted(set(stage_bounds)) != stage_bounds:
        raise job_config.reader.value_error(full_key, split_points, "layers in rising order, such as layers.4")
    if len(layer_numbers) + 1 != pp and (not is_interleaved or (len(layer_numbers) + 1) % pp):
        raise job_config.reader.argument_error(
            full_key, f"{len(layer_numbers) + 1} stages for {pp} ranks; expected {pp - 1} split points"
        )
    return tuple(stage_end - stage_start for stage_start, stage_end in pairwise(stage_bounds))


def _schedules_per_step(job_config: _JobConfig, layout: Layout) -> int:
    """Returns the number of runs of the pipeline schedule per step, one for each accumulated batch."""
    local_batch_size = _local_batch_size(job_config)
    full_key, global_batch_size = job_config.find_key("global_batch_size", "training")
    batches_per_step = (
        -1 if global_batch_size is None else read_integer(job_config.reader, full_key, global_batch_size, minimum=-1)
    )
    if batches_per_step <= 0:
        return 1
    if batches_per_step % (local_batch_size * layout.dp):
        raise job_config.reader.argument_error(
            full_key,
            f"{batches_per_step}; expected a multiple of {local_batch_size * layout.dp}, local batch · data parallel",
        )
    return batches_per_step // (local_batch_size * layout.dp)


def _local_batch_size(job_config: _JobConfig) -> int:
    """Returns the number of sequences per data-parallel rank."""
    return job_config.integer("local_batch_size", job_config.integer("batch_size", 8, "training"), "training")


def _command_settings(job_config: _JobConfig, layout: Layout) -> dict[str, Any]:
    """Returns the job's settings, keyed by the option of `llmcalc memory` with the same meaning."""
    reader, training_section = job_config.reader, "training"
    reader.calls_torch_attention = True
    local_batch_size, schedule_count = _local_batch_size(job_config), _schedules_per_step(job_config, layout)
    micro_batch_size, microbatch_total = local_batch_size, schedule_count
    if layout.pp > 1:
        micro_batch_size, microbatch_count = _micro_batch_sizes(job_config, local_batch_size, layout.pp)
        microbatch_total = microbatch_count * schedule_count
    settings: dict[str, Any] = {
        "phase": "training",
        "batch": micro_batch_size,
        "num_microbatches": microbatch_total,
        "seq": job_config.integer("seq_len", 2048, training_section),
        **_precision_settings(job_config, layout),
        "optimizer": _optimizer_name(job_config),
        "optimizer_impl": _optimizer_implementation(job_config),
        "optimizer_in_backward": job_config.flag("early_step_in_backward", False, "optimizer") or None,
        "attn_implementation": "flash",
        "compile": _compiles_layers(job_config) or None,
        "recompute": _recompute_setting(job_config),
    }
    if job_config.flag("enable_compiled_autograd", False, "parallelism", "experimental"):
        reader.refuse("parallelism.enable_compiled_autograd", "compiled autograd is not modelled")
    return {option_name: option_value for option_name, option_value in settings.items() if option_value is not None}


NUMBER_FORMATS = {"float32": "fp32", "bfloat16": "bf16"}


def _precision_settings(job_config: _JobConfig, layout: Layout) -> dict[str, str]:
    """Returns the number format of matrix products, and whether the optimizer updates fp32 weights.

    `fully_shard` gathers weights in the format of products. Without shards torchtitan uses autocast, except with tensor
    parallelism, with a pipeline, and before 2025-06-16 (distributed/utils.py, `maybe_enable_amp`; 0b44d4c43).
    """
    weight_format = NUMBER_FORMATS[job_config.choice("dtype", "float32", NUMBER_FORMATS, "training")]
    compute_format = NUMBER_FORMATS[job_config.choice("mixed_precision_param", "bfloat16", NUMBER_FORMATS, "training")]
    if compute_format == weight_format:
        return {"dtype": weight_format, "master_weights": "none"}
    if weight_format == "bf16":
        raise job_config.reader.argument_error(
            "training.mixed_precision_param", "float32 over weights in bfloat16 is not supported"
        )
    if layout.zero:
        return {"dtype": compute_format, "master_weights": "fp32"}
    if "parallelism" in job_config.job_sections and layout.tp == layout.pp == 1:
        return {"precision": "autocast"}
    job_config.reader.notes.append("without shards torchtitan computes in the format of the weights, fp32")
    return {"dtype": weight_format, "master_weights": "none"}


def _micro_batch_sizes(job_config: _JobConfig, local_batch_size: int, pp: int) -> tuple[int, int]:
    """Returns the sequences per pipeline micro-batch, and the number of micro-batches.

    In a job of 2024 the default number is that of the stages. Later jobs give the size of a micro-batch.
    """
    full_key, microbatch_value = job_config.find_key("pipeline_parallel_microbatches", "experimental")
    if "parallelism" in job_config.job_sections:
        microbatch_size = job_config.integer("pipeline_parallel_microbatch_size", 1, "parallelism")
        full_key = "parallelism.pipeline_parallel_microbatch_size"
        microbatch_count = local_batch_size // microbatch_size
    else:
        microbatch_count = (
            pp if microbatch_value is None else read_integer(job_config.reader, full_key, microbatch_value)
        )
        microbatch_size = local_batch_size // microbatch_count
    if microbatch_size < 1 or microbatch_size * microbatch_count != local_batch_size:
        raise job_config.reader.argument_error(
            full_key, f"{local_batch_size} sequences do not divide into such micro-batches; expected a divisor"
        )
    return microbatch_size, microbatch_count


def _optimizer_name(job_config: _JobConfig) -> str:
    """Returns the optimizer's name."""
    full_key, optimizer_name = job_config.find_key("name", "optimizer")
    optimizer_names = {"AdamW": "adamw", "Adam": "adamw"}
    if optimizer_name is not None and optimizer_name not in optimizer_names:
        raise job_config.reader.argument_error(
            full_key, f"{short_repr(optimizer_name)} is not supported; expected AdamW or Adam"
        )
    return "adamw"


def _optimizer_implementation(job_config: _JobConfig) -> Literal["fused", "foreach", "loop"]:
    """Returns the implementation of the optimizer: fused, foreach or loop."""
    if (
        job_config.find_key("fused", "optimizer")[1] is not None
        and job_config.find_key("implementation", "optimizer")[1] is None
    ):
        return "fused" if job_config.flag("fused", True, "optimizer") else "foreach"
    default_implementation = "foreach" if "parallelism" not in job_config.job_sections else "fused"
    return OPTIMIZER_IMPLEMENTATIONS[
        job_config.choice("implementation", default_implementation, OPTIMIZER_IMPLEMENTATIONS, "optimizer")
    ]


def _compiles_layers(job_config: _JobConfig) -> bool:
    """Whether torch.compile compiles the layers."""
    if "compile" in job_config.job_sections:
        compiled_components = job_config.find_key("components", "compile")[1]
        component_names = ["model", "loss"] if compiled_components is None else compiled_components
        if not isinstance(component_names, list):
            raise job_config.reader.value_error("compile.components", component_names, "a list")
        return job_config.flag("enable", False, "compile") and "model" in component_names
    return job_config.flag("compile", False, "training")


def _recompute_setting(job_config: _JobConfig) -> str:
    """Returns the recomputation setting: none, full, every:N, or `selective-op`."""
    modes_by_name = {"none": "none", "full": "full", "selective": "selective", "memory_budget": "memory_budget"}
    checkpointing_mode = job_config.choice("mode", "selective", modes_by_name, "activation_checkpoint")
    if checkpointing_mode == "memory_budget":
        job_config.reader.refuse("activation_checkpoint.mode", "the compiler's memory budget is not modelled")
        return "none"
    if checkpointing_mode != "selective":
        return checkpointing_mode
    full_key, interval_value = job_config.find_key("selective_ac_option", "activation_checkpoint")
    if interval_value == "op":
        return SELECTIVE_OPERATIONS
    layer_interval = 2 if interval_value is None else read_integer(job_config.reader, full_key, interval_value)
    return "full" if layer_interval == 1 else f"every:{layer_interval}"


SELECTIVE_OPERATIONS = "selective-op"
"""torchtitan's selective checkpointing by operations: it saves attention, collectives and every other product
(torchtitan/distributed/activation_checkpoint.py, `_apply_op_sac`).
"""


def _titan_settings(job_config: _JobConfig, layout: Layout, is_2024_form: bool) -> TitanSettings:
    """Returns the job's settings of torchtitan that correspond to no option of llmcalc."""
    reader, section_names = job_config.reader, ("parallelism", "experimental")
    settings = TitanSettings(
        is_2024_form=is_2024_form,
        float8=_float8_settings(job_config, layout),
        uses_loss_parallel=not job_config.flag("disable_loss_parallel", False, "parallelism", "training"),
        async_tensor_parallel=layout.tp > 1 and job_config.flag("enable_async_tensor_parallel", False, *section_names),
        compiles_loss=_is_loss_compiled(job_config),
        schedules_per_step=_schedules_per_step(job_config, layout) if layout.pp > 1 else 1,
        offloads_to_host=job_config.flag("enable_cpu_offload", False, "training"),
    )
    if not settings.uses_loss_parallel and not layout.zero:
        full_key, _ = job_config.find_key("disable_loss_parallel", "parallelism", "training")
        reader.refuse(full_key, "without shards the loss is modelled on divided logits alone")
    if settings.float8 is not None:
        gather_format = (
            "gathered in 8 bits" if settings.float8.gathers_float8 else "gathered in the format of computing"
        )
        reader.notes.append(
            f"products in float8 ({settings.float8.recipe}) are an estimate: kernels of bf16, weights {gather_format}"
        )
    if settings.async_tensor_parallel:
        reader.notes.append("asynchronous tensor parallelism: its symmetric buffers are not counted")
    if is_2024_form:
        reader.notes.append("the file has the form of 2024: torchtitan of 2024-12-26, unless --framework-version")
    return settings


FLOAT8_CONVERTERS = ("float8", "quantize.linear.float8")
"""Converters of linear layers to float8, in all versions of torchtitan."""

FLOAT8_EXPERTS = "quantize.grouped_mm.float8"
"""The converter of experts to float8 matrix products, for which weights are not gathered in float8."""

MX_CONVERTERS = ("mx", "quantize.linear.mx", "quantize.grouped_mm.mx")
"""Converters of layers to MXFP8."""

FLOAT8_RECIPES: dict[str, Float8Recipe] = {
    "tensorwise": "tensorwise",
    "rowwise": "rowwise",
    "rowwise_with_gw_hp": "rowwise_with_gw_hp",
}

SMALL_LAYERS_FILTER = "auto_filter_small_kn"
"""The entry of `filter_fqns` that excludes layers too small to gain speed."""


def _float8_settings(job_config: _JobConfig, layout: Layout) -> Float8Settings | None:
    """Returns the float8 settings of linear layers: of a converter, or before 2025-02-15 of a key in `[float8]`."""
    reader = job_config.reader
    converters = job_config.find_key("converters", "model")[1] or []
    converter_names = converters.split(",") if isinstance(converters, str) else converters
    if not isinstance(converter_names, list):
        raise reader.value_error("model.converters", converters, "a list")
    for converter_name in converter_names:
        if converter_name not in (*FLOAT8_CONVERTERS, FLOAT8_EXPERTS):
            refusal_reason = "MXFP8 products are not modelled" if converter_name in MX_CONVERTERS else "not known"
            reader.refuse(f"model.converters: {str(converter_name)[:40]}", refusal_reason)
    is_float8_enabled = job_config.flag("enable_float8_linear", False, "float8")
    if not is_float8_enabled and not any(converter_name in FLOAT8_CONVERTERS for converter_name in converter_names):
        return Float8Settings(recipe="rowwise") if FLOAT8_EXPERTS in converter_names else None
    section_name, float8_table = _float8_table(job_config)
    recipe = float8_table.get("recipe_name")
    skipped_modules = float8_table.get("filter_fqns", ["output"] if is_float8_enabled else [])
    if recipe is not None and (not isinstance(recipe, str) or recipe not in FLOAT8_RECIPES):
        raise reader.value_error(f"{section_name}.recipe_name", recipe, f"one of {', '.join(FLOAT8_RECIPES)}")
    if isinstance(skipped_modules, str):
        skipped_modules = [module_name.strip() for module_name in skipped_modules.split(",") if module_name.strip()]
    if not isinstance(skipped_modules, list) or not all(
        isinstance(module_name, str) for module_name in skipped_modules
    ):
        raise reader.value_error(f"{section_name}.filter_fqns", skipped_modules, "a list of names")
    full_key = f"{section_name}.enable_fsdp_float8_all_gather"
    gathers_float8 = read_boolean(reader, full_key, float8_table.get("enable_fsdp_float8_all_gather", False))
    if gathers_float8 and recipe is not None:
        raise reader.argument_error(
            full_key, f"torchtitan takes it without recipe_name = {short_repr(recipe)} alone; expected false"
        )
    is_sharded = layout.dp // layout.hsdp_replicas > 1
    skips_small_layers = SMALL_LAYERS_FILTER in skipped_modules
    skipped_layers = tuple(module_name for module_name in skipped_modules if module_name != SMALL_LAYERS_FILTER)
    return Float8Settings(
        gathers_float8 and is_sharded, FLOAT8_RECIPES[recipe or "tensorwise"], skipped_layers, skips_small_layers
    )


def _float8_table(job_config: _JobConfig) -> tuple[str, Mapping[str, Any]]:
    """Returns the name and the table of the job's section on float8."""
    float8_section: Any = job_config.job_sections.get("quantize")
    for float8_key in ("linear", "float8"):
        float8_section = float8_section.get(float8_key) if isinstance(float8_section, Mapping) else None
    if isinstance(float8_section, Mapping):
        return "quantize.linear.float8", float8_section
    return "float8", job_config.job_sections.get("float8", {})


def _is_loss_compiled(job_config: _JobConfig) -> bool | None:
    """Whether the loss is compiled; None in versions of torchtitan that have no key for it."""
    if "compile" not in job_config.job_sections:
        return None
    components = job_config.find_key("components", "compile")[1]
    return job_config.flag("enable", False, "compile") and (components is None or "loss" in components)
