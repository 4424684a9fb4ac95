"""Measures how much less a plan's walk over tensors says than a replay on the allocator, and how much more.

`python -m tests.studies.walk_errors` runs a grid of models, lengths and layouts under each framework, which takes
minutes, and prints the largest errors; the records of the frameworks state them with a margin (`estimate_errors`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from llmcalc import load
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.errors import InputError
from llmcalc.frameworks.ranks import Cluster
from llmcalc.frameworks.registry import FRAMEWORK_NAMES
from llmcalc.frameworks.registry import framework as framework_named
from llmcalc.parallel.layout_request import LayoutRequest
from llmcalc.parallel.layout_search import search_layouts

MODELS = ("qwen3-0.6b", "llama3-8b", "gpt2-xl", "mixtral-8x7b", "olmoe-1b-7b", "deepseek-v2-lite", "llama3.1-405b")

LENGTHS = (512, 2048, 8192)

DEVICES = 16


class Error(NamedTuple):
    """The error of one layout. walked, replayed: bytes of its worst rank. largest_stage_share: of its stages' ranks.

    largest_difference_share: of its stages' ranks, from the replay of the stage with the largest estimate and the
        difference of both estimates.
    """

    framework: str
    model: str
    seq: int
    options: str
    walked: int
    replayed: int
    largest_stage_share: float
    largest_difference_share: float

    @property
    def share(self) -> float:
        """What the replay has more, as a share of what the walk says."""
        return self.replayed / self.walked - 1


def errors(
    framework: str, model: str, seq: int, most: int, devices: int = DEVICES, pp: int | None = None
) -> Iterator[Error]:
    """The errors of up to `most` layouts of a model, drawn at random with a fixed seed. pp: stages; default any."""
    spec = load(model).model
    one = memory(spec, Settings("training", seq=seq))
    layouts = search_layouts(
        spec,
        devices,
        4 * devices,
        1,
        seq,
        framework_named(framework).layout_rules,
        LayoutRequest(devices=devices, pp=pp),
    ).possible_layouts
    walk = framework_named(framework).estimate(one)
    for layout, batches in random.Random(1).sample(layouts, min(most, len(layouts))):
        try:
            stage_peaks = walk.peaks_by_stage(layout, batches)
            cluster = Cluster.with_framework(one.with_changes(num_microbatches=batches), layout, framework)
            first_rank = layout.rank(pp=stage_peaks.index(max(stage_peaks)))
            excess_of_first = cluster.rank_memory(first_rank, one.cuda_runtime).device.device_bytes - max(stage_peaks)
            stage_excesses = [
                (
                    cluster.rank_memory(rank, one.cuda_runtime).device.device_bytes - stage_peaks[stage],
                    stage_peaks[stage],
                )
                for rank in cluster.ranks_that_may_need_most
                for stage in (layout.coordinates(rank).pp,)
            ]
            yield Error(
                framework,
                model,
                seq,
                layout.options(),
                max(stage_peaks),
                cluster.device_rank.device.device_bytes,
                max(excess / estimate for excess, estimate in stage_excesses),
                max((excess - excess_of_first) / estimate for excess, estimate in stage_excesses),
            )
        except InputError:
            continue


def main() -> None:
    for framework in FRAMEWORK_NAMES:
        grid_errors = [
            error
            for model in MODELS
            for seq in LENGTHS
            for pp in (None, 4)
            for error in errors(framework, model, seq, 4, pp=pp)
        ]
        for error in (min(grid_errors, key=lambda one: one.share), max(grid_errors, key=lambda one: one.share)):
            print(
                f"{framework} of {len(grid_errors)}: {error.share:+.3f} {error.model} --seq {error.seq} {error.options}"
            )
        error = max(grid_errors, key=lambda one: one.largest_stage_share)
        print(f"  of a stage: {error.largest_stage_share:+.3f} {error.model} --seq {error.seq} {error.options}")
        error = max(grid_errors, key=lambda one: one.largest_difference_share)
        print(
            f"  between stages: {error.largest_difference_share:+.3f} {error.model} --seq {error.seq} {error.options}"
        )


if __name__ == "__main__":
    main()
