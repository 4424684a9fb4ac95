"""The Python API: the numbers that the command line prints, with the same checks and error messages.

Every function takes a model in one of five forms: a preset's name or a path, a parsed `config.json`, a configuration
object of `transformers`, the `Preset` that `load` returns, or a `ModelSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .costs import cache as cache_costs
from .costs import flops as flop_costs
from .costs import params as param_costs
from .errors import InputError, shown
from .model import ModelSpec
from .optional import included
from .sources.preset import Preset
from .sources.target import load as load_target
from .sources.target import load_config
from .workload.counting import Pairs
from .workload.execution import AttentionImplementation, LatentForm
from .workload.validation import maybe_whole, one_of, text, whole
from .workload.workload import Phase

if TYPE_CHECKING:
    from .device_memory.settings import MemoryPhase
    from .reports.count_answers import Cache, Flops, Params
    from .reports.memory_answer import DeviceUse

Model: TypeAlias = str | Path | Mapping[str, Any] | Preset | ModelSpec | Any
"""The forms in which a function accepts a model; `Any` is a configuration object of `transformers`."""


def load(target: str | Path | Mapping[str, Any] | Any, *, allow_unknown: bool = False, **overrides: object) -> Preset:
    """Loads a model and overrides some of its fields, as in `load("llama3-8b", num_hidden_layers=2)`.

    target: a preset's name, a path, a hub id, a parsed `config.json` or a configuration object of `transformers`.
    allow_unknown: whether to ignore misspelt fields and size fields that the config's model type does not have.
    Raises `InputError`; its message names the field and the fix.
    """
    import json

    try:
        changes = tuple(f"{path}={json.dumps(value)}" for path, value in overrides.items())
    except TypeError as error:
        raise InputError(f"overrides: {error}; expected numbers, text, truth values or lists of them") from None
    if isinstance(target, str | Path):
        return load_target(str(target), changes, allow_unknown=allow_unknown)
    config = target.to_dict() if hasattr(target, "to_dict") else target
    if not isinstance(config, Mapping):
        raise InputError(
            f"model: {shown(target)}; expected a preset's name, a path, a parsed config.json, a configuration of "
            "transformers, a Preset or a ModelSpec"
        )
    wrong = next((key for key in config if not isinstance(key, str)), None)
    if wrong is not None:
        raise InputError(f"config: the key {shown(wrong)} is not text; expected a parsed config.json")
    return load_config(config, changes, allow_unknown=allow_unknown)


def preset_of(model: Model) -> Preset:
    """Returns the preset of a model given in any form.

    Raises `InputError` for an unknown name, and for a file or a config that is not supported.
    """
    if isinstance(model, Preset):
        return model
    if isinstance(model, ModelSpec):
        return Preset.model_construct(name="model", model=model)
    return load(model)


def spec_of(model: Model) -> ModelSpec:
    """Returns the `ModelSpec` of a model given in any form."""
    return preset_of(model).model


def params(model: Model, with_mtp: bool = False, with_towers: bool = False) -> Params:
    """Counts parameters, as exact integers: `.total`, `.active`, `.embedding`, `.by_component`."""
    from .reports.count_answers import Params

    preset = preset_of(model)
    return Params.made(param_costs.params(preset.model, included(with_mtp, with_towers)), preset)


def flops(
    model: Model,
    batch: int = 1,
    seq: int | None = None,
    context: int | None = None,
    phase: Phase = "forward",
    pairs: Pairs = "full",
    with_mtp: bool = False,
    *,
    source: int | None = None,
    attn_implementation: AttentionImplementation = "eager",
    recompute: str = "none",
    mla: LatentForm = "auto",
) -> Flops:
    """Counts the FLOPs of one pass: `.total` (under the convention `pairs`), `.full`, `.causal`, `.by_component`,
    `.per_token`, `.forward`, `.backward`, and `.mla` (the form in which latent attention runs).

    batch: number of sequences.
    seq: new tokens per sequence; default 2,048, or the number of learned positions where that is smaller. Decoding adds
        one token per sequence; there seq is the context if context is not given.
    context: tokens per sequence that are already in the cache.
    source: tokens that the encoder of an encoder-decoder reads; default as many as the decoder's.
    attn_implementation: kernels of attention, which decide the FLOPs of its backward pass; default eager.
    recompute: in training, what runs again in the backward pass: none (default), full, full-reentrant, attention,
        attention+matmuls, every:N or nodes:A,B.
    mla: form of latent attention; default absorbed in decode and expanded in the other phases.
    Raises `InputError` for a phase that the model does not have and for settings that contradict it.
    """
    from .reports.count_answers import Flops

    preset = preset_of(model)
    spec = preset.model
    whole("--batch", batch)
    maybe_whole("--seq", seq)
    maybe_whole("--context", context, least=0)
    maybe_whole("--source", source)
    phase = one_of("--phase", phase, Phase)
    one_of("--pairs", pairs, Pairs)
    one_of("--attn-implementation", attn_implementation, AttentionImplementation)
    one_of("--mla", mla, LatentForm)
    text("--recompute", recompute, "full")
    sight = flop_costs.sight_of(spec, batch, seq, context, source, phase, pairs, attn_implementation, recompute, mla)
    return Flops.made(flop_costs.flops(spec, sight, included(with_mtp)), preset)


def kv(
    model: Model, batch: int = 1, seq: int | None = None, dtype: str = "bfloat16", source: int | None = None
) -> Cache:
    """Computes the cache of batch sequences of seq tokens each: `.bytes`, `.bytes_per_token`, `.by_layer_kind`,
    `.what_if`, `.growth`.

    seq: tokens per sequence; default the model's context length, at most 32,768, or 2,048 if the model states none.
    source: tokens that the encoder of an encoder-decoder has read; default seq.
    Raises `InputError` for an encoder-only model and for an unknown dtype.
    """
    from .reports.count_answers import Cache

    whole("--batch", batch)
    maybe_whole("--seq", seq)
    maybe_whole("--source", source)
    text("--dtype", dtype, "bf16")
    preset = preset_of(model)
    return Cache.made(cache_costs.kv(preset.model, batch, seq, dtype, source), preset)


def memory(
    model: Model,
    phase: MemoryPhase = "inference",
    *,
    hardware: str | None = None,
    with_mtp: bool = False,
    with_towers: bool = False,
    **settings: Any,
) -> DeviceUse:
    """Computes the memory of one device, in bytes: `.device.peak_bytes`, `.device.device_bytes`, `.device.by_kind`,
    `.device.timeline`, and in `.states` what stays between passes, in closed form (`.total_bytes`, `.parts`).

    hardware: the accelerator whose runtime is taken; default an H100.
    settings: fields of `llmcalc.device_memory.settings.Settings`, such as batch=2, seq=4096, recompute="full".
    Raises `InputError` for an unknown setting, and for one that does not apply to the phase or the model.
    """
    from .device_memory.cuda_runtime import runtime_of
    from .device_memory.estimate import memory as on_one_device
    from .device_memory.settings import settings_of
    from .reports.memory_answer import DeviceUse
    from .sources.hardware import find_hardware

    preset = preset_of(model)
    chosen = settings_of(phase=phase, **settings)
    runtime = runtime_of(
        None if hardware is None else find_hardware(text("--hardware", hardware, "h100")),
        expandable=chosen.allocator == "expandable",
    )
    include = included(with_mtp, with_towers)
    found = on_one_device(preset.model, chosen, preset.dtype, include, preset.checkpoint, runtime)
    return DeviceUse.made(found, preset)
