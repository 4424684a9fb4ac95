"""Whether counts hold: beside a model that runs, beside a checkpoint, and within the bounds of a budget."""

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
from ..sources.preset import Preset, about

if TYPE_CHECKING:
    from ..sources.checkpoints.header import Checkpoint
    from ..witnesses.checks import Verdict
    from ..witnesses.reference import Device
    from ..witnesses.run import Witness


def ask_budget(file: Path) -> ReportedAnswer:
    """Whether models are within the bounds of a budget. Raises `InputError` for a budget that cannot be read."""
    from ..reports.budget import report
    from ..studies.budget import broken, check_budget
    from ..studies.budget_file import read_budget

    checks = check_budget(read_budget(file), file.parent)
    return ReportedAnswer(checks, lambda: report(file.name, checks), not broken(checks))


def read_stored(checkpoint: str) -> Checkpoint:
    """The header of a checkpoint, in a file or of a hub id."""
    from ..sources.checkpoints.read import read_checkpoint
    from ..sources.hub import fetch_headers
    from ..sources.names import is_hub_id

    if not Path(checkpoint).exists() and is_hub_id(checkpoint):
        return fetch_headers(checkpoint)
    return read_checkpoint(Path(checkpoint))


def ask_check(preset: Preset, name: str, checkpoint: Checkpoint) -> ReportedAnswer:
    """Whether a checkpoint has the tensors of a model. name: of the checkpoint."""
    from ..reports.checkpoint import check_report
    from ..witnesses.checkpoint import match

    found = match(preset.model, checkpoint)
    return ReportedAnswer(found, lambda: check_report(preset, name, checkpoint, found), found.ok)


class Verified(NamedTuple):
    """verdicts: one a model. skipped: model → why the witness could not serve it."""

    verdicts: list[Verdict]
    skipped: dict[str, str]


@dataclass(frozen=True)
class Verification:
    """A comparison of closed forms with a witness. The fields are the options of `llmcalc verify`."""

    everything: bool = False
    device: Device = "meta"
    against: Witness = "reference"
    batch: int = 1
    seq: int | None = None
    every_layer: bool = False
    memory: bool = False
    distributed: bool = False
    layout: LayoutRequest = NO_LAYOUT_OPTIONS
    num_microbatches: int | None = None

    def check_targets(self, targets: bool) -> None:
        """Raises `InputError` unless models are given or all are asked for, and for options of another comparison.

        targets: whether models are given.
        """
        if self.everything == targets:
            raise InputError("verify: expected TARGET... or --all")
        if not self.distributed:
            if self.layout.has_options or self.num_microbatches is not None:
                raise InputError("verify: options of layouts only apply to --distributed")
            return
        if self.everything:
            raise InputError("--distributed: expected TARGET, not --all")
        if self.against != "reference" or self.device != "meta" or self.every_layer or self.memory:
            raise InputError("--distributed: --against, --device, --every-layer and --memory do not apply")

    def answer(self, targets: Iterable[Any], read_model: Callable[[Any], Preset]) -> ReportedAnswer:
        """The verdict on every model. read_model: reads one.

        Raises `InputError` for a model that cannot be compared; where all presets are asked for it is skipped.
        """
        from ..reports.verify import report
        from ..simulator.lowering import Unsupported

        found = Verified([], {})
        for target in targets:
            try:
                found.verdicts.append(self._verdict(read_model(target)))
            except InputError as error:
                if not self.everything or (self.against == "reference" and not isinstance(error, Unsupported)):
                    raise
                found.skipped[target] = str(error).removeprefix(f"{target}: ")
        ok = bool(found.verdicts) and all(verdict.ok for verdict in found.verdicts)
        return ReportedAnswer(found, lambda: report(*found), ok)

    def _verdict(self, preset: Preset) -> Verdict:
        with about(preset):
            if self.distributed:
                from ..witnesses.distributed.compare import job_for, verify_distributed

                job = job_for(preset.model, self._layout(), self.batch, self.seq, self.num_microbatches)
                return verify_distributed(job, preset.name)
            from ..witnesses.run import verify

            with _witness(self.against):
                return verify(preset, self.against, self.device, self.batch, self.seq, self.every_layer, self.memory)

    def _layout(self) -> Layout:
        """The layout over as many processes as torchrun has started, or over two if nothing says how many."""
        from ..witnesses.distributed.launch import launched

        layout = self.layout
        if launched() and layout.devices is None:
            layout = replace(layout, devices=int(os.environ["WORLD_SIZE"]))
        found = layout.layout()
        return found if layout.devices is not None or found.world > 1 else replace(layout, devices=2).layout()


@contextmanager
def _witness(against: Witness) -> Iterator[None]:
    """A spec whose sizes the witness's own arithmetic does not hold (tensors past 2^63 elements) is bad input to it."""
    try:
        yield
    except (RuntimeError, ArithmeticError, MemoryError) as error:
        what = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(
            f"--against {against} cannot run this model: {what}; expected sizes that its witness can hold"
        ) from error
