"""Megatron-LM as accelerate's config asks for it.

Source: accelerate 1.x, utils/dataclasses.py, `MegatronLMPlugin`.
"""

from __future__ import annotations

from typing import Any

from ...errors import InputError
from ...parallel.layout import Layout, Zero
from ..launch.record import Reading, RunUnder, Table, flag_value, size_of, unknown_keys

MEGATRON_READ = frozenset(
    """
    tp_degree pp_degree num_micro_batches sequence_parallelism recompute_activations use_distributed_optimizer
    """.split()  # noqa: SIM905
)


def read_accelerate(reading: Reading, data: Table, world: int, words: dict[str, Any]) -> RunUnder:
    """Megatron-LM in accelerate's config. words: the settings of a run without it."""
    section = "megatron_lm_config"
    short = {str(key).removeprefix("megatron_lm_"): value for key, value in reading.table(data, section).items()}
    unknown_keys(reading, short, (*MEGATRON_READ, "gradient_clipping"), section, "no key that is known")

    def size(name: str) -> int:
        return size_of(reading, f"{section}.megatron_lm_{name}", 1 if short.get(name) is None else short[name])

    def flag(name: str) -> bool:
        return short.get(name) is not None and flag_value(reading, f"{section}.megatron_lm_{name}", short[name])

    tp, pp = size("tp_degree"), size("pp_degree")
    if world % (tp * pp):
        raise InputError(f"--devices: {world}; expected a multiple of {tp * pp}")
    words["num_microbatches"] = size("num_micro_batches")
    if flag("recompute_activations"):
        words["recompute"] = "attention"
    if words.get("precision") == "autocast":
        del words["precision"]
        words |= {"dtype": "bf16", "master_weights": "fp32", "grad_dtype": "fp32"}
    zero: Zero = 1 if flag("use_distributed_optimizer") else 0
    sequence_parallel = tp > 1 and flag("sequence_parallelism")
    layout = Layout(tp=tp, pp=pp, dp=world // (tp * pp), sequence_parallel=sequence_parallel, zero=zero)
    return RunUnder(layout, words)
