"""What a rank sends in a step, against FSDP2 on fake ranks, the orders of pipelines, and the claims of papers."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

from llmcalc.costs.params import total_params_of
from llmcalc.errors import InputError
from llmcalc.frameworks.registry import framework as framework_named
from llmcalc.model import ModelSpec
from llmcalc.optional import ALL_PART_NAMES
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.messages import Message, rank_messages
from llmcalc.parallel.schedules import pipeline, timetable
from llmcalc.sources.presets import load_preset
from llmcalc.workload.workload import Workload
from tests.contracts.test_parts import around_a_model
from tests.parallel.fake_ranks import Collectives, fake_rank
from tests.parallel.test_placements import BATCH, HIDDEN, LLAMA, SEQ, VOCAB, plan
from tests.parallel.test_rank_contract import EXAMPLES


def communication(
    spec: ModelSpec,
    layout: Layout,
    workload: Workload,
    micro_batches: int = 1,
    framework: str = "megatron",
    rank: int = 0,
    **more: Any,
) -> list[Message]:
    """The messages of a rank under a framework."""
    return rank_messages(
        spec, layout, workload, framework_named(framework).gradient_rules(), micro_batches, rank, **more
    )


MICRO_BATCH = Workload(batch=BATCH, seq=SEQ)


def sent_by_fsdp(layout: Layout, micro_batches: int) -> Collectives:
    """What the first rank sends in forward and backward passes under FSDP2, over tensor parallelism if there is any."""
    groups = ("replicas", "dp") if layout.hsdp_replicas > 1 else ("dp",)
    sizes = (layout.hsdp_replicas, layout.shard_count) if layout.hsdp_replicas > 1 else (layout.dp,)
    formats = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with fake_rank(0, layout.world_size):
        mesh = init_device_mesh("cpu", (*sizes, layout.tp), mesh_dim_names=(*groups, "tp"))
        model = LLAMA.reference()
        if layout.tp > 1:
            parallelize_module(model, mesh["tp"], plan(layout.sequence_parallel, once=True))
        over = mesh[groups] if len(groups) > 1 else mesh["dp"]
        for layer in model.layers:
            fully_shard(layer, mesh=over, mp_policy=formats, reshard_after_forward=layout.reshard)
        fully_shard(model, mesh=over, mp_policy=formats)
        ids = torch.randint(0, VOCAB, (BATCH, SEQ))
        with Collectives() as seen, loss_parallel() if layout.tp > 1 else nullcontext():
            for _ in range(micro_batches):
                nn.functional.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten()).backward()
    return seen


@pytest.mark.parametrize(
    "layout",
    [
        Layout(dp=4, zero=3),
        Layout(dp=5, zero=3),  # divides no tensor: parts are rounded up
        Layout(dp=4, zero=3, reshard=False),
        Layout(dp=4, zero=3, hsdp_replicas=2),
        Layout(tp=4, dp=2, zero=3),
        Layout(tp=4, dp=2, zero=3, sequence_parallel=True),  # gradients of norms are summed over tokens of four ranks
    ],
    ids=Layout.options,
)
def test_a_step_sends_what_fsdp2_sends(layout: Layout) -> None:
    """Every collective of two micro-batches: kinds, bytes and how often."""
    seen: Counter[tuple[str, int]] = Counter()
    for (_, kind, size), number in sent_by_fsdp(layout, 2).seen.items():
        seen[kind, size] += number
    message_counts: Counter[tuple[str, int]] = Counter()
    for message in communication(LLAMA, layout, MICRO_BATCH, 2, "fsdp2"):
        message_counts[message.collective_kind, message.bytes] += message.count
    assert message_counts == seen


def test_fsdp2_gathers_each_layer_twice_and_the_root_once() -> None:
    """2L + 1 gatherings and L + 1 sums of a layer's or the root's weights, for each micro-batch."""
    messages = communication(
        load_preset("llama3-8b").model, Layout(dp=8, zero=3), Workload(batch=1, seq=8192), 1, "fsdp2"
    )
    counts = {
        kind: sum(message.count for message in messages if message.collective_kind == kind)
        for kind in ("all_gather", "reduce_scatter")
    }
    assert counts == {"all_gather": 2 * 32 + 1, "reduce_scatter": 32 + 1}


# --- claims of papers -------------------------------------------------------------------------------------------------


def data(spec: ModelSpec, zero: int, framework: str = "deepspeed") -> int:
    """Bytes that a rank sends for gradients and weights in a step of one micro-batch."""
    messages = communication(spec, Layout(dp=4, zero=zero), MICRO_BATCH, 1, framework)  # type: ignore[arg-type]
    return sum(message.wire_bytes * message.count for message in messages if message.process_group == "dp")


def test_zero_sends_what_its_paper_says() -> None:
    """Rajbhandari 2019, §7: stage 3 sends 3Ψ elements, and plain data parallelism 2Ψ.

    In the paper stages 1 and 2 send 2Ψ. DeepSpeed all-reduces in them where the paper scatters sums (reference in
    frameworks/deepspeed/messages.py), and so sends 3Ψ.
    """
    plain = data(LLAMA, 0)
    elements = LLAMA.tree().total(total_params_of)
    assert plain == 2 * elements * 2 * 3 // 4  # as bfloat16; of a ring of 4, three parts in four
    assert [data(LLAMA, zero) for zero in (1, 2, 3)] == [plain * 3 // 2] * 3


def test_megatron_sums_gradients_as_float32_once_in_a_step() -> None:
    """Its distributed optimizer sends half as many bytes of weights, which are bfloat16, as of gradients."""
    spec, workload = load_preset("llama3-8b").model, Workload(batch=1, seq=8192)
    elements = spec.tree().total(total_params_of)
    messages = communication(spec, Layout(dp=8, zero=1), workload, 16)
    assert [message[:5] for message in messages] == [
        ("dp", 8, "reduce_scatter", 4 * elements, 1),
        ("dp", 8, "all_gather", 2 * elements, 1),
    ]
    assert [message[:5] for message in communication(spec, Layout(dp=8), workload, 16)] == [
        ("dp", 8, "all_reduce", 4 * elements, 1)
    ]


def test_experts_are_summed_over_the_ranks_that_hold_the_same() -> None:
    """DeepSeek-V3 on 64 ranks, 32 of which hold different experts: two hold the same ones."""
    spec = load_preset("deepseek-v3").model
    messages = communication(spec, Layout(dp=64, ep=32, zero=1), Workload(batch=1, seq=4096), 1)
    (experts,) = [
        message
        for message in messages
        if message.process_group == "expert dp" and message.collective_kind == "reduce_scatter"
    ]
    assert experts.ranks == 2
    assert experts.bytes == 4 * 58 * (256 // 32) * 3 * 7168 * 2048
    (rest,) = [
        message for message in messages if message.process_group == "dp" and message.collective_kind == "reduce_scatter"
    ]
    assert rest.ranks == 64
    assert rest.bytes + 32 * experts.bytes == 4 * spec.tree().total(total_params_of)
    (sent,) = [message for message in messages if message.process_group == "ep"]
    assert sent[:4] == ("ep", 32, "all_to_all", 4096 * 8 * 7168 * 2)
    assert sent.count == 58 * 4  # there and back, in both passes


def sends(layout: Layout, batches: int, rank: int) -> int:
    messages = communication(LLAMA_OF_8, layout, MICRO_BATCH, batches, rank=rank)
    return sum(message.count for message in messages if message.process_group == "pp")


LLAMA_OF_8 = LLAMA.model_copy(update={"decoder": LLAMA.main.model_copy(update={"num_hidden_layers": 8})})


@pytest.mark.parametrize(
    "layout",
    [Layout(pp=4), Layout(pp=4, vpp=2, schedule="interleaved"), Layout(pp=4, schedule="zb-h1"),
     Layout(pp=4, schedule="dualpipe")],
    ids=Layout.options,
)  # fmt: skip
def test_stages_send_as_often_as_their_schedule_says(layout: Layout) -> None:
    """Outputs and gradients of every rank, counted along the orders of the schedule."""
    table = timetable(pipeline(layout, 8))
    expected = [a + b for a, b in zip(table.outputs_sent, table.gradients_sent, strict=True)]
    assert [sends(layout, 8, rank) for rank in range(4)] == expected


def test_interleaving_sends_more() -> None:
    """Narayanan 2021, §2.2.2: with v chunks a rank, a pipeline sends v times as much, but for its ends."""
    plain, two = Layout(pp=4), Layout(pp=4, vpp=2, schedule="interleaved")
    assert sum(sends(plain, 8, rank) for rank in range(4)) == 2 * 8 * (4 - 1)
    assert sum(sends(two, 8, rank) for rank in range(4)) == 2 * 8 * (4 * 2 - 1)


def test_a_stage_sends_its_part_of_the_tokens() -> None:
    """With sequence parallelism each rank of a tensor group sends its own tokens (Korthikanti 2022, §4.2.3)."""
    for layout, parts in ((Layout(pp=2, tp=4), 1), (Layout(pp=2, tp=4, sequence_parallel=True), 4)):
        (message,) = [
            message for message in communication(LLAMA, layout, MICRO_BATCH, 3) if message.process_group == "pp"
        ]
        assert message == Message("pp", 2, "send", BATCH * SEQ * HIDDEN * 2 // parts, 3)


def test_tied_heads_sum_the_gradient_of_the_embedding_over_both_ends() -> None:
    spec = LLAMA_OF_8.model_copy(update={"tie_word_embeddings": True})
    layout = Layout(pp=4, tp=2)
    messages_by_rank = [communication(spec, layout, MICRO_BATCH, rank=layout.rank(pp=pp)) for pp in range(4)]
    embedding_messages = [
        [message for message in messages if message.process_group == "embedding"] for messages in messages_by_rank
    ]
    expected_messages = [Message("embedding", 2, "all_reduce", VOCAB // 2 * HIDDEN * 4, 1)]
    assert embedding_messages == [expected_messages, [], [], expected_messages]
    assert not [
        message for message in communication(LLAMA_OF_8, layout, MICRO_BATCH) if message.process_group == "embedding"
    ]


def test_ranks_of_a_sequence_hold_the_same_weights() -> None:
    """Their gradients are summed with those of the batch's ranks; each passes half of the tokens on."""
    messages = communication(LLAMA, Layout(cp=2, dp=2, tp=2), MICRO_BATCH)
    assert {message.ranks for message in messages if message.process_group == "dp"} == {4}
    assert {message.bytes for message in messages if message.process_group == "tp"} == {
        BATCH * SEQ // 2 * HIDDEN * 2,
        BATCH * SEQ // 2 * 4,
    }


@pytest.mark.parametrize(
    ("layout", "framework", "text"),
    [
        (
            Layout(dp=2, zero=2),
            "megatron",
            "--zero 2: is not modelled of --framework megatron; expected none or --zero 1",
        ),
        (Layout(dp=2, zero=1), "torch", "--zero 1: is not modelled of --framework torch; expected none"),
        (Layout(dp=2, zero=1), "fsdp2", "--zero 1: .* expected none or --zero 2 or --zero 3"),
        (Layout(cp=3), "megatron", "--cp 3: does not divide --seq 8; expected a divisor"),
    ],
)
def test_what_is_not_modelled_is_refused(layout: Layout, framework: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        communication(LLAMA, layout, MICRO_BATCH, 1, framework)


@pytest.mark.parametrize(
    ("layout", "framework"),
    [
        (Layout(tp=2, dp=2, ep=2, etp=1, zero=1, sequence_parallel=True), "megatron"),
        (Layout(pp=2, cp=2, pp_layout=(1, 1)), "torch"),
        (Layout(dp=4, ep=2, zero=3), "fsdp2"),
        (Layout(dp=4, zero=3), "deepspeed"),
    ],
)
def test_every_part_is_counted_or_refused(layout: Layout, framework: str) -> None:
    """No message is of nothing or of no other rank; what is not modelled says which option to change."""
    counted, refused = 0, list[str]()
    for example in EXAMPLES.values():
        spec = around_a_model(example)
        rank_layout = layout if spec.routed_experts else replace(layout, ep=1)
        try:
            messages = communication(
                spec, rank_layout, Workload(batch=2, seq=24), 4, framework, extra_parts=ALL_PART_NAMES
            )
        except InputError as error:
            refused.append(str(error))
            continue
        assert all(
            isinstance(message.bytes * message.count, int) and message.bytes * message.count > 0 < message.ranks - 1
            for message in messages
        )
        counted += 1
    assert counted > len(EXAMPLES) / 2
    assert [text for text in refused if not text.startswith("--") or "; expected " not in text] == []
