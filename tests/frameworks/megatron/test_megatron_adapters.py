"""Low-rank adapters beside frozen weights of Megatron-Core: parameters, states and saved tensors, by hand."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.device_memory.estimate import Memory, memory
from llmcalc.device_memory.settings import Settings
from llmcalc.errors import InputError
from llmcalc.frameworks.megatron.rank_memory import rank_memory
from llmcalc.frameworks.megatron.rank_run import OPTIMIZER_FLAG_COUNT, RankRun
from llmcalc.frameworks.megatron.schedule import run_step
from llmcalc.frameworks.megatron.settings_from_options import megatron_settings_of
from llmcalc.parallel.layout import Layout
from llmcalc.simulator.meter import Meter
from tests.comparisons import compares, under
from tests.samples import in_one_test

H, FFN, LAYERS, VOCAB, TOKENS = 4096, 14336, 2, 128256, 512
QKV = 4096 + 2 * 1024
DENSE = llmcalc.load("llama3-8b?num_hidden_layers=2").model
HALF = llmcalc.load("llama3-8b?num_hidden_layers=1").model
EXPERTS = llmcalc.load("qwen3-30b-a3b?num_hidden_layers=2").model


def run_of(library: str | None, rank: int = 8, spec: Any = DENSE, **settings: Any) -> Memory:
    """Training of 512 tokens with these adapters; of all weights without a library."""
    adapters = {} if library is None else {"lora_rank": rank, "lora_library": library}
    return memory(spec, Settings(phase="training", seq=TOKENS, **{**adapters, **settings}))


def rank_of(run: Memory, layout: Layout) -> tuple[RankRun, Meter]:
    """The first rank after it is set up, and what meters its tensors."""
    rank = RankRun(run.spec, megatron_settings_of(run, layout), 0, meter := Meter())
    rank.set_up()
    return rank, meter


def saved_by(run: Memory, layout: Layout) -> int:
    """The bytes that stay between the forward and the backward pass of a micro-batch after the first."""
    rank, meter = rank_of(run, layout)
    run_step(rank)
    start = meter.live_bytes
    output = rank.forward(rank.chunks[0], None)
    saved = int(meter.live_bytes - start)
    rank.backward(None, output, None)
    return saved


def adapters_by_hand(library: str, rank: int, tp: int) -> int:
    """The adapters' elements of a rank: (A, B) of queries, keys and values; output; gate and up; down."""
    of_bridge = tp if library == "megatron-bridge" else 1
    column = [rank // of_bridge * H + width // tp * rank for width in (QKV, 2 * FFN)]
    row = [rank * width // tp + H // of_bridge * rank for width in (H, FFN)]
    return LAYERS * (sum(column) + sum(row))


@compares(lambda library, tp: under("megatron", DENSE), torch=False)
@pytest.mark.parametrize("library", ["mcore-bridge", "megatron-bridge"])
@pytest.mark.parametrize("tp", [1, 2])
def test_only_adapters_have_gradients_and_states(library: str, tp: int) -> None:
    run = run_of(library)
    rank, meter = rank_of(run, Layout(tp=tp, sequence_parallel=tp > 1))
    elements = adapters_by_hand(library, 8, tp)
    layer = 2 * H + (QKV * H + H * H + 3 * H * FFN) // tp
    frozen = 2 * (VOCAB * H // tp) + LAYERS * layer + H
    assert meter.by_kind["gradients"] == 4 * elements
    assert meter.by_kind["weights"] == 2 * (frozen + elements)
    assert meter.by_kind["optimizer"] == 4 * elements + 4 * OPTIMIZER_FLAG_COUNT
    run_step(rank)
    assert meter.by_kind["optimizer"] == 12 * elements + 4 * OPTIMIZER_FLAG_COUNT


@pytest.mark.parametrize("tp", [1, 2])
def test_the_count_of_a_model_is_that_of_its_ranks(tp: int) -> None:
    """Of Megatron-Bridge, which divides both weights, exactly; of mcore-bridge each rank has one of both whole."""
    assert run_of("megatron-bridge").states.trained_parameters == tp * adapters_by_hand("megatron-bridge", 8, tp)
    assert run_of("mcore-bridge").states.trained_parameters == adapters_by_hand("mcore-bridge", 8, 1)


def test_experts_have_an_adapter_each_or_one_together() -> None:
    """Qwen3-30B-A3B: 128 experts of width 768 on 4 ranks; queries, keys and values of 32 + 4 + 4 heads of 128."""
    h, ffn, rank = 2048, 768, 8
    attention = rank * (h + 40 * 128) + rank * (32 * 128 + h)
    expert = rank * (h + 2 * ffn) + rank * (ffn + h)
    layout = Layout(dp=4, ep=4)
    for library, experts in (("mcore-bridge", 128), ("megatron-bridge", 4)):
        run = run_of(library, rank, EXPERTS)
        elements = sum(
            parameter.element_count
            for parameter in rank_of(run, layout)[0].chunks[0].parameters
            if parameter.is_trained
        )
        assert elements == 2 * (attention + experts // 4 * expert)
    assert run_of("mcore-bridge", rank, EXPERTS).states.trained_parameters == 2 * (attention + 128 * expert)


def test_a_frozen_product_saves_no_input() -> None:
    """Beside adapters of attention alone, the network keeps neither its norm's output nor its second layer's input."""
    layout, rank = Layout(), 8
    everywhere = saved_by(run_of("mcore-bridge"), layout)
    attention = saved_by(run_of("mcore-bridge", lora_targets=("q_proj", "k_proj", "v_proj", "o_proj")), layout)
    freed = TOKENS * (H + FFN) + 2 * TOKENS * rank
    assert everywhere - attention == LAYERS * 2 * freed


def test_adapters_save_as_much_as_training_and_their_narrow_vectors() -> None:
    """Every product's input is that of an adapter; but the output layer saves none, and no embedding its tokens."""
    rank = 8
    everywhere = saved_by(run_of("mcore-bridge", rank), Layout())
    weights = saved_by(run_of(None), Layout())
    assert everywhere - weights == LAYERS * 4 * 2 * TOKENS * rank - 2 * TOKENS * H - 8 * TOKENS


def test_dropout_keeps_a_mask_and_a_copy_of_every_input() -> None:
    """An adapter keeps its input after dropout and a byte of the mask, in place of the input of the last product.

    Outputs of norms and of attention stay for the norms' products and for attention.
    """
    with_dropout = saved_by(run_of("mcore-bridge", lora_dropout=True), Layout())
    without = saved_by(run_of("mcore-bridge"), Layout())
    inputs = TOKENS * (3 * H + FFN)
    assert with_dropout - without == LAYERS * (3 * inputs - 2 * TOKENS * FFN)


def test_sequence_parallelism_gathers_what_an_adapter_of_megatron_bridge_reads() -> None:
    """`return_layernorm_output_gathered`: the rows of all ranks stay; mcore-bridge keeps those of the rank.

    Megatron-Bridge leaves the frozen embedding without a gradient, so the first norm and product save nothing: neither
    input, output nor statistics of the norm.
    """
    layout, rows, rank = Layout(tp=2, sequence_parallel=True), TOKENS // 2, 8
    bridge, mcore = (saved_by(run_of(library), layout) for library in ("megatron-bridge", "mcore-bridge"))
    gathered = 2 * TOKENS * H
    narrow = 4 * rank * (TOKENS - rows)
    first = 2 * 2 * rows * H + 4 * rows
    assert bridge - mcore == LAYERS * 2 * (gathered + narrow) - first


@in_one_test
@pytest.mark.parametrize(
    ("changes", "layout", "message"),
    [
        ({"lora_library": None}, Layout(), "--lora-library mcore-bridge or megatron-bridge"),
        ({"lora_dtype": "fp32"}, Layout(), "--lora-dtype fp32"),
        ({"base": "nf4"}, Layout(), "--base"),
        ({"modules_to_save": ("lm_head",)}, Layout(), "--modules-to-save"),
        ({"precision": "fp8"}, Layout(), "--precision fp8"),
        ({"lora_library": "megatron-bridge", "lora_rank": 6}, Layout(tp=4), "--tp 4"),
        ({"spec": EXPERTS}, Layout(tp=2, dp=2, ep=2), "--etp 2"),
    ],
)
def test_what_is_not_modelled_is_named(changes: dict[str, Any], layout: Layout, message: str) -> None:
    with pytest.raises(InputError, match=message):
        megatron_settings_of(run_of("mcore-bridge", **changes), layout)


def test_layers_that_are_one_have_one_adapter() -> None:
    with pytest.raises(
        InputError, match="q_proj, k_proj, v_proj are one layer beside which mcore-bridge has one adapter"
    ):
        run_of("mcore-bridge", lora_targets=("q_proj", "v_proj"))
    with pytest.raises(InputError, match="expected the --framework that it trains with, too"):
        run_of("mcore-bridge").training()


def test_recomputed_layers_train_their_adapters_behind_a_frozen_embedding() -> None:
    """Of each layer only its input stays (`decoder_input.requires_grad_`), and what the loss saves."""
    full, selective = (saved_by(run_of("mcore-bridge", recompute=mode), Layout()) for mode in ("full", "none"))
    at_the_end = saved_by(run_of("mcore-bridge", spec=HALF, recompute="full"), Layout())
    assert full - at_the_end == 2 * TOKENS * H
    assert full < selective


def test_ranks_of_a_pipeline_have_their_adapters() -> None:
    """In a step, beside main gradients, one dummy in bf16 of each shape (`get_dummy_wgrad`)."""
    layout, rank = Layout(pp=2, tp=2, sequence_parallel=True), 8
    run = run_of("mcore-bridge", rank, recompute="full", num_microbatches=8)
    shapes = {(rank, H), (QKV // 2, rank), (rank, H // 2), (H, rank), (FFN, rank), (rank, FFN // 2)}
    for stage in (0, 1):
        stage_memory = rank_memory(run.spec, megatron_settings_of(run, layout), layout.rank(pp=stage))
        main = 4 * adapters_by_hand("mcore-bridge", rank, 2) // 2
        assert stage_memory.moments["step"]["gradients"] == main + 2 * sum(rows * columns for rows, columns in shapes)
