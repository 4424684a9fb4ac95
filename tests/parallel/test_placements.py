"""What ranks of a layer send each other, against torch's tensor parallelism on a fake group: kinds, counts, bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from llmcalc.components.classifier import Classifier
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.mamba2 import Mamba2
from llmcalc.components.mixers.mla import MLA
from llmcalc.components.mixers.qk_norm import QKNorm
from llmcalc.components.mixers.rglru import RGLRU
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import MoE
from llmcalc.components.norm import Norm
from llmcalc.components.rope import Rope
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.placements import Collective, PlacementTracker
from llmcalc.parallel.rank_program import rank_program
from llmcalc.workload.recompute import SAVED_PRODUCTS, Recompute
from llmcalc.workload.run_config import RunConfig
from llmcalc.workload.workload import Workload
from tests.contracts.test_parts import NORM, around_a_model, decoder
from tests.parallel.fake_ranks import Collectives, fake_rank

TP, LAYERS, VOCAB, HIDDEN = 4, 2, 64, 24
BATCH, SEQ = 2, 8
SIGHT = RunConfig(Workload(batch=BATCH, seq=SEQ, phase="training"))
STREAM = BATCH * SEQ * HIDDEN * 4
"""Bytes of all tokens' vectors as float32."""

LLAMA = decoder(
    attention=Attention(num_attention_heads=8, num_key_value_heads=4, head_dim=6, position=Rope()),
    feed_forward=FeedForward(intermediate_size=40, hidden_act="silu", gated=True),
    vocab_size=VOCAB,
    final_norm=NORM,
)


def plan(sequence_parallel: bool, once: bool) -> dict[str, ParallelStyle]:
    """torch's plan for the reference.

    once: whether a module takes its input for all projections that read it; else each of them takes its own.
    """
    between = Shard(1) if sequence_parallel else Replicate()
    styles: dict[str, ParallelStyle] = {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    for i in range(LAYERS):
        for name, columns, row in (("self_attn", ("q_proj", "k_proj", "v_proj"), "o_proj"),
                                   ("mlp", ("gate_proj", "up_proj"), "down_proj")):  # fmt: skip
            at = f"layers.{i}.{name}"
            if once:
                whole = (Replicate(), None)
                styles[at] = PrepareModuleInput(input_layouts=(between, None), desired_input_layouts=whole)
            styles |= {f"{at}.{column}": ColwiseParallel() for column in columns}
            styles[f"{at}.{row}"] = RowwiseParallel(output_layouts=between)
            if sequence_parallel:
                styles[f"{at}_pre_norm"] = SequenceParallel(use_local_output=True)
    return {**styles, "norm": SequenceParallel(use_local_output=True)} if sequence_parallel else styles


def sent_by_torch(
    spec: ModelSpec, styles: dict[str, ParallelStyle], again: Callable[..., Any] | None = None
) -> Collectives:
    """What one rank of four sends in a forward pass, a loss over a divided vocabulary, and a backward pass.

    again: calls a layer so that it runs again in the backward pass; layers run once by default.
    """
    with fake_rank(0, TP):
        model = parallelize_module(spec.reference(), init_device_mesh("cpu", (TP,)), styles)
        for layer in model.layers if again is not None else ():
            layer.forward = partial(again, layer.forward, preserve_rng_state=False)
        ids = torch.randint(0, VOCAB, (BATCH, SEQ))
        with Collectives() as seen, loss_parallel():
            logits = model(ids)
            seen.phase = "loss"
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
            seen.phase = "backward"
            loss.backward()
    return seen


def counted(collectives: list[Collective]) -> Counter[tuple[str, str, int]]:
    """The same from placements."""
    found: Counter[tuple[str, str, int]] = Counter()
    for one in collectives:
        found["backward" if one.is_backward else "forward", one.collective_kind, one.bytes] += one.repetitions
    return found


def placed(spec: ModelSpec, layout: Layout, **how: Any) -> Counter[tuple[str, str, int]]:
    return counted(PlacementTracker(layout, SIGHT, 4, **how).run_program(rank_program(spec, layout)))


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_llama_sends_what_torch_sends(sequence_parallel: bool) -> None:
    """Two sums per layer and pass, one of the embedding, one of the head's input; three per token for the loss."""
    seen = sent_by_torch(LLAMA, plan(sequence_parallel, once=True)).seen
    assert seen.pop(("loss", "all_reduce", BATCH * SEQ * 4)) == 3
    assert seen == placed(LLAMA, Layout(tp=TP, sequence_parallel=sequence_parallel))
    n = 2 * LAYERS + 1
    kinds = ("all_gather", "reduce_scatter") if sequence_parallel else ("all_reduce",)
    assert seen == {(phase, kind, STREAM): n for phase in ("forward", "backward") for kind in kinds}


def test_a_plan_of_single_projections_sends_more_than_needed() -> None:
    """Without PrepareModuleInput, the gradient of the input of q, k and v is summed over ranks three times, and that of
    gate and up twice: 5 sums per layer where 2 do. Each ColwiseParallel makes a tensor of its own from its input, and
    sums its gradient, before autograd adds them up.
    """
    seen = sent_by_torch(LLAMA, plan(False, once=False)).seen
    needed = placed(LLAMA, Layout(tp=TP))
    assert seen["forward", "all_reduce", STREAM] == needed["forward", "all_reduce", STREAM] == 2 * LAYERS + 1
    assert seen["backward", "all_reduce", STREAM] == 5 * LAYERS + 1
    assert needed["backward", "all_reduce", STREAM] == 2 * LAYERS + 1


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_layers_that_run_again_send_again_what_torch_does(sequence_parallel: bool, reentrant: bool) -> None:
    """The newer form of checkpointing ends before the sum of each layer's last product; the older one runs all."""
    styles = plan(sequence_parallel, once=True)
    seen = sent_by_torch(LLAMA, styles, again=partial(checkpoint, use_reentrant=reentrant)).seen
    del seen["loss", "all_reduce", BATCH * SEQ * 4]
    how = Recompute(layers=True, reentrant=reentrant)
    assert seen == placed(LLAMA, Layout(tp=TP, sequence_parallel=sequence_parallel), recompute=how)
    kind = "reduce_scatter" if sequence_parallel else "all_reduce"
    assert seen["backward", kind, STREAM] == 2 * LAYERS + 1 + (2 if reentrant else 1) * LAYERS


def test_every_second_layer_that_runs_again_sends_again() -> None:
    once, twice = (placed(LLAMA, Layout(tp=TP), recompute=Recompute(layers=True, every=n)) for n in (1, 2))
    plain = placed(LLAMA, Layout(tp=TP))
    assert (once - plain).total() == 2 * (twice - plain).total() == LAYERS


def test_parts_of_layers_that_run_again_are_refused() -> None:
    for how in (
        Recompute(layers=True, saved_operations=SAVED_PRODUCTS),
        Recompute(nodes=frozenset({"self_attn"})),
    ):
        with pytest.raises(InputError, match="expected --recompute none or full"):
            placed(LLAMA, Layout(tp=TP), recompute=how)
    assert placed(LLAMA, Layout(tp=TP), recompute=Recompute(core=True)) == placed(LLAMA, Layout(tp=TP))


class SentToExperts(nn.Module):
    """Experts of four ranks: rows go to the ranks of their experts and back, each by one exchange.

    Every rank gets as many rows as it sends, as if all experts were chosen equally often.
    """

    def __init__(self, top_k: int) -> None:
        super().__init__()
        self.top_k, self.up, self.down = top_k, nn.Linear(HIDDEN, 16), nn.Linear(16, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1).repeat_interleave(self.top_k, 0)
        there = all_to_all_single_autograd(rows, None, None, dist.group.WORLD)
        back = all_to_all_single_autograd(self.down(self.up(there).relu()), None, None, dist.group.WORLD)
        return back.view(*x.shape[:-1], self.top_k, HIDDEN).sum(-2)


MIXTURE = MoE(num_experts=8, num_experts_per_tok=2, expert=FeedForward(intermediate_size=16, hidden_act="relu"))


def test_experts_send_what_torch_sends() -> None:
    """Rows go to their experts and back, in both passes: four exchanges per layer."""
    with fake_rank(0, 4):
        net = nn.Sequential(SentToExperts(2), SentToExperts(2))
        x = torch.randn(BATCH, SEQ, HIDDEN, requires_grad=True)
        with Collectives() as seen:
            out = net(x)
            seen.phase = "backward"
            out.sum().backward()
    assert seen.seen == placed(decoder(feed_forward=MIXTURE), Layout(dp=4, ep=4))
    assert seen.seen == {(phase, "all_to_all", 2 * STREAM): 2 * LAYERS for phase in ("forward", "backward")}


# --- claims of papers -------------------------------------------------------------------------------------------------


def per_layer(spec: ModelSpec, layout: Layout, **how: Any) -> Counter[tuple[str, str]]:
    """(kind, phase) → how often in one layer."""
    found: Counter[tuple[str, str]] = Counter()
    for one in PlacementTracker(layout, SIGHT, 4, **how).run_program(rank_program(spec, layout)):
        if one.node_path.startswith("layers"):
            found[one.collective_kind, "backward" if one.is_backward else "forward"] += one.repetitions
    return Counter({key: n // LAYERS for key, n in found.items()})


def test_megatron_sums_four_times_per_layer() -> None:
    """Shoeybi 2019, §3: "only two all-reduce operations in the forward path and two in the backward path" per layer."""
    assert per_layer(LLAMA, Layout(tp=4)) == {("all_reduce", "forward"): 2, ("all_reduce", "backward"): 2}


def test_sequence_parallelism_sends_as_many_bytes() -> None:
    """Korthikanti 2022, §4.2.2: an all-reduce in a ring is a reduce-scatter and an all-gather."""
    whole, rows = (
        PlacementTracker(layout, SIGHT).run_program(rank_program(LLAMA, layout))
        for layout in (Layout(tp=4), Layout(tp=4, sequence_parallel=True))
    )
    assert sum(one.wire_bytes * one.repetitions for one in whole) == sum(
        one.wire_bytes * one.repetitions for one in rows
    )
    assert per_layer(LLAMA, Layout(tp=4, sequence_parallel=True)) == {
        (kind, phase): 2 for kind in ("all_gather", "reduce_scatter") for phase in ("forward", "backward")
    }


def test_megatron_gathers_the_input_of_products_again() -> None:
    """Korthikanti 2022, §4.2.2: a rank keeps its part of the input alone, "and perform an extra all-gather in the
    backward pass".
    """
    message_counts = per_layer(LLAMA, Layout(tp=4, sequence_parallel=True), regathers_inputs=True)
    assert message_counts["all_gather", "backward"] == 4
    assert message_counts["all_gather", "forward"] == 2


def test_latent_attention_gathers_its_latents() -> None:
    """The projections to latents are whole on every rank, which computes those of its tokens; then the latents, the
    shared rotary key and the latent query are gathered, which are narrower than the tokens (Megatron-LM,
    multi_latent_attention.py).
    """
    spec = decoder(attention=MLA.examples()[1])
    layout = Layout(tp=4, sequence_parallel=True)
    collectives = PlacementTracker(layout, SIGHT, 1).run_program(rank_program(spec, layout))
    gathered = [
        one.bytes
        for one in collectives
        if one.collective_kind == "all_gather" and not one.is_backward and "attn" in one.node_path
    ]
    assert sorted(gathered) == [BATCH * SEQ * width for width in (4, 12, 20)]


def test_a_norm_of_all_heads_sums_squares_over_ranks() -> None:
    """OLMo 2 normalizes all queries of a token together: a float32 per token and pass, for queries and for keys."""
    norm = QKNorm(norm=Norm(type="rmsnorm"), scope="projection")
    spec = decoder(attention=Attention(num_attention_heads=4, head_dim=6, qk_norm=norm, position=Rope()))
    more = placed(spec, Layout(tp=2)) - placed(LLAMA, Layout(tp=2))
    small = BATCH * SEQ * 4
    assert more == {(phase, "all_reduce", small): 2 * LAYERS for phase in ("forward", "backward")}


def test_a_norm_of_groups_that_ranks_have_whole_sends_nothing() -> None:
    spec = decoder(attention=Mamba2.examples()[3])
    assert per_layer(spec, Layout(tp=2)) == {("all_reduce", "forward"): 2, ("all_reduce", "backward"): 2}


def test_a_norm_of_a_group_that_ranks_share_sums_squares_over_ranks() -> None:
    """vLLM, mamba_mixer2.py, `Mixer2RMSNormGated.forward_native`: one sum a token where a group is on all ranks."""
    mixer = next(mixer for mixer in Mamba2.examples() if mixer.n_groups == 1 and mixer.norm)
    norms = placed(decoder(attention=mixer), Layout(tp=2)) - placed(
        decoder(attention=Mamba2.examples()[3]), Layout(tp=2)
    )
    assert norms == {(phase, "all_reduce", BATCH * SEQ * 4): LAYERS for phase in ("forward", "backward")}


def test_a_pooler_gathers_the_tokens_of_all_ranks() -> None:
    """A rank that does not have the first token gets it with all others; no gradient goes back (Megatron-LM, `Pooler`,
    `tensor_parallel_output_grad=False`).
    """
    spec, layout = around_a_model(Classifier(num_labels=4)), Layout(tp=4, sequence_parallel=True)
    collectives = PlacementTracker(layout, SIGHT).run_program(rank_program(spec, layout))
    of_pooler = [one for one in collectives if one.node_path.startswith("pooler")]
    assert [(one.collective_kind, one.is_backward, one.bytes) for one in of_pooler] == [
        ("all_gather", False, STREAM // 2)
    ]


def test_parallel_sublayers_read_one_input() -> None:
    """GPT-J's attention and network read one norm: one sum of its gradient. Each sums its own output."""
    block = Block(attention=LLAMA.main.block.attention, feed_forward=LLAMA.main.block.feed_forward, norm=NORM,
                  norm_placement="pre", parallel="shared")  # fmt: skip
    assert per_layer(decoder(block=block), Layout(tp=4)) == {
        ("all_reduce", "forward"): 2,
        ("all_reduce", "backward"): 1,
    }


def test_a_rank_of_a_divided_sequence_sends_its_own_tokens_to_experts() -> None:
    """With sequence parallelism a rank of four sends a quarter of its group's tokens. With experts that four ranks
    divide, the rows of all four are gathered for each.
    """
    spec = decoder(feed_forward=MIXTURE)
    layout = Layout(tp=4, dp=4, ep=4, etp=1, sequence_parallel=True)
    collectives = PlacementTracker(layout, SIGHT, 4).run_program(rank_program(spec, layout))
    assert {one.bytes for one in collectives if one.process_group == "ep"} == {2 * STREAM // 4}
    assert not [one for one in collectives if one.process_group == "etp"]
    divided = replace(layout, etp=4)
    gathered = [
        one
        for one in PlacementTracker(divided, SIGHT, 4).run_program(rank_program(spec, divided))
        if one.process_group == "etp" and one.collective_kind == "all_gather"
    ]
    assert {(one.ranks, one.bytes) for one in gathered} == {(4, 2 * STREAM)}


@pytest.mark.parametrize(
    ("how", "forward", "backward"),
    [
        ("p2p", {"send": 3}, {"send": 6}),  # keys and values go round; then their gradients too
        ("a2a", {"all_to_all": 4}, {"all_to_all": 4}),  # of queries, keys, values and outputs
        ("allgather", {"all_gather": 2}, {"all_gather": 2, "reduce_scatter": 2}),
    ],
)
def test_ranks_of_a_sequence_exchange_keys_and_values(
    how: Any, forward: dict[str, int], backward: dict[str, int]
) -> None:
    layout = Layout(cp=4, cp_comm=how)
    found = per_layer(LLAMA, layout)
    assert found == {(k, "forward"): n for k, n in forward.items()} | {(k, "backward"): n for k, n in backward.items()}
    repeated = placed(LLAMA, layout, recompute=Recompute(core=True)) - placed(LLAMA, layout)
    assert {(phase, kind) for phase, kind, _ in repeated} == {("backward", kind) for kind in forward}
    assert repeated.total() == LAYERS * sum(forward.values())  # an attention core that runs again exchanges again
    widths = {"p2p": {2 * 24}, "a2a": {24, 48}, "allgather": {4 * 24}}  # 4 key heads of 6; 8 query heads of 6
    assert {
        one.bytes // (BATCH * SEQ * 4)
        for one in PlacementTracker(layout, SIGHT, 4).run_program(rank_program(LLAMA, layout))
    } == (widths[how])


@pytest.mark.parametrize("layout", [Layout(tp=2, sequence_parallel=True), Layout(cp=2)])
def test_a_part_that_needs_the_tokens_of_other_ranks_is_refused(layout: Layout) -> None:
    """A convolution whose channels no rank divides."""
    spec = decoder(attention=RGLRU.examples()[0])
    with pytest.raises(InputError, match=r"conv_1d reads the tokens of .* not\s*modelled; expected (no --sequ|--cp 1)"):
        PlacementTracker(layout, SIGHT).run_program(rank_program(spec, layout))
