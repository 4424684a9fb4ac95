"""Training runs of Megatron-Core with a model that is named, not described by arguments (verl, Megatron-Bridge)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from ...parallel.layout import Layout
from ..launch.record import Reading, RunUnder


@dataclass(frozen=True)
class MegatronRun:
    """The parallel sizes, batch sizes and recomputation settings of a Megatron-Core run.

    tp, pp, cp, ep, etp, vpp: sizes of its groups; etp None for tp.
    sequence_parallel: whether tokens are divided between tensor-parallel products.
    distributed_optimizer: whether optimizer states are divided over replicas.
    batch, seq, num_microbatches: sequences of a micro-batch, their tokens, and the micro-batches of a step.
    recompute_granularity, recompute_method, recompute_num_layers, recompute_modules: as in Megatron-LM; None for none.
    fuses_cross_entropy: whether the loss is fused.
    grad_dtype: the number format of main gradients.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    vpp: int = 1
    sequence_parallel: bool = False
    distributed_optimizer: bool = True
    batch: int = 1
    seq: int = 0
    num_microbatches: int = 1
    recompute_granularity: Any = None
    recompute_method: Any = None
    recompute_num_layers: Any = None
    recompute_modules: Any = None
    fuses_cross_entropy: bool = False
    grad_dtype: str = "fp32"


def smallest_run(run: MegatronRun) -> int:
    """Returns the smallest number of devices that a run's layout can have."""
    group_devices = run.tp * run.cp
    experts = run.ep * (run.etp or run.tp)
    return run.pp * (group_devices if experts <= group_devices else -(-experts // group_devices) * group_devices)


def megatron_run(reading: Reading, run: MegatronRun, world: int | None, settings: dict[str, Any]) -> RunUnder:
    """Returns the layout and settings of a Megatron-Core run. settings: further settings of the run.

    Raises `InputError` for a number of devices that the groups do not divide.
    """
    if world is None:
        world = smallest_run(run)
        reading.notes.append(f"{world} devices are assumed, as few as the layout can have")
    replica_devices = run.tp * run.pp * run.cp
    if world % replica_devices:
        raise InputError(f"--devices: {world}; expected a multiple of tp · pp · cp = {replica_devices}")
    layout = Layout(
        tp=run.tp,
        pp=run.pp,
        cp=run.cp,
        dp=world // replica_devices,
        ep=run.ep,
        etp=run.etp if run.ep > 1 else None,
        vpp=run.vpp,
        sequence_parallel=run.sequence_parallel and run.tp > 1,
        zero=1 if run.distributed_optimizer else 0,
        schedule="interleaved" if run.vpp > 1 else "1f1b",
    )
    run_settings: dict[str, Any] = {
        "phase": "training",
        "batch": run.batch,
        "seq": run.seq,
        "num_microbatches": run.num_microbatches,
        "dtype": "bf16",
        "grad_dtype": run.grad_dtype,
        "attn_implementation": "flash",
        "cross_entropy": "fused" if run.fuses_cross_entropy else "eager",
    }
    recompute = _recompute_setting(reading, run)
    if recompute is not None:
        run_settings["recompute"] = recompute
    return RunUnder(layout, {**run_settings, **settings})


def _recompute_setting(reading: Reading, run: MegatronRun) -> str | None:
    """Returns the value of `--recompute`, and records a setting that is not modelled for a named model."""
    if run.recompute_granularity is None:
        return None
    if run.recompute_granularity == "selective":
        modules = run.recompute_modules or ["core_attn"]
        if list(modules) != ["core_attn"]:
            reading.unknown["recompute_modules"] = f"{', '.join(map(str, modules))[:60]} is not modelled here"
        return "attention"
    if run.recompute_method in (None, "uniform") and run.recompute_num_layers in (None, 1):
        return "full"
    reading.unknown["recompute_method"] = "other than each layer by itself is not modelled for a model that is named"
    return "full"
