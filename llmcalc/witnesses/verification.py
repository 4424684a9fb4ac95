"""Verifies the counts of a model against a witness: the PyTorch reference, transformers, or published counts."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal, TypeAlias

from ..errors import InputError
from ..model import ModelSpec
from ..sources.preset import Preset
from .checks import Verdict
from .reference import Device, gpu_filling_seq, verify_reference
from .untested import untested_parts

WitnessName: TypeAlias = Literal["reference", "transformers", "published"]


def verify(
    named_model: Preset,
    witness: WitnessName = "reference",
    device: Device = "meta",
    batch: int = 1,
    seq: int | None = None,
    every_layer: bool = False,
    memory: bool = False,
) -> Verdict:
    """Returns all checks of a model against a witness: `reference`, `transformers` or `published`.

    memory: whether the memory of a training step, a prefill and a decoding step is compared too; false by default.
    Raises `InputError` if the witness or the device does not support this model; it is `UnsupportedKernel` if memory is
    compared and a step of the model has no kernels.
    """
    verdict = _compare_model(named_model, witness, device, batch, seq, every_layer, memory)
    return replace(verdict, untested=untested_parts(named_model.model))


def _compare_model(
    named_model: Preset,
    witness: WitnessName,
    device: Device,
    batch: int,
    seq: int | None,
    every_layer: bool,
    compares_memory: bool,
) -> Verdict:
    """Compares the counts of a model with those of the witness."""
    if witness != "reference" and (device != "meta" or every_layer or compares_memory):
        raise InputError(f"--against {witness}: --device, --every-layer and --memory only apply to --against reference")
    if witness == "published":
        from .published import verify_published

        return verify_published(named_model)
    if witness == "transformers":
        from .transformers import verify_with_transformers

        return verify_with_transformers(named_model, batch, seq)
    verdict = verify_reference(named_model.model, named_model.name, device, batch, seq, every_layer)
    return _add_memory_checks(verdict, named_model.model, device, batch, seq) if compares_memory else verdict


def _add_memory_checks(verdict: Verdict, spec: ModelSpec, device: Device, batch: int, seq: int | None) -> Verdict:
    """Adds memory checks to a verdict; on a GPU these use more tokens than the other checks."""
    from .memory import compare_memory, default_run_settings

    start_time = time.perf_counter()
    if device != "cuda":
        comparison = compare_memory(spec, default_run_settings(spec, batch, verdict.info["seq"]), device)
    else:
        from .gpu import compare_on_gpu

        comparison = compare_on_gpu(
            spec, default_run_settings(spec, batch, seq or gpu_filling_seq(spec, verdict.info["seq"]))
        )
    return comparison.add_memory_checks(verdict, time.perf_counter() - start_time)
