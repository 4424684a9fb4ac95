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
from llmcalc.frameworks.registry import NAMES
from llmcalc.frameworks.registry import framework as framework_named
from llmcalc.parallel.layout_request import LayoutRequest
from llmcalc.parallel.search import search_layouts

MODELS = ("qwen3-0.6b", "llama3-8b", "gpt2-xl", "mixtral-8x7b", "olmoe-1b-7b", "deepseek-v2-lite", "llama3.1-405b")

LENGTHS = (512, 2048, 8192)

DEVICES = 16


class Error(NamedTuple):
    """The error of one layout. walked, replayed: bytes of its worst rank."""

    framework: str
    model: str
    seq: int
    options: str
    walked: int
    replayed: int

    @property
    def share(self) -> float:
        """What the replay has more, as a share of what the walk says."""
        return self.replayed / self.walked - 1


def errors(framework: str, model: str, seq: int, most: int, devices: int = DEVICES) -> Iterator[Error]:
    """The errors of up to `most` layouts of a model, drawn at random with a fixed seed."""
    spec = load(model).model
    one = memory(spec, Settings("training", seq=seq))
    layouts = search_layouts(
        spec, devices, 4 * devices, 1, seq, framework_named(framework).layout_rules, LayoutRequest(devices=devices)
    ).possible_layouts
    walk = framework_named(framework).estimate(one)
    for layout, batches in random.Random(1).sample(layouts, min(most, len(layouts))):
        try:
            walked = walk.largest_rank(layout, batches)[0]
            cluster = Cluster.with_framework(one.with_changes(num_microbatches=batches), layout, framework)
            yield Error(framework, model, seq, layout.options(), walked, cluster.device_rank.device.device_bytes)
        except InputError:
            continue


def main() -> None:
    for framework in NAMES:
        found = [one for model in MODELS for seq in LENGTHS for one in errors(framework, model, seq, 6)]
        for error in (min(found, key=lambda one: one.share), max(found, key=lambda one: one.share)):
            print(f"{framework} of {len(found)}: {error.share:+.3f} {error.model} --seq {error.seq} {error.options}")


if __name__ == "__main__":
    main()
