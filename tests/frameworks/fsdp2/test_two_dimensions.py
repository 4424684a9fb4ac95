"""FSDP2 with torchtitan's tensor and sequence parallelism: what FSDPMemTracker and CommDebugMode see on a fake process
group of two dimensions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

import llmcalc
from llmcalc.device_memory.cuda_runtime import CudaRuntime
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.training import TrainingConfig, TrainingRun
from llmcalc.errors import InputError
from llmcalc.frameworks.fsdp2.rank_memory import fsdp_memory, step_collectives_of_rank
from llmcalc.frameworks.fsdp2.settings import Float8Settings
from llmcalc.frameworks.fsdp2.training import (
    GATHERS_IN_PLACE_SINCE,
    TORCHTITAN_FSDP_SETTINGS,
    FsdpRun,
    FsdpSettings,
    sharding_of_rank,
    torchtitan_config_and_settings,
)
from llmcalc.frameworks.fsdp2.with_tensor_parallel import FsdpTensorParallelProfile
from llmcalc.frameworks.ranks import Cluster
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.placements import PlacementTracker
from llmcalc.parallel.rank_program import rank_program
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.meter import Meter
from llmcalc.simulator.profiles.dtensor import DTensorKernels
from llmcalc.workload.recompute import parse_recompute
from tests.comparisons import compares, under
from tests.frameworks.fsdp2.fully_sharded import Tracker, differences, replayed, steps_of
from tests.frameworks.fsdp2.test_fsdp2 import Counts
from tests.frameworks.fsdp2.two_dimensional import KINDS, Parts, Sent, by_torch
from tests.samples import with_rest

SIZES = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
    "intermediate_size": 48, "vocab_size": 90,
}  # fmt: skip
"""Of small models, whose vocabulary four ranks do not divide evenly, and whose projections three shards do not."""

MODELS: dict[str, ModelSpec] = {
    name: llmcalc.load(name, **SIZES).model for name in ("llama3-8b", "qwen3-8b", "qwen2.5-7b", "gemma2-9b")
} | {"llama3-8b with o_bias": llmcalc.load("llama3-8b", **SIZES, o_bias=True).model}
"""qwen3 has norms of heads, qwen2.5 biases; gemma2 has norms of what modules give, and its head is its embedding."""


@dataclass(frozen=True)
class Case:
    """A run of two ranks of tensors on two shards, but for these. more: of the training. layout: of the layout."""

    name: str
    model: str = "llama3-8b"
    rank: int = 0
    recompute: str = "none"
    layout: dict[str, Any] = field(default_factory=dict)
    fsdp: FsdpSettings = TORCHTITAN_FSDP_SETTINGS
    more: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def how(self) -> TrainingConfig:
        usual: dict[str, Any] = {"batch": 2, "seq": 8, "kernel_choices": KernelChoices()}
        return TrainingConfig(recompute=parse_recompute(self.recompute), **usual | self.more)

    @property
    def laid(self) -> Layout:
        return Layout(**{"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True} | self.layout)


EAGER_LAST = FsdpSettings(reduces_each_microbatch=False)

CASES = [
    Case("four ranks of tensors, three shards", rank=7, layout={"tp": 4, "dp": 3}),
    Case("one sequence, every layer again", recompute="full", rank=1, layout={"tp": 4}, more={"batch": 1}),
    Case("products kept by turns", recompute="selective-op", fsdp=FsdpSettings("bfloat16", "bfloat16")),
    Case("biases, shards in replicas", "qwen2.5-7b", 5, layout={"dp": 4, "hsdp_replicas": 2}, recompute="every:2"),
    Case(
        "whole logits of parts that differ",
        rank=3,
        layout={"tp": 4, "reshard": False},
        fsdp=FsdpSettings(uses_loss_parallel=False),
    ),
    Case("norms of heads", "qwen3-8b", 2, "full", {"tp": 4}, more={"implementation": "fused"}),
    Case("a bias beside a sum over ranks", "llama3-8b with o_bias", recompute="full", layout={"tp": 4}),
    Case("norms after modules, a tied head", "gemma2-9b", 3, more={"batch": 3, "seq": 4}),
]


SLOW = (
    *("biases, shards in replicas", "norms of heads, every layer again", "embedding and head apart"),
    *("one sequence, every layer again", "whole logits of parts that differ", "norms of heads"),
    "products kept by turns",
)
"""Cases with much that others have; biases, and shards in replicas, are in test_fsdp2.py too. Products that are kept by
turns are in what a step of whole logits sends, where all bytes are compared too.
"""


def by_name(cases: list[Case]) -> list[ParameterSet]:
    names = {case.name: case for case in cases}
    return with_rest(names, names.keys() - {*SLOW})


@compares(lambda case: under("fsdp2", MODELS[case.model], case.how.optimizer))
@pytest.mark.parametrize("case", by_name(CASES))
def test_a_rank_holds_what_the_tracker_sees(case: Case) -> None:
    spec = MODELS[case.model]
    seen = by_torch(spec, case.how, case.laid, case.rank, case.fsdp, Tracker)
    assert len(seen.snapshots) > 20
    assert differences(replayed(spec, case.how, case.laid, case.rank, case.fsdp), seen) == {}


SENDS = [
    Case(
        "embedding and head apart",
        rank=1,
        fsdp=FsdpSettings(outer_groups="separate"),
        layout={"dp": 4, "hsdp_replicas": 2},
    ),
    Case("norms of heads, every layer again", "qwen3-8b", 0, "full", {"tp": 4}, more={"microbatches": 2}),
    Case("one sum of three micro-batches", fsdp=EAGER_LAST, more={"microbatches": 3}),
    Case("whole logits", recompute="selective-op", fsdp=FsdpSettings(uses_loss_parallel=False)),
    Case("a bias beside a sum", "llama3-8b with o_bias", 1),
]


@pytest.mark.parametrize("case", by_name(SENDS))
def test_what_a_step_sends(case: Case) -> None:
    """CommDebugMode counts the operations; their tensors have the bytes. Without hooks of a tracker."""
    spec, sent, counted = MODELS[case.model], Sent(), Counts()
    with counted:
        seen = by_torch(spec, case.how, case.laid, case.rank, case.fsdp, Parts, sent)
    assert differences(replayed(spec, case.how, case.laid, case.rank, case.fsdp), seen) == {}
    steps = len({one.step for one in seen.bytes}) - 1
    expected: Counter[tuple[str, int]] = Counter()
    for one in step_collectives_of_rank(spec, case.how, case.laid, case.rank, case.fsdp):
        expected[one.collective_kind, one.bytes] += steps * one.repetitions
    assert sent.found == expected
    found: Counter[str] = Counter()
    for op, times in counted.get_comm_counts().items():
        found[KINDS[op.__name__]] += times
    assert found == Counter({kind: sum(n for (of, _), n in expected.items() if of == kind) for kind in found})


class DividedRun(TrainingRun):
    profile = DTensorKernels


@pytest.mark.parametrize("recompute", ["none", "selective-op"])
def test_products_divided_without_shards(recompute: str) -> None:
    """What distributed tensors allocate by themselves: `--framework torch`."""
    spec, layout = MODELS["llama3-8b"], Layout(tp=2, sequence_parallel=True)
    training = TrainingConfig(batch=2, seq=8, dtype="float32", recompute=parse_recompute(recompute))
    run = DividedRun(spec, training, memory_meter=Meter(), program=rank_program(spec, layout, 1))
    assert differences(steps_of(run, training), by_torch(spec, training, layout, 1, watch=Parts)) == {}


RECURRENCES = ["nemotron-h-8b", "falcon-mamba-7b", "xlstm-7b", "olmo-hybrid-7b"]


@pytest.mark.parametrize("by_tokens", [False, True], ids=["whole tokens", "divided tokens"])
@pytest.mark.parametrize("name", RECURRENCES)
def test_published_recurrences_get_and_give_what_placements_say(name: str, by_tokens: bool) -> None:
    """Their kernels run at once, where each value of the program has a place."""
    spec, layout = llmcalc.load(name).model, Layout(tp=2, sequence_parallel=by_tokens)
    program = rank_program(spec, layout, 1)
    run = DividedRun(spec, TrainingConfig(batch=1, seq=64), memory_meter=Meter(), program=program)
    run.set_up()
    run.step()
    sent, expected = Counter[bool](), Counter[bool]()
    for _, one in run.lowering.messages:  # type: ignore[attr-defined]
        if "layers" in one.node_path:
            sent[one.is_backward] += one.wire_bytes
    for one in PlacementTracker(layout, run.lowering.run_config).run_program(program):
        if (
            "layers" in one.node_path and "norm" not in one.node_path and one.repetitions != 1
        ):  # once: what the embedding gives
            expected[one.is_backward] += one.wire_bytes * one.repetitions
    assert sent == expected


class Sizes(Meter):
    """Counts storages by their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.made: Counter[Any] = Counter()

    def allocate(self, size: Any) -> Any:
        self.made[size] += 1
        return super().allocate(size)


def test_gradients_of_distributed_tensors_are_never_added_in_place() -> None:
    """As torch's engine has it (input_buffer.cpp, `can_accumulate_inplace`): of what a module's products read. No
    dispatch mode sees that, as under one none is added in place.
    """
    spec, layout = MODELS["llama3-8b"], Layout(tp=2, sequence_parallel=True)
    training = TrainingConfig(batch=2, seq=8, dtype="float32")
    made = []
    for adds_in_place in (False, True):
        run = DividedRun(spec, training, memory_meter=Sizes(), program=rank_program(spec, layout, 0))
        run.graph.adds_in_place = adds_in_place
        run.set_up()
        run.step()
        assert isinstance(run.meter, Sizes)
        made.append(run.meter.made)
    gathered, own = 4 * 2 * 8 * 32, 4 * 2 * 4 * 32  # all tokens, and those of this rank
    assert made[0][gathered] == made[1][gathered]
    assert made[0][own] > made[1][own]  # between the modules tensors are plain


@pytest.mark.parametrize(("batch", "overlaps", "copies", "sums"), [(1, False, 10, 0), (1, True, 2, 4), (2, True, 0, 4)])
def test_copies_of_what_is_gathered(batch: int, overlaps: bool, copies: int, sums: int) -> None:
    """Older torch copied gathered tokens of one sequence too: what the four modules of two layers and the head read,
    and the gradients of the four sums and the embedding. If compiled products send for themselves, those of layers
    are not copied, and the four sums have no copy of the products; the rest is eager.
    """
    spec, layout = MODELS["llama3-8b"], Layout(tp=2, dp=2, zero=3, sequence_parallel=True)
    training = TrainingConfig(batch=batch, seq=16, kernel_choices=KernelChoices(attention="flash", compiled=True))
    size, made = 2 * batch * 16 * 32, []
    for fsdp in (
        TORCHTITAN_FSDP_SETTINGS,
        FsdpSettings(overlaps_products=overlaps),
        FsdpSettings(overlaps_products=overlaps, copies_gathered_tokens=True),
    ):
        program = rank_program(spec, layout, 0)
        run = FsdpRun(
            spec, training, sharding_of_rank(training, layout, 0, fsdp), fsdp, memory_meter=Sizes(), program=program
        )
        run.set_up()
        run.replace_batch()
        run.forward_and_backward()
        assert isinstance(run.meter, Sizes)
        made.append(run.meter.made[size])
    assert made[0] - made[1] == sums
    assert made[2] - made[1] == copies


def test_gathered_tokens_are_copied_before_a_date() -> None:
    spec, training = MODELS["llama3-8b"], TrainingConfig(batch=1, seq=16)
    assert torchtitan_config_and_settings(spec, training, GATHERS_IN_PLACE_SINCE - timedelta(days=1))[
        1
    ].copies_gathered_tokens
    assert not torchtitan_config_and_settings(spec, training, GATHERS_IN_PLACE_SINCE)[1].copies_gathered_tokens
    assert not torchtitan_config_and_settings(spec, training)[1].copies_gathered_tokens


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_few_layers_stand_for_all(recompute: str) -> None:
    spec = llmcalc.load("llama3-8b", **SIZES | {"num_hidden_layers": 12}).model
    training, layout = TrainingConfig(batch=2, seq=8, recompute=parse_recompute(recompute)), CASES[0].laid
    run = FsdpRun(spec, training, sharding_of_rank(training, layout, 1), program=rank_program(spec, layout, 1))
    run.set_up()
    run.step()
    run.meter.peaks = {}
    run.step()
    found = fsdp_memory(spec, training, layout, 1, CudaRuntime(0, 0))
    assert found.exact_bytes == max(peak.bytes for peak in run.meter.peaks.values())
    assert found.terms[0].status == "exact"


def test_what_float8_gathers() -> None:
    """Tokens of a module's products, and the gradients of its sums, in one byte; those of the head and the embedding
    as they are. Norms' gradients and the loss are as before.
    """
    spec = llmcalc.load("llama3-8b", num_hidden_layers=2).model
    training, layout = TrainingConfig(batch=1, seq=4096), Layout(tp=8, dp=2, zero=3, sequence_parallel=True)
    rows = 4096 * 4096
    for float8, narrow, wide in (
        (None, 0, 4 * 2 + 2),
        (Float8Settings(), 4 * 2, 2),
        (Float8Settings(recipe="rowwise"), 0, 10),
    ):
        gathers: Counter[int] = Counter()
        for one in step_collectives_of_rank(spec, training, layout, 0, FsdpSettings(float8=float8)):
            if one.process_group == "tp" and one.collective_kind == "all_gather":
                gathers[one.bytes] += one.repetitions
        assert gathers == Counter({size: n for size, n in ((rows, narrow), (2 * rows, wide)) if n})
    run = FsdpRun(
        spec,
        training,
        sharding_of_rank(training, layout, 0, FsdpSettings(float8=Float8Settings(True))),
        program=rank_program(spec, layout, 0),
    )
    run.set_up()
    assert isinstance(run.lowering, FsdpTensorParallelProfile)
    widths = {path[-1]: one.element_bytes for path, one in run.lowering.sharded.items()}
    assert widths["q_proj.weight"] == widths["down_proj.weight"] == 1
    assert widths["embed_tokens.weight"] == widths[".weight"] == 2


@pytest.mark.parametrize(
    ("model", "layout", "seq", "words"),
    [
        (
            "gpt2",
            Layout(tp=2, sequence_parallel=True),
            8,
            "embed_positions: the plan of torch.distributed has no rule for it",
        ),
        (
            "xglm-1.7b",
            Layout(tp=2, sequence_parallel=True),
            8,
            "embed_positions: the plan of torch.distributed has no rule for it",
        ),
        ("t5-small", Layout(tp=2, sequence_parallel=True), 8, "encoder.layers.self_attn.q_proj: of an encoder"),
        ("llama3-8b", Layout(tp=2, sequence_parallel=True), 9, "--tp 2 does not divide 9 tokens; expected a multiple"),
        (
            "llama3-8b",
            Layout(tp=16),
            8,
            "--tp 16: torch gives no part to several ranks, and num_key_value_heads is 8; expected a divisor",
        ),
        ("qwen3-30b-a3b", Layout(tp=2), 8, "--tp 2: experts divided by torch's own tensors are not modelled"),
    ],
)
def test_what_torch_has_no_plan_for(model: str, layout: Layout, seq: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fsdp_memory(llmcalc.load(model).model, TrainingConfig(batch=1, seq=seq), layout)


def test_ranks_of_a_cluster() -> None:
    """The last rank has the last rows of everything: of 90 words on 4 ranks 21, and 11 and 10 of those on 2 shards."""
    one = memory(MODELS["llama3-8b"], Settings("training", batch=2, seq=8))
    cluster = Cluster.with_framework(one, Layout(tp=4, dp=2, zero=3, sequence_parallel=True), "fsdp2", "2025-01-01")
    first, last = cluster.by_rank
    assert (first.rank, last.rank) == (0, 7)
    assert last.device.exact_bytes < first.device.exact_bytes
    assert cluster.messages is not None
    assert {each.process_group for each in cluster.messages} == {"dp", "tp"}
