"""The questions that check counts: `verify` (against a running model), `check` (against a checkpoint) and `budget`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InputError
from ..parallel.layout import Layout
from ..parallel.layout_request import NO_LAYOUT_OPTIONS, LayoutRequest
from ..reports.answer import ReportedAnswer
from ..sources.preset import Preset, target_in_errors

if TYPE_CHECKING:
    from ..sources.checkpoints.header import Checkpoint
    from ..witnesses.checks import Verdict
    from ..witnesses.reference import Device
    from ..witnesses.verification import WitnessName


def ask_budget(budget_file: Path, skip_missing: bool = False) -> ReportedAnswer:
    """Checks the values of models against a budget file. Raises `InputError` if the file cannot be read.

    skip_missing: whether a file that does not exist is a budget without bounds; default an error.
    """
    from ..reports.budget import report
    from ..studies.budget import check_budget, count_violations
    from ..studies.budget_file import read_budget

    if skip_missing and not budget_file.exists():
        return ReportedAnswer([], lambda: report(budget_file.name, []))
    budget_checks = check_budget(read_budget(budget_file), budget_file.parent)
    return ReportedAnswer(
        budget_checks, lambda: report(budget_file.name, budget_checks), not count_violations(budget_checks)
    )


def read_checkpoint_header(checkpoint: str) -> Checkpoint:
    """Reads the header of a checkpoint, from a file or from a hub id."""
    from ..sources.checkpoints.read import read_checkpoint
    from ..sources.hub import fetch_headers
    from ..sources.target_names import is_hub_id

    # Path.exists raises an error for a name that is too long
    if not os.path.exists(checkpoint) and is_hub_id(checkpoint):
        return fetch_headers(checkpoint)
    return read_checkpoint(Path(checkpoint))


def ask_check(preset: Preset, checkpoint_name: str, checkpoint: Checkpoint) -> ReportedAnswer:
    """Checks whether a checkpoint has the tensors of a model. checkpoint_name: the checkpoint's name."""
    from ..reports.checkpoint import check_report
    from ..witnesses.checkpoint import match_tensors

    tensor_match = match_tensors(preset.model, checkpoint)
    return ReportedAnswer(
        tensor_match, lambda: check_report(preset, checkpoint_name, checkpoint, tensor_match), tensor_match.is_complete
    )


class VerifyResult(NamedTuple):
    """The result of `llmcalc verify`: a verdict per model, and the models that were skipped.

    verdicts: one per model. skip_reasons: reasons by model that could not be compared.
    """

    verdicts: list[Verdict]
    skip_reasons: dict[str, str]


@dataclass(frozen=True)
class VerifyQuestion:
    """The question of `llmcalc verify`, which compares formulas with a running model. Fields are options."""

    everything: bool = False
    device: Device = "meta"
    against: WitnessName = "reference"
    batch: int = 1
    seq: int | None = None
    every_layer: bool = False
    memory: bool = False
    distributed: bool = False
    layout: LayoutRequest = NO_LAYOUT_OPTIONS
    num_microbatches: int | None = None

    def check_targets(self, has_targets: bool) -> None:
        """Raises `InputError` unless models or --all are given, and for options that do not apply.

        has_targets: whether models are given.
        """
        if self.everything and has_targets:
            raise InputError("--all: verifies all presets; expected --all or TARGETs, not both")
        if not self.everything and not has_targets:
            raise InputError("missing argument TARGET; expected one or more, or --all (llmcalc verify --help explains)")
        if not self.distributed:
            if self.layout.has_options or self.num_microbatches is not None:
                raise InputError("verify: options of layouts only apply to --distributed")
            return
        if self.everything:
            raise InputError("--distributed: expected TARGET, not --all")
        if self.against != "reference" or self.device != "meta" or self.every_layer or self.memory:
            raise InputError("--distributed: --against, --device, --every-layer and --memory do not apply")

    def answer(self, model_targets: Iterable[Any], read_model: Callable[[Any], Preset]) -> ReportedAnswer:
        """Compares each model's counts with its PyTorch reference, class or checkpoint. read_model: reads a model.

        Raises `InputError` for a model that cannot be compared; with --all it is skipped.
        """
        from ..reports.verify import report
        from ..simulator.lowering import UnsupportedKernel

        verify_result = VerifyResult([], {})
        for model_target in model_targets:
            try:
                verify_result.verdicts.append(self._verdict_of_model(read_model(model_target)))
            except InputError as error:
                if not self.everything or (self.against == "reference" and not isinstance(error, UnsupportedKernel)):
                    raise
                verify_result.skip_reasons[model_target] = str(error).removeprefix(f"{model_target}: ")
        is_verified = bool(verify_result.verdicts) and all(verdict.ok for verdict in verify_result.verdicts)
        return ReportedAnswer(verify_result, lambda: report(*verify_result), is_verified)

    def _verdict_of_model(self, preset: Preset) -> Verdict:
        with target_in_errors(preset):
            if self.distributed:
                from ..witnesses.distributed.compare import build_job, verify_distributed

                distributed_job = build_job(
                    preset.model, self._layout_of_processes(), self.batch, self.seq, self.num_microbatches
                )
                return verify_distributed(distributed_job, preset.name)
            from ..witnesses.verification import verify

            with _size_errors_as_input_errors(self.against):
                return verify(preset, self.against, self.device, self.batch, self.seq, self.every_layer, self.memory)

    def _layout_of_processes(self) -> Layout:
        """Returns the layout over torchrun's processes, by default over two processes."""
        from ..witnesses.distributed.launch import is_started_by_torchrun

        layout_request = self.layout
        if is_started_by_torchrun() and layout_request.devices is None:
            layout_request = replace(layout_request, devices=int(os.environ["WORLD_SIZE"]))
        typed_layout = layout_request.layout()
        if layout_request.devices is not None or typed_layout.world_size > 1:
            return typed_layout
        return replace(layout_request, devices=2).layout()


@contextmanager
def _size_errors_as_input_errors(witness_kind: WitnessName) -> Iterator[None]:
    """Returns a context manager that turns torch's errors about sizes (over 2^63 elements) into `InputError`."""
    try:
        yield
    except (RuntimeError, ArithmeticError, MemoryError) as error:
        error_reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(
            f"--against {witness_kind} cannot run this model: {error_reason}; expected sizes that its witness can hold"
        ) from error
