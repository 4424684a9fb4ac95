"""What holds of seconds without any measured run: identities, orders, and every accelerator's answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest

import llmcalc
from llmcalc.accelerator import Hardware
from llmcalc.errors import InputError
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.schedules import pipeline, timetable
from llmcalc.reports.serve import _range_cell
from llmcalc.sources.hardware import find_hardware, hardware_names, load_hardware
from llmcalc.sources.presets import load_preset
from llmcalc.timing.calibration import CalibrationFactors
from llmcalc.timing.device import Device, accelerator_generation, device_of
from llmcalc.timing.inference import decode, prefill
from llmcalc.timing.kernels import Adapters, LayerKind, RankPass
from llmcalc.timing.software_stacks import find_stack, stack_names, with_loss, with_overlap
from llmcalc.timing.step import StepPlan, StepTimer, host_wait, pipeline_ranks, training_step, training_steps
from llmcalc.timing.time_estimator import NumberFormats, time_pass
from llmcalc.timing.time_ranges import RangedAmount, expected_range
from llmcalc.timing.timing_constants import SoftwareStack, accelerator_generations, software_stacks
from llmcalc.timing.work_recorder import rank_work
from tests.samples import in_one_test

MEGATRON, VLLM = find_stack("megatron"), find_stack("vllm")

IDENTITY_FIELDS = {"name", "like", "accelerators", "capabilities", "vendors", "profiled", "sources", "tested_stacks"}


def llama() -> ModelSpec:
    return load_preset("llama3-8b").model


def h100() -> Device:
    return device_of(find_hardware("h100"))


def simulated_seconds(layout: Layout, micro_batches: int, forward: Sequence[float], backward: Sequence[float]) -> float:
    """Seconds in which the orders of a layout's schedule run. forward, backward: seconds of each stage."""
    order = pipeline(layout, micro_batches)
    ended: dict[tuple[str, int, int], float] = {}
    position, free = [0] * order.ranks, [0.0] * order.ranks
    last_stage, progress = order.stages - 1, True
    while progress:
        progress = False
        for rank, actions in enumerate(order.actions_by_rank):
            while position[rank] < len(actions):
                kind, chunk, batch, _ = actions[position[rank]]
                stage = order.stage(rank, chunk)
                if kind == "F":
                    needs = None if stage == 0 else ("F", stage - 1, batch)
                else:
                    needs = ("F", stage, batch) if stage == last_stage else (kind, stage + 1, batch)
                if needs is not None and needs not in ended:
                    break
                start = max(free[rank], 0.0 if needs is None else ended[needs])
                free[rank] = start + (forward[stage] if kind == "F" else backward[stage])
                ended[kind, stage, batch] = free[rank]
                position[rank] += 1
                progress = True
    return max(free)


def closed_form(layout: Layout, micro_batches: int, forward: Sequence[float]) -> float:
    """m · slowest + (p − 1)/v · mean, of stages whose backward pass takes twice as long."""
    kinds = tuple(LayerKind("", (i,)) for i in range(len(forward)))
    costs: Any = load_costs(kinds, [3 * seconds for seconds in forward], list(forward))
    ranks = pipeline_ranks(costs, layout.pp, layout.vpp)
    return float(micro_batches * ranks.slowest_rank_seconds + (layout.pp - 1) / layout.vpp * ranks.mean_rank_seconds)


def load_costs(kinds: tuple[LayerKind, ...], both: list[float], forward: list[float]) -> Any:
    from llmcalc.timing.step import LayerCosts

    return LayerCosts(kinds, both, forward, 0.0, 0.0, [0] * len(kinds), [0] * len(kinds), 0, [])


PIPELINES = [Layout(pp=p, vpp=v, schedule="interleaved" if v > 1 else "1f1b") for p in (2, 4, 8) for v in (1, 2, 4)]


@pytest.mark.parametrize("layout", PIPELINES, ids=lambda layout: layout.options())
def test_pipelines_take_as_long_as_their_orders(layout: Layout) -> None:
    """Equal stages exactly; unequal ones within 9 %."""
    equal = [1.0] * (layout.pp * layout.vpp)
    for micro_batches in (8, 32):
        expected = simulated_seconds(layout, micro_batches, equal, [2.0] * len(equal))
        assert closed_form(layout, micro_batches, equal) == pytest.approx(expected, rel=1e-12)
        assert expected == float(timetable(pipeline(layout, micro_batches)).total_time)
    rng = random.Random(layout.pp * 10 + layout.vpp)
    for _ in range(20):
        micro_batches = rng.choice((8, 16, 32))
        forward = [1 + 0.3 * rng.random() for _ in equal]
        simulated = simulated_seconds(layout, micro_batches, forward, [2 * seconds for seconds in forward])
        assert abs(closed_form(layout, micro_batches, forward) / simulated - 1) < 0.09


def test_the_orders_of_zero_bubble_schedules_wait_less() -> None:
    def bubble(schedule: Any) -> float:
        plan = StepPlan.from_layout(Layout(pp=4, schedule=schedule), 1, 16, 4096)
        return float(training_step(llama(), h100(), MEGATRON, plan).seconds_by_part["bubble"])

    assert bubble("zb-h1") < 0.5 * bubble("1f1b")
    assert bubble("dualpipe") < bubble("1f1b")


def test_stages_of_a_pipeline_wait_for_each_message_that_nothing_hides() -> None:
    """A stage of 1F1B exchanges 2 · 4096 · 4096 bytes with each neighbor in each micro-batch: with one, of two stages.

    A domain of eight devices holds two stages of four, which have one neighbor beyond it; larger stages have two.
    """

    def bubble(
        micro_batches: int, vpp: int = 1, stack: str = "megatron", tp: int = 1, pp: int = 2, dp: int = 1
    ) -> float:
        layout = Layout(pp=pp, vpp=vpp, tp=tp, dp=dp, schedule="interleaved" if vpp > 1 else "1f1b")
        plan = StepPlan.from_layout(layout, 1, micro_batches, 4096)
        return float(training_step(llama(), h100(), software_stacks()[stack], plan).seconds_by_part["bubble"])

    hop = 2 * 4096 * 4096 / (450e9 * 0.75) + 1e-5
    assert bubble(9) - bubble(8) == pytest.approx(hop)
    assert bubble(9, pp=4) - bubble(8, pp=4) == pytest.approx(2 * hop)
    assert bubble(9, stack="deepspeed") - bubble(8, stack="deepspeed") == pytest.approx(2 * hop)  # one after the other
    assert bubble(9, vpp=2) == pytest.approx(bubble(8, vpp=2))  # hidden beside another chunk
    no_overlap = "megatron-no-overlap"
    assert bubble(9, 2, no_overlap) - bubble(8, 2, no_overlap) == pytest.approx(4 * hop)
    far_hop = 2 * 4096 * 4096 / (h100().network_bandwidth * 0.8) + 1e-5
    for stages, replicas, exchanges in ((4, 4, hop + far_hop), (4, 8, 2 * far_hop), (2, 8, far_hop)):
        steps = [bubble(micro_batches, pp=stages, dp=replicas) for micro_batches in (8, 9)]
        assert steps[1] - steps[0] == pytest.approx(exchanges)
    quarter = 2 * 4096 * 4096 / 4 / (450e9 * 0.75) + 1e-5  # each of four tensor-parallel ranks sends its part
    assert bubble(9, stack="megatron-2021", tp=4) - bubble(8, stack="megatron-2021", tp=4) == pytest.approx(2 * quarter)


def test_a_pass_of_a_server_leaves_a_machine_as_often_as_its_stages_do() -> None:
    """Four stages of four ranks: two fill a machine of eight, so that one of three messages leaves it."""
    token = decode(llama(), h100(), VLLM, 8, 1000, Layout(tp=4, pp=4))
    near, far = (h100().stage_send_seconds(2 * 8 * llama().hidden_size, devices) for devices in (1, 16))
    assert token.seconds_by_part["hops"] == pytest.approx(far + 2 * near)
    assert near < far


def test_interleaved_stages_send_beside_more_than_one_micro_batch() -> None:
    """A chunk reduces its gradients while others run, which hides messages longer than a micro-batch (schedules.py).

    The last chunk has its own micro-batch alone, however short the messages of the others are.
    """

    def step(network_bandwidth: float, vpp: int, schedule: Any) -> Any:
        layout = Layout(pp=4, dp=16, zero=1, vpp=vpp, schedule=schedule)
        device = replace(h100(), network_bandwidth=network_bandwidth)
        return training_step(llama(), device, MEGATRON, StepPlan.from_layout(layout, 1, 8, 4096))

    for network_bandwidth, has_long_messages in ((2e9, True), (2e10, False)):
        whole, chunks = (step(network_bandwidth, *chunks) for chunks in ((1, "1f1b"), (2, "interleaved")))
        exposed, pass_seconds = whole.seconds_by_part["data"], whole.slowest_rank_seconds
        message_seconds = exposed + 0.9 * pass_seconds
        hidden_of_first_chunk = 0.9 * min(message_seconds, 4 * pass_seconds)
        assert (message_seconds > 4 * pass_seconds) == has_long_messages
        expected = (exposed + message_seconds - hidden_of_first_chunk) / 2
        assert chunks.seconds_by_part["data"] == pytest.approx(expected, rel=2e-2)


def test_interleaved_stages_wait_for_exchanges_while_the_pipeline_fills_and_empties() -> None:
    """Of four stages in two chunks four exchanges each way, a message at a time; a full pipeline hides its own."""

    def bubble_seconds(micro_batches: int, vpp: int, stack: SoftwareStack) -> float:
        plan = StepPlan.from_layout(Layout(pp=4, vpp=vpp, schedule="interleaved"), 1, micro_batches, 4096)
        return float(training_step(llama(), h100(), stack, plan).seconds_by_part["bubble"])

    message_seconds = h100().stage_send_seconds(2 * 4096 * llama().hidden_size, 1)
    hidden, waited = MEGATRON, MEGATRON.model_copy(update={"hides_stage_messages": False})
    two_neighbors = 2 * message_seconds
    assert bubble_seconds(8, 2, waited) - bubble_seconds(8, 2, hidden) == pytest.approx(
        8 * 2 * two_neighbors - 2 * 4 * message_seconds
    )
    assert bubble_seconds(16, 2, hidden) == pytest.approx(bubble_seconds(8, 2, hidden))


def test_a_file_that_starts_from_a_preset_has_its_generation() -> None:
    """A GH200 with less memory shares its power with the processor, too, and has the launches of its board."""
    smaller = load_hardware("gh200").model_copy(update={"name": "mine", "like": "gh200"})
    assert accelerator_generation(smaller).name == accelerator_generation(load_hardware("gh200")).name == "grace-hopper"


def test_sequence_parallel_inputs_are_gathered_in_the_products_format() -> None:
    """Transformer Engine casts what it gathers (layernorm_linear.py): half the bytes in 8 bits, none fewer of sums.

    An adapter of the queries reads their gathered input in 16 bits, one of the six tensors that a layer gathers.
    """

    def message_seconds(kind: str, dtype: str, adapted_modules: tuple[str, ...] = ()) -> float:
        adapters = Adapters(8, frozenset(adapted_modules)) if adapted_modules else None
        plan = replace(
            StepPlan.from_layout(Layout(tp=8, sequence_parallel=True), 1, 1, 4096, dtype=dtype), adapters=adapters
        )
        device = replace(h100(), latency=0.0)
        operations = training_step(llama(), device, MEGATRON, plan).timed_pass.operations
        return sum(float(work.network) for work in operations if work.kind == kind and work.layer_kind_index >= 0)

    assert message_seconds("all_gather", "fp8") == pytest.approx(message_seconds("all_gather", "bf16") / 2)
    assert message_seconds("reduce_scatter", "fp8") == pytest.approx(message_seconds("reduce_scatter", "bf16"))
    wide_bytes = message_seconds("all_gather", "bf16", ("q_proj",))
    assert message_seconds("all_gather", "fp8", ("q_proj",)) == pytest.approx(wide_bytes * (1 + 5 / 2) / 6)


def test_products_of_an_a100_run_in_waves_of_tiles() -> None:
    """2,048 x 2,048 outputs are 512 tiles of 64 x 128, whose five waves fill 0.948 of 108 units, at 0.8 of the rate.

    128 tiles of 256 x 128 would fill two waves by 0.593. Units of Hopper have no waves of whole tiles.
    """
    a100 = device_of(load_hardware("a100-80gb"))
    assert a100.wave_factor(2048, 2048) == pytest.approx(0.953 / (0.8 * 512 / 540))
    assert a100.wave_factor(3328, 2048) == pytest.approx(0.953 / (208 / 216))  # 208 tiles of 256 x 128 in two waves
    assert a100.wave_factor(2**20, 2**14) == pytest.approx(0.953, rel=1e-3)
    assert h100().wave_factor(2048, 2048) == 1.0


def test_layers_of_stages_are_exact() -> None:
    """DeepSeek-V3's 3 dense layers are all on the first of 16 stages, which has fewer experts."""
    spec = load_preset("deepseek-v3").model
    plan = StepPlan.from_layout(
        Layout(tp=2, pp=16, dp=64, ep=64, etp=1, zero=1, sequence_parallel=True), 1, 240, 4096, dtype="fp8"
    )
    step = training_step(spec, h100(), MEGATRON, plan)
    assert step.slowest_rank_seconds > step.mean_rank_seconds
    uneven = replace(plan, stage_sizes=(5, 5, *[4] * 12, 3, 0))
    assert training_step(spec, h100(), MEGATRON, uneven).slowest_rank_seconds > 1.2 * step.slowest_rank_seconds


def test_parts_and_lines_add_up() -> None:
    step = training_step(llama(), h100(), MEGATRON, StepPlan.from_layout(Layout(tp=2, dp=4, zero=1), 1, 8, 4096))
    assert sum(step.seconds_by_part.values()) == pytest.approx(step.seconds, rel=1e-12)
    assert step.timed_pass.seconds * 8 == pytest.approx(step.seconds_by_part["work"], rel=1e-12)
    for answer in (
        decode(llama(), h100(), VLLM, 8, 1000),
        prefill(llama(), h100(), VLLM, 1, 1000, chunk=300, has_server_delay=True),
    ):
        assert sum(answer.seconds_by_part.values()) == pytest.approx(answer.seconds, rel=1e-12)


def test_a_scalar_equals_its_column() -> None:
    numpy = pytest.importorskip("numpy")
    spec = load_preset("deepseek-v3").model
    rng = random.Random(0)
    names = ("tp", "pp", "dp", "cp", "ep", "vpp", "micro_batch", "micro_batches")
    choices = ((1, 2, 4), (1, 4, 8, 16), (16, 64), (1, 2), (1, 8, 32), (1, 2), (1, 2), (32, 240))
    rows = [tuple(map(rng.choice, choices)) for _ in range(60)]
    rows = [row if row[1] > 1 else (*row[:5], 1, *row[6:]) for row in rows]
    columns = {name: numpy.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    base = StepPlan(etp=1, dtype="fp8", sequence_parallel=True, zero=1, recomputed_share=1.0)
    seconds = training_steps(spec, h100(), MEGATRON, base, columns)
    prices = StepTimer(spec, h100(), MEGATRON)
    for row, column in zip(rows, seconds, strict=True):
        plan = replace(base, **dict(zip(names, row, strict=True)))
        alone = training_step(spec, h100(), MEGATRON, plan).seconds
        assert column == pytest.approx(alone, rel=1e-12)
        assert prices.step(plan).seconds == alone


def test_more_hardware_is_never_slower() -> None:
    plan = StepPlan.from_layout(Layout(tp=2, dp=16, zero=1, sequence_parallel=True), 1, 8, 4096)
    device = h100()
    seconds = training_step(llama(), device, MEGATRON, plan).seconds
    token = decode(llama(), device, VLLM, 8, 1000, Layout(tp=2)).seconds
    doubled: tuple[dict[str, Any], ...] = (
        {"memory_bandwidth": 2 * device.memory_bandwidth},
        {"link_bandwidth": 2 * device.link_bandwidth},
        {"network_bandwidth": 2 * device.network_bandwidth},
        {"peak_rates": {name: 2 * peak for name, peak in device.peak_rates.items()}},
    )
    for change in doubled:
        faster = replace(device, **change)
        assert training_step(llama(), faster, MEGATRON, plan).seconds <= seconds
        assert decode(llama(), faster, VLLM, 8, 1000, Layout(tp=2)).seconds <= token


def test_more_work_takes_longer() -> None:
    def step(**changes: Any) -> float:
        plan = StepPlan.from_layout(Layout(tp=2, dp=4, zero=1), 1, 8, 4096)
        return float(training_step(llama(), h100(), MEGATRON, replace(plan, **changes)).seconds)

    assert step(seq=8192) > step(micro_batches=16) > step()
    assert step(recomputed_share=1.0) > step(recomputes_attention=True) > step()
    assert prefill(llama(), h100(), VLLM, 1, 4096, 4096).seconds > prefill(llama(), h100(), VLLM, 1, 4096).seconds


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "qwen3-30b-a3b", "mamba2-2.7b", "gpt-oss-20b"])
def test_time_per_token_and_tokens_per_second_grow_with_the_batch(name: str) -> None:
    batches = (1, 2, 4, 8, 16, 32, 64, 128)
    spec = load_preset(name).model
    seconds = [decode(spec, h100(), VLLM, batch, 1024).seconds for batch in batches]
    rates = [batch / time for batch, time in zip(batches, seconds, strict=True)]
    assert seconds == sorted(seconds)
    assert rates == sorted(rates)


def test_every_accelerator_with_a_bandwidth_and_a_peak_answers() -> None:
    answered = 0
    for name in hardware_names():
        hardware = load_hardware(name)
        has_figures = {"bfloat16", "float16", "float32"} & set(hardware.peak_flops) and hardware.memory_bandwidth
        if not has_figures:
            with pytest.raises(InputError, match=r"no peak|no memory bandwidth"):
                device_of(hardware)
            continue
        device = device_of(hardware)
        assert 0 < decode(llama(), device, VLLM, 1, 512).seconds < 2  # 16 GB of weights at 17 GB/s
        assert training_step(llama(), device, MEGATRON, StepPlan()).seconds > 0
        answered += 1
    assert answered >= 53


@in_one_test
@pytest.mark.parametrize("name", stack_names())
def test_every_stack_prices_a_pass(name: str) -> None:
    stack = find_stack(name)
    if stack.phase == "training":
        assert training_step(llama(), h100(), stack, StepPlan(tp=2, dp=4, zero=1)).seconds > 0
    else:
        assert decode(llama(), h100(), stack, 1, 512).seconds > 0


def test_quantized_weights_and_caches_are_read_faster() -> None:
    def token(**formats: Any) -> float:
        return float(decode(llama(), h100(), VLLM, 64, 4096, number_formats=NumberFormats(**formats)).seconds)

    assert (
        token(product_format="fp8", weight_bits=8, cache_bits=8) < token(product_format="fp8", weight_bits=8) < token()
    )
    assert token(product_format="quantized", weight_bits=4.5) < token()


def test_products_of_a_token_compute_a_tile_of_rows() -> None:
    """An H20 has 148 TFLOP/s beside 4 TB/s, so that the 64 rows of a Hopper's tile take longer than the weights."""
    device = device_of(load_hardware("h20"))

    def product_compute(stack: str, batch: int, dtype: str = "bf16") -> float:
        work = rank_work(llama(), RankPass(batch, 1, 100, "decode"))
        operations = time_pass(work, device, find_stack(stack), NumberFormats(dtype)).operations
        return float(sum(line.compute * line.runs_per_layer for line in operations if line.kind == "product"))

    assert product_compute("vllm", 1) == pytest.approx(product_compute("vllm", 64), rel=1e-12)
    assert product_compute("vllm", 128) == pytest.approx(2 * product_compute("vllm", 1), rel=1e-12)
    assert product_compute("llamacpp", 64) == pytest.approx(64 * product_compute("llamacpp", 1), rel=1e-12)
    # kernels that decode weights (Marlin) have tiles of 16 rows, and llama.cpp's of matrix by vector none
    assert product_compute("vllm", 16, "quantized") == pytest.approx(product_compute("vllm", 1, "quantized"))
    assert product_compute("vllm", 64, "quantized") == pytest.approx(4 * product_compute("vllm", 1, "quantized"))
    assert product_compute("llamacpp", 64, "quantized") == pytest.approx(
        64 * product_compute("llamacpp", 1, "quantized")
    )


def test_products_with_a_scale_per_block_sum_over_the_whole_inner_axis() -> None:
    """AITER's default kernel takes 17.5 nanoseconds an inner element on MI300X (https://github.com/ROCm/aiter/pull/1930)."""

    def products(accelerator: str, tokens: int, has_block_scales: bool, stack: str = "sglang") -> list[float]:
        formats = NumberFormats("fp8", 8, has_block_scales=has_block_scales)
        work = rank_work(llama(), RankPass(tokens, 1, 100, "decode"))
        operations = time_pass(work, device_of(load_hardware(accelerator)), find_stack(stack), formats).operations
        return [float(line.compute) for line in operations if line.path.endswith(("o_proj", "down_proj"))]

    assert products("mi300x", 1, True) == pytest.approx([1.75e-8 * 4096, 1.75e-8 * 14336])
    assert products("h100-sxm", 1, True) == products("h100-sxm", 1, False)
    by_block, by_row = products("mi300x", 8192, True), products("mi300x", 8192, False)
    assert by_block == pytest.approx([seconds / 0.36 for seconds in by_row])
    for tokens in (1, 8192):  # tuned: github.com/ROCm/aiter, e4048607, aiter/configs/model_configs
        assert products("mi300x", tokens, True, "atom") == products("mi300x", tokens, False, "atom")


@pytest.mark.parametrize(
    ("accelerator", "stack", "dtype", "seconds"),
    [
        ("mi355x", "sglang", "quantized", 2.1e-4),  # https://github.com/sgl-project/sglang/pull/22208
        ("ryzen-ai-max-395", "vllm", "quantized", 4.9e-4),  # https://github.com/vllm-project/vllm/pull/34130
        ("mi300x", "vllm", "fp4", 2.1e-4),  # https://github.com/ROCm/triton/issues/970: GPT-OSS in MXFP4
        ("mi355x", "vllm", "fp4", 0.0),  # has units for MXFP4
        ("mi355x", "sglang", "bf16", 0.0),
        ("mi355x", "llamacpp", "quantized", 0.0),
        ("h100-sxm", "vllm", "quantized", 0.0),  # Marlin
    ],
)
def test_kernels_that_decode_experts_take_further_seconds(
    accelerator: str, stack: str, dtype: str, seconds: float
) -> None:
    model, device = load_preset("qwen3-30b-a3b").model, device_of(load_hardware(accelerator))
    formats = NumberFormats(dtype, 16 if dtype == "bf16" else 4.5).formats_on(device)

    def layers(device: Device) -> float:
        return float(decode(model, device, find_stack(stack), 1, 512, number_formats=formats).seconds)

    plain = replace(device, generation=device.generation.model_copy(update={"decoded_experts": 0.0}))
    assert layers(device) - layers(plain) == pytest.approx(48 * seconds)


def test_kernels_of_aiter_read_experts_as_fast_as_other_weights() -> None:
    """AITER's tuned tables of MI355X (https://github.com/ROCm/aiter/tree/e4048607/aiter/configs/model_configs)."""
    model, device = load_preset("qwen3-30b-a3b").model, device_of(load_hardware("mi355x"))

    def experts(stack: str) -> float:
        work = rank_work(model, RankPass(64, 1, 512, "decode"))
        operations = time_pass(work, device, find_stack(stack), NumberFormats("fp8", 8)).operations
        gates = [line for line in operations if line.path.endswith("gate_proj")]
        return float(sum(line.memory for line in gates))

    assert experts("atom") == pytest.approx(experts("vllm-atom"))
    assert 0.69 < experts("atom") / experts("vllm") < 0.75  # the values that it moves are read as fast in both


def test_an_operation_of_npus_sorts_the_tokens_of_experts() -> None:
    """npu_moe_init_routing_v2 and npu_moe_token_unpermute of vllm-ascend, in place of three kernels each."""
    work = rank_work(load_preset("mixtral-8x7b").model, RankPass(1, 1, 512, "decode"))

    def layer_launches(stack: str) -> float:
        passes = time_pass(work, device_of(load_hardware("ascend-910b")), find_stack(stack), NumberFormats())
        return float(passes.layer_launches(0, False, find_stack(stack).launches_by_verb))

    assert layer_launches("vllm-npu") == layer_launches("vllm-eager") - 4


def test_a_dynamic_cache_is_copied_for_each_token() -> None:
    """torch.cat reads the cache and writes it beside the read of attention; a static cache grows in place."""

    def attention(stack: str) -> float:
        work = rank_work(llama(), RankPass(1, 1, 8192, "decode"))
        lines = time_pass(work, h100(), find_stack(stack), NumberFormats()).operations
        return float(sum(line.memory for line in lines if line.kind == "attention"))

    assert attention("transformers") == pytest.approx(3 * attention("transformers-graphs"))


def test_products_without_rows_compute_no_tile() -> None:
    """A decoded token of an encoder-decoder runs none of the encoder's products."""
    device, stack = device_of(find_hardware("h100-sxm")), find_stack("vllm")
    assert 0 < float(decode(load_preset("t5-base").model, device, stack, 1, 100).seconds) < 1


def test_a_stacks_share_of_matrix_units_holds_where_there_are_any() -> None:
    slower = VLLM.model_copy(update={"product_rate_share": 0.5})

    def prompt(accelerator: str, stack: Any) -> float:
        return float(prefill(llama(), device_of(load_hardware(accelerator)), stack, 1, 4096).seconds)

    assert prompt("m4-max", slower) == prompt("m4-max", VLLM)
    assert prompt("h100-sxm", slower) > 1.5 * prompt("h100-sxm", VLLM)


def test_tokens_of_eager_pytorch_have_a_class_of_their_own() -> None:
    """How fast a host launches kernels is not known, so that its range is wider than that of captured graphs."""
    eager, captured = (
        expected_range(1.0, "decode", h100(), find_stack(name), llama()) for name in ("transformers", "gpt-fast")
    )
    assert eager.tested_class is not None
    assert captured.tested_class is not None
    assert (eager.tested_class.eager, captured.tested_class.eager) == (True, False)
    assert eager.high / eager.low > 1.3 * captured.high / captured.low


def test_experts_that_no_token_selects_are_not_read() -> None:
    spec = load_preset("mixtral-8x7b").model
    single_pass = time_pass(rank_work(spec, RankPass(1, 1, 100, "decode")), h100(), VLLM, NumberFormats())
    many = time_pass(rank_work(spec, RankPass(64, 1, 100, "decode")), h100(), VLLM, NumberFormats())

    def expert_memory(priced: Any) -> float:
        return float(sum(line.memory for line in priced.operations if line.kind == "experts"))

    assert 3.5 < expert_memory(many) / expert_memory(single_pass) < 4.2  # 8 of 8 experts, in place of 2


def test_every_figure_of_a_generation_has_a_source() -> None:
    for name, generation in accelerator_generations().items():
        figures = set(type(generation).model_fields) - IDENTITY_FIELDS
        sourced = [field for source in generation.sources for field in source.fields]
        assert set(sourced) == figures if name == "default" else set(sourced) <= figures
        assert len(sourced) == len(set(sourced))


UNTESTED_STACKS = {
    "gaudi3": ("vllm", "sglang", "llamacpp", "tensorrt-llm"),
    "ryzen-ai-max-395": ("tensorrt-llm", "vllm"),
    "mi355x": ("tensorrt-llm", "llamacpp", "torch"),
    "radeon-ai-pro-r9700": ("sglang", "tensorrt-llm"),
    "jetson-agx-thor": ("sglang", "llamacpp", "tensorrt-llm"),
    "rtx-3090": ("sglang", "tensorrt-llm", "megatron"),
    "h100": ("atom", "vllm-atom", "vllm-npu", "mlx"),
}
"""Accelerator → stacks without a measured run on it, or whose software does not run on its maker's accelerators."""


def test_stacks_without_measured_rows_on_an_accelerator_are_untested() -> None:
    tested = {
        "ryzen-ai-max-395": "llamacpp", "mi355x": "atom", "radeon-ai-pro-r9700": "vllm", "jetson-agx-thor": "vllm",
        "rtx-3090": "llamacpp", "h100": "tensorrt-llm",
    }  # fmt: skip
    for name, stacks in UNTESTED_STACKS.items():
        device = device_of(find_hardware(name))
        for stack in map(find_stack, stacks):
            for phase in ("training",) if stack.phase == "training" else ("decode", "prefill"):
                assert expected_range(1.0, phase, device, stack, llama()).tested_class is None, (name, stack.name)
        if name in tested:
            assert expected_range(1.0, "decode", device, find_stack(tested[name]), llama()).tested_class is not None


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(4.8, 160, "4.8-160 s"), (70, 200, "1.2-3.3 min"), (0.42, 12, "0.42-12 s"), (1800, 9000, "30-150 min")],
)
def test_a_range_from_less_than_a_minute_is_in_seconds(low: float, high: float, text: str) -> None:
    assert _range_cell(RangedAmount(high, low, high)) == text


def test_the_range_of_overlap_is_refused_and_applied() -> None:
    plan = StepPlan.from_layout(Layout(tp=4, dp=16, zero=1, sequence_parallel=True), 1, 8, 4096)
    seconds = {
        overlap: training_step(llama(), h100(), with_overlap(MEGATRON, overlap), plan).seconds
        for overlap in (None, "none", "dp", "tp", "ep", "all")
    }
    assert seconds["none"] > seconds["dp"] > seconds["all"] == seconds[None]
    with pytest.raises(
        InputError, match="--overlap: 'pp' is not known; expected none, all, or some of dp, tp, ep with commas"
    ):
        with_overlap(MEGATRON, "pp")
    with pytest.raises(InputError, match="--stack: 'vlm' is not known"):
        find_stack("vlm")
    with pytest.raises(InputError, match="--stack vllm: is for inference"):
        find_stack("vllm", "training")
    assert set(software_stacks()) == set(stack_names())


def test_ranks_of_a_zero_group_update_their_shards_alone() -> None:
    """An update moves the optimizer's bytes of a rank's shard, and 8 bytes of each weight of the rank."""

    def update(**sizes: Any) -> float:
        plan = StepPlan.from_layout(Layout(dp=8, **sizes), 1, 1, 1024)
        return float(training_step(llama(), h100(), MEGATRON, plan).seconds_by_part["update"])

    states = MEGATRON.optimizer_bytes
    assert update(zero=1) / update() == pytest.approx((states / 8 + 8) / (states + 8))
    assert update(zero=1, hsdp_replicas=2) / update() == pytest.approx((states / 4 + 8) / (states + 8))


def test_gradients_hide_beside_the_last_micro_batch_alone() -> None:
    """ZeRO-1 sends once a step: more micro-batches neither hide nor add anything. Stage 2 reduces after each one."""

    def data(zero: int, micro_batches: int) -> float:
        layout = Layout(dp=64, zero=zero)  # type: ignore[arg-type]
        plan = StepPlan.from_layout(layout, 1, micro_batches, 1024)
        return float(training_step(llama(), h100(), MEGATRON, plan).seconds_by_part["data"])

    assert data(1, 1) == pytest.approx(data(1, 16), rel=1e-12)
    assert data(2, 16) > 4 * data(2, 1) > 0


def test_ranks_of_a_context_are_neighbours_in_the_group_of_gradients() -> None:
    """Gradients of dp · cp ranks leave a domain once, and those of an expert once for each of its replicas."""
    slow, fast = (replace(h100(), network_bandwidth=rate) for rate in (1e9, 1e11))

    def data(device: Device, spec: ModelSpec | None = None, **sizes: int) -> float:
        return float(
            training_step(spec or llama(), device, MEGATRON, StepPlan(zero=1, seq=1024, **sizes)).seconds_by_part[
                "data"
            ]
        )

    assert data(slow, dp=4, cp=2) == data(fast, dp=4, cp=2) > 0
    assert data(slow, dp=8, cp=2) == pytest.approx(data(slow, dp=16), rel=0.02)
    mixtral = load_preset("mixtral-8x7b").model
    assert data(slow, mixtral, dp=16, ep=8) > 0.5 * data(slow, mixtral, dp=16, ep=1)


def test_rings_through_nodes_take_steps_of_every_message() -> None:
    """Two nodes of 8 H100: 15/16 of 1 GB go through eight cards of 50 GB/s at 0.8 of it; LL128 takes 14 + 1 steps."""
    device = h100()
    alone = device.message_seconds("reduce_scatter", 16, 1e9)
    bytes_sent = 15 / 16 * max(1e9 / (8 * 50e9 * 0.8), 1e9 / (450e9 * 0.75))
    simple, short = (14 * 3.4e-6 + 9.6e-6, 14 * 1.9e-6 + 4e-6)
    assert alone == pytest.approx(1e-5 + min(bytes_sent + simple, bytes_sent / 0.92 + short), rel=1e-12)
    many = device.message_seconds("reduce_scatter", 16, 1e9, message_count=1000)
    assert many == pytest.approx(1e-2 + bytes_sent / 0.92 + 1000 * short, rel=1e-12)
    assert device.message_seconds("reduce_scatter", 1, 1e9) == 0.0
    inside = device.message_seconds("all_gather", 8, 1e9, message_count=10)
    assert inside == pytest.approx(10 * 1e-5 + 7 / 8 * 1e9 / (450e9 * 0.75), rel=1e-12)


def test_cards_of_pcie_reach_those_beyond_their_bridge_over_it() -> None:
    """An A100 PCIe: a bridge of 300 GB/s each way to one card, and 32 GB/s to all others (its datasheet)."""
    device = device_of(load_hardware("a100-pcie"))
    assert (device.domain_devices, device.network_bandwidth) == (2, 0.4 * 32e9)
    assert device_of(load_hardware("h100-pcie")).network_bandwidth == 25e9


def test_small_micro_batches_of_eager_kernels_wait_for_the_host() -> None:
    stack = find_stack("fsdp2")
    short, long = (training_step(llama(), h100(), stack, StepPlan(micro_batch=1, seq=seq)) for seq in (64, 16384))
    layers = rank_work(llama(), StepPlan(micro_batch=1, seq=64).rank_pass(stack))
    launches = sum(
        kernel.runs_per_layer * sum(stack.launches_by_verb.get(kernel.step_verb, kernel.launches))
        for kernel in layers.kernels
        if kernel.layer_kind_index == 0
    )
    assert short.slowest_rank_seconds == pytest.approx(32 * launches * stack.host_seconds_per_kernel, rel=0.05)
    captured = stack.model_copy(update={"host_seconds_per_kernel": 0.0})
    assert (
        training_step(llama(), h100(), captured, StepPlan(seq=16384)).slowest_rank_seconds == long.slowest_rank_seconds
    )


def test_small_layers_of_megatron_wait_for_the_host_unless_a_graph_holds_them() -> None:
    """GPT's layer has 9 + 14 launches; four more add gradients where the products do not: 27 x 0.147 ms = 3.97 ms."""
    stack, gpt = find_stack("megatron"), load_preset("gpt2").model
    plan = StepPlan(micro_batch=1, seq=64)
    launched, captured = (
        training_step(gpt, h100(), software, plan).slowest_rank_seconds
        for software in (stack, find_stack("megatron-layer-graphs"))
    )
    assert launched == pytest.approx(12 * (9 + 14) * stack.host_seconds_per_kernel, rel=0.05)
    assert captured < launched / 4
    assert not stack.is_eager


@pytest.mark.parametrize(("is_backward", "rates"), [(False, (1.12, 1.25)), (True, (1.08, 1.21))])
def test_attention_of_gb300_is_faster_than_that_of_gb200(is_backward: bool, rates: tuple[float, float]) -> None:
    """cuDNN's benchmark, 2,048 to 32,768 tokens (NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results)."""
    slower, faster = (
        float(device_of(load_hardware(accelerator)).attention_seconds(1e12, 4096, 128, is_backward))
        for accelerator in ("gb200", "gb300")
    )
    assert rates[0] <= slower / faster <= rates[1]


def test_gh200_are_joined_in_fours_without_a_switch() -> None:
    """JUPITER, Alps and Isambard-AI: 150 GB/s one way between two of a node, 25 to another node for each."""
    device = device_of(load_hardware("gh200"))
    two, four, eight = (float(device.message_seconds("all_gather", ranks, 4e9)) for ranks in (2, 4, 8))
    assert (device.domain_devices, device.link_bandwidth, device.network_bandwidth) == (4, 450e9, 25e9)
    assert two > four
    assert eight > 4 * four


@pytest.mark.parametrize("accelerator", ["gb200", "gb300", "gh200"])
def test_the_host_on_a_board_with_grace_launches_more_slowly(accelerator: str) -> None:
    """Megatron-LM's tests: 12 small layers, three micro-batches more, 209 and 214 ms on GB200, 150 and 142 on H100."""
    gpt, device = load_preset("gpt2").model, device_of(load_hardware(accelerator))
    on_grace, on_xeon = (
        training_step(gpt, board, MEGATRON, StepPlan(micro_batch=1, seq=64)).slowest_rank_seconds
        for board in (device, h100())
    )
    assert on_grace / on_xeon == pytest.approx((209 + 214) / (150 + 142), rel=0.02)
    assert device.evidence != "datasheet"


def test_all_reduces_of_tensor_parallel_ranks_are_hidden_by_xla_alone() -> None:
    """Megatron's tp_comm_overlap splits the gathers and reduce-scatters of sequence parallelism."""
    for name, share in (("megatron", 0.0), ("maxtext", 0.3)):
        assert find_stack(name).hidden_share("tp", "all_reduce") == share
    assert MEGATRON.hidden_share("tp", "reduce_scatter") == 0.6
    assert find_stack("megatron-2021").hidden_share("tp", "all_reduce") == -2.0  # slower than in a benchmark
    layout = Layout(tp=8)
    seconds = {
        overlap: training_step(
            llama(), h100(), with_overlap(MEGATRON, overlap), StepPlan.from_layout(layout, 1, 1, 8192)
        ).seconds
        for overlap in ("none", "tp")
    }
    assert seconds["tp"] == seconds["none"]


@pytest.mark.parametrize(("loss", "bytes_per_logit"), [("eager", 38.0 + 14.0), ("native", 22.0 + 10.0)])
def test_a_loss_that_is_no_single_kernel_moves_each_logit_several_times(loss: str, bytes_per_logit: float) -> None:
    """Megatron without --cross-entropy-loss-fusion, and with its own fusion, in place of 6 and 4.2 bytes."""
    plan, stack = StepPlan(micro_batch=1, seq=2048), MEGATRON
    fused, stated = (
        training_step(llama(), h100(), with_loss(stack, name), plan).slowest_rank_seconds for name in (None, loss)
    )
    logits = 2048 * llama().vocab_size
    extra_seconds = h100().memory_seconds(logits * bytes_per_logit) - h100().memory_seconds(logits * (6.0 + 4.2))
    assert stated - fused == pytest.approx(extra_seconds, rel=0.05)
    assert with_loss(find_stack("fsdp2"), loss) == find_stack("fsdp2")  # what it has already


def test_an_mi325x_reaches_the_rates_that_amd_measured() -> None:
    """Ten products of DeepSeek-V3, weighted by their FLOPs (rocm.blogs.amd.com, taf-blog): 616 and 1,143 TFLOP/s."""
    generation, peaks = accelerator_generations()["cdna3-1000w"], load_hardware("mi325x").peak_flops
    sizes = [(2112, 7168), (3072, 1536), (7168, 2048), (4608, 7168), (7168, 256)]
    for dtype, name, measured in (("bf16", "bfloat16", 616e12), ("fp8", "float8", 1143e12)):
        rate = peaks[name] * generation.products[dtype] * generation.sustained.get(dtype, 1.0)
        flops = sum(n * k for n, k in sizes)
        seconds = sum(n * k * (1 + generation.half_rate_depth[dtype] / k) for n, k in sizes) / rate
        assert flops / seconds == pytest.approx(measured, rel=0.01)


def test_geforce_cards_reach_the_half_of_their_rate_that_sums_in_float32_leave() -> None:
    geforce, workstation = (device_of(load_hardware(name)) for name in ("rtx-4090", "rtx-6000-ada"))
    shares = {
        format_name: geforce.product_rate(format_name) / geforce.peak_rates[format_name]
        for format_name in ("bf16", "fp8")
    }
    assert shares == {"bf16": geforce.generation.float32_sums, "fp8": 2 * geforce.generation.products["fp8"]}
    assert geforce.product_rate("bf16", sums_in_16_bits=True) == 2 * geforce.generation.products["bf16"] * 165.2e12
    assert workstation.product_rate("bf16") == pytest.approx(
        workstation.peak_rates["bf16"] * workstation.generation.products["bf16"]
    )
    attention_rates = [
        1 / device.attention_seconds(1.0, inf, 128) / device.peak_rates["bf16"] for device in (geforce, workstation)
    ]
    assert attention_rates == pytest.approx([2 * geforce.generation.attention[0], geforce.generation.attention[0]])


def test_messages_that_a_stack_does_not_hide() -> None:
    """nanotron's ZeRO-1 all-reduces gradients and gathers weights after the update."""
    plan = StepPlan.from_layout(Layout(dp=64, zero=1), 1, 1, 4096)
    stack = find_stack("nanotron")
    seconds = {
        name: training_step(llama(), h100(), stack.model_copy(update=update), plan).seconds_by_part["data"]
        for name, update in {
            "nanotron": {},
            "scattered": {"all_reduces_gradients": False},
            "gathered beside products": {"hidden_share_by_group": {"dp": 0.9}},
            "nothing hidden": {"hidden_share_by_group": {}},
            "in one message": {"bucket_parameters": float("inf")},
        }.items()
    }
    assert seconds["nothing hidden"] > seconds["nanotron"] > seconds["gathered beside products"]
    assert seconds["nanotron"] > seconds["in one message"]
    assert seconds["nanotron"] != seconds["scattered"]


def test_frozen_weights_take_less() -> None:
    plan = StepPlan.from_layout(Layout(dp=8, zero=1), 1, 1, 4096)
    weights = training_step(llama(), h100(), MEGATRON, plan)
    adapted = training_step(
        llama(), h100(), MEGATRON, replace(plan, adapters=Adapters(16, frozenset({"q_proj", "v_proj"})))
    )
    assert 0.6 < adapted.seconds_by_part["work"] / weights.seconds_by_part["work"] < 0.8
    assert adapted.seconds_by_part["update"] < 0.01 * weights.seconds_by_part["update"]
    assert adapted.seconds_by_part["data"] < 0.1 * weights.seconds_by_part["data"]


# --- narrow formats, recurrences, experts -----------------------------------------------------------------------------


def test_operands_of_narrow_products_are_cast_by_kernels_of_their_own() -> None:
    work = rank_work(llama(), RankPass(1, 4096))
    device = h100()
    casts = {}
    for dtype in ("bf16", "fp8"):
        lines = time_pass(work, device, MEGATRON, NumberFormats(dtype)).operations
        casts[dtype] = [
            line for line in lines if line.kind == "product" and not line.compute and line.path.startswith("layers")
        ]
    assert not casts["bf16"]
    down = [line for line in casts["fp8"] if line.path == "layers.mlp.down_proj"]
    # 4 bytes of each of 4,096 · 14,336 inputs, and of each of 4,096 · 4,096 gradients of the output
    assert [line.is_backward for line in down] == [False, True]
    for line, width in zip(down, (14_336, 4096), strict=True):
        assert line.memory == pytest.approx(4 * 4096 * width / (device.memory_bandwidth * device.generation.memory))
    paths = [line.path for line in casts["fp8"] if not line.is_backward]
    assert "layers.mlp.up_proj" not in paths  # the input of gate_proj, which is cast once


def test_heads_that_flash_attention_refuses_run_in_an_older_kernel() -> None:
    """Equal products of 16 heads of 512 and of 32 heads of 256 elements, as Gemma 4's layers of both kinds have."""
    config = {
        **{"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 1, "intermediate_size": 1024},
        **{"vocab_size": 1024, "max_position_embeddings": 8192},
    }

    def attention(heads: int, width: int, stack: Any, phase: Any = "training") -> float:
        sizes = {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": width}
        work = rank_work(llmcalc.load(config | sizes).model, RankPass(seq=8192, phase=phase))
        lines = time_pass(work, h100(), stack, NumberFormats()).operations
        return float(sum(line.compute for line in lines if line.kind == "attention"))

    fused, older = attention(32, 256, MEGATRON), attention(16, 512, MEGATRON)
    assert older == pytest.approx(fused / h100().generation.older_attention["triton"])
    assert attention(16, 512, VLLM, "prefill") == attention(32, 256, VLLM, "prefill")


def test_a_shallow_product_is_slower_than_a_deep_one() -> None:
    device = h100()
    assert device.depth_factor("bf16", 4096) == device.depth_factor("bf16", 16_384) == 1
    assert device.depth_factor("bf16", 512) == pytest.approx((1 + 110 / 512) / (1 + 110 / 4096))
    assert device.depth_factor("fp8", 512) > device.depth_factor("bf16", 512)


def test_a_recurrence_has_the_rate_of_its_own_kernels() -> None:
    device = h100()
    work = rank_work(load_preset("nemotron-3-nano-30b-a3b").model, RankPass(1, 8192))
    (scan,) = (kernel for kernel in work.kernels if kernel.path == "layers.mamba.scan")
    forward, backward = (
        line
        for line in time_pass(work, device, MEGATRON, NumberFormats()).operations
        if line.path == "layers.mamba.scan"
    )
    rate = device.peak_rates["bf16"] * device.generation.scan
    forward_flops, backward_flops = scan.flops
    assert (forward.compute, backward.compute) == pytest.approx(
        (forward_flops * scan.scan_ratio / rate, backward_flops / rate)
    )


def test_ranks_wait_before_they_exchange_tokens_of_experts() -> None:
    spec = load_preset("qwen3-30b-a3b").model
    plan = StepPlan(dp=8, ep=8, micro_batches=4)

    def seconds(wait: float, overlap: str | None, plan: StepPlan = plan) -> float:
        stack = with_overlap(
            MEGATRON.model_copy(update={"exchange_wait_seconds": wait, "host_seconds_per_kernel": 0.0}), overlap
        )
        return float(training_step(spec, h100(), stack, plan).seconds)

    layers = 48 * plan.micro_batches
    assert seconds(0.001, None) - seconds(0, None) == pytest.approx(0.001 * layers)
    assert seconds(0.001, "all") - seconds(0, "all") == pytest.approx((1 - 0.45) * 0.001 * layers)
    alone = replace(plan, ep=1)
    assert seconds(0.001, None, alone) == pytest.approx(seconds(0, None, alone))


def host_seconds(preset: str, stack: Any, ep: int = 1, hardware: str = "h100-sxm", dtype: str = "bf16") -> list[float]:
    """Seconds of the host for the forward and backward pass of a model's last kind of layer."""
    work = rank_work(load_preset(preset).model, RankPass(1, 4096, ep=ep))
    timed_pass = time_pass(work, device_of(load_hardware(hardware)), stack, NumberFormats(dtype))
    last_kind = len(work.layer_kinds) - 1
    return [float(host_wait(timed_pass, stack, last_kind, is_backward, 0.0)) for is_backward in (False, True)]


def test_hosts_launch_the_products_of_experts_one_by_one() -> None:
    """Products of all gates and of all last projections: Transformer Engine's loop over cuBLAS's.

    A product takes 33 microseconds with the scales of NVFP4 (its pull 3134), 8 in 16 bits (FlagGems' pull 4855).
    """
    without = MEGATRON.model_copy(update={"host_seconds_per_expert": {}})
    for ep, experts, dtype, product_seconds in ((8, 16, "bf16", 8e-6), (64, 2, "fp8", 3.3e-5), (8, 16, "fp4", 3.3e-5)):
        added = [
            seconds - seconds_without
            for seconds, seconds_without in zip(
                host_seconds("qwen3-30b-a3b", MEGATRON, ep, dtype=dtype),
                host_seconds("qwen3-30b-a3b", without, ep, dtype=dtype),
                strict=True,
            )
        ]
        assert added == pytest.approx([2 * experts * product_seconds, 4 * experts * product_seconds])
    assert host_seconds("llama3-8b", MEGATRON) == host_seconds("llama3-8b", without)
    assert host_seconds("qwen3-30b-a3b", find_stack("megatron-graphs"), 8) == [0, 0]


def test_graphs_of_layers_launch_all_but_the_experts() -> None:
    """Routers, attention and dense layers are captured; shapes of experts change (core/transformer/cuda_graphs.py)."""
    graphs = find_stack("megatron-layer-graphs")
    assert host_seconds("llama3-8b", graphs) == [0, 0]
    launches = [3 + 2 + 2 + 3, 4 + 2 * 2 + 2 + 4]  # of dispatching, of the products, of the activation, of combining
    seconds = [
        count * graphs.host_seconds_per_kernel + 2 * products * 16 * graphs.host_seconds_per_expert["bf16"]
        for count, products in zip(launches, (1, 2), strict=True)
    ]
    assert host_seconds("qwen3-30b-a3b", graphs, 8) == pytest.approx(seconds)
    with_fixed_capacity = graphs.model_copy(update={"captured_modules": ("attn", "moe")})
    assert host_seconds("qwen3-30b-a3b", with_fixed_capacity, 8) == [0, 0]


def test_attention_to_one_wide_key_has_kernels_of_its_own_in_megatron() -> None:
    """DeepSeek-V4's keys have 512 elements: cuDNN's and FlashMLA's sparse kernels (deepseek_v4_bridge.py of Bridge)."""

    def seconds(preset: str, stack: Any) -> float:
        work = rank_work(load_preset(preset).model, RankPass(1, 4096, ep=8))
        lines = time_pass(work, h100(), stack, NumberFormats()).operations
        return sum(float(line.compute) for line in lines if line.kind == "attention")

    without = MEGATRON.model_copy(update={"has_wide_single_key_kernel": False})
    triton = h100().generation.older_attention["triton"]
    assert seconds("deepseek-v4-flash", MEGATRON) == pytest.approx(triton * seconds("deepseek-v4-flash", without))
    assert seconds("deepseek-v3", MEGATRON) == seconds("deepseek-v3", without)


def test_fused_experts_move_no_activation_and_cast_less() -> None:
    work, graphs = rank_work(load_preset("qwen3-30b-a3b").model, RankPass(1, 4096, ep=8)), find_stack("megatron-graphs")

    def memory(stack: Any, kind: str, name: str, product_format: str = "fp8") -> list[float]:
        lines = time_pass(work, h100(), stack, NumberFormats(product_format)).operations
        return [line.memory for line in lines if line.kind == kind and line.path == f"layers.mlp.experts{name}"]

    assert any(memory(MEGATRON, "elementwise", ""))
    assert not any(memory(graphs, "elementwise", ""))
    # Transformer Engine's fused kernels are of MXFP8 and NVFP4
    assert memory(graphs, "elementwise", "", "bf16") == memory(MEGATRON, "elementwise", "", "bf16")
    # the input of the last product and the gradients of the first ones come from the activation
    whole = MEGATRON.model_copy(update={"launches_experts_separately": False})
    for name, casts in (("down_proj", 1), ("gate_proj", 1), ("up_proj", 1)):
        path = f".{name}"
        assert len(memory(whole, "experts", path)) - len(memory(graphs, "experts", path)) == casts


def test_biases_of_experts_are_added_step_by_step() -> None:
    """Megatron-Core adds the last product's biases, times the routing weights, but its fused products have them."""
    moved = {}
    for preset in ("gpt-oss-20b", "qwen3-30b-a3b"):
        work = rank_work(load_preset(preset).model, RankPass(1, 4096, ep=8))
        for stack in (MEGATRON, find_stack("megatron-graphs")):
            lines = time_pass(work, h100(), stack, NumberFormats("bf16")).operations
            moved[preset, stack.name] = sum(line.memory for line in lines if line.kind == "expert-bias")
    elements = 2 * 4 * 4096 * 2880  # of two kinds of layers, with four experts a token
    assert moved.pop(("gpt-oss-20b", "megatron")) == pytest.approx(h100().memory_seconds((28 + 36) * elements))
    assert not any(moved.values())


def test_each_expert_waits_for_its_own_weights() -> None:
    """Transformer Engine multiplies expert by expert: weights, and gradients in buffers of float32, are not hidden."""
    mixtral = load_preset("mixtral-8x7b").model
    device, experts = h100(), 3 * 4096 * 14_336 * 8

    def seconds(stack: Any) -> dict[bool, float]:
        lines = time_pass(
            rank_work(mixtral, RankPass(seq=4096, phase="training")), device, stack, NumberFormats()
        ).operations
        return {
            backward: sum(
                float(line.seconds) for line in lines if line.kind == "experts" and line.is_backward is backward
            )
            for backward in (False, True)
        }

    separate, fused = seconds(MEGATRON), seconds(MEGATRON.model_copy(update={"launches_experts_separately": False}))
    rate = device.memory_bandwidth * device.generation.memory
    assert separate[False] - fused[False] == pytest.approx(2 * experts / rate, rel=1e-6)
    assert separate[True] - fused[True] == pytest.approx((2 + 8) * experts / rate, rel=1e-6)
    in_16_bits = MEGATRON.model_copy(update={"gradient_bytes": 2.0})
    assert separate[True] - seconds(in_16_bits)[True] == pytest.approx(4 * experts / rate, rel=1e-6)


def test_recomputed_modules_take_their_forward_seconds_again() -> None:
    spec, device = llama(), h100()
    plan = StepPlan(micro_batches=1)

    def work_seconds(**options: Any) -> float:
        return float(training_step(spec, device, MEGATRON, replace(plan, **options)).seconds_by_part["work"])

    nodes = {name: work_seconds(recomputed_nodes=frozenset({name})) - work_seconds() for name in ("mlp", "self_attn")}
    lines = time_pass(rank_work(spec, plan.rank_pass(MEGATRON)), device, MEGATRON, NumberFormats()).operations
    forward = sum(line.runs_per_layer * line.seconds for line in lines if ".mlp" in line.path and not line.is_backward)
    assert nodes["mlp"] == pytest.approx(32 * forward)
    core = work_seconds(recomputed_nodes=frozenset({"self_attn.core"})) - work_seconds()
    assert core == pytest.approx(work_seconds(recomputes_attention=True) - work_seconds())
    assert core < nodes["self_attn"] < work_seconds(recomputed_share=1.0) - work_seconds()
    with pytest.raises(InputError, match="nodes:conv: no layer has that module; expected some of"):
        work_seconds(recomputed_nodes=frozenset({"conv"}))


@in_one_test
@pytest.mark.parametrize(
    ("collective", "share"),
    [("all_gather", 3 / 4), ("reduce_scatter", 3 / 4), ("all_reduce", 2 * 3 / 4), ("all_to_all", 3 / 4), ("send", 1)],
)
def test_a_link_carries_all_but_the_part_of_a_rank(collective: str, share: float) -> None:
    """Within a domain of four ranks; an all-reduce carries it twice, and a message between two ranks is whole."""
    device = device_of(find_hardware("h100-sxm"))
    once, twice = (device.message_seconds(collective, 4, size) for size in (1e9, 2e9))
    assert twice - once == pytest.approx(share * 1e9 / (device.link_bandwidth * device.link_share))


@pytest.mark.parametrize(("ranks", "links"), [(2, 1), (4, 3), (8, 7)])
def test_ranks_on_a_part_of_a_mesh_have_the_links_between_them(ranks: int, links: int) -> None:
    """An MI300X has a link of 64 GB/s each way to each of seven others (https://github.com/ROCm/rccl/pull/1270)."""
    device = device_of(load_hardware("mi300x"))
    once, twice = (device.message_seconds("all_reduce", ranks, size) for size in (1e9, 2e9))
    assert twice - once == pytest.approx(2 * (ranks - 1) / ranks * 1e9 / (links * 64e9 * device.link_share))
    assert device.stage_send_seconds(1e9, 8) == pytest.approx(1e9 / (64e9 * device.link_share) + device.latency)


def test_a_mesh_of_a_single_accelerator_divides_by_no_zero() -> None:
    card = load_hardware("mi300x")
    assert card.interconnect is not None
    link = card.interconnect.model_copy(update={"domain_size": 1})
    assert device_of(card.model_copy(update={"interconnect": link})).message_seconds("all_reduce", 1, 1e9) == 0.0


class TestMessagesOverPciExpress:
    """NCCL sends them in rings; GeForce cards send them through the host's memory."""

    @pytest.mark.parametrize(
        ("accelerator", "ranks", "microseconds"),
        [("rtx-pro-6000", 8, 24.6), ("rtx-4090", 8, 40.0)],  # nccl-tests, up to 256 bytes
    )
    def test_small_sums_take_what_nccl_was_measured_to_take(
        self, accelerator: str, ranks: int, microseconds: float
    ) -> None:
        device = device_of(find_hardware(accelerator))
        assert 1e6 * device.message_seconds("all_reduce", ranks, 256) == pytest.approx(microseconds, rel=0.17)

    def test_the_faster_of_two_protocols_sends(self) -> None:
        """LL has short steps and half of the rate, Simple 5.7 microseconds a step; four ranks take six steps."""
        device = device_of(find_hardware("l40s"))
        rate = device.link_bandwidth * device.link_share
        small, large = (device.message_seconds("all_reduce", 4, size) for size in (1e4, 1e7))
        assert small == pytest.approx(2 * 1.5 * 1e4 / rate + 6.6e-6 + 6 * 1.0e-6)
        assert large == pytest.approx(1.5 * 1e7 / rate + 8.4e-6 + 6 * 5.7e-6)

    @pytest.mark.parametrize(
        ("accelerator", "size", "microseconds"),
        [
            ("rtx-pro-6000", 4096, 4.5), ("rtx-pro-6000", 262_144, 11.1), ("rtx-pro-6000", 67_108_864, 1840),
            ("l40s", 4096, 5.6), ("l40s", 262_144, 18.1), ("l40s", 67_108_864, 3359),
        ],
    )  # fmt: skip
    def test_two_accelerators_reduce_in_one_kernel(self, accelerator: str, size: int, microseconds: float) -> None:
        """Tables of vLLM's kernel (comm/vllm) and, of the largest size, of NCCL in aiconfigurator, 095f58a5."""
        device = device_of(find_hardware(accelerator))
        assert 1e6 * device.message_seconds("all_reduce", 2, size) == pytest.approx(microseconds, rel=0.15)
        ratio = device.message_seconds("all_reduce", 4, size) / device.message_seconds("all_reduce", 2, size)
        assert ratio > 2 or size < 1e6  # 1.5 times the bytes, at two thirds of the rate

    @pytest.mark.parametrize(
        ("accelerator", "collective", "microseconds"),
        [
            ("rtx-pro-6000", "all_gather", 8306), ("rtx-pro-6000", "reduce_scatter", 7971),
            ("rtx-pro-6000", "all_to_all", 10448), ("l40s", "all_gather", 13698), ("l40s", "reduce_scatter", 14182),
        ],
    )  # fmt: skip
    def test_other_messages_between_two_reach_less_than_sums(
        self, accelerator: str, collective: str, microseconds: float
    ) -> None:
        """512 MiB in NCCL's tables of aiconfigurator, 095f58a5 (comm/nccl, 268,435,456 values in half)."""
        device = device_of(find_hardware(accelerator))
        assert 1e6 * device.message_seconds(collective, 2, 2**29) == pytest.approx(microseconds, rel=0.13)
        send_seconds = device.message_seconds("send", 2, 2**29)
        assert send_seconds == pytest.approx(2**29 / (device.link_bandwidth * device.link_share), rel=0.01)

    def test_two_accelerators_without_kernel_tables_send_as_many_do(self) -> None:
        """AMD's cards, and GeForce cards without access to each other, keep the share of a ring."""
        for name in ("radeon-ai-pro-r9700", "rtx-4090"):
            device = device_of(find_hardware(name))
            ring_seconds = 1e9 / (device.link_bandwidth * device.link_share)
            assert device.message_seconds("all_reduce", 2, 1e9) == pytest.approx(ring_seconds, rel=0.01)

    def test_a_server_has_no_kernel_of_its_own_for_more_than_two(self) -> None:
        """Only over NVLink do the kernels that reduce in one step shorten a message's latency."""
        for name, is_shorter in (("l40s", False), ("h100-sxm", True)):
            device = device_of(find_hardware(name))
            by_nccl, by_server = (device.message_seconds("all_reduce", 4, 256, latency=share) for share in (1.0, 0.5))
            assert (by_server < by_nccl) is is_shorter

    def test_cards_without_access_to_each_other_send_slower(self) -> None:
        card = find_hardware("rtx-4090")
        assert card.interconnect is not None
        link = card.interconnect.model_copy(update={"peer_access": True})
        with_access = card.model_copy(update={"interconnect": link})
        for size in (256, 1e6, 1e9):
            without, direct = (
                device_of(hardware).message_seconds("all_reduce", 4, size) for hardware in (card, with_access)
            )
            assert without > 1.2 * direct


@pytest.mark.parametrize(
    ("options", "is_noted"), [({"tp": 2}, True), ({}, False), ({"tp": 2, "nic": 300}, False)], ids=["tp2", "one", "nic"]
)
def test_a_note_says_that_a_link_is_not_known(options: dict[str, Any], is_noted: bool) -> None:
    notes = llmcalc.time("llama3-8b", hardware="h100-nvl", users=8, seq=1024, **options).document["notes"]
    assert any("no link of H100 NVL is known" in note for note in notes) is is_noted


class TestHostAndProductsOfServers:
    """A server that schedules ahead takes the longer of device and host; products have waits by format."""

    def test_host_beside_the_device(self) -> None:
        earlier, ahead = (decode(llama(), h100(), stack, 1, 1024) for stack in (find_stack("vllm-2025"), VLLM))
        assert earlier.seconds_by_part["host"] == VLLM.host_seconds_per_step > 0
        assert ahead.seconds_by_part["host"] == 0
        assert ahead.seconds < earlier.seconds
        slow_host = VLLM.model_copy(update={"host_seconds_per_step": 1.0})
        assert decode(llama(), h100(), slow_host, 1, 1024).seconds == pytest.approx(1.0)
        assert (
            decode(llama(), h100(), VLLM, 1, 1024, Layout(pp=2)).seconds_by_part["host"] == VLLM.host_seconds_per_step
        )  # not overlapped

    def test_sglang_hides_the_host_since_its_kernels_of_2026(self) -> None:
        engine, _ = engine_and_version("sglang")
        stack_names = [engine.software_stack((0, 5, number)) for number in (9, 10, 14)]
        assert stack_names == ["sglang-2025", "sglang-0510", "sglang"]
        earlier, _, ahead = (decode(llama(), h100(), find_stack(name), 1, 1024) for name in stack_names)
        assert earlier.seconds_by_part["host"] == find_stack("sglang").host_seconds_per_step > 0
        assert ahead.seconds_by_part["host"] == 0

    def test_units_without_16_bits_multiply_in_float32(self) -> None:
        """A Raspberry Pi 5 of 17.1 GB/s decodes 4.5 to 5.6 tokens/s (geerlingguy/ai-benchmarks, issues 7 and 24)."""
        processor = Hardware(
            title="Raspberry Pi 5",
            memory_bytes=2**34,
            memory_bandwidth=17_066_666_666,
            peak_flops={"float32": 153 * 10**9},
        )
        formats = NumberFormats("quantized", 5.03)  # a file of 1.88 GiB in Q4_K_M
        spec = llmcalc.load("llama3.2-3b").model
        token = decode(spec, device_of(processor), find_stack("llamacpp"), 1, 128, Layout(), formats).seconds
        assert token == pytest.approx(1 / 4.9, rel=0.3)
        with pytest.raises(InputError, match="no peak FLOP/s is known"):
            device_of(processor.model_copy(update={"peak_flops": {}}))

    def test_all_reduces_of_trainium_take_what_nccom_test_measured(self) -> None:
        """58 microseconds of up to 64 KiB (nccom-test of the documentation of Neuron), 161 times in a token of 70B."""
        trainium, stack = device_of(load_hardware("trainium1")), find_stack("vllm-neuron")
        assert trainium.message_seconds("all_reduce", 2, 1024, latency=stack.latency_factor) == pytest.approx(
            58e-6, rel=0.01
        )
        spec = llmcalc.load("llama2-70b").model
        token = decode(spec, trainium, stack, 1, 256, Layout(tp=16)).seconds
        assert token == pytest.approx(25.18e-3, rel=0.1)  # serve_neuron_trn1

    def test_llama_cpp_samples_each_sequence_on_the_host(self) -> None:
        stack = find_stack("llamacpp")
        host_seconds = [decode(llama(), h100(), stack, users, 1024).seconds_by_part["host"] for users in (1, 32)]
        assert host_seconds == pytest.approx([3e-4, 3e-4 + 31 * 2.4e-4])

    def test_llama_cpp_reads_quantized_weights_before_it_multiplies(self) -> None:
        """The seconds of reading them are added from 9 tokens on; fewer are multiplied by its kernel for vectors."""
        device, stack = device_of(find_hardware("rtx-4090")), find_stack("llamacpp")
        formats = NumberFormats("quantized", 5)
        overlapped = stack.model_copy(update={"reads_before_products": False})

        def added_seconds(sequences: int) -> float:
            with_reads, without = (
                decode(llama(), device, software, sequences, 1, number_formats=formats).seconds
                for software in (stack, overlapped)
            )
            return float(with_reads - without)

        weights = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
        assert added_seconds(8) == 0
        assert added_seconds(512) == pytest.approx(device.memory_seconds(weights * 5 / 8), rel=0.01)

    def test_units_bound_how_fast_llama_cpp_reads_weights_for_a_token(self) -> None:
        """Measured of Llama 3 8B in 16 bits, 16.06 GB, on memories of 1.56 and 2.04 TB/s.

        github.com/argonne-lcf/LLM-Inference-Bench, github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference
        """
        stack = find_stack("llamacpp")
        for name, tokens_per_second in (("a100-40gb", 53.1), ("h100-pcie", 67.8)):
            device = device_of(find_hardware(name))
            assert device.vector_rate < 0.75 * device.memory_rate
            token = decode(llama(), device, stack, 1, 512)
            assert token.seconds == pytest.approx(1 / tokens_per_second, rel=0.05)
        widest = device_of(find_hardware("b300"))
        assert widest.vector_rate == pytest.approx(1.65e12, rel=0.01)
        assert decode(llama(), widest, stack, 16, 512).seconds < decode(llama(), widest, stack, 8, 512).seconds
        unbound = device_of(find_hardware("rtx-4090"))
        assert unbound.vector_rate > unbound.memory_rate
        assert device_of(find_hardware("m3-max")).vector_rate == inf

    def test_llama_cpp_reads_experts_for_each_512_tokens_of_a_prompt(self) -> None:
        spec, device, stack = (
            load_preset("gpt-oss-20b").model,
            device_of(find_hardware("rtx-4090")),
            find_stack("llamacpp"),
        )

        def expert_memory(tokens: int) -> float:
            work = rank_work(spec, RankPass(1, tokens, 0, "prefill"))
            lines = time_pass(work, device, stack, NumberFormats("quantized", 4.25)).operations
            return float(
                sum(line.memory * line.runs_per_layer for line in lines if line.kind == "experts" and not line.compute)
            )

        assert expert_memory(2048) == pytest.approx(4 * expert_memory(512))

    def test_llama_cpps_attention_has_no_matrix_units_on_rdna(self) -> None:
        """Its share of the 16-bit peak is the default's times the rate of packed multiply-adds over it."""
        default = accelerator_generations()["default"].older_attention["fa2"]
        for name, generation, packed_rate in (
            ("rx-7900-xtx", "rdna3", 1),
            ("radeon-ai-pro-r9700", "rdna4", 1),
            ("strix-halo", "rdna3-5", 2),
        ):
            peaks = find_hardware(name).peak_flops
            share = default * packed_rate * peaks["float32"] / peaks["float16"]
            assert accelerator_generations()[generation].older_attention["fa2"] == pytest.approx(share, rel=0.01)
            assert device_of(find_hardware(name)).generation.name == generation

    def test_waits_of_products(self) -> None:
        without = VLLM.model_copy(update={"product_wait_by_format": {}, "expert_wait_by_format": {}})
        difference = decode(llama(), h100(), VLLM, 1, 8).seconds - decode(llama(), h100(), without, 1, 8).seconds
        products = 4 * 32 + 1  # q with k and v, o, gate with up, and down of 32 layers, and the head
        assert difference == pytest.approx(products * VLLM.product_wait_by_format["bf16"])

    @pytest.mark.parametrize("engine", ["vllm", "vllm-2025", "sglang", "tensorrt-llm"])
    def test_decoding_weights_takes_further_seconds(self, engine: str) -> None:
        """Kernel tables: a product whose weights are decoded takes 4 to 8 microseconds more than their bytes say."""
        stack, quantized = find_stack(engine), NumberFormats("quantized", 4.125)
        without = {name: wait for name, wait in stack.product_wait_by_format.items() if name != "quantized"}
        stack_without = stack.model_copy(update={"product_wait_by_format": without})
        seconds, seconds_without = (
            float(decode(llama(), h100(), server, 1, 8, number_formats=quantized).seconds_by_part["kernels"])
            for server in (stack, stack_without)
        )
        assert 4e-6 <= stack.product_wait_by_format["quantized"] <= 8e-6
        assert seconds - seconds_without == pytest.approx((4 * 32 + 1) * stack.product_wait_by_format["quantized"])

    def test_prompts_of_decoded_weights_are_slower_before_marlin_of_2025(self) -> None:
        quantized, in_16_bits = NumberFormats("quantized", 4.125), NumberFormats()
        for engine, is_slower in (("vllm-2024", True), ("vllm-2025", False)):
            decoded, plain = (
                prefill(llama(), h100(), find_stack(engine), 1, 4096, number_formats=formats).seconds
                for formats in (quantized, in_16_bits)
            )
            assert (decoded > 1.2 * plain) is is_slower

    def test_calibration_scales_them(self) -> None:
        scaled = CalibrationFactors(wait=2.0).scale_stack(VLLM)
        assert scaled.expert_wait_by_format == {name: 2 * wait for name, wait in VLLM.expert_wait_by_format.items()}


def test_rows_are_of_one_list() -> None:
    """A screen shows what bounds a run beside its parts; rows for programs are of one of the two lists."""
    time = llmcalc.time("gpt2", hardware="h100")
    parts, bounds = time.records(), time.records("bounds")
    assert [list(row) for row in (parts[0], bounds[0])] == [
        ["target", "part", "seconds", "share"],
        ["target", "bound", "bound_share"],
    ]
    assert sum(row["share"] for row in parts) == pytest.approx(1)
    assert sum(row["bound_share"] for row in bounds) == pytest.approx(1)
    assert [column.key for column in time.report().tables[0].columns] == [
        "part",
        "seconds",
        "share",
        "bound",
        "bound_share",
    ]


def test_piecewise_graphs_launch_short_prompts() -> None:
    """vLLM since 0.8 captures steps of up to 512 tokens but for attention, which splits their graphs: of Qwen3 0.6B the
    host launches 28 times attention and 29 graphs, and every kernel of a longer prompt.
    """
    model = load_preset("qwen3-0.6b").model
    for stack_name, captured in (("vllm", True), ("vllm-2025", True), ("vllm-2024", False)):
        stack = find_stack(stack_name)
        short, long = (
            float(prefill(model, h100(), stack, 1, tokens).seconds_by_part["kernels"]) for tokens in (512, 513)
        )
        if captured:
            assert long > 1.1 * short
            assert float(prefill(model, h100(), stack, 1, 16).seconds_by_part["kernels"]) == pytest.approx(
                max(
                    57 * stack.host_seconds_per_prompt_kernel,
                    float(decode(model, h100(), stack, 1, 16).seconds_by_part["kernels"]),
                ),
                rel=0.2,
            )
        else:
            assert long == pytest.approx(short, rel=0.01)


def test_experts_of_prompts_are_read_at_the_full_rate() -> None:
    """vLLM 0.24's kernels take 0.554 ms for a layer of Qwen3 30B on an H100 and 1,024 tokens, and SGLang 0.5.14's 0.522
    (aiconfigurator, moe_perf, loads by a power law of 1.01), with what sorts the tokens.
    """
    for stack_name, milliseconds in (("vllm", 0.554), ("sglang", 0.522)):
        (timed_pass,) = prefill(
            load_preset("qwen3-30b-a3b").model, h100(), find_stack(stack_name), 1, 1024
        ).timed_passes
        seconds = sum(
            float(operation.seconds * operation.runs_per_layer)
            for operation in timed_pass.operations
            if operation.kind in ("experts", "permutation")
        )
        assert seconds * 1000 == pytest.approx(milliseconds, rel=0.15)


@pytest.mark.parametrize(
    ("model", "layout", "captured"),
    [("qwen3-0.6b", Layout(), True), ("qwen3-0.6b", Layout(pp=2), False), ("qwen3.5-4b", Layout(), False)],
)
def test_sglang_captures_prompts_of_text_models(model: str, layout: Layout, captured: bool) -> None:
    """By default since 0.5.10, but for multimodal models and pipelines (docs.sglang.io, piecewise_cuda_graph)."""
    seconds = {
        name: float(prefill(load_preset(model).model, h100(), find_stack(name), 1, 64, layout=layout).seconds)
        for name in ("sglang-2025", "sglang-0510")
    }
    assert (seconds["sglang-0510"] < 0.5 * seconds["sglang-2025"]) == captured
    assert (seconds["sglang-0510"] == seconds["sglang-2025"]) != captured


@pytest.mark.parametrize(
    ("accelerator", "teraflops"), [("rtx-4090", 159), ("rtx-5090", 209.5), ("rtx-3090", 71), ("l20", 110)]
)
def test_half_rates_and_cut_rates_are_reached(accelerator: str, teraflops: float) -> None:
    """torch's products of bfloat16 (github.com/zzc0721/torch-performance-test-data)."""
    assert device_of(find_hardware(accelerator)).product_rate("bf16") == pytest.approx(teraflops * 1e12, rel=0.03)


def test_batches_of_a_prompt_run_as_a_pipeline_in_llama_cpp() -> None:
    """Four cards with layers of their own take 1 + 3 turns of a quarter for 512 tokens and 8 + 3 for 4,096."""
    model, stack = load_preset("llama3-8b").model, find_stack("llamacpp")
    for tokens, turns in ((512, 4), (4096, 11)):
        passes = [prefill(model, h100(), stack, 1, tokens, layout=Layout(pp=pp)) for pp in (1, 4)]
        whole, divided = (float(prompt_pass.seconds_by_part["kernels"]) for prompt_pass in passes)
        assert divided / whole == pytest.approx(turns / (4 * -(-tokens // 512)))
        of_whole, of_divided = (
            sum(float(timed.seconds) for timed in prompt_pass.timed_passes) for prompt_pass in passes
        )
        assert of_divided / of_whole == pytest.approx(divided / whole)  # what the screen shows of each kernel


def test_casts_of_narrow_formats_are_launches_of_a_prompt() -> None:
    """vLLM's host launches a kernel before each of the four products of a layer, which casts its input to 8 bits."""
    model, narrow = load_preset("qwen3-0.6b").model, NumberFormats("fp8", 8)
    wide, cast = (
        float(prefill(model, h100(), VLLM, 1, 1024, number_formats=formats).seconds_by_part["kernels"])
        for formats in (NumberFormats(), narrow)
    )
    assert cast - wide == pytest.approx(28 * 4 * VLLM.host_seconds_per_prompt_kernel)


def test_copies_of_quantized_weights_are_written_and_read() -> None:
    """llama.cpp until May 2024 decoded the weights of prompts of more than 64 tokens to copies in 16 bits."""
    model, stack = load_preset("llama3-8b").model, find_stack("llamacpp-2024")
    formats = NumberFormats("quantized", 4.5, head_bits=4.5)
    few, many = (float(prefill(model, h100(), stack, 1, tokens, number_formats=formats).seconds) for tokens in (64, 65))
    weights = 32 * (4096 * (4096 + 4096 + 2048) + 3 * 4096 * 14336)
    assert many - few == pytest.approx(h100().memory_seconds(weights * (4.5 / 8 + 2 + 2 - 4.5 / 8)), rel=0.1)
    device = device_of(find_hardware("m3-max"))
    few, many = (float(prefill(model, device, stack, 1, tokens, number_formats=formats).seconds) for tokens in (64, 65))
    assert many == pytest.approx(few, rel=0.03)
