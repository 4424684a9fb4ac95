"""Checks counts against llmcalc's PyTorch model (the reference), built from the spec's fields alone.

On `meta`, whole models of any size are built and run without data; on `cpu` and `cuda` they really compute. On meta,
identical layers behave identically: one layer of each kind is run, and its FLOPs and cache are used for its repeats,
while the parameters of all layers are compared. `every_layer` runs all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..algebra import Number
from ..components.base import TokenMixer
from ..costs.context_length import learned_positions
from ..costs.flops import forward_flops_of, step_flops_of
from ..costs.params import buffer_elements_of, total_params_of
from ..errors import InputError, MissingExtra
from ..flow.tree import Cost, CountedOp
from ..model import ModelSpec
from ..ops import AttentionCore, Linear
from ..optional import ALL_PART_NAMES, MTP, PARTS_WITHOUT_FLOPS
from ..units import DTYPE_BITS, bits_to_bytes
from ..workload.run_config import RunConfig
from ..workload.workload import Workload
from .checks import Check, Verdict, compare_nodes, remove_zero_checks
from .difference_explanation import list_named_sizes
from .module_measurements import (
    buffer_counts_by_path,
    cache_bytes_by_path,
    copy_counts_to_repeats,
    count_flops,
    default_dtype,
    encoder_input,
    module_names,
    parameter_counts_by_path,
    skip_modules,
    token_ids,
)
from .speed import measure_forward

if TYPE_CHECKING:
    import torch
    from torch import nn

Device: TypeAlias = Literal["meta", "cpu", "cuda"]

LEAST_SEQ = 32
GPU_FILLING_TOKENS = 2048
"""The number of tokens of the pass that is timed on a GPU."""

MAX_CPU_BYTES = 4_000_000_000
"""Largest bytes of weights, and largest bytes of saved activations, that are allocated on a CPU."""


def require_torch(feature_text: str = "verify") -> None:
    """Raises `MissingExtra`, naming the feature, if torch is not installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MissingExtra(feature_text, "torch", "verify")


def default_seq(spec: ModelSpec) -> int:
    """Returns a sequence length above every window, chunk and selection, but within the learned positions."""
    layers_and_widths = [
        (layer, stack.hidden_size or spec.hidden_size)
        for _, stack in spec.stacks()
        for layer in (stack.block, *stack.variants.values())
    ]
    mixers = [mixer for layer, layer_width in layers_and_widths for _, mixer, _ in layer.mixers(layer_width)]
    thresholds = [
        threshold for mixer in mixers if isinstance(mixer, TokenMixer) for threshold in mixer.cost_thresholds()
    ]
    max_tokens = max_prompt_length(spec)
    preferred_seq = max([LEAST_SEQ, *(threshold_tokens + 8 for threshold_tokens in thresholds)])
    return preferred_seq if max_tokens is None else min(preferred_seq, max_tokens)


def max_prompt_length(spec: ModelSpec) -> int | None:
    """Returns the longest prompt that leaves a learned position for one decoded token; None without learned positions.

    Raises `InputError` if none fit.
    """
    max_positions = learned_positions(spec)
    if max_positions == 1 and not spec.one_pass_model_name:
        raise InputError(
            "max_position_embeddings: 1 learned position has room for no token to decode after the first; expected "
            "at least 2"
        )
    return max_positions if max_positions is None or spec.one_pass_model_name else max_positions - 1


def gpu_filling_seq(spec: ModelSpec, seq: int) -> int:
    """Returns a sequence length that keeps a GPU busy: at least `seq`, at most the number of learned positions."""
    max_tokens = max_prompt_length(spec)
    preferred_tokens = max(seq, GPU_FILLING_TOKENS)
    return preferred_tokens if max_tokens is None else min(preferred_tokens, max_tokens)


def verify_reference(
    spec: ModelSpec,
    model_name: str = "model",
    device: Device = "meta",
    batch: int = 1,
    seq: int | None = None,
    every_layer: bool = False,
) -> Verdict:
    """Compares every node's parameters, buffers, cache bytes, and FLOPs of forward, training, prefill and decode.

    Raises `InputError` if the device does not exist or the model is too large for it.
    """
    require_torch()
    start_time = time.perf_counter()
    seq = default_seq(spec) if seq is None else seq
    max_prompt_tokens = max_prompt_length(spec)
    if max_prompt_tokens is not None and seq > max_prompt_tokens:
        decoding_text = "" if spec.one_pass_model_name else " and one more"
        raise InputError(
            f"--seq: {seq} tokens{decoding_text} do not fit {learned_positions(spec)} learned positions; expected at "
            f"most {max_prompt_tokens}"
        )
    if device == "cpu":
        _check_activations(spec, batch, seq)
    reference_model: Any = build_on_device(spec, device)
    repeats: dict[str, str] = {} if every_layer or device != "meta" else reference_model.repeats()
    checks = list(_count_checks(spec, reference_model, device, batch, seq, repeats))
    layer_count = spec.layer_count
    verdict_info: dict[str, Any] = {
        "device": device,
        "batch": batch,
        "seq": seq,
        "layers": layer_count,
        "layers_run": layer_count - len(repeats),
    }
    seconds = time.perf_counter() - start_time
    if device != "meta":
        verdict_info["measured"] = _measure_speed(spec, reference_model, device, batch, seq)
    return Verdict(model_name, f"reference/{device}", checks, seconds, verdict_info, list_named_sizes(spec))


def _measure_speed(spec: ModelSpec, module: nn.Module, device: Device, batch: int, seq: int) -> dict[str, Any]:
    """Measures a forward pass: seconds, FLOP/s and bytes; on CUDA with enough tokens to keep the GPU busy."""
    seq_len = gpu_filling_seq(spec, seq) if device == "cuda" else seq
    input_ids = token_ids(spec, batch, seq_len, device, is_random=True)
    source_input = input_ids if spec.kind == "encoder-decoder" else None
    flops = spec.tree().total(forward_flops_of, RunConfig(Workload(batch=batch, seq=seq_len)))
    return measure_forward(module, lambda: module(input_ids, source_input), flops, batch * seq_len)


def device_dtype(device: Device) -> str:
    """Returns the number format of the reference's weights and cache on a device."""
    return "float32" if device == "cpu" else "bfloat16"


def build_on_device(spec: ModelSpec, device: Device) -> nn.Module:
    """Returns the reference model on a device: in bf16, but in fp32 on a CPU, where bf16 is slow.

    Raises `InputError` for a device that does not exist, or a model that is too large for a CPU.
    """
    import torch

    from .meta_device import device_context

    dtype_name = device_dtype(device)
    byte_count = DTYPE_BITS[dtype_name] // 8 * spec.tree().total(total_params_of, include=ALL_PART_NAMES)
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no CUDA device here; expected meta or cpu")
    if device == "cuda" and byte_count > torch.cuda.get_device_properties(0).total_memory:
        device_bytes = torch.cuda.get_device_properties(0).total_memory
        raise InputError(
            f"--device cuda: {byte_count:,} bytes of weights do not fit {device_bytes:,}; expected fewer layers (--set "
            "num_hidden_layers=1)"
        )
    if device == "cpu" and byte_count > MAX_CPU_BYTES:
        raise InputError(
            f"--device cpu: {byte_count:,} bytes of weights are too many; expected --device meta, or fewer layers "
            "(--set num_hidden_layers=1)"
        )
    with device_context(device), default_dtype(getattr(torch, dtype_name)):
        return spec.reference()


def _check_activations(spec: ModelSpec, batch: int, seq: int) -> None:
    """Raises `InputError` if the activations that a pass saves are too large for a CPU.

    Only the outputs of linear layers and attention scores are counted, which is a lower bound.
    """

    def saved_elements(counted_op: CountedOp) -> Number:
        op, run_config = counted_op.op, counted_op.run_config
        if run_config is None or not counted_op.has_effect("forward_flops"):
            return 0
        if type(op) is Linear:
            return run_config.rows(op.rows) * op.n_out
        # scores, in fp32 and after softmax
        return 3 * run_config.batch * op.heads * op.pairs(run_config) if isinstance(op, AttentionCore) else 0

    byte_count = (
        DTYPE_BITS[device_dtype("cpu")]
        // 8
        * spec.tree().total(saved_elements, RunConfig(Workload(batch=batch, seq=seq)))
    )
    if byte_count > MAX_CPU_BYTES:
        raise InputError(
            f"--device cpu: {batch} × {seq:,} tokens keep at least {byte_count:,} bytes for a backward pass; "
            "expected a smaller --batch or --seq"
        )


def _count_checks(
    spec: ModelSpec, module: nn.Module, device: Device, batch: int, seq: int, repeats: dict[str, str]
) -> Iterator[Check]:
    model_tree, witness_label = spec.tree(), f"reference/{device}"
    module_paths = module_names(module)
    parts_in_forward = frozenset({MTP.name}) if spec.mtp is not None else frozenset()

    def compare_with_model(
        quantity_name: str,
        cost: Cost,
        measured_counts: dict[str, int],
        workload: Workload | None = None,
        included_parts: frozenset[str] = frozenset(),
    ) -> Iterator[Check]:
        checks = compare_nodes(
            model_tree,
            quantity_name,
            lambda position: position.cost_per_repeat(cost, included_parts),
            measured_counts,
            module_paths,
            witness_label,
            None if workload is None else RunConfig(workload),
            included_parts,
        )
        if quantity_name != "parameters":
            checks = remove_zero_checks(checks)
        return checks

    parts_with_parameters = parts_in_forward | PARTS_WITHOUT_FLOPS  # vision and audio encoders are built, but not run
    yield from compare_with_model(
        "parameters", total_params_of, parameter_counts_by_path(module), None, parts_with_parameters
    )
    yield from compare_with_model(
        "buffers", buffer_elements_of, buffer_counts_by_path(module), None, parts_with_parameters
    )
    skip_modules(module, repeats)

    has_values = device != "meta"
    input_ids = token_ids(spec, batch, seq, device, has_values)
    source_input = encoder_input(spec, batch, seq, device_dtype(device), device, has_values)
    has_mtp = spec.mtp is not None or spec.proposal is not None

    def run_model() -> list[torch.Tensor]:
        if spec.pooler is not None:
            return list(module(input_ids, source_input, with_pooled=True))
        model_outputs = module(input_ids, source_input, with_mtp=has_mtp)
        logits, mtp_logits = model_outputs if has_mtp else (model_outputs, [])
        return [logits, *mtp_logits]

    forward_flops, training_flops = count_flops(module, run_model, includes_backward=True)
    workload = Workload(batch=batch, seq=seq, phase="forward")
    yield from compare_with_model(
        "forward_flops", forward_flops_of, copy_counts_to_repeats(forward_flops, repeats), workload, parts_in_forward
    )
    yield from compare_with_model(
        "train_flops",
        step_flops_of,
        copy_counts_to_repeats(training_flops, repeats),
        workload.with_changes(phase="training"),
        parts_in_forward,
    )
    if spec.one_pass_model_name:
        return

    cache_store: dict[nn.Module, tuple[torch.Tensor, ...]] = {}
    has_head = spec.head.type in ("lm", "classification")
    prefill_flops, _ = count_flops(
        module, lambda: [module(input_ids, source_input, cached_tensors=cache_store, last_only=has_head)]
    )
    yield from compare_with_model(
        "prefill_flops",
        forward_flops_of,
        copy_counts_to_repeats(prefill_flops, repeats),
        Workload(batch=batch, seq=seq, phase="prefill"),
    )
    next_ids = token_ids(spec, batch, 1, device, has_values)
    decode_flops, _ = count_flops(module, lambda: [module(next_ids, cached_tensors=cache_store, past=seq)])
    decode_workload = Workload(batch=batch, seq=1, context=seq, source=seq, phase="decode")
    yield from compare_with_model(
        "decode_flops", forward_flops_of, copy_counts_to_repeats(decode_flops, repeats), decode_workload
    )
    element_bits = DTYPE_BITS[device_dtype(device)]
    yield from compare_with_model(
        "cache_bytes",
        lambda counted_op: bits_to_bytes(counted_op.cache_bits(element_bits)),
        copy_counts_to_repeats(cache_bytes_by_path(cache_store, module), repeats),
        decode_workload,
    )
