"""Published runs of torchtitan: the bytes that torch's allocator reserved (`max_memory_reserved`).

What each of these runs does is in torchtitan's files of its date (`fsdp.training`). Compiled layers are an estimate.
"""

from __future__ import annotations

import json
import tomllib
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import llmcalc
from llmcalc.device_memory.cuda_runtime import CudaRuntime
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.training import TrainingConfig
from llmcalc.frameworks.fsdp2.rank_memory import fsdp_memory
from llmcalc.frameworks.fsdp2.settings import Float8Settings
from llmcalc.frameworks.fsdp2.torchtitan_file import read_torchtitan
from llmcalc.frameworks.fsdp2.training import FsdpSettings, torchtitan_config_and_settings
from llmcalc.frameworks.launch.launch_types import LaunchSource
from llmcalc.frameworks.launch.read_launch_file import read_launch
from llmcalc.frameworks.ranks import Cluster
from llmcalc.parallel.layout import Layout
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.workload.recompute import parse_recompute

DATA = Path(__file__).parents[2] / "data"
ROWS = DATA / "measured_training.json"
GIB = 2**30

EAGER = KernelChoices(attention="flash", multiprocessors=132)
COMPILED = KernelChoices(attention="flash", compiled=True, multiprocessors=132)


class Run(NamedTuple):
    """A published run of Llama 3 8B. version: torchtitan's date. reached: the error of segments, in %."""

    ranks: int
    batch: int
    seq: int
    recompute: str
    choices: KernelChoices
    version: date
    reached: float
    float8: bool = False


WINTER, SUMMER = date(2024, 12, 26), date(2025, 6, 11)

RUNS = {
    "torchtitan_202412/T1/FSDP/8192/{'fsdp': 8}": Run(8, 2, 8192, "selective-op", EAGER, WINTER, 0.5),
    "torchtitan_202412/T1/FSDP+compile+Float8/8192/{'fsdp': 8}": Run(
        8, 2, 8192, "selective-op", COMPILED, WINTER, 0.2, float8=True
    ),
    "torchtitan_202412/T3/FSDP+compile/8192/{'fsdp': 128}": Run(128, 2, 8192, "selective-op", COMPILED, WINTER, 0.6),
    "torchtitan_202412/T2/FSDP+CP+compile+Float8/32768/{'fsdp': 8, 'cp': 1}": Run(
        8, 1, 32768, "full", COMPILED, WINTER, 4.5, float8=True
    ),
    "torchtitan_h200/4nodes": Run(32, 2, 8192, "selective-op", COMPILED, SUMMER, 0.4, float8=True),
}


@cache
def rows() -> dict[str, Any]:
    return {row["id"]: row for row in json.loads(ROWS.read_text())["rows"]}


@pytest.mark.parametrize("name", RUNS)
def test_reserved_bytes(name: str) -> None:
    """The error with torch's default segments; with expandable ones it is printed beside it."""
    run, spec = RUNS[name], llmcalc.load("llama3-8b").model
    training, fsdp = torchtitan_config_and_settings(
        spec,
        TrainingConfig(
            batch=run.batch,
            seq=run.seq,
            has_master_weights=True,
            implementation="fused",
            recompute=parse_recompute(run.recompute),
            kernel_choices=run.choices,
        ),
        run.version,
    )
    fsdp = FsdpSettings(
        fsdp.dtype,
        fsdp.reduction_format,
        outer_groups=fsdp.outer_groups,
        float8=Float8Settings(gathers_float8=True) if run.float8 else None,
    )
    measured = rows()[name]["measured"]["peak_mem_gib"] * GIB
    errors = [
        100
        * (
            fsdp_memory(
                spec, training, Layout(dp=run.ranks, zero=3), 0, CudaRuntime(has_expandable_segments=grows), fsdp
            ).reserved_bytes
            / measured
            - 1
        )
        for grows in (False, True)
    ]
    print(f"{name}: segments {errors[0]:+.1f} %, expandable {errors[1]:+.1f} %")
    assert abs(errors[0]) <= run.reached


LAUNCHED = {
    "torchtitan_202412/T4/2D+compile+Float8/8192/{'fsdp': 32, 'tp': 8}": ("llama3_70b_2d_2024.toml", 256, 3.6),
}
"""A published run → the file of its job, its devices, and the error of segments, in %."""


@pytest.mark.parametrize("name", LAUNCHED)
def test_reserved_bytes_of_a_job(name: str) -> None:
    """The same from the job's file, as `llmcalc memory --launch` reads it."""
    file, devices, reached = LAUNCHED[name]
    launch = read_launch(DATA / "launches" / file, devices)
    assert launch.spec is not None
    one = memory(launch.spec, Settings(**{"phase": "training", **launch.settings}))
    cluster = Cluster.with_framework(one, launch.layout, launch.framework, framework_settings=launch.framework_settings)
    assert cluster.reserved_bytes_range is not None
    measured = rows()[name]["measured"]["peak_mem_gib"] * GIB
    errors = [100 * (bytes / measured - 1) for bytes in cluster.reserved_bytes_range]
    print(f"{name}: segments {errors[0]:+.1f} %, expandable {errors[1]:+.1f} %")
    assert cluster.device_rank.device.terms[0].status == "estimate"
    assert abs(errors[0]) <= reached


class Divided(NamedTuple):
    """A job with context parallelism or a pipeline: what it has other than the file of T4.

    reached: as of `Run`, of the first stage. last: the same of the last stage, 0 without a pipeline.
    """

    flavor: str
    devices: int
    batch: int
    seq: int
    tp: int
    cp: int
    pp: int
    reached: float
    last: float = 0.0


DIVIDED = {
    "torchtitan_202412/T2/FSDP+CP+compile+Float8/131072/{'fsdp': 2, 'cp': 4}": Divided(
        "8B", 8, 1, 131_072, 1, 4, 1, 4.4
    ),
    "torchtitan_202412/T5/1F1B+compile+Float8+AsyncTP/8192/{'fsdp': 8, 'tp': 8, 'pp': 8, 'schedule': '1F1B'}": Divided(
        "405B", 512, 32, 8_192, 8, 1, 8, 8.7, 17.1
    ),
    "torchtitan_202412/T6/4D+compile+Float8+AsyncTP/32768/"
    "{'fsdp': 8, 'cp': 1, 'tp': 8, 'pp': 8, 'schedule': '1F1B'}": Divided("405B", 512, 8, 32_768, 8, 1, 8, 1.0, 7.9),
    "torchtitan_202412/T6/4D+compile+Float8+AsyncTP/131072/"
    "{'fsdp': 2, 'cp': 4, 'tp': 8, 'pp': 8, 'schedule': '1F1B'}": Divided("405B", 512, 8, 131_072, 8, 4, 8, 1.2, 9.6),
}
"""Their products in float8 are counted as those of bf16, without scratch, and the buffers of asynchronous tensor
parallelism, which lie outside of the allocator's segments, not at all.

The number of micro-batches, which the rows do not state, is torchtitan's default, as many as stages. So T5 has four
sequences of 8,192 tokens where T6 has one of 32,768. What four gather is copied, and of one is not: 3.3 GiB of the 7
between the rows.

The rows do not say whose memory they have: train.py prints it on every rank, and TensorBoard gets that of the first
rank of the last stage. The first stage holds the most, and agrees.
"""


@pytest.mark.parametrize("name", DIVIDED)
def test_reserved_bytes_of_ranks_of_a_sequence_and_of_a_pipeline(name: str) -> None:
    """Those of the first stage, which has the most micro-batches in flight, and of the last one, which are lower."""
    run = DIVIDED[name]
    data = tomllib.loads((DATA / "launches" / "llama3_70b_2d_2024.toml").read_text())
    data["model"]["flavor"] = run.flavor
    data["training"] |= {"batch_size": run.batch, "seq_len": run.seq, "tensor_parallel_degree": run.tp}
    data["experimental"] |= {
        "context_parallel_degree": run.cp,
        "pipeline_parallel_degree": run.pp,
        "enable_async_tensor_parallel": run.tp > 1,
    }
    launch = read_torchtitan(data, LaunchSource("a job", run.devices))
    assert launch.spec is not None
    one = memory(launch.spec, Settings(**{"phase": "training", **launch.settings}))
    cluster = Cluster.with_framework(one, launch.layout, launch.framework, framework_settings=launch.framework_settings)
    measured = rows()[name]["measured"]["peak_mem_gib"] * GIB
    for stage, reached in {0: run.reached, run.pp - 1: run.last or run.reached}.items():
        rank_memory = cluster.rank_memory(launch.layout.rank(pp=stage), one.cuda_runtime)
        error = 100 * (rank_memory.device.reserved_bytes / measured - 1)
        print(f"{name}, stage {stage}: segments {error:+.1f} %")
        assert abs(error) <= reached
