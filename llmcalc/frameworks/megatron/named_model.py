"""Training runs of Megatron-Core whose model is a named checkpoint (verl, Megatron-Bridge)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import InputError, short_repr
from ...parallel.layout import Layout
from ...workload.execution import CrossEntropy
from ...workload.recompute import NAMED_MODULES
from ..launch.launch_types import LaunchReader, LaunchSettings, Table, read_fraction
from ..launch.trainer import lora_settings
from .cuda_graphs import LAYER_GRAPH_IMPLEMENTATIONS, WHOLE_STEP_GRAPH, captures_whole_step, layer_graphs_note
from .named_arguments import NamedModelArguments
from .settings import expand_pipeline_layout


@dataclass(frozen=True)
class MegatronRunSettings:
    """The parallel sizes, batch sizes and recomputation settings of a Megatron-Core run.

    tp, pp, cp, ep, etp, vpp: sizes of its groups; etp None for tp.
    end_stage_layers: layers of the pipeline's first and last rank; None for as many as every other rank.
    stage_sizes: layers of each stage, those of several chunks per rank one chunk after another; None for equal ones.
    ends_counted_as_layers: whether the embedding and the loss each take the place of a layer.
    sequence_parallel: whether tokens are divided between tensor-parallel products.
    distributed_optimizer: whether optimizer states are divided over replicas.
    batch, seq, num_microbatches: sequences of a micro-batch, their tokens, and the micro-batches of a step.
    recompute_granularity, recompute_method, recompute_num_layers, recompute_modules: as in Megatron-LM; None for none.
    cross_entropy: the loss, as `--cross-entropy` names it.
    fuses_activation: `bias_activation_fusion`, or the model types whose class sets it.
    dispatcher, dispatcher_backend: what sends tokens to experts, and how `flex` does; None for Megatron-LM's default.
    cuda_graph_impl, cuda_graph_modules: how CUDA graphs are captured, and of what.
    grad_dtype: the number format of main gradients.
    fp8_arguments: Megatron-LM's arguments of products in 8 bits; none for bf16.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    vpp: int = 1
    end_stage_layers: tuple[int | None, int | None] = (None, None)
    stage_sizes: tuple[int, ...] | None = None
    ends_counted_as_layers: tuple[bool, bool] = (False, False)
    sequence_parallel: bool = False
    distributed_optimizer: bool = True
    batch: int = 1
    seq: int = 0
    num_microbatches: int = 1
    recompute_granularity: Any = None
    recompute_method: Any = None
    recompute_num_layers: Any = None
    recompute_modules: Any = None
    cross_entropy: CrossEntropy = "eager"
    fuses_activation: bool | frozenset[str] = True
    grad_dtype: str = "fp32"
    fp8_arguments: Mapping[str, Any] = field(default_factory=dict)
    dispatcher: Any = None
    dispatcher_backend: Any = None
    cuda_graph_impl: Any = "none"
    cuda_graph_modules: Any = ()


PIPELINE_SPLIT_ARGUMENTS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
"""Arguments that let the embedding and the loss each take the place of a layer in a pipeline stage."""

END_STAGE_ARGUMENTS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
"""Megatron-Core's fields for the number of layers in a pipeline's first and last stage."""

HOST_OPTIMIZER_ARGUMENTS = ("optimizer_cpu_offload", "optimizer_offload_fraction")
"""Megatron-Core's fields for an optimizer step on the host, which `host_optimizer_settings` reads."""

PRECISION_AWARE_ARGUMENTS = ("use_precision_aware_optimizer", "exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype")
"""Arguments for number formats of Transformer Engine's Adam, which `precision_aware_settings` reads."""

BRIDGE_FUSED_MODEL_TYPES = frozenset({"llama", "deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", ""})
"""Model types for which Megatron-Bridge sets `bias_activation_fusion`; the empty type is a model without a known class.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987, models/*/*_bridge.py and *_provider.py; Megatron-Core's default is false.
Kimi-K2 and GLM-4.7-Flash have the architecture of `deepseek_v3`; models with encoders have no class here, and most of
their providers set it. Mistral's bridge does not, and its models of the architecture of `llama` are counted as that.
"""

BRIDGE_ADAPTER_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""Names of the linear layers that Megatron-Bridge adapts by default (megatron/bridge/peft/lora.py)."""


def bridge_adapter_settings(
    reader: LaunchReader, section_name: str, rank: Any, target_modules: Any, dropout_value: Any
) -> dict[str, Any]:
    """Returns the settings of Megatron-Bridge's low-rank adapters. section_name: the table's key.

    target_modules, dropout_value: None for the default.
    """
    settings = lora_settings(
        reader,
        rank=(f"{section_name}.rank", rank),
        targets_argument=(
            f"{section_name}.target_modules",
            list(BRIDGE_ADAPTER_TARGETS) if target_modules is None else target_modules,
        ),
        dropout_value=dropout_value,
    )
    return {**settings, "lora_library": "megatron-bridge", "lora_dtype": "bf16"}


def host_optimizer_settings(
    reader: LaunchReader, config: Table, name_prefix: str = "", default_fraction: float = 0.0
) -> dict[str, Any]:
    """Returns the setting that runs the optimizer's step on the host; none without this offloading.

    name_prefix: prefix of the arguments' names. default_fraction: fraction of states on the host by default.
    """
    offload_argument, fraction_argument = (
        f"{name_prefix}{fraction_argument}" for fraction_argument in HOST_OPTIMIZER_ARGUMENTS
    )
    if not reader.flag(config, offload_argument):
        return {}
    if read_fraction(reader, fraction_argument, config, default_fraction) != 1:
        reader.refuse(fraction_argument, "states on the device beside those on the host are not modelled; 1 is")
    return {"optimizer_offload": True}


def precision_aware_settings(reader: LaunchReader, config: Table) -> dict[str, Any]:
    """Returns the number formats of Transformer Engine's Adam; none without `use_precision_aware_optimizer`."""
    if not reader.flag(config, "use_precision_aware_optimizer"):
        return {}
    state_formats = [str(reader.value(config, argument, "fp32")) for argument in ("exp_avg_dtype", "exp_avg_sq_dtype")]
    if state_formats[0] != state_formats[1]:
        reader.refuse(
            "--exp-avg-sq-dtype",
            f"{short_repr(state_formats[1])} beside {short_repr(state_formats[0])} is not modelled here",
        )
    gradient_format = str(reader.value(config, "main_grads_dtype", "fp32"))
    reader.written_options |= {
        "optimizer_dtype": f"--exp-avg-dtype {state_formats[0][:20]}",
        "grad_dtype": f"--main-grads-dtype {gradient_format[:20]}",
    }
    return {"precision_aware_optimizer": True, "optimizer_dtype": state_formats[0], "grad_dtype": gradient_format}


def attention_setting(reader: LaunchReader, argument_name: str, backend: Any) -> dict[str, Any]:
    """Returns the setting for Megatron-Core's `attention_backend`; none for kernels that do not save scores.

    Raises `InputError` for another value. argument_name: the argument, for the error.
    """
    if backend in ("unfused", "local"):
        return {"attn_implementation": "eager"}
    if backend in ("auto", "fused") or str(backend).startswith("flash"):
        return {}
    raise reader.argument_error(argument_name, f"{short_repr(backend)}; expected flash, fused, unfused, local or auto")


def cross_entropy_setting(reader: LaunchReader, is_fused: bool, implementation: Any) -> CrossEntropy:
    """Returns `--cross-entropy` for Megatron-Core's loss arguments, and records an unsupported loss as unknown.

    is_fused, implementation: `cross_entropy_loss_fusion` and `cross_entropy_fusion_impl`.
    Source: megatron/core/models/common/language_module/language_module.py, `compute_language_model_loss`.
    """
    if not is_fused:
        return "eager"
    if implementation not in ("native", "te"):
        reader.refuse("cross_entropy_fusion_impl", f"{short_repr(implementation)[:40]}; expected native or te")
    return "fused" if implementation == "te" else "native"


def end_stage_layers(
    reader: LaunchReader, config: Table, name_prefix: str = "", argument_names: tuple[str, str] = END_STAGE_ARGUMENTS
) -> tuple[int | None, int | None]:
    """Returns the numbers of layers on the pipeline's first and last rank; None for numbers that the file omits.

    name_prefix: prefix of the arguments' names. argument_names: the arguments.
    """
    first_stage_layers, last_stage_layers = (
        reader.optional_integer(config, f"{name_prefix}{argument_name}") for argument_name in argument_names
    )
    return first_stage_layers, last_stage_layers


STAGE_LAYOUT = "pipeline_model_parallel_layout"
"""Megatron-Core's field that states the contents of each pipeline stage."""


def stage_sizes_of_layout(reader: LaunchReader, argument_name: str, written_layout: Any) -> tuple[int, ...] | None:
    """Returns the layers per stage of a pipeline layout such as `Et|tt|tL`; None without a layout.

    argument_name: the argument that states the layout.
    Source: megatron/core/transformer/pipeline_parallel_layer_layout.py, `PipelineParallelLayerLayout`.
    """
    if written_layout in (None, "", []):
        return None
    stage_texts = written_layout
    if isinstance(written_layout, str):
        stage_texts = [list(letters) for letters in expand_pipeline_layout(written_layout, argument_name).split("|")]
    if not isinstance(stage_texts, list) or not all(isinstance(stage, list) for stage in stage_texts):
        raise reader.value_error(argument_name, written_layout, "a text such as Et|tt|tL, or a list for each stage")
    return tuple(stage.count("decoder") + stage.count("t") for stage in stage_texts)


def smallest_device_count(megatron_run: MegatronRunSettings) -> int:
    """Returns the smallest number of devices on which the parallel sizes of a run are possible."""
    expert_rank_count = megatron_run.ep * (megatron_run.etp or megatron_run.tp)
    return megatron_run.pp * math.lcm(megatron_run.tp * megatron_run.cp, expert_rank_count)


def megatron_launch_settings(
    reader: LaunchReader, megatron_run: MegatronRunSettings, world_size: int | None, settings: dict[str, Any]
) -> LaunchSettings:
    """Returns the layout and settings of a Megatron-Core run. settings: those besides parallelism.

    Raises `InputError` for a number of devices that the groups do not divide.
    """
    if world_size is None:
        world_size = smallest_device_count(megatron_run)
        reader.notes.append(f"{world_size} devices are assumed, as few as the layout can have")
    replica_devices = megatron_run.tp * megatron_run.pp * megatron_run.cp
    if world_size % replica_devices:
        raise InputError(f"--devices: {world_size}; expected a multiple of tp · pp · cp = {replica_devices}")
    reader.end_stage_layers = megatron_run.end_stage_layers
    reader.ends_counted_as_layers = megatron_run.ends_counted_as_layers
    stage_sizes, chunk_count = megatron_run.stage_sizes, megatron_run.vpp
    if stage_sizes is not None:
        if len(stage_sizes) % megatron_run.pp:
            raise reader.argument_error(
                STAGE_LAYOUT, f"{len(stage_sizes)} stages; expected a multiple of the {megatron_run.pp} pipeline ranks"
            )
        chunk_count = len(stage_sizes) // megatron_run.pp
        reader.end_stage_layers, reader.ends_counted_as_layers = (None, None), (False, False)
    layout = Layout(
        tp=megatron_run.tp,
        pp=megatron_run.pp,
        cp=megatron_run.cp,
        dp=world_size // replica_devices,
        ep=megatron_run.ep,
        etp=megatron_run.etp if megatron_run.ep > 1 else None,
        vpp=chunk_count,
        pp_layout=stage_sizes if megatron_run.pp * chunk_count > 1 else None,
        sequence_parallel=megatron_run.sequence_parallel and megatron_run.tp > 1,
        zero=1 if megatron_run.distributed_optimizer else 0,
        schedule="interleaved" if chunk_count > 1 else "1f1b",
    )
    run_settings: dict[str, Any] = {
        "phase": "training",
        "batch": megatron_run.batch,
        "seq": megatron_run.seq,
        "num_microbatches": megatron_run.num_microbatches,
        **(
            {"precision": "fp8"}
            if megatron_run.fp8_arguments
            else {"dtype": "bf16", "grad_dtype": megatron_run.grad_dtype}
        ),
        "attn_implementation": "flash",
        "cross_entropy": megatron_run.cross_entropy,
    }
    recompute_value = _recompute_setting(reader, megatron_run)
    if recompute_value is not None:
        run_settings["recompute"] = recompute_value
    flex_backend = _flex_dispatcher_backend(reader, megatron_run)
    named_arguments = NamedModelArguments(
        recompute_modules=_recomputed_modules(reader, megatron_run) if recompute_value is None else None,
        uses_hybridep=flex_backend == "hybridep",
        uses_deepep=flex_backend == "deepep",
        has_layer_graphs=_has_layer_graphs(reader, megatron_run),
        fuses_activation=megatron_run.fuses_activation,
        fp8_arguments=megatron_run.fp8_arguments,
    )
    framework_settings = None if named_arguments == NamedModelArguments() else named_arguments
    return LaunchSettings(layout, {**run_settings, **settings}, framework_settings)


def _recompute_setting(reader: LaunchReader, megatron_run: MegatronRunSettings) -> str | None:
    """Returns the value of `--recompute` for a named model, and records unmodelled settings as unknown arguments."""
    if megatron_run.recompute_granularity is None:
        return None
    if megatron_run.recompute_granularity == "selective":
        return "attention" if _module_names(megatron_run.recompute_modules) in ((), ("core_attn",)) else None
    if megatron_run.recompute_method in (None, "uniform") and megatron_run.recompute_num_layers in (None, 1):
        return "full"
    reader.refuse("recompute_method", "other than each layer by itself is not modelled for a model that is named")
    return "full"


def _module_names(written_modules: Any) -> tuple[str, ...]:
    """Returns module names as a tuple, from a list or a text; empty if the file names no modules."""
    if isinstance(written_modules, str):
        return tuple(re.findall(r"[\w.]+", written_modules))
    return tuple(map(str, written_modules or ()))


def _recomputed_modules(reader: LaunchReader, megatron_run: MegatronRunSettings) -> tuple[str, ...] | None:
    """Returns the modules of selective recomputation, and records unmodelled modules; None without selective mode."""
    if megatron_run.recompute_granularity != "selective":
        return None
    module_names = _module_names(megatron_run.recompute_modules)
    unmodelled_names = [module_name for module_name in module_names if module_name not in NAMED_MODULES]
    if unmodelled_names:
        reader.refuse(
            "recompute_modules",
            f"{', '.join(unmodelled_names)[:60]} is not modelled; {', '.join(NAMED_MODULES)} are",
        )
    modelled_names = tuple(module_name for module_name in module_names if module_name in NAMED_MODULES)
    reader.notes.append(f"selective recomputation of {', '.join(modelled_names) or 'no module'}")
    return modelled_names


def _flex_dispatcher_backend(reader: LaunchReader, megatron_run: MegatronRunSettings) -> str:
    """Returns the backend of the flex dispatcher, `hybridep` or `deepep`; empty for all-to-all."""
    if megatron_run.dispatcher in ("alltoall", None):
        return ""
    backend = str(megatron_run.dispatcher_backend or "deepep")
    if megatron_run.dispatcher != "flex" or backend not in ("hybridep", "deepep"):
        dispatcher_text = f"flex by {backend}" if megatron_run.dispatcher == "flex" else str(megatron_run.dispatcher)
        reader.refuse("moe_token_dispatcher_type", f"{dispatcher_text[:60]} is not modelled; alltoall and flex are")
        return ""
    if backend == "deepep" and megatron_run.ep > 1:
        reader.notes.append("DeepEP: experts' tokens are counted as alltoall's, without DeepEP's own buffers")
    return backend


def _has_layer_graphs(reader: LaunchReader, megatron_run: MegatronRunSettings) -> bool:
    """Whether a CUDA graph per layer launches the layers, with a note; records a graph of the whole step as unknown."""
    implementation = str(megatron_run.cuda_graph_impl or "none")
    if captures_whole_step(implementation, _module_names(megatron_run.cuda_graph_modules)):
        reader.refuse("cuda_graph_impl", f"{WHOLE_STEP_GRAPH} is not modelled; graphs of layers are")
        return False
    if implementation == "none":
        return False
    if implementation not in LAYER_GRAPH_IMPLEMENTATIONS:
        reader.refuse(
            "cuda_graph_impl", f"{implementation[:60]} is not modelled; {' and '.join(LAYER_GRAPH_IMPLEMENTATIONS)} are"
        )
        return False
    reader.notes.append(layer_graphs_note(megatron_run.pp))
    return True
