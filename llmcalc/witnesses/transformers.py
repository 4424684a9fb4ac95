"""Checks counts against the `transformers` class of a config, on the meta device with eager attention.

The comparison covers the whole model's parameters, FLOPs and cache at two lengths, and parameters and FLOPs of every
layer and of the modules that `modules` finds. Where a class deviates from its architecture, the record of its family
says so; no other difference is accepted (`deviations`).
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

from ..costs.context_length import learned_positions
from ..costs.flops import forward_flops_of
from ..costs.params import total_params_of
from ..errors import InputError, MissingExtra
from ..flow.tree import Cost
from ..model import ModelSpec
from ..optional import PARTS_WITHOUT_FLOPS
from ..sources.huggingface.description import text_model_of
from ..sources.huggingface.family import Quirks
from ..sources.preset import Preset
from ..sources.to_hf import to_config
from ..units import DTYPE_BITS, bits_to_bytes
from ..workload.run_config import RunConfig
from ..workload.workload import Workload
from .checks import Check, Verdict, remove_zero_checks
from .deviations import class_cost_function, class_excess_function, total_cost_in_class
from .difference_explanation import list_named_sizes
from .module_comparison import compare_modules, coverage_of_leaves
from .module_measurements import (
    count_flops,
    default_dtype,
    module_names,
    parameter_counts_by_first_module,
    tensor_names,
)
from .module_search import ModulesByNode, find_modules_of_nodes, nodes_called_once, remove_shared_parameters
from .reference import LEAST_SEQ, MAX_CPU_BYTES
from .transformers_class import (
    class_config_fields,
    class_model_type,
    family_of_class,
    load_class,
    require_library_class,
)

if TYPE_CHECKING:
    import torch
    from torch import nn


def require_transformers(feature_text: str = "--against transformers") -> None:
    """Raises `MissingExtra`, naming the feature, if torch or transformers is not installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None or find_spec("transformers") is None:
        raise MissingExtra(feature_text, "torch and transformers", "transformers")


def verify_with_transformers(preset: Preset, batch: int = 1, seq: int | None = None) -> Verdict:
    """Compares a model with the `transformers` class of its config, or of the config that its spec converts to.

    Raises `InputError` if no such class is known, or if a sequence is longer than the learned positions.
    """
    require_transformers()
    config = to_config(preset.model) if preset.config is None else preset.config
    return verify_config(preset.model, config, preset.name, batch, seq)


def verify_config(
    spec: ModelSpec, config: dict[str, Any], model_name: str = "model", batch: int = 1, seq: int | None = None
) -> Verdict:
    """Compares counts with the class in the config's `architectures`, or else with the class of the model type."""
    start_time = time.perf_counter()
    max_positions = learned_positions(spec)
    if max_positions is not None and seq is not None and seq > max_positions:
        raise InputError(
            f"--seq: {seq} tokens do not fit {max_positions} learned positions; expected at most {max_positions}"
        )
    sequence_lengths = (LEAST_SEQ, 2 * LEAST_SEQ + 1) if seq is None else (seq,)
    distinct_lengths = tuple(
        dict.fromkeys(
            seq_length if max_positions is None else min(seq_length, max_positions) for seq_length in sequence_lengths
        )
    )
    model = build_class_model(config)
    modules_of_nodes = find_modules(spec, config, model)
    checks = list(_count_checks(spec, config, model, modules_of_nodes, batch, distinct_lengths))
    verdict_info = {"class": type(model).__name__, "batch": batch, "seq": distinct_lengths[0]}
    cost = class_cost_function(text_model_of(config)[2], "parameters", total_params_of, spec)
    coverage_of_model = coverage_of_leaves(spec.tree(), modules_of_nodes, cost, PARTS_WITHOUT_FLOPS)
    return Verdict(
        model_name,
        "transformers",
        checks,
        time.perf_counter() - start_time,
        verdict_info,
        list_named_sizes(spec),
        coverage_of_model,
    )


def build_class_model(config: dict[str, Any], will_run: bool = True) -> nn.Module:
    """Builds the class in `architectures` on the meta device, or with values if its forward pass reads them.

    It never runs code from a hub.

    Raises `InputError` if a library that the class needs is not installed, or if the values would need too much memory.
    """
    import torch
    import transformers

    from .meta_device import MetaDevice

    require_library_class(config)
    class_settings = meta_device_quirks(config)
    class_fields = {**class_config_fields(config), **class_settings.counted_field_values}
    try:
        config_object = transformers.AutoConfig.for_model(class_model_type(config["model_type"]), **class_fields)
    except ValueError as error:  # of a section whose model type only the repository's own code has (Florence-2)
        problem_text, is_unknown_type, _ = str(error).partition(". Should contain one of")
        if not is_unknown_type:
            raise
        raise InputError(f"--against transformers: {problem_text}; expected --against reference") from None
    config_object._attn_implementation = "eager"
    config_object._experts_implementation = (
        "batched_mm"  # the default grouped product has no FLOP formula and would count 0
    )
    model_class = load_class(config)
    needs_float32 = model_class.__name__.endswith(class_settings.bfloat16_refusing_classes)
    dtype = torch.float32 if needs_float32 else torch.bfloat16
    try:
        with MetaDevice(), default_dtype(dtype):
            # XLNet creates some tensors on another device
            model: nn.Module = model_class(config_object).to("meta", dtype).eval().requires_grad_(False)
    except ImportError as error:  # timm, for the vision encoders of some wrappers
        error_text = " ".join(str(error).split())
        raise InputError(f"--against transformers: {model_class.__name__} cannot be built here: {error_text}") from None
    _disable_warnings(model)
    if not will_run or not model_class.__name__.endswith(class_settings.value_reading_classes):
        return model
    byte_count = 2 * sum(parameter.numel() for parameter in model.parameters())
    if byte_count > MAX_CPU_BYTES:
        raise InputError(
            f"--against transformers: {type(model).__name__} cannot run without values, and {byte_count:,} bytes of "
            "weights are too many"
        )
    with default_dtype(dtype):
        materialized_model: nn.Module = model_class(config_object).to(dtype).eval().requires_grad_(False)
    _avoid_identity_experts(materialized_model)
    _raise_expert_capacity(materialized_model)
    return materialized_model


def meta_device_quirks(config: Mapping[str, Any]) -> Quirks:
    """Returns the settings that a model type's classes need to run on the meta device."""
    family = family_of_class(config["model_type"])
    return Quirks() if family is None else family.quirks


def _disable_warnings(model: nn.Module) -> None:
    """Disables a check for padding that reads token ids, because these have no values on the meta device."""
    warning_name = "warn_if_padding_and_no_attention_mask"
    for module in model.modules():
        if hasattr(module, warning_name):
            setattr(module, warning_name, lambda *_: None)


def _avoid_identity_experts(model: nn.Module) -> None:
    """Makes routers rank identity experts last, by a score correction, so that no token selects one."""
    import torch

    for module in model.modules():
        score_correction = getattr(module, "e_score_correction_bias", None)
        identity_expert_count = getattr(model.config, "zero_expert_num", 0)
        if isinstance(score_correction, torch.Tensor) and identity_expert_count:
            score_correction[-identity_expert_count:] = float("-inf")


def _raise_expert_capacity(model: nn.Module) -> None:
    """Raises the capacity of experts (Switch Transformers), so that no token is dropped, as the formulas assume.

    Otherwise FLOPs would depend on the random weights: tokens beyond `expert_capacity` are dropped.
    """
    capacity_field = "expert_capacity"
    for module in model.modules():
        if isinstance(getattr(module, capacity_field, None), int):
            setattr(module, capacity_field, sys.maxsize)


def _count_checks(
    spec: ModelSpec,
    config: dict[str, Any],
    model: nn.Module,
    modules_of_nodes: ModulesByNode,
    batch: int,
    sequence_lengths: tuple[int, ...],
) -> Iterator[Check]:
    model_tree, model_type, witness_label = (
        spec.tree(),
        text_model_of(config)[2],
        f"transformers/{config['model_type']}",
    )
    params_by_path = parameter_counts_by_first_module(
        model, [module_path for node_modules in modules_of_nodes.values() for module_path in node_modules.modules]
    )
    towers_without_flops = (
        PARTS_WITHOUT_FLOPS  # a wrapper's class builds them, but a pass over tokens does not run them
    )

    def compare_with_class(
        quantity_name: str,
        cost: Cost,
        measured_counts: Mapping[str, int],
        modules_of_nodes: ModulesByNode,
        run_config: RunConfig | None = None,
    ) -> Iterator[Check]:
        """Yields a check for every node whose modules were found in the class, unless both counts are 0."""
        cost = class_cost_function(model_type, quantity_name, cost, spec)
        excess_of_node = class_excess_function(model_type, quantity_name, spec)
        return remove_zero_checks(
            compare_modules(
                model_tree,
                quantity_name,
                lambda positioned_node: positioned_node.cost_per_repeat(cost) + excess_of_node(positioned_node.path),
                modules_of_nodes,
                measured_counts,
                witness_label,
                run_config,
            )
        )

    uncounted_params = sum(uncounted_parameters(config, model).values())
    yield Check(
        "model",
        "parameters",
        total_cost_in_class(model_type, "parameters", total_params_of, spec, included_parts=towers_without_flops),
        params_by_path.get("", 0) - uncounted_params,
        witness_label,
    )
    yield from compare_with_class(
        "parameters", total_params_of, remove_shared_parameters(modules_of_nodes, params_by_path), modules_of_nodes
    )
    for seq in sequence_lengths:
        run_config = RunConfig(Workload(batch=batch, seq=seq))
        measured_pass = run_forward(spec, model, batch, seq, meta_device_quirks(config))
        yield Check(
            "model",
            "forward_flops",
            total_cost_in_class(model_type, "forward_flops", forward_flops_of, spec, run_config),
            measured_pass.flops_by_path.get("", 0),
            witness_label,
            seq,
        )
        if seq == sequence_lengths[0]:
            yield from compare_with_class(
                "forward_flops",
                forward_flops_of,
                measured_pass.flops_by_path,
                nodes_called_once(modules_of_nodes, measured_pass.calls_by_path, tensor_names(model)),
                run_config,
            )
        if measured_pass.cache_bytes is not None:
            cache_bits = total_cost_in_class(
                model_type,
                "cache_bytes",
                lambda counted_op: counted_op.cache_bits(DTYPE_BITS["bfloat16"]),
                spec,
                run_config,
            )
            yield Check(
                "model", "cache_bytes", bits_to_bytes(cache_bits), measured_pass.cache_bytes, witness_label, seq
            )


def uncounted_parameters(config: Mapping[str, Any], model: nn.Module) -> dict[str, int]:
    """Returns name → size of the parameters that the model's family declares as uncounted."""
    family = family_of_class(config["model_type"])
    if family is None or not family.uncounted_modules:
        return {}
    module_patterns = [re.escape(pattern).replace(r"\*", r"\d+") for pattern in family.uncounted_modules.split(" + ")]
    path_pattern = re.compile(rf"({'|'.join(module_patterns)})\.")
    return {
        parameter_name: parameter.numel()
        for parameter_name, parameter in model.named_parameters()
        if path_pattern.match(f"{parameter_name}.")
    }


def find_modules(spec: ModelSpec, config: Mapping[str, Any], model: Any) -> ModulesByNode:
    """Finds the modules of a class that correspond to the nodes of the spec's tree."""
    family, outer_family = family_of_class(text_model_of(config)[2]), family_of_class(config["model_type"])
    base_path = next((module_path for module_path, module in model.named_modules() if module is model.base_model), "")
    class_paths = module_names(model) | tensor_names(model)
    module_names_of_text, module_names_of_wrapper = (
        {} if family_record is None else family_record.modules for family_record in (family, outer_family)
    )
    head_names = {
        node_path: published_name
        for node_path, published_name in module_names_of_wrapper.items()
        if node_path.startswith("lm_head")
    }
    return find_modules_of_nodes(
        spec.tree(), class_paths, spec.kind, base_path, {**module_names_of_text, **head_names}, module_names_of_wrapper
    )


def _token_ids(model: nn.Module, batch: int, seq: int) -> Any:
    """Returns token ids on the model's device; on a CPU, the end-of-sequence token is only at the end."""
    import torch

    device = next(model.parameters()).device
    if device.type == "meta":
        return torch.empty(batch, seq, dtype=torch.long, device=device)
    config: Any = getattr(model.config, "text_config", model.config)
    config_end_token = getattr(config, "eos_token_id", None)
    end_token = config_end_token if isinstance(config_end_token, int) else config.vocab_size - 1
    token_ids = torch.randint(0, config.vocab_size - 1, (batch, seq))
    token_ids = token_ids + (token_ids >= end_token)
    token_ids[:, -1] = end_token
    return token_ids


def class_inputs(spec: ModelSpec, model: nn.Module, batch: int, seq: int) -> dict[str, Any]:
    """Returns the inputs of a class by argument name: tokens of `batch` sequences, or encoder frames."""
    import torch

    token_ids, class_name = _token_ids(model, batch, seq), type(model).__name__
    input_ids = add_channel_axis(model, token_ids)
    inputs: dict[str, Any] = {
        "input_ids": input_ids[:, None] if class_name.endswith("ForMultipleChoice") else input_ids
    }  # of one choice
    if spec.encoder is not None and spec.encoder.stem is not None:
        stem = spec.encoder.stem
        inputs = {stem.input_name: torch.empty(stem.input_shape(batch, seq), dtype=torch.bfloat16, device="meta")}
    if spec.kind == "encoder-decoder":
        inputs |= {"decoder_input_ids": input_ids, **({"input_ids": token_ids} if "input_ids" in inputs else {})}
    elif denoises_after_prompt(model):
        inputs = {"decoder_input_ids": input_ids, "past_key_values": _cache_of_no_tokens(spec, model, batch)}
    return inputs | required_inputs(model, batch, seq)


def add_channel_axis(model: nn.Module, token_ids: torch.Tensor) -> torch.Tensor:
    """Returns token ids [batch, tokens] in the shape of a class that reads several tokens per position."""
    config: Any = model.config
    return meta_device_quirks({"model_type": config.model_type}).decoder_ids(config, token_ids)


def _cache_of_no_tokens(spec: ModelSpec, model: nn.Module, batch: int) -> Any:
    """Returns an empty cache, with keys and values [batch, heads, 0, size] in every layer."""
    import torch
    from transformers import DynamicCache

    config: Any = model.config
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    cache = DynamicCache(config=config.get_text_config())
    for layer_index, layer_name in enumerate(spec.main.layer_names()):
        _, heads, head_size = spec.main.layer(layer_name).attention.sizes(spec.hidden_size)
        empty_rows = torch.empty(batch, heads, 0, head_size, device=device, dtype=dtype)
        cache.update(empty_rows, empty_rows.clone(), layer_index)
    return cache


def denoises_after_prompt(model: nn.Module) -> bool:
    """Whether a class reads a prompt and then denoises tokens; it is then measured with an empty prompt."""
    is_encoder_decoder: bool = model.config.is_encoder_decoder  # type: ignore[union-attr, assignment]
    return "decoder_input_ids" in signature(model.forward).parameters and not is_encoder_decoder


def required_inputs(model: nn.Module, batch: int, seq: int) -> dict[str, Any]:
    """Returns zeros for the arguments that the class requires besides token ids, such as image features."""
    import torch

    config: Any = model.config
    axis_sizes, parameter = {"batch": batch, "seq": seq}, next(model.parameters())
    return {
        input_name: torch.zeros(
            [axis_sizes[axis_length] if isinstance(axis_length, str) else axis_length for axis_length in shape],
            dtype=parameter.dtype,
            device=parameter.device,
        )
        for input_name, shape in meta_device_quirks({"model_type": config.model_type}).further_inputs(config).items()
    }


@dataclass(frozen=True)
class MeasuredPass:
    """The measurements of one forward pass of a `transformers` class: FLOPs, cache bytes and calls.

    flops_by_path: module path → FLOPs.
    calls_by_path: module path → number of calls.
    cache_bytes: the bytes of its cache; None without one.
    """

    flops_by_path: dict[str, int]
    calls_by_path: Mapping[str, int]
    cache_bytes: int | None


def run_forward(spec: ModelSpec, model: nn.Module, batch: int, seq: int, class_settings: Quirks) -> MeasuredPass:
    """Runs one forward pass over `batch` sequences of `seq` tokens, and returns its measurements.

    Raises `InputError` if the class requires further inputs, such as an image.
    """
    import torch
    from transformers import DynamicCache

    class_name, inputs = type(model).__name__, class_inputs(spec, model, batch, seq)
    if (
        not spec.one_pass_model_name
        and not class_name.endswith(class_settings.cache_refusing_classes)
        and not denoises_after_prompt(model)
    ):
        inputs["use_cache"] = True
    if class_name.endswith(class_settings.mask_making_classes) and not class_name.endswith(
        class_settings.value_reading_classes
    ):
        inputs["attention_mask"] = torch.zeros(batch, 1, seq, seq, dtype=torch.bfloat16, device="meta")
    missing_inputs = [
        required_argument
        for required_argument, parameter in signature(model.forward).parameters.items()
        if required_argument not in inputs
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if missing_inputs:
        raise InputError(
            f"--against transformers: {class_name} does not run without {' and '.join(missing_inputs)}; expected "
            "--against reference"
        )
    module_outputs: list[Any] = []
    states_before = _module_states(model)
    calls_by_module: Counter[str] = Counter()
    hook_handles = [
        module.register_forward_hook(lambda *_, path=path: calls_by_module.update((path,)))
        for path, module in model.named_modules()
    ]
    base_model: Any = model.base_model  # some heads do not return the cache that it filled
    if base_model is not model:
        hook_handles.append(
            base_model.register_forward_hook(lambda _, __, class_output: module_outputs.append(class_output))
        )
    try:
        forward_flops, _ = count_flops(model, lambda: module_outputs.append(model(**inputs)))
    except ValueError as error:  # of classes that read an image or a recording, but have a default for it
        if "have to specify" not in str(error):
            raise
        raise InputError(
            f"--against transformers: {class_name} does not run on tokens alone ({error}); expected --against reference"
        ) from None
    for hook_handle in hook_handles:
        hook_handle.remove()
    stored_cache = next(
        (found_cache for class_output in reversed(module_outputs) for found_cache in _find_caches(class_output)), None
    )
    if denoises_after_prompt(model):
        return MeasuredPass(forward_flops, calls_by_module, None)  # it reads the prompt's cache and fills none
    argument_name = cache_argument(model)
    if stored_cache is None and spec.kind == "decoder" and not spec.one_pass_model_name and argument_name:
        config: Any = model.config
        stored_cache = DynamicCache(config=config)  # the class fills a given cache, and creates none
        model(**inputs, **{argument_name: stored_cache})
    module_states = [
        tensor for module_path, tensor in _module_states(model).items() if states_before.get(module_path) is not tensor
    ]
    stored_cache = [stored_cache, *module_states] if module_states else stored_cache
    return MeasuredPass(
        forward_flops,
        calls_by_module,
        None if spec.one_pass_model_name or stored_cache is None else cache_bytes(stored_cache),
    )


CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state")
"""Names of the cache in the arguments and outputs of classes: `cache` since transformers 5.24."""


def cache_argument(model: nn.Module) -> str:
    """Returns the name of a class's cache argument, such as `past_key_values`; empty without one."""
    arguments = signature(model.forward).parameters
    return next((cache_name for cache_name in CACHE_NAMES[:2] if cache_name in arguments), "")


def _find_caches(module_output: Any) -> Iterator[Any]:
    """Yields the caches in a module's output, by the attribute names that classes use."""
    cache_attributes = (getattr(module_output, cache_name, None) for cache_name in CACHE_NAMES)
    return (cache for cache in cache_attributes if cache is not None)


def _module_states(model: nn.Module) -> dict[tuple[str, str], Any]:
    """Returns tensors in modules that are neither parameters nor buffers, by path and attribute.

    The frequencies that a scaled RoPE stores in its module are excluded.
    """
    import torch

    return {
        (module_path, attribute_name): attribute
        for module_path, module in model.named_modules()
        for attribute_name, attribute in vars(module).items()
        if isinstance(attribute, torch.Tensor) and not attribute_name.endswith("inv_freq")
    }


def cache_bytes(cache: Any) -> int:
    """Returns the bytes of all tensors in a transformers cache, each tensor once."""
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in {id(tensor): tensor for tensor in _nested_tensors(cache, set())}.values()
    )


def _nested_tensors(value: Any, visited_ids: set[int]) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        if value.is_floating_point():  # integer positions and counters are not cache
            yield value
    elif isinstance(value, dict | list | tuple):
        for nested_value in value.values() if isinstance(value, dict) else value:
            yield from _nested_tensors(nested_value, visited_ids)
    elif (
        hasattr(value, "__dict__")
        and id(value) not in visited_ids
        and type(value).__module__.startswith("transformers")
    ):
        visited_ids.add(id(value))
        for nested_value in vars(value).values():
            yield from _nested_tensors(nested_value, visited_ids)
