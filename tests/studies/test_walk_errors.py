"""What a plan says of layouts that it does not replay: the walk's error stays within what is stated."""

from __future__ import annotations

import pytest

from llmcalc import load
from llmcalc.device_memory.cuda_runtime import CudaRuntime
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.frameworks.framework import EstimateErrors
from llmcalc.frameworks.ranks import Cluster, RankMemory
from llmcalc.frameworks.registry import FRAMEWORK_NAMES
from llmcalc.frameworks.registry import framework as framework_named
from llmcalc.parallel.layout import Layout
from llmcalc.studies.layout_candidates import LayoutRun
from llmcalc.studies.layout_replays import ReplayTask, replay_layout
from tests.samples import spread, with_rest
from tests.studies.walk_errors import errors

GRID = (
    ("qwen3-0.6b", 512, 16),
    ("mixtral-8x7b", 512, 64),  # eight experts, fewer than shards
    ("qwen3-0.6b", 2048, 16),
    ("llama3-8b", 512, 64),
    ("olmoe-1b-7b", 512, 64),  # 64 experts: not divided evenly by 128 shards
)

SAMPLE = ("mixtral-8x7b-512-64-megatron", "mixtral-8x7b-512-64-deepspeed", "qwen3-0.6b-512-16-fsdp2")
"""The model of experts where ranks divide them and where they divide states, a dense one where they divide all."""


CASES = {
    f"{model}-{seq}-{devices}-{framework}": (model, seq, devices, framework)
    for model, seq, devices in GRID
    for framework in FRAMEWORK_NAMES
}


@pytest.mark.parametrize(("model", "seq", "devices", "framework"), spread(with_rest(CASES, SAMPLE)))
def test_a_replay_needs_what_is_stated(model: str, seq: int, devices: int, framework: str) -> None:
    stated = framework_named(framework).estimate_errors
    for error in errors(framework, model, seq, 2, devices):
        assert -stated.relative_error_below <= error.share <= stated.relative_error_above, error


@pytest.mark.parametrize(
    "framework", with_rest({name: name for name in FRAMEWORK_NAMES if name != "deepspeed"}, ("megatron",))
)
def test_a_rank_of_any_stage_needs_no_more_than_is_stated(framework: str) -> None:
    """A replay of a layout leaves out the ranks of stages whose estimate with this margin is below another rank's.

    By the replay of the stage with the largest estimate, a rank of another stage needs at most 0.13 of its estimate
    more than the difference of the estimates says, in 250 layouts of ten models of 0.6 to 671 billion parameters, dense
    and with experts, of 512, 2,048 and 8,192 tokens on 16 and 256 devices under Megatron-Core.
    """
    stated = framework_named(framework).estimate_errors
    model, devices = ("mixtral-8x7b", 256) if framework == "megatron" else ("qwen3-0.6b", 16)
    stage_errors = [*errors(framework, "qwen3-0.6b", 512, 2, pp=4), *errors(framework, model, 2048, 2, devices, pp=4)]
    assert stage_errors
    for error in stage_errors:
        assert error.largest_stage_share <= stated.relative_error_above, error
        assert error.largest_difference_share <= stated.relative_error_between_stages, error


def test_the_bound_of_a_stage_follows_from_the_replay_of_another() -> None:
    stated = EstimateErrors(relative_error_below=0.04, relative_error_above=1.0, relative_error_between_stages=0.25)
    assert stated.upper_bound_of_stage(40, 100, 110) == 40 + (110 - 100) + 10
    assert stated.upper_bound_of_stage(8, 100, 130) == 2 * 8  # small ones have the bound of their own estimate


@pytest.mark.parametrize(("micro_batches", "replayed_stages"), [(1, [3, 3]), (64, [0, 3, 3])])
def test_ranks_that_surely_need_less_are_not_replayed(
    monkeypatch: pytest.MonkeyPatch, micro_batches: int, replayed_stages: list[int]
) -> None:
    """With one micro-batch in flight the stage of the loss needs most, with several the first stage too."""
    replays: list[int] = []
    replay = Cluster._replay

    def counted(self: Cluster, rank: int, cuda_runtime: CudaRuntime) -> RankMemory:
        replays.append(self.layout.coordinates(rank).pp)
        return replay(self, rank, cuda_runtime)

    monkeypatch.setattr(Cluster, "_replay", counted)
    run = memory(load("qwen3-0.6b").model, Settings("training", seq=8192, num_microbatches=micro_batches))
    layout, megatron = Layout(pp=4, dp=2, zero=1), framework_named("megatron")
    peaks = tuple(megatron.estimate(run).peaks_by_stage(layout, micro_batches))
    cluster = Cluster.with_framework(run, layout, megatron)
    replay_layout(cluster, ReplayTask(LayoutRun(layout, micro_batches), peaks))
    assert replays == replayed_stages


@pytest.mark.parametrize("stage", [0, 3])
def test_with_one_round_of_micro_batches_one_stage_of_a_rank_has_whole_gradients(stage: int) -> None:
    """torch/distributed/pipelining/stage.py, `perform_reduce_grad`: after a stage's last micro-batch."""
    layout = Layout(pp=4, vpp=4, dp=16, zero=3, reshard=False, schedule="interleaved")
    run = memory(load("olmoe-1b-7b").model, Settings("training", seq=512, num_microbatches=4))
    walked = framework_named("fsdp2").estimate(run).peaks_by_stage(layout, 4)[stage]
    replayed = Cluster.with_framework(run, layout, "fsdp2").rank_memory(layout.rank(pp=stage), run.cuda_runtime).device
    assert walked == pytest.approx(replayed.peak_bytes + run.cuda_runtime.context_bytes, rel=0.1)


def test_one_of_three_dense_layers_is_walked_alone() -> None:
    """The first stage has one of DeepSeek-V3's three dense layers, and the next stage the other two."""
    run = memory(load("deepseek-v3").model, Settings("training", seq=2048, num_microbatches=16))
    layout = Layout(tp=2, pp=31, ep=64, etp=1, dp=32, sequence_parallel=True, zero=1, pp_layout=(1, *(2,) * 30))
    walked = framework_named("megatron").estimate(run).peaks_by_stage(layout, 16)[0]
    replayed = Cluster.with_framework(run, layout, "megatron").rank_memory(0, run.cuda_runtime).device.device_bytes
    assert replayed == pytest.approx(walked, rel=0.1)
