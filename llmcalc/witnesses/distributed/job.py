"""The job of a distributed training run, and the simulated memory of each rank."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...device_memory.training import TrainingConfig
from ...errors import InputError
from ...frameworks.fsdp2.pipeline import FsdpPipelineRun, FsdpRankSetup
from ...frameworks.fsdp2.training import FsdpRun, FsdpSettings, sharding_of_rank
from ...frameworks.torch.pipeline import RankRun, RankSetup, check_torch
from ...model import ModelSpec
from ...parallel.layout import Layout
from ...parallel.rank_program import rank_program
from ...simulator.meter import Meter

STEP_COUNT = 2
"""Number of training steps; in the second the optimizer's states exist from the beginning."""

JOB_DTYPE = "float32"
"""Number format of a distributed run, in which the losses of many processes and of one differ only by rounding."""

JOB_FSDP_SETTINGS = FsdpSettings(JOB_DTYPE, JOB_DTYPE)
"""FSDP2 settings of a distributed run: torchtitan's, in the format `JOB_DTYPE`."""


@dataclass(frozen=True)
class TrainingJob:
    """A training run of a model on several processes.

    spec: the model.
    layout: the parallelism.
    batch: sequences per micro-batch.
    seq: tokens per sequence.
    microbatches: micro-batches per step of each replica.
    """

    spec: ModelSpec
    layout: Layout
    batch: int
    seq: int
    microbatches: int

    def require_supported(self) -> None:
        """Raises `InputError` for a layout that is not supported, or for a model that the layout cannot divide."""
        layout = self.layout
        if layout.zero not in (0, 3):
            raise InputError(
                f"--distributed: --zero {layout.zero} is not supported; expected --fsdp, or replicas with --dp"
            )
        if layout.tp > 1 and layout.dp > 1 and layout.zero == 0:
            raise InputError(
                "--distributed: replicas with --tp are not supported, because DDP accepts no distributed tensors; "
                "expected --fsdp"
            )
        if layout.sequence_parallel:
            raise InputError("--distributed: --sequence-parallel is not supported; expected --tp alone")
        if layout.vpp > 1 or layout.schedule != "1f1b":
            raise InputError(
                f"--distributed: --schedule {layout.schedule} is not supported; expected 1f1b, without --vpp"
            )
        if layout.zero == 3 and layout.pp > 1 and layout.tp > 1:
            raise InputError("--distributed: FSDP2 with --tp in a pipeline is not supported; expected --pp 1 or --tp 1")
        if layout.hsdp_replicas > 1 and layout.zero != 3:
            raise InputError("--distributed: --hsdp-replicas needs --fsdp; expected replicas with --dp alone")
        check_torch(replace(layout, zero=0))
        if self.spec.kind != "decoder" or self.spec.head.type != "lm" or self.spec.towers:
            raise InputError("--distributed: only supports text decoders with a language-model head")
        if layout.pp > 1 and layout.dp > 1 and layout.zero == 0 and self.microbatches < 2 * layout.pp:
            raise InputError(  # DDP of torch 2.13 stops with "rebuilt parameter indices size is not same"
                f"--num-microbatches: {self.microbatches} with --pp and --dp; expected at least {2 * layout.pp}"
            )
        if self.microbatches < layout.pp:
            raise InputError(f"--num-microbatches: {self.microbatches} in a pipeline; expected at least {layout.pp}")

    @property
    def training(self) -> TrainingConfig:
        """The settings of the simulated training run that corresponds to the job."""
        return TrainingConfig(batch=self.batch, seq=self.seq, microbatches=self.microbatches, dtype=JOB_DTYPE)

    def to_json(self) -> str:
        """Returns the job as JSON."""
        job_fields = {field_name: getattr(self, field_name) for field_name in ("batch", "seq", "microbatches")}
        return json.dumps({"spec": self.spec.model_dump(mode="json"), "layout": asdict(self.layout), **job_fields})


def job_from_json(job_json: str) -> TrainingJob:
    """Reads a job that `TrainingJob.to_json` wrote."""
    job_fields: dict[str, Any] = json.loads(job_json)
    layout = job_fields.pop("layout")
    if layout["pp_layout"] is not None:
        layout["pp_layout"] = tuple(layout["pp_layout"])
    return TrainingJob(ModelSpec.model_validate(job_fields.pop("spec")), Layout(**layout), **job_fields)


def peaks_by_phase(memory_meter: Meter) -> dict[str, int]:
    """Returns the peak bytes of the forward passes, the backward passes and the optimizer's step."""
    peaks = {"forward": 0, "backward": 0, "step": 0}
    for module_and_phase, peak in memory_meter.peaks.items():
        if module_and_phase.phase in peaks:
            peaks[module_and_phase.phase] = max(peaks[module_and_phase.phase], peak.bytes)
    return peaks


def simulate_rank(training_job: TrainingJob, rank: int) -> dict[str, int]:
    """Returns the simulated bytes of one rank by quantity, as a torch dispatch mode counts them."""
    memory_meter = Meter()
    rank_run: RankRun | FsdpRun
    fsdp_settings = replace(JOB_FSDP_SETTINGS, prefetched_layer_count=training_job.layout.prefetch)
    if training_job.layout.zero == 3 and training_job.layout.pp > 1:
        rank_run = FsdpPipelineRun(
            FsdpRankSetup(
                training_job.spec, training_job.training, training_job.layout, rank, fsdp_settings=fsdp_settings
            ),
            memory_meter,
        )
    elif training_job.layout.zero == 3:
        layout = training_job.layout
        weight_sharding = sharding_of_rank(
            training_job.training, replace(layout, tp=1), layout.coordinates(rank).dp, fsdp_settings
        )
        program = rank_program(training_job.spec, layout, rank) if layout.tp > 1 else None
        rank_run = FsdpRun(
            training_job.spec,
            training_job.training,
            weight_sharding,
            fsdp_settings,
            layout.reshard,
            memory_meter=memory_meter,
            program=program,
        )
        rank_run.graph.adds_in_place = False  # under a dispatch mode torch adds gradients into new tensors
    else:
        rank_run = RankRun(RankSetup(training_job.spec, training_job.training, training_job.layout, rank), memory_meter)
    if not isinstance(rank_run, FsdpRun):
        for model_chunk in rank_run.chunks:
            model_chunk.graph.adds_in_place = False
    rank_run.set_up()
    quantities = {"set_up_bytes": memory_meter.live_bytes}
    for step_index in range(STEP_COUNT):
        memory_meter.peaks = {}
        if isinstance(rank_run, FsdpRun):
            rank_run.replace_batch()
            rank_run.run_micro_batches()
        else:
            rank_run.run_passes()
        bytes_before_step = memory_meter.live_bytes
        rank_run.update()
        rank_run.zero_grad()
        peaks = peaks_by_phase(memory_meter)
        if step_index == 0:
            quantities["first_step_peak_bytes"] = peaks["step"]
    if training_job.layout.pp > 1:  # the order of passes differs between ranks
        quantities["passes_peak_bytes"] = max(peaks["forward"], peaks["backward"])
    else:
        quantities["forward_peak_bytes"], quantities["backward_peak_bytes"] = peaks["forward"], peaks["backward"]
    return quantities | {
        "before_step_bytes": bytes_before_step, "step_peak_bytes": peaks["step"],
        "after_step_bytes": memory_meter.live_bytes,
    }  # fmt: skip
