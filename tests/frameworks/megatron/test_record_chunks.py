"""Chunks that are recorded one by one have the passes that they have beside the other chunks of their rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmcalc import load
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.frameworks.megatron import record_chunks as module
from llmcalc.frameworks.megatron.kernels import Parameter
from llmcalc.frameworks.megatron.rank_memory import _depends_on_previous_pass
from llmcalc.frameworks.megatron.rank_run import RankRun
from llmcalc.frameworks.megatron.record_chunks import RecordedChunk, record_chunks, repeating_stacks
from llmcalc.frameworks.megatron.record_passes import record_passes
from llmcalc.frameworks.megatron.settings_from_options import megatron_settings_of
from llmcalc.parallel.layout import Layout
from llmcalc.simulator.event_log import EventRecorder
from llmcalc.simulator.pass_trace import PassTrace
from llmcalc.simulator.repeat_microbatches import place_in_later_layer

MIXTURE = "deepseek-v2-lite?num_hidden_layers=8"
DENSE = "qwen3-0.6b?num_hidden_layers=8"

CHUNKS = Layout(pp=2, vpp=2, schedule="interleaved", dp=2)
TENSOR = Layout(tp=2, pp=2, vpp=4, schedule="interleaved", dp=2, sequence_parallel=True)


@pytest.mark.parametrize("recompute", ["none", "full", "modules:moe"])
@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (DENSE, CHUNKS),
        (DENSE, TENSOR),
        (MIXTURE, Layout(**{**vars(CHUNKS), "ep": 2, "etp": 1})),
        (MIXTURE, Layout(**{**vars(TENSOR), "ep": 2, "etp": 1})),
        (MIXTURE, Layout(pp=8, ep=2, dp=2, etp=1)),
    ],
)
def test_a_chunk_alone_has_the_passes_that_it_has_in_its_rank(model: str, layout: Layout, recompute: str) -> None:
    check_recorded_chunks(model, layout, recompute)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("qwen3-0.6b?num_hidden_layers=20", CHUNKS),
        ("qwen3-0.6b?num_hidden_layers=24", replace(CHUNKS, pp_layout=(5, 6, 7, 6))),
        ("deepseek-v2-lite?num_hidden_layers=13", Layout(pp=2, pp_layout=(7, 6), dp=2, ep=2, etp=1)),
        ("nemotron-h-8b", Layout(pp=2, dp=2)),  # layers after the repeats are of other kinds than those in their place
    ],
)
def test_a_chunk_recorded_with_few_layers_has_the_passes_of_all(model: str, layout: Layout, recompute: str) -> None:
    for run in check_recorded_chunks(model, layout, recompute):
        assert all(repeating_stacks(run, chunk) for chunk in run.chunks)


def test_chunks_of_more_or_fewer_repeats_share_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_layers: list[int] = []
    record_chunk = module._record_chunk

    def count_recordings(run: RankRun, chunk_number: int, *args: Any) -> RecordedChunk:
        stage = run.chunks[chunk_number].stage
        recorded_layers.append(0 if stage is None else len(stage.layers))
        return record_chunk(run, chunk_number, *args)

    monkeypatch.setattr(module, "_record_chunk", count_recordings)
    check_recorded_chunks("qwen3-0.6b?num_hidden_layers=30", replace(CHUNKS, pp_layout=(6, 7, 9, 8)), "none")
    assert sorted(recorded_layers) in ([6, 7, 8], [6, 8, 9])  # the middle chunks, of 7 and of 9, are one


def check_recorded_chunks(model: str, layout: Layout, recompute: str) -> list[RankRun]:
    """Compares the chunks of each stage, recorded one by one, with those recorded together and in full."""
    runs = []
    run_memory = memory(load(model).model, Settings(phase="training", seq=128, recompute=recompute))
    settings = megatron_settings_of(run_memory.with_changes(num_microbatches=16), layout)
    for pp in range(layout.pp):
        rank, is_last_stage = layout.rank(pp=pp), pp == layout.pp - 1
        by_previous = _depends_on_previous_pass(settings)
        run = RankRun(run_memory.spec, settings, rank, recorder := EventRecorder())
        run.set_up()
        together = record_passes(run, recorder, is_last_stage, by_previous).traces()
        alone = record_chunks(run_memory.spec, settings, rank, is_last_stage, by_previous)
        assert alone is not None
        traces, chunks = alone
        assert len(chunks) == layout.vpp
        offsets = [
            chunk.lowering.first_layer_index - recorded.layers_before
            for chunk, recorded in zip(run.chunks, chunks, strict=True)
        ]
        assert {case: in_later_layers(trace, offsets[case[0]]) for case, trace in traces.items()} == together
        for chunk, recorded in zip(run.chunks, chunks, strict=True):
            assert list(map(description, recorded.parameters)) == list(map(description, chunk.parameters))
        runs.append(run)
    return runs


def description(parameter: Parameter) -> tuple[object, ...]:
    """What a parameter is, but for the number of its layer."""
    path = tuple(part for part in parameter.path if not isinstance(part, int))
    return path, parameter.tensor.shape, parameter.is_trained, *parameter[2:]


def in_later_layers(trace: PassTrace, layers: int) -> PassTrace:
    """The trace of a chunk with more layers before it."""
    return replace(
        trace,
        start_place=place_in_later_layer(trace.start_place, layers),
        end_place=place_in_later_layer(trace.end_place, layers),
        peaks_by_place=[(place_in_later_layer(place, layers), *rest) for place, *rest in trace.peaks_by_place],
    )
