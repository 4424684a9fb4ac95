"""Inference on several devices: the rank's weights, its part of the cache, and its part of each pass.

Heads, widths and the vocabulary are divided as torch's tensor parallelism divides them, layers over the stages of a
pipeline, experts over the ranks that hold some of them each. Key and value heads that are fewer than the ranks are
copied, as are the latents of latent attention. The logits stay divided.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..device_memory.cuda_runtime import CudaRuntime
from ..device_memory.device_memory import TORCH_VERSION, DeviceMemory, ModulePeak
from ..device_memory.estimate import Memory, memory
from ..errors import InputError
from ..parallel.layout import Layout
from ..parallel.rank_model import RankModel, rank_model
from ..parallel.rank_program import RankFlow
from ..simulator.profiles.dtensor import check_equal_shards
from .framework import Framework

SOURCE_WITHOUT_COMPARISON = "torch/distributed/tensor/parallel/style.py; products that no rank divides were not run"
"""Source text for the memory of a rank that multiplies by whole weights, as latent attention does."""

SOURCE_WITHOUT_PLAN = (
    "divided experts or copied key heads or groups, which torch has no plan for: without the buffers of an exchange"
)
"""Source text for the memory of a rank with modules that PyTorch itself does not divide."""


def inference_rank(whole_model: Memory, layout: Layout, rank: int, cuda_runtime: CudaRuntime) -> Memory:
    """Returns the memory of one rank in inference. whole_model: the memory estimate of the undivided model.

    Raises `InputError` for a layout that is not of inference, and for sizes that it does not divide.
    """
    check_layout(layout)
    model = rank_model(whole_model.spec, layout, rank)
    included_parts = whole_model.states.parameter_count.include
    divided_memory = memory(
        model,
        whole_model.settings,
        whole_model.published_dtype,
        included_parts,
        whole_model.model_config,
        cuda_runtime,
        quantized_sizes=whole_model.quantized_sizes_of_rank(model),
    )
    return replace(divided_memory, _recordings=whole_model._recordings, _counted_runs=whole_model._counted_runs)


def rank_memory(memory_estimate: Memory) -> DeviceMemory:
    """Returns the device memory of a rank whose layers are named by their indices in the whole model.

    memory_estimate: from `inference_rank`.
    """
    model = memory_estimate.spec
    assert isinstance(model, RankModel)
    device_memory, first_layer = memory_estimate.device, min(model.chunks.layers, default=0)

    def with_model_layer_indices(timeline_point: ModulePeak) -> ModulePeak:
        layer_name = re.sub(
            r"^layers\.(\d+)", lambda path: f"layers.{int(path[1]) + first_layer}", timeline_point.module_path
        )
        return timeline_point._replace(module_path=layer_name)

    tensors_term, *other_terms = device_memory.terms
    if tensors_term.status == "untested":
        pass
    elif not has_tensor_parallel_plan(model):
        tensors_term = replace(tensors_term, status="estimate", witness=SOURCE_WITHOUT_PLAN)
    elif model.layout.tp > 1 and tensors_term.status == "exact":
        tensors_term = replace(tensors_term, witness="torch's DTensor on a fake process group", versions=TORCH_VERSION)
        if model.has_undivided_products:
            tensors_term = replace(tensors_term, status="source", witness=SOURCE_WITHOUT_COMPARISON)
    return replace(
        device_memory,
        terms=(tensors_term, *other_terms),
        peak_at=with_model_layer_indices(device_memory.peak_at),
        timeline=tuple(map(with_model_layer_indices, device_memory.timeline))
        if first_layer
        else device_memory.timeline,
    )


def has_tensor_parallel_plan(model: RankModel) -> bool:
    """Whether torch's tensor parallelism can divide every module that the layout divides."""
    model_program, layout = model.program(), model.layout
    assert isinstance(model_program, RankFlow)
    if layout.tp == layout.ep == layout.expert_tp == 1:
        return True
    try:
        check_equal_shards(model_program)
    except InputError:
        return False
    return True


def check_inference_layout(layout: Layout, framework: Framework) -> None:
    """Raises `InputError` for layout options and frameworks that only training has."""
    if not framework.runs_inference:
        implying_options = (
            "" if framework.implying_options is None else f" ({framework.implying_options[0].removeprefix('with ')})"
        )
        raise InputError(
            f"--framework {framework.name}{implying_options}: is of training; expected none, or --phase training"
        )
    check_layout(layout)


def check_layout(layout: Layout) -> None:
    """Raises `InputError` for a layout that only training can have."""
    for size_name, parallel_size in (("cp", layout.cp), ("vpp", layout.vpp), ("zero", layout.zero + 1)):
        if parallel_size > 1:
            typed_option = f"--{size_name} {parallel_size - (size_name == 'zero')}"
            raise InputError(
                f"{typed_option}: is of training; expected --tp, --pp, --ep, --etp or --dp, or --phase training"
            )
    if layout.sequence_parallel:
        raise InputError("--sequence-parallel: is of training; expected --tp alone, or --phase training")
