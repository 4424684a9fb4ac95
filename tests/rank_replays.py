"""Replays all passes of two training steps of a rank, as the oracle of replays from recorded passes."""

from __future__ import annotations

from llmcalc.device_memory.training import TrainingConfig, replay_steps
from llmcalc.frameworks.fsdp2.pipeline import NEWEST_SETTINGS, FsdpPipelineRun, FsdpRankSetup, ScheduleSettings
from llmcalc.frameworks.torch.pipeline import RankRun, RankSetup
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.simulator.meter import MemoryAllocator, Meter
from llmcalc.simulator.replay_result import ReplayResult


def replay_rank(
    spec: ModelSpec,
    training: TrainingConfig,
    layout: Layout,
    rank: int,
    device: MemoryAllocator | None = None,
    workspace: int = 0,
) -> ReplayResult:
    """The set-up and two training steps of a rank in plain PyTorch. device: the simulated device."""
    meter = Meter(device)
    return replay_steps(RankRun(RankSetup(spec, training, layout, rank, workspace), meter), meter)


def replay_sharded_rank(
    spec: ModelSpec,
    training: TrainingConfig,
    layout: Layout,
    rank: int,
    device: MemoryAllocator | None = None,
    workspace: int = 0,
    schedule_settings: ScheduleSettings = NEWEST_SETTINGS,
) -> ReplayResult:
    """The set-up and two training steps of a rank under FSDP2. device: the simulated device."""
    meter = Meter(device)
    setup = FsdpRankSetup(spec, training, layout, rank, workspace, schedule_settings=schedule_settings)
    return replay_steps(FsdpPipelineRun(setup, meter), meter)
