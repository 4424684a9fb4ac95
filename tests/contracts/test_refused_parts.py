"""Which parts of models each framework refuses, over an example of every part; all others have a stated witness."""

from __future__ import annotations

from functools import cache

import pytest

from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.errors import InputError
from llmcalc.frameworks.ranks import Cluster
from llmcalc.parallel.layout import Layout
from tests.contracts.test_parts import around_a_model
from tests.simulator.compare import examples

LAYOUTS = {
    "torch": Layout(dp=2),
    "fsdp2": Layout(dp=2, zero=3),
    "megatron": Layout(dp=2),
    "deepspeed": Layout(dp=2, zero=1),
}

ANSWERED_BY_MEGATRON = (
    "Attention", "Block", "Classifier", "FeedForward", "GatedDeltaNet", "LMHead", "LearnedPositions", "MLA", "Mamba2",
    "MoE", "MultiTokenPrediction", "Norm",
)  # fmt: skip

WITNESSED = {"exact", "source", "estimate"}


@cache
def parts() -> tuple[str, ...]:
    """The names of the parts, of each of which there is a first example."""
    return tuple(name.removesuffix("-0") for name in examples() if name.endswith("-0"))


@cache
def answer(part: str, framework: str) -> set[str] | str:
    """Returns the statuses of a training run's tensors, or the message with which the framework refuses the part."""
    spec = around_a_model(examples()[f"{part}-0"])
    try:
        cluster = Cluster.with_framework(
            memory(spec, Settings("training", seq=16, batch=1)), LAYOUTS[framework], framework
        )
        cluster.framework.check_run(cluster.memory, "")
        terms = cluster.device_rank.device.terms
    except InputError as error:
        return str(error)
    of_tensors = {"tensors", "weights", "gradients", "optimizer", "activations", "temporary"}
    return {term.status for term in terms if term.name in of_tensors}


def refused(framework: str) -> dict[str, str]:
    answers = {part: answer(part, framework) for part in parts()}
    return {part: message for part, message in answers.items() if isinstance(message, str)}


@pytest.mark.parametrize("framework", LAYOUTS)
def test_what_is_not_refused_has_a_witness(framework: str) -> None:
    answers = {part: statuses for part in parts() if not isinstance(statuses := answer(part, framework), str)}
    assert answers
    assert {part: statuses for part, statuses in answers.items() if not statuses or statuses - WITNESSED} == {}


@pytest.mark.parametrize("framework", ["torch", "deepspeed", "fsdp2"])
def test_all_but_megatron_have_every_part(framework: str) -> None:
    assert refused(framework) == {}


def test_megatron_refuses_each_part_that_it_does_not_have() -> None:
    messages = refused("megatron")
    assert sorted(set(parts()) - messages.keys()) == sorted(ANSWERED_BY_MEGATRON)
    assert all("--framework megatron" in message and "expected " in message for message in messages.values())


@pytest.mark.parametrize("ranks", [4, 8])
def test_megatron_refuses_ranks_of_a_sequence_that_do_not_divide_heads_of_mamba2(ranks: int) -> None:
    """The example has 4 heads: each of 4 ranks of a sequence has one, 8 ranks cannot (`MambaContextParallel`)."""
    settings = Settings("training", seq=64, batch=1)
    cluster = Cluster.with_framework(
        memory(around_a_model(examples()["Mamba2-0"]), settings), Layout(cp=ranks), "megatron"
    )
    if ranks == 4:
        assert cluster.device_rank.device.device_bytes
    else:
        with pytest.raises(InputError, match=rf"--cp {ranks}: its ranks do not divide a rank's \d+ heads and "):
            cluster.device_rank.device  # noqa: B018
