"""What `import llmcalc` offers: the same answers as the command line, as numbers.

Every function takes what `load` gives back, or a `ModelSpec` of one's own.
"""

from __future__ import annotations

from .costs import cache as cache_costs
from .costs import flops as flop_costs
from .costs import params as param_costs
from .costs import resident as memory_costs
from .costs.cache import CacheSize
from .costs.flops import FlopCount
from .costs.params import ParameterCount
from .costs.resident import MemoryPhase, MemoryUse, Setup
from .model import ModelSpec
from .optional import included
from .run.counting import Pairs
from .run.execution import AttentionBackward, Recompute
from .run.workload import Phase
from .sources.preset import Preset
from .sources.target import load as load_target


def load(target: str, **overrides: object) -> Preset:
    """The model that a preset's name, an alias or a path to a `.toml` names, with fields overridden.

    `load("llama3-8b", num_hidden_layers=2)`. Raises `InputError`, whose message names the field and the fix.
    """
    import json

    return load_target(target, tuple(f"{path}={json.dumps(value)}" for path, value in overrides.items()))


def spec_of(model: Preset | ModelSpec) -> ModelSpec:
    """The architecture of either."""
    return model.model if isinstance(model, Preset) else model


def params(model: Preset | ModelSpec, with_mtp: bool = False, with_towers: bool = False) -> ParameterCount:
    """Parameters: `.total`, `.active`, `.embedding`, `.by_component`. Exact integers."""
    return param_costs.params(spec_of(model), included(with_mtp, with_towers))


def flops(
    model: Preset | ModelSpec,
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

    batch sequences of seq new tokens each (1, if not given), context tokens before them in a cache; decoding adds one
    token, and takes seq as the context where that alone is given. source: tokens of an encoder-decoder's encoder, by
    default as many as its decoder's. Raises `InputError` for a phase that the model does not have and for settings that
    contradict it.
    """
    spec = spec_of(model)
    sight = flop_costs.sight_of(spec, batch, seq, context, source, phase, pairs, attention_backward, recompute)
    return flop_costs.flops(spec, sight, included(with_mtp))


def kv(
    model: Preset | ModelSpec, batch: int = 1, seq: int = 1, dtype: str = "bfloat16", source: int | None = None
) -> CacheSize:
    """Bytes of cache after seq tokens of batch sequences: `.bytes`, `.bytes_per_token`, `.by_layer_kind`, `.what_if`,
    `.growth`.

    source: tokens that an encoder-decoder's encoder has read, by default as many. Raises `InputError` for an
    encoder-only model and for an unknown dtype.
    """
    return cache_costs.kv(spec_of(model), batch, seq, dtype, source)


def memory(
    model: Preset | ModelSpec,
    phase: MemoryPhase = "inference",
    *,
    dtype: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    kv_dtype: str | None = None,
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
    setup = Setup(
        phase=phase,
        dtype=dtype,
        batch=batch,
        seq=seq,
        kv_dtype=kv_dtype,
        grad_dtype=grad_dtype,
        master_weights=master_weights,
        optimizer=optimizer,
        optimizer_dtype=optimizer_dtype,
        momentum=momentum,
        quantize=quantize,
    )
    published, config = (model.dtype, model.config) if isinstance(model, Preset) else ("bfloat16", None)
    return memory_costs.memory(spec_of(model), setup, published, included(with_mtp, with_towers), config)
