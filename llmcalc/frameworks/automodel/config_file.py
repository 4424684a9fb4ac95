"""Reads a recipe of NeMo-Automodel: the model on the hub, its adapters, and the parallel layout of FSDP2.

Source: NVIDIA-NeMo/Automodel at 36044ad3 (2026-08-22): nemo_automodel/recipes/llm/train_ft.py for keys and defaults,
components/distributed/{config,parallelizer}.py and components/moe/parallelizer.py for formats, shards and
recomputation, components/loss/*.py, components/_peft/{lora,module_matcher}.py, cli/app.py for commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import short_repr
from ...parallel.layout import Layout
from ...sources.huggingface.family import field_names
from ..frozen_model import FrozenModel
from ..fsdp2.settings import Float8Settings, TitanSettings
from ..fsdp2.torchtitan_file import FLOAT8_RECIPES
from ..launch.launch_types import (
    CommandLine,
    Launch,
    LaunchReader,
    LaunchSettings,
    LaunchSource,
    Table,
    launch_reader,
    read_integer,
    record_unknown_keys,
)
from ..launch.trainer import attention_settings, lora_settings

TARGET_KEY = "_target_"
"""Key whose value is the path of the Python class or function that a table configures."""

CLASSIFIER_RECIPE = "TrainFinetuneRecipeForSequenceClassification"

RECIPES = (
    "TrainFinetuneRecipeForNextTokenPrediction",
    "BenchmarkingRecipeForNextTokenPrediction",
    CLASSIFIER_RECIPE,
    "FinetuneRecipeForVLM",
)
"""Names of the recipe classes whose files are read."""

TABLES_READ = field_names("""
    recipe model step_scheduler distributed peft quantization optimizer loss_fn dataset packed_sequence benchmark
    compile tokenizer fp8 freeze_config
    """)

TABLES_IGNORED = field_names("""
    dist_env rng seed ci checkpoint wandb logger mlflow comet slurm skypilot nemo_run validation_dataset
    validation_dataloader _validation_dataset _validation_dataloader lr_scheduler dataloader clip_grad_norm moe_metrics
    nvtx processor tool_call_eval autopipeline parallelizer prewarm embedding_row_repair neftune
    _dsv4_tulu3_chat_template longalign
    """)
"""Tables of a recipe that do not change the memory of a training step, or change it only a little."""

TABLE_KEYS = {
    "step_scheduler": field_names("""
        local_batch_size global_batch_size ckpt_every_steps val_every_steps num_epochs log_remote_every_steps max_steps
        gc_every_steps save_checkpoint_every_epoch loss_average_window_steps start_step start_epoch preemption_signal
        _target_
        """),
    "optimizer": field_names("""
        _target_ lr betas eps weight_decay fused foreach adam_w_mode bias_correction master_weights nesterov
        store_param_remainders exp_avg_dtype exp_avg_sq_dtype decoupled_weight_decay maximize capturable differentiable
        dampening master_weight_dtype
        """),
    "packed_sequence": field_names("""
        packed_sequence_size pack_size packing_strategy split_across_pack max_packs num_proc pretokenize max_length
        collate_max_length packing_ratio drop_long_samples post_tokenize_hook_fn attn_implementation
        balance_media_tokens packing_format
        """),
    "quantization": field_names("""
        load_in_4bit load_in_8bit bnb_4bit_compute_dtype bnb_4bit_use_double_quant bnb_4bit_quant_type
        bnb_4bit_quant_storage
        """),
    "fp8": field_names("""
        enabled recipe_name enable_fsdp_float8_all_gather precompute_float8_dynamic_scale_for_fsdp
        force_recompute_fp8_weight_in_bwd filter_fqns emulate
        """),
    "compile": field_names("enabled mode fullgraph dynamic backend options dynamo_cache_size_limit"),
}
"""Name of a table → keys that are read or do not change memory. `dataset` accepts the arguments of any class."""

POLICY_KEYS = field_names("_target_ param_dtype reduce_dtype output_dtype cast_forward_inputs")
"""Keys of `distributed.mp_policy`: the arguments of torch's `MixedPrecisionPolicy`."""

REFUSED_IF_ENABLED = {"qat": "quantization-aware training", "autocast": "autocast around FSDP2's casts"}
"""Table with the key `enabled` → the feature that the table turns on and that is not modelled."""

MODEL_READ = field_names("""
    _target_ pretrained_model_name_or_path config torch_dtype attn_implementation backend use_liger_kernel num_labels
    num_nextn_predict_layers
    """)

MODEL_IGNORED = field_names("""
    trust_remote_code force_hf load_base_model output_hidden_states use_sdpa_patching router_aux_loss_coef text_config
    mtp_loss_scaling_factor mtp_use_repeated_layer kda_mode
    """)

CONFIG_KEYS = field_names("""
    _target_ pretrained_model_name_or_path name_or_path trust_remote_code use_cache torch_dtype dtype architectures
    attn_implementation_new _attn_implementation attn_implementation num_nextn_predict_layers kda_mode kda_unpad_inputs
    kda_use_fused_gate kda_use_qk_l2norm_in_kernel
    """)
"""Keys of `model.config` that do not change the model described by the config of the hub."""

CLASSIFIER = "NeMoAutoModelForSequenceClassification"

MODEL_CLASSES = (
    "NeMoAutoModelForCausalLM",
    "NeMoAutoModelForImageTextToText",
    "NeMoAutoModelForMultimodalLM",
    CLASSIFIER,
)
"""Classes whose `from_pretrained` and `from_config` build the model that a config of the hub describes."""

NUMBER_FORMATS = {"bf16": "bf16", "bfloat16": "bf16", "auto": "bf16", "float32": "fp32", "fp32": "fp32"}

REDUCTION_FORMATS = {
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "None": "bfloat16",
}
"""Value of `mp_policy.reduce_dtype` → format of reductions; null is `param_dtype` (torch's `MixedPrecisionPolicy`)."""

ADAPTER_FORMATS = {**NUMBER_FORMATS, "float16": "bf16", "fp16": "bf16"}
"""Value of an adapter's dtype → number format; float16 is counted as bfloat16, which has equally many bytes."""

DISTRIBUTED_READ = field_names("""
    _target_ strategy dp_size dp_replicate_size tp_size cp_size pp_size ep_size sequence_parallel offload_policy
    activation_checkpointing reshard_after_forward defer_fsdp_grad_sync mp_policy moe enable_compile pipeline
    """)

DISTRIBUTED_IGNORED = field_names("""
    enable_async_tensor_parallel enable_fsdp2_prefetch fsdp2_backward_prefetch_depth
    fsdp2_forward_prefetch_depth patch_is_packed_sequence activation_checkpointing_scope multimodal
    """)

OPTIMIZERS = ("torch.optim.Adam", "torch.optim.AdamW", "torch.optim.SGD")

FUSED_ADAM = ".FusedAdam"
"""End of the path of Transformer Engine's Adam, which keeps fp32 copies of weights, or only their lower 16 bits."""

BITS_BY_QUANTIZATION_KEY = {"load_in_4bit": 4, "load_in_8bit": 8}
"""Key of `quantization` that quantizes weights with bitsandbytes → bits per weight."""

STATE_FORMATS = {"float32": "fp32", "bfloat16": "bf16"}

OTHER_FUSED_ATTENTION = ("te", "ffpa")
"""Values of `attn_implementation` that only Automodel has, for kernels that do not save attention scores."""

ADAPTER_READ = field_names("_target_ target_modules exclude_modules match_all_linear dim dropout use_dora lora_dtype")

ADAPTER_IGNORED = field_names("""
    alpha dropout_position lora_A_init use_memory_efficient_lora use_triton moe_rank_scaling
    """)

LENGTH_KEYS = ("seq_len", "seq_length", "max_length", "max_seq_length")
"""Keys of `dataset` that state the number of tokens per sequence."""

SOFTWARE_STACK = "fsdp2-liger"
"""The software stack whose fused norms and gates Automodel's kernels are priced as (tests/timing/measured_rows.py)."""

NODE_DEVICES = 8
"""Number of devices per node, as in Automodel's own benchmarks."""


def is_automodel(config: Table) -> bool:
    """Whether a parsed file is a recipe of NeMo-Automodel."""
    model_table = config.get("model")
    if not isinstance(model_table, Mapping) or not isinstance(config.get("step_scheduler"), Mapping):
        return False
    return "recipe" in config or TARGET_KEY in model_table


def with_launcher(command_line: CommandLine) -> CommandLine:
    """Returns the torchrun command that starts the same training as an `automodel` command."""
    words = list(command_line.words)
    while words and not words[0].startswith("-") and not words[0].endswith((".yaml", ".yml")):
        words.pop(0)  # `automodel finetune llm -c FILE`, as until 2025
    launcher_words: list[str] = []
    other_words: list[str] = []
    while words:
        word = words.pop(0)
        if word.partition("=")[0] not in ("--nproc-per-node", "--nproc_per_node"):
            other_words.append(word)
            continue
        launcher_words += [word] if "=" in word or not words else [word, words.pop(0)]
    if not launcher_words:
        return command_line._replace(words=other_words)
    return command_line._replace(launcher=[*command_line.launcher, "torchrun", *launcher_words], words=other_words)


def read_automodel(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run that a recipe describes. Raises `InputError`, which names file and key."""
    with launch_reader(source_file) as reader:
        _record_unmodelled_keys(reader, config)
        model_table = reader.table(config, "model")
        model_name = _hub_model_name(reader, model_table)
        if config.get("freeze_config") is not None:
            reader.read_frozen_encoders(reader.table(config, "freeze_config"), "freeze_vision_tower", is_frozen=True)
        if _is_classifier(config, model_table):
            reader.score_head_num_labels = reader.integer(model_table, "num_labels", 2)
        distributed_table = reader.table(config, "distributed")
        layout = _parallel_layout(reader, config, distributed_table)
        step_scheduler = reader.table(config, "step_scheduler")
        local_batch = reader.integer(step_scheduler, "local_batch_size", 1)
        global_batch = reader.integer(step_scheduler, "global_batch_size", local_batch * layout.dp)
        layout, micro_batch_size = _layout_with_pipeline_chunks(reader, distributed_table, layout, local_batch)
        settings: dict[str, Any] = {
            "phase": "training",
            "batch": micro_batch_size,
            "num_microbatches": max(1, global_batch // (micro_batch_size * layout.dp)),
            **_sequence_length_settings(reader, config),
            **_weight_format_settings(reader, model_table, layout),
            **_kernel_settings(reader, model_table),
            **_optimizer_settings(reader, config),
            **_loss_settings(reader, config),
        }
        if reader.flag(distributed_table, "enable_compile") or reader.flag(reader.table(config, "compile"), "enabled"):
            settings["compile"] = True
        checkpointing_value = distributed_table.get("activation_checkpointing")
        if checkpointing_value in (True, "full"):
            settings["recompute"] = "full"
        elif checkpointing_value not in (None, False):
            reader.refuse("distributed.activation_checkpointing", f"{short_repr(checkpointing_value)} is not modelled")
        if config.get("peft") is not None:
            settings |= _adapter_settings(reader, config)
        else:
            refusal_reasons = {
                config_key: f"weights in {bit_count} bits without a table peft are not modelled"
                for config_key, bit_count in BITS_BY_QUANTIZATION_KEY.items()
            }
            reader.refuse_if_set(reader.table(config, "quantization"), refusal_reasons, "quantization.")
        is_sharded = layout.zero == 3
        float8_settings = _float8_settings(reader, config, layout)
        launch_settings = LaunchSettings(
            layout,
            settings,
            _sharding_settings(reader, distributed_table, layout, float8_settings) if is_sharded else None,
        )
        return reader.create_launch(
            "fsdp2" if is_sharded else "torch",
            launch_settings,
            model_name=model_name,
            software_stack=SOFTWARE_STACK,
            loads_causal_class=f"{MODEL_CLASSES[0]}." in str(model_table.get(TARGET_KEY))[:120],
        )


def _recipe_class_name(config: Table) -> str:
    """Returns the name of the recipe's class without its module; the text `None` if the file names no class."""
    recipe = config.get("recipe")
    return str(recipe.get(TARGET_KEY) if isinstance(recipe, Mapping) else recipe).rpartition(".")[2][:80]


def _is_classifier(config: Table, model_table: Table) -> bool:
    """Whether the model is a classifier, whose loss recipes/llm/train_seq_cls.py computes."""
    return (
        _recipe_class_name(config) == CLASSIFIER_RECIPE
        or f"{CLASSIFIER}." in str(model_table.get(TARGET_KEY) or "")[:120]
        or model_table.get("num_labels") is not None
    )


def _record_unmodelled_keys(reader: LaunchReader, config: Table) -> None:
    """Reports ignored, unknown and unmodelled tables and keys of a recipe."""
    recipe_name = _recipe_class_name(config)
    if config.get("recipe") is not None and recipe_name not in RECIPES:
        raise reader.argument_error(
            "recipe", f"{short_repr(recipe_name)} is not modelled; expected one of {', '.join(RECIPES)}"
        )
    reader.record_argument_names(config, {*TABLES_READ, *REFUSED_IF_ENABLED}, TABLES_IGNORED, "no key that is known")
    for table_name, known_keys in TABLE_KEYS.items():
        config_table = reader.table(config, table_name)
        is_read = table_name != "optimizer" or str(config_table.get(TARGET_KEY, OPTIMIZERS[0])).endswith(
            (*OPTIMIZERS, FUSED_ADAM)
        )
        if is_read:
            record_unknown_keys(reader, config_table, known_keys, table_name)
    for table_name, description in REFUSED_IF_ENABLED.items():
        if reader.flag(reader.table(config, table_name), "enabled"):
            reader.refuse(f"{table_name}.enabled", f"{description} is not modelled")


def _hub_model_name(reader: LaunchReader, model_table: Table) -> str:
    """Returns the model's name on the Hugging Face hub; reports changes of its config as unknown arguments."""
    builder_path = str(model_table.get(TARGET_KEY) or "")[:120]
    if builder_path and not any(f"{builder}." in builder_path for builder in MODEL_CLASSES):
        raise reader.argument_error(
            f"model.{TARGET_KEY}",
            f"{short_repr(builder_path)} is not modelled; expected from_pretrained of {MODEL_CLASSES[0]}",
        )
    record_unknown_keys(reader, model_table, MODEL_READ | MODEL_IGNORED, "model")
    hub_config = model_table.get("config")
    config_table: Table = hub_config if isinstance(hub_config, Mapping) else {}
    record_unknown_keys(reader, config_table, CONFIG_KEYS, "model.config", "the model of the hub is counted without it")
    for changed_table, table_path in ((model_table, "model"), (config_table, "model.config")):
        if changed_table.get("num_nextn_predict_layers") not in (None, 0):
            reader.refuse(f"{table_path}.num_nextn_predict_layers", "multi-token prediction is not modelled")
    model_names = (
        model_table.get("pretrained_model_name_or_path"),
        config_table.get("pretrained_model_name_or_path", config_table.get("name_or_path")),
        hub_config,
    )
    return next((candidate_name[:200] for candidate_name in model_names if isinstance(candidate_name, str)), "")


def _parallel_group_size(reader: LaunchReader, distributed_table: Table, size_key: str) -> int:
    """Returns the number of ranks in a parallel group: 1 if the key is absent or `none`."""
    group_size = distributed_table.get(size_key)
    return 1 if str(group_size).lower() == "none" else read_integer(reader, f"distributed.{size_key}", group_size)


def _parallel_layout(reader: LaunchReader, config: Table, distributed_table: Table) -> Layout:
    """Returns the parallel layout; with expert parallelism, FSDP2 keeps layers gathered by default."""
    reader.ignored_arguments += [
        f"distributed.{ignored_key}" for ignored_key in distributed_table if ignored_key in DISTRIBUTED_IGNORED
    ]
    record_unknown_keys(reader, distributed_table, DISTRIBUTED_READ | DISTRIBUTED_IGNORED, "distributed")
    strategy = str(distributed_table.get("strategy", "fsdp2")).lower()
    if strategy not in ("fsdp2", "ddp"):
        reader.refuse("distributed.strategy", f"{short_repr(strategy)} is not modelled; fsdp2 and ddp are")
    tp, cp, pp, ep = (
        _parallel_group_size(reader, distributed_table, f"{size_name}_size") for size_name in ("tp", "cp", "pp", "ep")
    )
    replica_count = _parallel_group_size(reader, distributed_table, "dp_replicate_size")
    fewest_devices = tp * cp * pp * max(_parallel_group_size(reader, distributed_table, "dp_size"), replica_count)
    world_size = _device_count(reader, config, max(fewest_devices, ep * pp))
    fewest_ranks = tp * cp * pp * replica_count
    if world_size % fewest_ranks:
        raise reader.argument_error(
            "distributed",
            f"{world_size} devices; expected a multiple of "
            f"tp_size · cp_size · pp_size · dp_replicate_size = {fewest_ranks}",
        )
    if ep > 1 and (tp > 1 or world_size // pp % ep):
        raise reader.argument_error(
            "distributed.ep_size",
            f"{ep}; expected a divisor of the {world_size // pp} devices of a stage, and tp_size 1",
        )
    if ep > 1:
        reader.notes.append("ranks of experts are counted as torchtitan's: an all-to-all of rows, with even routing")
    is_sharded = strategy != "ddp" and world_size > 1  # components/distributed/fsdp2.py leaves one rank as it is
    moe_table = reader.table(distributed_table, "moe")
    return Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        dp=world_size // (tp * cp * pp),
        ep=ep,
        zero=3 if is_sharded else 0,
        hsdp_replicas=replica_count if is_sharded else 1,
        reshard=not is_sharded
        or (
            reader.flag(moe_table, "reshard_after_forward")
            if ep > 1
            else reader.flag(distributed_table, "reshard_after_forward", True)
        ),
        sequence_parallel=tp > 1 and reader.flag(distributed_table, "sequence_parallel"),
    )


PIPELINE_KEYS = field_names("""
    _target_ pp_schedule pp_microbatch_size layers_per_stage round_virtual_stages_to_pp_multiple
    scale_grads_in_schedule patch_inner_model patch_causal_lm_model patch_stage_backward_maybe_with_nosync pp_batch_size
    pp_seq_len dtype
    """)
"""Keys of `distributed.pipeline` that are read, or change no memory."""


def _layout_with_pipeline_chunks(
    reader: LaunchReader, distributed_table: Table, layout: Layout, local_batch: int
) -> tuple[Layout, int]:
    """Returns the layout with pipeline chunks per rank, and the number of sequences per micro-batch.

    Source: components/distributed/pipelining/{config,functional}.py (`calculate_virtual_stages`), where a step of
    `local_batch_size` sequences is one run of the schedule, and ranks have two stages if no layers are stated.
    """
    if layout.pp == 1:
        return layout, local_batch
    pipeline_table = reader.table(distributed_table, "pipeline")
    record_unknown_keys(reader, pipeline_table, PIPELINE_KEYS, "distributed.pipeline")
    schedule_name = str(reader.value(pipeline_table, "pp_schedule", "1f1b")).lower()
    if schedule_name not in ("1f1b", "interleaved1f1b"):
        reader.refuse(
            "distributed.pipeline.pp_schedule",
            f"{short_repr(schedule_name)} is not modelled; 1f1b and interleaved1f1b are",
        )
    reader.layers_per_stage = reader.optional_integer(pipeline_table, "layers_per_stage")
    rounding_mode = pipeline_table.get("round_virtual_stages_to_pp_multiple")
    if rounding_mode not in (None, "up", "down"):
        rounding_name = "distributed.pipeline.round_virtual_stages_to_pp_multiple"
        raise reader.value_error(rounding_name, rounding_mode, "up or down")
    reader.rounds_stages_up = None if rounding_mode is None else rounding_mode == "up"
    if schedule_name != "1f1b":
        layout = replace(layout, vpp=2, schedule="interleaved")
    micro_batch = reader.integer(pipeline_table, "pp_microbatch_size", 1)
    if local_batch // micro_batch < layout.pp:
        raise reader.argument_error(
            "step_scheduler.local_batch_size",
            f"{local_batch}; expected at least pp_size · pp_microbatch_size = {layout.pp * micro_batch}",
        )
    return layout, micro_batch


def _device_count(reader: LaunchReader, config: Table, fewest_devices: int) -> int:
    """Returns the number of devices: the launcher's, the benchmark's nodes', or the fewest that the layout needs."""
    num_nodes = reader.table(config, "benchmark").get("num_nodes")
    if reader.source.world_size is not None:
        return reader.source.world_size
    node_count = 0 if num_nodes is None else read_integer(reader, "benchmark.num_nodes", num_nodes)
    if node_count * NODE_DEVICES > fewest_devices:
        reader.notes.append(f"{node_count} · {NODE_DEVICES} devices are assumed; {reader.source.device_count_advice()}")
        return node_count * NODE_DEVICES
    if fewest_devices > 1:
        reader.notes.append(
            f"{fewest_devices} devices are assumed, the fewest of the file; {reader.source.device_count_advice()}"
        )
        return fewest_devices
    return reader.device_count(None)


def _float8_settings(reader: LaunchReader, config: Table, layout: Layout) -> Float8Settings | None:
    """Returns the settings of torchao's float8 linear layers (components/quantization/fp8.py); None without float8."""
    fp8_table = reader.table(config, "fp8")
    if not reader.flag(fp8_table, "enabled"):
        return None
    float8_recipe = FLOAT8_RECIPES.get(str(fp8_table.get("recipe_name") or "tensorwise"))
    if float8_recipe is None:
        raise reader.value_error("fp8.recipe_name", fp8_table["recipe_name"], f"one of {', '.join(FLOAT8_RECIPES)}")
    if layout.zero != 3:
        raise reader.argument_error(
            "fp8.enabled", "products in 8 bits of one device are not modelled; expected --devices 2 or more"
        )
    if reader.flag(fp8_table, "emulate"):
        reader.refuse("fp8.emulate", "products in 8 bits that are emulated are not modelled")
    module_names = fp8_table.get("filter_fqns") or []
    if not isinstance(module_names, list) or any(module_name != "lm_head" for module_name in module_names):
        reader.refuse("fp8.filter_fqns", "lm_head is modelled")
    return Float8Settings(
        gathers_float8=float8_recipe == "tensorwise" and reader.flag(fp8_table, "enable_fsdp_float8_all_gather"),
        recipe=float8_recipe,
        skipped_names=("output",) if module_names else (),
    )


def _sharding_settings(
    reader: LaunchReader, distributed_table: Table, layout: Layout, float8_settings: Float8Settings | None
) -> TitanSettings:
    """Returns FSDP2's settings; by default, gradients are reduced in fp32 at the last micro-batch of a step."""
    mp_policy = reader.table(distributed_table, "mp_policy")
    record_unknown_keys(reader, mp_policy, POLICY_KEYS, "distributed.mp_policy")
    if _dtype_name(mp_policy.get("output_dtype", "bfloat16")) != "bfloat16":
        reader.notes.append("distributed.mp_policy.output_dtype: outputs of layers are counted in bfloat16")
    if NUMBER_FORMATS.get(_dtype_name(mp_policy.get("param_dtype", "bfloat16"))) != "bf16":
        reader.refuse("distributed.mp_policy.param_dtype", "bfloat16 is modelled")
    reduce_dtype = _dtype_name(mp_policy.get("reduce_dtype", "float32"))
    if reduce_dtype not in REDUCTION_FORMATS:
        reader.refuse(
            "distributed.mp_policy.reduce_dtype", f"{short_repr(reduce_dtype)}; float32 and bfloat16 are modelled"
        )
    return TitanSettings(
        float8=float8_settings,
        reduction_format=REDUCTION_FORMATS.get(reduce_dtype, "float32"),
        reduces_each_microbatch=not reader.flag(distributed_table, "defer_fsdp_grad_sync", True),
        offloads_to_host=distributed_table.get("offload_policy") is not None,
        outer_groups="separate" if layout.ep > 1 else "together",
        wraps_whole_experts=False,
    )


def _sequence_length_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the setting of tokens per sequence: the length of packed sequences or the data set's limit."""
    packed_sequence = reader.table(config, "packed_sequence")
    for length_key in ("packed_sequence_size", "pack_size"):
        if packed_sequence.get(length_key) not in (None, 0):
            return {"seq": read_integer(reader, f"packed_sequence.{length_key}", packed_sequence[length_key])}
    dataset = reader.table(config, "dataset")
    for length_key in LENGTH_KEYS:
        if dataset.get(length_key) is not None:
            reader.counts_longest_samples = length_key != "seq_len"
            return {"seq": read_integer(reader, f"dataset.{length_key}", dataset[length_key])}
    reader.notes.append("dataset: samples have any length; --seq says the longest (2,048 here)")
    return {}


def _dtype_name(written_dtype: Any) -> str:
    """Returns the name of a torch dtype, such as `float32` for `torch.float32`."""
    return str(written_dtype).removeprefix("torch.")[:20]


def _weight_format_settings(reader: LaunchReader, model_table: Table, layout: Layout) -> dict[str, Any]:
    """Returns the number formats of weights and master weights; FSDP2 gathers fp32 weights as bf16."""
    written_format = _dtype_name(reader.value(model_table, "torch_dtype", "auto"))
    dtype = NUMBER_FORMATS.get(written_format)
    if dtype is None:
        raise reader.value_error("model.torch_dtype", written_format, "auto, bfloat16 or float32")
    if written_format == "auto":
        reader.notes.append("model.torch_dtype auto: weights are in bf16, as most checkpoints are")
    if dtype == "fp32" and layout.zero == 3:
        return {"dtype": "bf16", "master_weights": "fp32"}
    return {"dtype": dtype, "master_weights": "none"}


def _kernel_settings(reader: LaunchReader, model_table: Table) -> dict[str, Any]:
    """Returns the attention kernel, and which of Liger-Kernel, Transformer Engine and torch.compile fuses norms."""
    backend = reader.table(model_table, "backend")
    if backend.get("te_fp8") is not None:
        reader.refuse("model.backend.te_fp8", "products in 8 bits are not modelled")
    settings: dict[str, Any] = {} if model_table.get("use_liger_kernel") is False and not backend else {"norm": "fused"}
    attention_name, argument_path = model_table.get("attn_implementation"), "model.attn_implementation"
    if attention_name is None and backend.get("attn") == "eager":
        attention_name, argument_path = "eager", "model.backend.attn"
    if attention_name is None or attention_name in OTHER_FUSED_ATTENTION:
        return {**settings, "attn_implementation": "flash"}
    return settings | attention_settings(reader, argument_path, attention_name)


def _optimizer_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of the optimizer; torch's AdamW uses its foreach implementation by default."""
    optimizer = reader.table(config, "optimizer")
    optimizer_name = str(reader.value(optimizer, TARGET_KEY, "torch.optim.AdamW"))[:120]
    if optimizer_name.startswith("transformer_engine") and optimizer_name.endswith(FUSED_ADAM):
        return _fused_adam_settings(reader, optimizer)
    if optimizer_name not in OPTIMIZERS:
        reader.refuse(
            f"optimizer.{TARGET_KEY}",
            f"{short_repr(optimizer_name)} is not modelled; "
            f"{', '.join(OPTIMIZERS)} and Transformer Engine's FusedAdam are",
        )
        return {}
    if optimizer_name == "torch.optim.SGD":
        return {"optimizer": "sgd"}
    if reader.flag(optimizer, "fused"):
        return {"optimizer": "adamw", "optimizer_impl": "fused"}
    return {"optimizer": "adamw", "optimizer_impl": "loop" if optimizer.get("foreach") is False else "foreach"}


def _fused_adam_settings(reader: LaunchReader, optimizer: Table) -> dict[str, Any]:
    """Returns the settings of Transformer Engine's Adam (transformer_engine/pytorch/optimizers/fused_adam.py).

    Its states are in fp32 by default. Of weights in bf16 it keeps fp32 copies (`master_weights`), or the 16 bits by
    which these are longer (`store_param_remainders`).
    """
    state_formats = {
        _dtype_name(optimizer.get(state_key) or "float32") for state_key in ("exp_avg_dtype", "exp_avg_sq_dtype")
    }
    if len(state_formats) > 1 or not state_formats <= {*STATE_FORMATS}:
        reader.refuse("optimizer.exp_avg_dtype", "both states in float32, or both in bfloat16, are modelled")
    if _dtype_name(optimizer.get("master_weight_dtype") or "float32") != "float32":
        reader.refuse("optimizer.master_weight_dtype", "float32 is modelled")
    if reader.flag(optimizer, "master_weights"):
        stores_remainders = reader.flag(optimizer, "store_param_remainders")
        reader.frozen_model = FrozenModel(
            "transformer_engine/pytorch/optimizers/fused_adam.py",
            "bfloat16" if stores_remainders else "float32",
            name="lower 16 bits of main weights" if stores_remainders else "main weights",
        )
    return {
        "optimizer": "adamw",
        "optimizer_impl": "fused",
        "optimizer_dtype": STATE_FORMATS.get(min(state_formats), "fp32"),
    }


def _loss_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of the loss: `MaskedCrossEntropy` copies logits to fp32 by default."""
    loss_table = reader.table(config, "loss_fn")
    loss_class = str(reader.value(loss_table, TARGET_KEY, "MaskedCrossEntropy")).rpartition(".")[2][:80]
    if loss_class == "MaskedCrossEntropy":
        return {} if reader.flag(loss_table, "fp32_upcast", True) else {"logits_dtype": "bf16"}
    if loss_class == "FusedLinearCrossEntropy":
        reader.notes.append("Cut Cross-Entropy is counted as Liger-Kernel's chunked loss, an upper bound")
        return {"cross_entropy": "chunked"}
    if loss_class == "ChunkedCrossEntropy":
        return {"cross_entropy": "flash"}  # keeps logits in their format, and writes their gradients beside them
    if loss_class == "TEParallelCrossEntropy":
        return {"cross_entropy": "fused"}
    reader.refuse(f"loss_fn.{TARGET_KEY}", f"{short_repr(loss_class)} is not modelled")
    return {}


def _adapter_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the settings of LoRA adapters, which by default have the frozen weights' number format.

    Beside quantized weights it is that of their products (components/_peft/lora.py, `apply_lora_to_linear_modules`).
    """
    peft_table = reader.table(config, "peft")
    record_unknown_keys(reader, peft_table, ADAPTER_READ | ADAPTER_IGNORED, "peft")
    target_names = peft_table.get("target_modules") or []
    target_names = [target_names] if isinstance(target_names, str) else target_names
    if not isinstance(target_names, list) or not all(isinstance(target_name, str) for target_name in target_names):
        raise reader.argument_error("peft.target_modules", f"{short_repr(target_names)}; expected a list of names")
    excluded_modules = peft_table.get("exclude_modules") or []
    if not reader.flag(peft_table, "match_all_linear") and not target_names and not excluded_modules:
        target_names = ["*_proj"]
    adapts_every_layer = not target_names or "*" in target_names
    if peft_table.get("dropout") and peft_table.get("dropout_position", "post") == "post":
        reader.notes.append("peft.dropout_position post: dropout is counted before the adapters, an upper bound")
    _note_excluded_modules(reader, excluded_modules if isinstance(excluded_modules, list) else [excluded_modules])
    settings = lora_settings(
        reader,
        rank=("peft.dim", reader.value(peft_table, "dim", 8)),
        targets_argument=("peft.target_modules", "all-linear" if adapts_every_layer else target_names),
        dropout_value=peft_table.get("dropout"),
        magnitude_value=reader.flag(peft_table, "use_dora"),
    )
    quantization_table = reader.table(config, "quantization")
    weight_dtype_key = "quantization.bnb_4bit_compute_dtype" if quantization_table else "model.torch_dtype"
    dtype_key = "peft.lora_dtype" if peft_table.get("lora_dtype") else weight_dtype_key
    table_name, _, nested_key = dtype_key.partition(".")
    adapter_format = _dtype_name(reader.table(config, table_name).get(nested_key) or "bfloat16")
    if adapter_format not in ADAPTER_FORMATS:
        reader.refuse(dtype_key, f"{short_repr(adapter_format)}; bfloat16, float16 and float32 are modelled")
    settings["lora_dtype"] = ADAPTER_FORMATS.get(adapter_format, "bf16")
    if reader.flag(quantization_table, "load_in_4bit"):
        has_nested_scales = reader.flag(quantization_table, "bnb_4bit_use_double_quant", True)
        quant_type = reader.value(quantization_table, "bnb_4bit_quant_type", "nf4")
        if quant_type != "nf4":
            reader.refuse("quantization.bnb_4bit_quant_type", f"{short_repr(quant_type)[:60]} is not modelled; nf4 is")
        settings["base"] = "nf4-dq" if has_nested_scales else "nf4"
    elif reader.flag(quantization_table, "load_in_8bit"):
        settings["base"] = "int8"
    return settings


def _note_excluded_modules(reader: LaunchReader, module_names: Sequence[Any]) -> None:
    """Adds a note that adapters are counted on layers although the recipe excludes them."""
    counted_modules = [
        str(module_name)[:60]
        for module_name in module_names
        if not any(modality in str(module_name) for modality in ("vis", "multi_modal", "audio"))
    ]
    if counted_modules:
        reader.notes.append(f"peft.exclude_modules: adapters of {', '.join(counted_modules[:6])} are counted too")
