"""The registry record of plain PyTorch: DistributedDataParallel, tensor parallelism and pipelines."""

from __future__ import annotations

from ...parallel.layout_rules import LayoutRules
from ...parallel.schedules import torch_group_size
from ..framework import EstimateErrors, Framework, LazyFunction

FRAMEWORK = Framework(
    name="torch",
    title="torch",
    rank_memory=LazyFunction(__package__, "rank_memory:rank_memory"),
    estimate=LazyFunction(__package__, "estimate:estimate_peaks"),
    estimate_errors=EstimateErrors(relative_error_below=0.04),
    evidence=LazyFunction(__package__, "evidence:evidence_for"),
    gradient_rules=LazyFunction(__package__, "messages:gradient_rules"),
    layout_rules=LayoutRules("torch", untried_size_names=("cp", "ep"), needs_full_pipeline=True),
    replays_every_micro_batch=True,
    micro_batch_group=torch_group_size,
    launcher="torchrun",
    runs_inference=True,
)
