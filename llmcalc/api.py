"""What `import llmcalc` offers: the same answers as the command line, as numbers, with its checks and its messages.

Every function takes a model as a preset's name or a path, as a parsed `config.json`, as a configuration of
`transformers`, as what `load` gives back, or as a `ModelSpec` of one's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from .costs import cache as cache_costs
from .costs import flops as flop_costs
from .costs import params as param_costs
from .costs import resident as memory_costs
from .costs.cache import CacheSize
from .costs.flops import FlopCount
from .costs.params import ParameterCount
from .costs.resident import MemoryPhase, MemoryUse, Setup
from .errors import InputError, shown
from .model import ModelSpec
from .optional import included
from .run.counting import Pairs
from .run.execution import AttentionBackward, Recompute
from .run.given import maybe_whole, one_of, whole
from .run.workload import Phase
from .sources.preset import Preset
from .sources.target import load as load_target
from .sources.target import load_config


def load(target: str, **overrides: object) -> Preset:
    """The model that a preset's name, an alias or a path to a `.toml` names, with fields overridden.

    `load("llama3-8b", num_hidden_layers=2)`. Raises `InputError`, whose message names the field and the fix.
    """
    import json

    return load_target(target, tuple(f"{path}={json.dumps(value)}" for path, value in overrides.items()))


Model: TypeAlias = str | Path | Mapping[str, Any] | Preset | ModelSpec | Any
"""What a function takes for a model; `Any` is a configuration of `transformers`."""


def preset_of(model: Model) -> Preset:
    """The model, whatever form it is given in.

    Raises `InputError` for a name, a file or a config that is not understood.
    """
    if isinstance(model, Preset):
        return model
    if isinstance(model, ModelSpec):
        return Preset.model_construct(name="model", model=model)
    if isinstance(model, str | Path):
        return load_target(str(model))
    config = model.to_dict() if hasattr(model, "to_dict") else model
    if not isinstance(config, Mapping):
        raise InputError(
            f"model: {shown(model)}; expected a preset's name, a path, a parsed config.json, a configuration of "
            "transformers, a Preset or a ModelSpec"
        )
    return load_config(config)


def spec_of(model: Model) -> ModelSpec:
    """The architecture of a model in any form."""
    return preset_of(model).model


def params(model: Model, with_mtp: bool = False, with_towers: bool = False) -> ParameterCount:
    """Parameters: `.total`, `.active`, `.embedding`, `.by_component`. Exact integers."""
    return param_costs.params(spec_of(model), included(with_mtp, with_towers))


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
    attention_backward: AttentionBackward = "eager",
    recompute: Recompute = "none",
) -> FlopCount:
    """FLOPs of one pass: `.total` (under `pairs`), `.full`, `.causal`, `.by_component`, `.per_token`, `.forward`,
    `.backward`.

    batch sequences of seq new tokens each (2,048, or all learned positions where they are fewer), context tokens before
    them in a cache; decoding adds one token, and takes seq as the context where that alone is given. source: tokens of
    an encoder-decoder's encoder, by default as many as its decoder's. Raises `InputError` for a phase that the model
    does not have and for settings that contradict it.
    """
    spec = spec_of(model)
    whole("--batch", batch)
    maybe_whole("--seq", seq)
    maybe_whole("--context", context, least=0)
    maybe_whole("--source", source)
    one_of("--phase", phase, Phase)
    one_of("--pairs", pairs, Pairs)
    one_of("--attention-backward", attention_backward, AttentionBackward)
    one_of("--recompute", recompute, Recompute)
    sight = flop_costs.sight_of(spec, batch, seq, context, source, phase, pairs, attention_backward, recompute)
    return flop_costs.flops(spec, sight, included(with_mtp))


def kv(
    model: Model, batch: int = 1, seq: int | None = None, dtype: str = "bfloat16", source: int | None = None
) -> CacheSize:
    """Bytes of cache after seq tokens of batch sequences: `.bytes`, `.bytes_per_token`, `.by_layer_kind`, `.what_if`,
    `.growth`.

    seq: by default the context that the model was made for, at most 32,768, and 2,048 where it states none. source:
    tokens that an encoder-decoder's encoder has read, by default as many. Raises `InputError` for an encoder-only model
    and for an unknown dtype.
    """
    whole("--batch", batch)
    maybe_whole("--seq", seq)
    maybe_whole("--source", source)
    return cache_costs.kv(spec_of(model), batch, seq, dtype, source)


def memory(
    model: Model,
    phase: MemoryPhase = "inference",
    *,
    dtype: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    kv_dtype: str | None = None,
    precision: str | None = None,
    grad_dtype: str | None = None,
    master_weights: str | None = None,
    optimizer: str | None = None,
    optimizer_dtype: str | None = None,
    momentum: bool | None = None,
    quantize: str | None = None,
    with_mtp: bool = False,
    with_towers: bool = False,
) -> MemoryUse:
    """Bytes that are resident: `.total_bytes`, `.parts` by what for, `.optimizer`, and `.not_counted`, what is in none
    of them.

    `.quantized` where weights are stored under a scheme (quantize, or the config's). The defaults are those of
    `costs.resident.Setup`. Raises `InputError` for a setting that the phase has no use for.
    """
    maybe_whole("--batch", batch)
    maybe_whole("--seq", seq)
    preset = preset_of(model)
    setup = Setup(
        phase=phase,
        dtype=dtype,
        batch=batch,
        seq=seq,
        kv_dtype=kv_dtype,
        precision=precision,
        grad_dtype=grad_dtype,
        master_weights=master_weights,
        optimizer=optimizer,
        optimizer_dtype=optimizer_dtype,
        momentum=momentum,
        quantize=quantize,
    )
    return memory_costs.memory(preset.model, setup, preset.dtype, included(with_mtp, with_towers), preset.config)
