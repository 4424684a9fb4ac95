"""Steps under FSDP2 hold what torch's FSDPMemTracker sees on a fake process group, at every hook of every group."""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from math import prod
from typing import Any

import pytest
import torch
from torch.distributed.tensor.debug import CommDebugMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import llmcalc
from llmcalc.components.base import Component
from llmcalc.costs.params import params
from llmcalc.costs.trained_tensors import trained_tensors
from llmcalc.device_memory.cuda_runtime import HOPPER_RUNTIME, CudaRuntime
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.host_memory import pinned_bytes
from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.training import TrainingConfig
from llmcalc.errors import InputError
from llmcalc.frameworks.framework import RunOnRanks
from llmcalc.frameworks.fsdp2.pipeline import FsdpRankSetup
from llmcalc.frameworks.fsdp2.rank_memory import (
    TENSOR_PARALLEL_STATUS,
    _record_counted_rank,
    counted_run_of_rank,
    fsdp_memory,
    rank_memory,
    step_collectives_of_rank,
    tensor_bytes,
)
from llmcalc.frameworks.fsdp2.settings import OuterGroups, TitanSettings
from llmcalc.frameworks.fsdp2.training import (
    SEPARATE_HEAD_SINCE,
    TORCHTITAN_FSDP_SETTINGS,
    FsdpRun,
    FsdpSettings,
    check_optimizer,
    record_fsdp_run,
    sharding_of_rank,
    torchtitan_config_and_settings,
)
from llmcalc.frameworks.ranks import Cluster
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.messages import Message
from llmcalc.parallel.rank_program import rank_program
from llmcalc.simulator.adapters import Adapters
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.layer_pattern import RECORDED_REPEATS
from llmcalc.simulator.layer_stacks import layer_stacks
from llmcalc.simulator.meter import AllocationPlace, Meter
from llmcalc.simulator.repeat_layers import RepeatAnalysis
from llmcalc.simulator.tensor import BFLOAT16
from llmcalc.witnesses import kernel_variants
from llmcalc.witnesses.cpu_events import GradientSums, read_events
from llmcalc.workload.recompute import parse_recompute
from tests.comparisons import compares, under
from tests.contracts.test_parts import around_a_model
from tests.frameworks.fsdp2.fully_sharded import Followed, Seen, Tracker, by_torch, differences, replayed
from tests.samples import sampled, with_rest
from tests.simulator.compare import examples

FLASH = KernelChoices(attention="flash")

FAMILIES = ("llama3-8b", "gpt2", "qwen3-8b", "gemma2-9b", "qwen3-30b-a3b")

SIZES: dict[str, Any] = {
    "vocab_size": 51,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "top_k": 2,
    "sliding_window": 5,
    "max_position_embeddings": 16,
    "num_hidden_layers": 3,
}


def _small(value: Any) -> Any:
    """The same parts with the sizes above, where they have such a size."""
    if isinstance(value, dict):
        return {name: _small(one) for name, one in value.items()}
    if not isinstance(value, Component | ModelSpec):
        return value
    fields = {name: getattr(value, name) for name in type(value).model_fields}
    return value.model_copy(
        update={
            name: SIZES[name] if name in SIZES and isinstance(one, int) else _small(one) for name, one in fields.items()
        }
    )


@cache
def family(name: str) -> ModelSpec:
    """A small model of a family; or a small model around an example of a part."""
    if name in examples():
        return around_a_model(examples()[name])
    return _small(llmcalc.load(name).model)  # type: ignore[no-any-return]


# --- a drawn grid -----------------------------------------------------------------------------------------------------

OPTIONS: dict[str, tuple[Any, ...]] = {
    "family": (*FAMILIES, "Block-15"),
    "ranks": (2, 3, 4, 5, 7, 8, 16),
    "replicas": (1, 1, 2),
    "recompute": ("none", "full", "attention+matmuls", "selective-op", "every:2", "full-reentrant", "attention"),
    "attention": ("eager", "sdpa-math", "eager", "sdpa-math", "flash"),
    "micro-batches": ((1, True), (1, True), (2, True), (3, False)),
    "formats": (("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")),
    "reshard": (True, True, False),
    "keeps last": (True, False),
    "optimizer": ("adamw foreach", "adamw fused", "adamw foreach", "sgd foreach"),
    "sizes": ((2, 7), (1, 9)),
}
"""Option → its values. micro-batches: how many, and whether the gradients of each are summed over ranks. formats: of
shards and of sums. sgd has momentum. `Block-14` is an encoder-decoder.
"""

DRAWN = 14


@dataclass(frozen=True)
class Case:
    values: tuple[tuple[str, Any], ...]
    rank: int

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values).replace(" ", "-")

    @property
    def setting(self) -> tuple[ModelSpec, TrainingConfig, Layout, FsdpSettings]:
        of = dict(self.values)
        (batch, seq), (count, every), (dtype, reduced) = of["sizes"], of["micro-batches"], of["formats"]
        optimizer, _, implementation = of["optimizer"].partition(" ")
        attention = "eager" if of["family"] in ("gemma2-9b", "Block-15") else of["attention"]
        training = TrainingConfig(
            batch=batch,
            seq=seq,
            microbatches=count,
            optimizer=optimizer,
            implementation=implementation,
            has_momentum=optimizer == "sgd",
            recompute=parse_recompute(of["recompute"]),
            kernel_choices=KernelChoices(attention=attention),
        )
        layout = Layout(dp=of["ranks"] * of["replicas"], hsdp_replicas=of["replicas"], zero=3, reshard=of["reshard"])
        model = family(of["family"])
        if attention == "sdpa-math":  # off a GPU torch's math of sdpa has no mask of bytes for dropout
            model = model.with_dropout(0.0)
        return model, training, layout, FsdpSettings(dtype, reduced, of["keeps last"], every)


def _drawn(seed: int = 0) -> list[Case]:
    """Cases in which every value of every option stands about equally often."""
    pick = random.Random(seed)
    columns = {}
    for option, values in OPTIONS.items():
        columns[option] = [*values * -(-DRAWN // len(values))][:DRAWN]
        pick.shuffle(columns[option])
    rows = [tuple((option, columns[option][i]) for option in OPTIONS) for i in range(DRAWN)]
    return [Case(row, pick.randrange(dict(row)["ranks"] * dict(row)["replicas"])) for row in rows]


def causes(case: Case) -> set[Any]:
    """Every value of an option; of numbers of ranks, whether they are powers of two, and how many replicas."""
    ranks = dict(case.values)["ranks"]
    return {value for value in case.values if value[0] != "ranks"} | {("uneven", ranks & (ranks - 1) != 0)}


@compares(lambda case: under("fsdp2", case.setting[0], case.setting[1].optimizer))
@pytest.mark.parametrize("case", sampled({str(case): case for case in _drawn()}, causes))
def test_a_rank_holds_what_the_tracker_sees(case: Case) -> None:
    spec, training, layout, fsdp = case.setting
    assert (
        differences(
            replayed(spec, training, layout, case.rank, fsdp), by_torch(spec, training, layout, case.rank, fsdp)
        )
        == {}
    )


def test_the_grid_has_every_value() -> None:
    drawn = [dict(case.values) for case in _drawn()]
    for option, values in OPTIONS.items():
        assert {case[option] for case in drawn} == set(values)


PARTS = (
    *("Attention-2", "Attention-9", "Attention-10", "Attention-11", "Attention-12", "Classifier-1", "Classifier-2"),
    *("CompressedAttention-2", "CompressedConvAttention-0", "ContactHead-0", "ConvStem-0", "DifferentialAttention-0"),
    *("DynamicMaskAttention-0", "GatedCrossLayer-0", "GatedNormLayer-0"),
    *("LocalAttention-1", "MLA-3", "MergedAttention-0"),
    *("MixtureOfAttention-0", "MoE-5", "MoE-7", "MoE-9", "Norm-6", "ProductKeyMoE-0", "RelativeAttention-0"),
    *("RelativeEmbedding-0", "RwkvChannelMix-0", "SecondStream-0"),
    *("ShortConv-1", "ShortcutLayer-0", "SideConvolution-0"),
    *("SinusoidalPositions-0", "Stack-0", "Stack-3", "TokenTypes-0", "UnusedEmbedding-0"),
)
"""Examples that together have every part that FSDP2 runs, but those of published kernels. torch itself refuses
Gemma 4's layers in its mixed precision.
"""


SHARDED = (
    *("Attention-11", "Classifier-1", "CompressedConvAttention-0", "GatedCrossLayer-0"),
    *("MergedAttention-0", "MoE-9", "Norm-6"),
    "ProductKeyMoE-0",
)
"""Parts whose parameters are of every shape: matrices, vectors, tables, grouped weights, kernels of convolutions. What
the others compute is compared on one device (simulator/test_eager.py).
"""


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # a classifier's output is a view
@compares(lambda name: under("fsdp2", family(name), "adamw"))
@pytest.mark.parametrize("name", with_rest({name: name for name in PARTS}, SHARDED))
def test_a_rank_with_a_part_holds_what_the_tracker_sees(name: str) -> None:
    spec, training, layout = family(name), TrainingConfig(batch=2, seq=7), Layout(dp=3, zero=3)
    assert differences(replayed(spec, training, layout, 1), by_torch(spec, training, layout, 1)) == {}


LOW = frozenset({"q_proj", "v_proj", "down_proj"})


@pytest.mark.parametrize(
    ("name", "fields", "layout", "fsdp"),
    [
        ("llama3-8b", {}, Layout(dp=3, zero=3), TORCHTITAN_FSDP_SETTINGS),
        (
            "llama3-8b",
            {"microbatches": 3},
            Layout(dp=2, zero=3),
            FsdpSettings("bfloat16", reduces_each_microbatch=False),
        ),
        pytest.param(
            "llama3-8b", {}, Layout(dp=3, zero=3), FsdpSettings(frozen_dtype="bfloat16"), marks=pytest.mark.exhaustive
        ),
        ("llama3-8b", {}, Layout(zero=3), FsdpSettings(frozen_dtype="bfloat16")),
        (
            "qwen3-8b",
            {"recompute": parse_recompute("full-reentrant")},
            Layout(dp=8, hsdp_replicas=2, zero=3, reshard=False),
            FsdpSettings("bfloat16", "bfloat16", keeps_last_layer_gathered=False),
        ),
    ],
)
def test_adapters_are_sharded_with_the_frozen_weights(
    name: str, fields: dict[str, Any], layout: Layout, fsdp: FsdpSettings
) -> None:
    """Only adapters have gradients and states. All is gathered in bf16."""
    training = TrainingConfig(batch=2, seq=7, adapters=Adapters(4, LOW, dropout=True, dtype=BFLOAT16), **fields)
    for rank in (0, layout.world_size - 1):
        theirs = by_torch(family(name), training, layout, rank, fsdp)
        assert differences(replayed(family(name), training, layout, rank, fsdp), theirs) == {}


class TrainedCopy(torch.nn.Module):
    """A trained copy of a frozen module (peft/utils/other.py, `ModulesToSaveWrapper`)."""

    def __init__(self, original_module: torch.nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.original_module = original_module
        self.modules_to_save = copy.deepcopy(original_module).to(dtype).requires_grad_(True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.modules_to_save(x)


@pytest.mark.parametrize("outer_groups", ["together", "embedding", "separate"])
def test_trained_copies_are_sharded_with_their_frozen_originals(
    outer_groups: OuterGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a head in a group of its own the input of the reduction is counted through the last layer, an upper bound."""
    copied_modules = ("embed_tokens", "lm_head")
    adapters = Adapters(4, LOW, dtype=BFLOAT16, copied_modules=frozenset(copied_modules))
    attach_adapters = kernel_variants.attach_adapters

    def with_copies(module: Any, adapters: Adapters, device: str = "cpu") -> None:
        attach_adapters(module, adapters, device)
        for name in copied_modules:
            setattr(module, name, TrainedCopy(module.get_submodule(name), getattr(torch, adapters.dtype.name)))

    monkeypatch.setattr(kernel_variants, "attach_adapters", with_copies)
    training = TrainingConfig(batch=2, seq=7, adapters=adapters, optimizer="sgd")
    layout = Layout(dp=3, zero=3)
    fsdp, spec = FsdpSettings("bfloat16", outer_groups=outer_groups), family("llama3-8b")
    for rank in (0, 2):
        theirs = by_torch(spec, training, layout, rank, fsdp)
        unlike = differences(replayed(spec, training, layout, rank, fsdp), theirs)
        if outer_groups != "separate":
            assert unlike == {}
        peaks = {moment: peak for moment, peak in unlike.items() if isinstance(moment, Seen)}
        assert all(
            moment.phase == "backward" and 0 < ours - torch_peak <= 4 * spec.vocab_size * spec.hidden_size
            for moment, (ours, torch_peak) in peaks.items()
        )


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_frozen_layers_are_gathered_and_have_no_gradients(recompute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, layout, fsdp = family("llama3-8b"), Layout(dp=2, zero=3), FsdpSettings("bfloat16")
    assert spec.decoder is not None
    last_layer = spec.decoder.num_hidden_layers - 1
    apply_kernel_choices = kernel_variants.apply_kernel_choices

    def freeze(module: Any, *arguments: Any) -> None:
        apply_kernel_choices(module, *arguments)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(f"layers.{last_layer}." in name)
        if recompute == "full":  # as LLaMA-Factory's checkpoints, whose first argument wants a gradient
            layer = module.get_submodule(f"layers.{last_layer}")
            layer.register_forward_pre_hook(lambda _, arguments: (arguments[0].requires_grad_(True), *arguments[1:]))

    monkeypatch.setattr(kernel_variants, "apply_kernel_choices", freeze)
    training = TrainingConfig(batch=2, seq=7, recompute=parse_recompute(recompute), first_trained_layer=last_layer)
    theirs = by_torch(spec, training, layout, 0, fsdp)
    assert differences(replayed(spec, training, layout, 0, fsdp), theirs) == {}


def test_adapters_have_a_format_of_their_own_by_default() -> None:
    training = memory(family("llama3-8b"), Settings("training", batch=2, seq=16, lora_rank=4)).training()
    alone, fsdp = torchtitan_config_and_settings(family("llama3-8b"), training)
    assert (fsdp.dtype, fsdp.frozen_dtype) == ("float32", "bfloat16")
    assert alone.adapters is not None
    assert alone.adapters.dtype is BFLOAT16


def test_layers_with_adapters_are_recorded_as_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer's gradients are reduced after the pass, since its input has none. All layers one by one need as
    many bytes.
    """
    settings = Settings("training", batch=1, seq=64, lora_rank=4)
    run = memory(llmcalc.load("smollm2-135m?num_hidden_layers=12").model, settings)
    training, fsdp = torchtitan_config_and_settings(run.spec, run.training())
    setup = FsdpRankSetup(run.spec, training, Layout(dp=4, zero=3), 0, HOPPER_RUNTIME.workspace_bytes, fsdp)
    folded = counted_run_of_rank(setup, HOPPER_RUNTIME)
    assert folded.repeating_stacks
    monkeypatch.setattr(RepeatAnalysis, "_release_order_of_repeats", lambda self, origins: [])
    whole = counted_run_of_rank(setup, HOPPER_RUNTIME)
    assert not whole.repeating_stacks
    assert folded.memory(0, (), TENSOR_PARALLEL_STATUS) == whole.memory(0, (), TENSOR_PARALLEL_STATUS)


@pytest.mark.parametrize(
    ("changes", "layout", "places"),
    [
        ("", Layout(dp=4, zero=3), [0, 0, 0, 0]),
        ("", Layout(dp=5, zero=3), [None] * 5),  # 192 rows on 5 ranks
        ("", Layout(dp=2, tp=3, zero=3), [0] * 6),
        ("&vocab_size=1001", Layout(dp=1, tp=3, zero=3), [None] * 3),
        ("", Layout(dp=2, cp=2, zero=3), [0, 1, 0, 1]),
    ],
)
def test_ranks_with_equal_parts_are_recorded_once(changes: str, layout: Layout, places: list[int | None]) -> None:
    """Ranks whose parts are equal by the sizes record equal events, with equal work, and share one run."""
    run = memory(
        llmcalc.load("smollm2-135m?num_hidden_layers=6" + changes).model, Settings("training", batch=1, seq=16)
    )
    training, fsdp = torchtitan_config_and_settings(run.spec, run.training())
    setup = FsdpRankSetup(run.spec, training, layout, 0, HOPPER_RUNTIME.workspace_bytes, fsdp)
    ranks = [_record_counted_rank(replace(setup, rank=rank), HOPPER_RUNTIME) for rank in range(layout.world_size)]
    assert [rank.ring_position for rank in ranks] == places
    for rank in ranks:
        for other_rank in ranks:
            if rank.ring_position is not None and rank.ring_position == other_rank.ring_position:
                assert (rank.recorded_events, rank.recording_units) == (
                    other_rank.recorded_events,
                    other_rank.recording_units,
                )
    shared_results: dict[Any, Any] = {}
    shared_runs = [
        counted_run_of_rank(replace(setup, rank=rank), HOPPER_RUNTIME, shared_results)
        for rank in range(layout.world_size)
    ]
    for rank, shared_run in zip(ranks, shared_runs, strict=True):
        assert (rank.ring_position is None) or shared_run is shared_runs[layout.coordinates(rank.ring_position).cp]
        assert rank.counted_run.memory(0, (), TENSOR_PARALLEL_STATUS) == shared_run.memory(
            0, (), TENSOR_PARALLEL_STATUS
        )


def test_adapters_under_version_1_are_refused() -> None:
    given = Settings("training", batch=2, seq=16, lora_rank=4)
    run = Cluster.with_framework(
        memory(family("llama3-8b"), given),
        Layout(dp=2, zero=3),
        "fsdp2",
        framework_settings=TitanSettings(has_flat_parameters=True),
    )
    with pytest.raises(InputError, match="fsdp_version 1"):
        _ = run.device_rank


def test_adapters_over_weights_in_8_bits_are_refused() -> None:
    settings = Settings("training", batch=2, seq=16, lora_rank=4, base="int8")
    with pytest.raises(InputError, match="FSDP2 with adapters over weights in 8 bits"):
        _ = Cluster.with_framework(memory(family("llama3-8b"), settings), Layout(dp=2, zero=3), "fsdp2").device_rank


@pytest.mark.parametrize(
    ("ranks", "others", "adapters"),
    [
        (1, 2 * 51 * 24 + 7 * 24, 3 * (4 * 24 + 24 * 4)),
        (2, 2 * 26 * 24 + 7 * 12, 3 * (2 * 24 + 12 * 4)),
        (4, 2 * 13 * 24 + 7 * 6, 3 * (1 * 24 + 6 * 4)),
    ],
)
def test_codes_of_4_bits_are_sharded_and_their_scales_are_not(ranks: int, others: int, adapters: int) -> None:
    """Three layers of 24 · (24 + 12 + 12 + 24) and 3 · 24 · 40 elements; a scale of 4 bytes per 64 of a matrix, and the
    16 values of nf4 in fp32 beside each of the seven matrices.

    others: elements of a shard of embedding, head and norms, in bf16. adapters: those of adapters, in fp32.
    """
    codes = 3 * (24 * 72 + 3 * 24 * 40) // 2
    scales = 3 * 4 * (9 + 5 + 5 + 9 + 3 * 15 + 7 * 16)
    settings = Settings("training", batch=2, seq=16, lora_rank=4, lora_targets=("q_proj",), base="nf4", dtype="bf16")
    cluster = Cluster.with_framework(
        memory(family("llama3-8b"), settings), Layout(dp=ranks, zero=3 if ranks > 1 else 0), "fsdp2"
    )
    weights = cluster.device_rank.device.moments["step"]["weights"]
    assert weights == codes // ranks + scales + 2 * others + 4 * adapters


def test_scales_of_torchao_are_sharded_with_the_codes() -> None:
    """torchao/dtypes/nf4tensor.py: `_INNER_TENSOR_NAMES_FOR_SHARDING` has codes, scales and the scales' factors."""

    def quantized_weights(library: str, ranks: int) -> int:
        settings = Settings(
            "training",
            batch=2,
            seq=16,
            lora_rank=4,
            lora_targets=("q_proj",),
            base="nf4-dq",
            lora_library=library,
            dtype="bf16",
        )
        layout = Layout(dp=ranks, zero=3)
        cluster = Cluster.with_framework(memory(family("llama3-8b"), settings), layout, "fsdp2")
        return cluster.device_rank.device.moments["step"]["weights"]

    scales = quantized_weights("peft", 4) - quantized_weights("torchtune", 4)
    assert scales > 0
    assert quantized_weights("peft", 2) - quantized_weights("torchtune", 2) == pytest.approx(scales * 2 / 3, rel=0.2)


def test_bitsandbytes_takes_flat_parameters_and_no_dtensor() -> None:
    """axolotl, utils/schemas/validation.py, `check_fsdp2_w_8bit_optimizer`: 8 bits run with version 1 alone."""
    training = TrainingConfig(optimizer="adamw-8bit")
    check_optimizer(training, fsdp_version=1)
    with pytest.raises(InputError, match="on shards it is not modelled"):
        check_optimizer(training, fsdp_version=2)


# --- further witnesses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "are_equal"), [(2, True), (7, False)])
def test_equal_ranks_are_replayed_once(ranks: int, are_equal: bool) -> None:
    """Seven ranks do not divide every size: the last one has fewer rows. Tensors are known before the replay."""
    spec = family("llama3-8b").model_copy(update={"vocab_size": 48})
    run = RunOnRanks(memory(spec, Settings(phase="training", seq=64)), Layout(dp=ranks, zero=3))
    last = ranks - 1
    training, fsdp = torchtitan_config_and_settings(run.memory.spec, run.memory.training())
    shared: dict[Any, Any] = {}
    first_run, last_run = (
        counted_run_of_rank(
            FsdpRankSetup(run.memory.spec, training, run.layout, rank, fsdp_settings=fsdp), HOPPER_RUNTIME, shared
        )
        for rank in (0, last)
    )
    assert (first_run is last_run) == are_equal
    bytes_of_ranks = [tensor_bytes(run, rank, HOPPER_RUNTIME) for rank in (0, last)]
    assert bytes_of_ranks == [rank_memory(run, rank, HOPPER_RUNTIME).exact_bytes for rank in (0, last)]
    assert (bytes_of_ranks[0] == bytes_of_ranks[1]) == are_equal


def test_a_whole_model_on_many_ranks() -> None:
    """Llama 3 8B with three of its layers: 128,256 rows of 128 ranks are even, and so are all others."""
    spec = with_layer_count(llmcalc.load("llama3-8b").model, 3)
    training = TrainingConfig(batch=2, seq=8192, recompute=parse_recompute("attention+matmuls"), kernel_choices=FLASH)
    layout = Layout(dp=128, zero=3)
    theirs = by_torch(spec, training, layout, 0, fake=True)
    assert differences(replayed(spec, training, layout, 0), theirs) == {}
    assert theirs.bytes[Seen(1, 0, "backward")] > 25e9


@pytest.mark.parametrize(
    ("microbatches", "fsdp"),
    [
        (1, FsdpSettings(outer_groups="separate")),
        (1, FsdpSettings(outer_groups="separate", keeps_last_layer_gathered=False)),
        (2, FsdpSettings(outer_groups="separate")),
        (2, FsdpSettings(outer_groups="separate", keeps_last_layer_gathered=False)),
        (2, FsdpSettings(outer_groups="embedding", keeps_last_layer_gathered=False)),
    ],
)
def test_embedding_and_head_as_groups_of_their_own(microbatches: int, fsdp: FsdpSettings) -> None:
    """The tracker would run the hooks of a group at each of its modules."""
    spec = family("llama3-8b")
    training = TrainingConfig(batch=2, seq=7, microbatches=microbatches, optimizer="sgd")
    layout = Layout(dp=5, zero=3)
    ours, theirs = (run(spec, training, layout, 1, fsdp) for run in (replayed, partial(by_torch, watch=Followed)))
    assert differences(ours, theirs) == {}
    one_group = replayed(spec, training, layout, 1)
    assert one_group.bytes[Seen(1, 0, "backward")] != ours.bytes[Seen(1, 0, "backward")]


@pytest.mark.parametrize(
    ("prefetch", "reshard", "recompute"),
    [
        pytest.param(1, True, "none", marks=pytest.mark.exhaustive),
        (2, True, "full"),
        pytest.param(3, False, "none", marks=pytest.mark.exhaustive),
    ],
)
def test_layers_that_are_gathered_ahead(prefetch: int, reshard: bool, recompute: str) -> None:
    """A layer that gathers others ahead of them holds them too, in both passes."""
    spec, training = (
        with_layer_count(family("llama3-8b"), 6),
        TrainingConfig(batch=2, seq=7, optimizer="sgd", recompute=parse_recompute(recompute)),
    )
    layout, fsdp = Layout(dp=4, zero=3, reshard=reshard), FsdpSettings(prefetched_layer_count=prefetch)
    ours = replayed(spec, training, layout, 1, fsdp)
    assert differences(ours, by_torch(spec, training, layout, 1, fsdp)) == {}
    assert ours.snapshots != replayed(spec, training, layout, 1).snapshots


@pytest.mark.parametrize("prefetch", [1, 3])
def test_an_answer_with_layers_gathered_ahead(prefetch: int) -> None:
    """What a run of all layers finds; with more than one layer ahead, a run of few would not stand for it."""
    spec, training = with_layer_count(family("llama3-8b"), 12), TrainingConfig(batch=2, seq=7)
    layout, fsdp = Layout(dp=4, zero=3), FsdpSettings(prefetched_layer_count=prefetch)
    meter = Meter()
    run = FsdpRun(spec, training, sharding_of_rank(training, layout, 0, fsdp), fsdp, memory_meter=meter)
    run.set_up()
    run.step()
    meter.peaks, meter.place = {}, AllocationPlace()
    run.step()
    expected = max(peak.bytes for place, peak in meter.peaks.items() if place.phase != "after")
    assert fsdp_memory(spec, training, layout, 0, CudaRuntime(workspace_bytes=0), fsdp).exact_bytes == expected


def test_two_witnesses_agree() -> None:
    spec, training, layout = family("qwen3-8b"), TrainingConfig(batch=2, seq=7), Layout(dp=3, zero=3)
    tracked, followed = (by_torch(spec, training, layout, 2, watch=watch) for watch in (Tracker, Followed))
    assert tracked.bytes == followed.bytes


def test_one_rank_alone_gathers_nothing() -> None:
    spec, training, layout = family("llama3-8b"), TrainingConfig(batch=1, seq=9), Layout(zero=3)
    assert differences(replayed(spec, training, layout, 0), by_torch(spec, training, layout, 0)) == {}
    assert step_collectives_of_rank(spec, training, layout) == []


# --- many layers from few ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_on_the_host_are_copied_to_the_device_for_a_gather(dtype: str) -> None:
    """Between the passes nothing of the shards, their gradients and the optimizer's states is on the device.

    The inputs of an all-gather are copies in the shards' format, which a cast replaces one after the other.
    """
    spec, layout = family("llama3-8b"), Layout(dp=4, zero=3)
    training = TrainingConfig(batch=1, seq=7, optimizer="adamw", implementation="fused", kernel_choices=FLASH)
    fsdp = FsdpSettings(dtype=dtype, offloads_to_host=True)
    run = FsdpRun(spec, training, sharding_of_rank(training, layout, 0, fsdp), fsdp)
    run.set_up()
    assert run.meter.by_kind["weights"] == 0
    run.step()
    assert [run.meter.by_kind[kind] for kind in ("weights", "gradients", "optimizer")] == [0, 0, 0]
    group = max(run.lowering.groups.values(), key=lambda group: group.all_gather_bytes)
    shards = [parameter.shard_elements for parameter in group.parameters]
    inputs = group._all_gather_inputs()
    assert sum(one.bytes for one in inputs) == group.all_gather_bytes == 2 * sum(shards)
    offloaded = fsdp_memory(spec, training, layout, 0, fsdp_settings=fsdp)
    on_device = fsdp_memory(spec, training, layout, 0, fsdp_settings=replace(fsdp, offloads_to_host=False))
    weights, gradients, states = (term.bytes for term in offloaded.host_terms)
    every = [parameter for each in run.lowering.groups.values() for parameter in each.parameters]
    width = 4 if dtype == "float32" else 2
    assert weights == gradients == sum(pinned_bytes(width * parameter.shard_elements) for parameter in every)
    assert states == sum(2 * width * parameter.shard.numel + 4 for parameter in every)  # two moments and a step count
    assert offloaded.exact_bytes < on_device.exact_bytes
    assert on_device.host_terms == ()


def with_layer_count(spec: ModelSpec, layers: int) -> ModelSpec:
    """The same decoder with another number of layers."""
    assert spec.decoder is not None
    return spec.model_copy(update={"decoder": spec.decoder.model_copy(update={"num_hidden_layers": layers})})


@pytest.mark.parametrize(
    ("name", "recompute", "microbatches", "fsdp"),
    [
        ("llama3-8b", "none", 1, TORCHTITAN_FSDP_SETTINGS),
        ("gemma2-9b", "full", 1, FsdpSettings(keeps_last_layer_gathered=False)),
        ("qwen3-30b-a3b", "attention+matmuls", 3, FsdpSettings(reduces_each_microbatch=False)),
        ("llama3-8b", "full", 2, FsdpSettings(reduction_format="bfloat16", outer_groups="separate")),
    ],
)
def test_a_run_of_few_layers_stands_for_all(name: str, recompute: str, microbatches: int, fsdp: FsdpSettings) -> None:
    """Bytes of every place and kind of a run of twelve layers, from one of four repeats."""
    spec = with_layer_count(family(name), 12)
    training = TrainingConfig(batch=2, seq=7, microbatches=microbatches, recompute=parse_recompute(recompute))
    rank_model = sharding_of_rank(training, Layout(dp=10, hsdp_replicas=2, zero=3), 3, fsdp)
    stacks = layer_stacks(spec, training.recompute.every)
    layers = {0: stacks[0].repeats_of_layer_types(RECORDED_REPEATS)}
    few = record_fsdp_run(lambda meter: FsdpRun(spec, training, rank_model, fsdp, layers=layers, memory_meter=meter))
    counted_bytes = RepeatAnalysis(few, stacks, [0]).count_bytes({})
    meter = Meter()
    run = FsdpRun(spec, training, rank_model, fsdp, memory_meter=meter)
    run.set_up()
    run.step()
    meter.peaks, meter.place = {}, AllocationPlace()
    run.step()
    expected = {place: (peak.bytes, peak.bytes_of_all_kinds) for place, peak in meter.peaks.items() if place.phase}
    assert {place: (peak.bytes, peak.bytes_of_all_kinds) for place, peak in counted_bytes.peaks.items()} == expected


def test_an_answer_of_a_model_too_large_for_one_device() -> None:
    spec = llmcalc.load("llama3.1-405b").model
    training = TrainingConfig(batch=1, seq=8192, recompute=parse_recompute("full"), kernel_choices=FLASH)
    found = fsdp_memory(spec, training, Layout(dp=1024, zero=3))
    assert found.by_kind["communication"] > 3 * 2 * 3.1e9  # at the peak: a gathered layer, and a layer's sums in fp32
    assert sum(found.by_kind.values()) == found.peak_bytes
    assert found.device_bytes >= found.reserved_bytes >= found.peak_bytes >= found.exact_bytes


# --- what ranks send --------------------------------------------------------------------------------------------------


class Counts(CommDebugMode):
    """torch's counts of collective operations, without its hooks on modules, which other hooks put out of step."""

    def __init__(self) -> None:
        super().__init__()
        tracker: Any = self.advanced_module_tracker
        tracker.__enter__ = tracker.__exit__ = lambda *_: None
        tracker.name, tracker.module_parents_dict = "Global", {"Global": ()}


class Sent(TorchDispatchMode):
    """Counts collective operations, with the bytes of the larger of their two tensors."""

    NAMES = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter", "allreduce_": "all_reduce"}

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = self.NAMES.get(func._overloadpacket.__name__) if func.namespace == "c10d" else None
        if name is not None:
            tensors = args[0] if name == "all_reduce" else args[:2]
            self.found[name, max(one.untyped_storage().nbytes() for one in tensors)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("microbatches", "layout", "fsdp"),
    [
        (1, Layout(dp=3, zero=3), TORCHTITAN_FSDP_SETTINGS),
        (
            2,
            Layout(dp=6, hsdp_replicas=2, zero=3),
            FsdpSettings(reduction_format="bfloat16", keeps_last_layer_gathered=False),
        ),
        (3, Layout(dp=4, zero=3, reshard=False), FsdpSettings(reduces_each_microbatch=False)),
        (2, Layout(dp=3, zero=3), FsdpSettings(outer_groups="separate")),
    ],
)
def test_what_a_step_sends(microbatches: int, layout: Layout, fsdp: FsdpSettings) -> None:
    """CommDebugMode counts the operations; their tensors have the bytes."""
    spec, training = family("llama3-8b"), TrainingConfig(batch=1, seq=9, microbatches=microbatches)
    sent, counted = Sent(), Counts()
    with counted:
        seen = by_torch(spec, training, layout, 0, fsdp, Followed, sent)
    steps = len({one.step for one in seen.bytes}) - 1
    expected: Counter[tuple[str, int]] = Counter()
    for one in step_collectives_of_rank(spec, training, layout, 0, fsdp):
        expected[one.collective_kind, one.bytes] += steps * one.repetitions
    assert sent.found == expected
    assert sorted(counted.get_comm_counts().values()) == sorted(
        sum(times for (kind, _), times in expected.items() if kind == each) for each in {kind for kind, _ in expected}
    )
    run = FsdpRun(spec, training, sharding_of_rank(training, layout, 0, fsdp), fsdp, layout.reshard)
    run.set_up()
    run.step()
    if microbatches < 3:  # of more, those between the first and the last stand for one
        assert Counter(
            (one.collective_kind, steps * one.bytes) for one in run.communication_state.collectives
        ) == Counter({(kind, steps * size): times // steps for (kind, size), times in expected.items()})


def test_what_many_layers_send() -> None:
    """126 layers, of which the last stays gathered; and the model around them, with 2 · V · h + h parameters."""
    spec = llmcalc.load("llama3.1-405b").model
    h, kv, f, v = 16384, 1024, 53248, 128256
    layer = 2 * h * h + 2 * h * kv + 3 * h * f + 2 * h
    collectives = step_collectives_of_rank(
        spec, TrainingConfig(batch=1, seq=8192), Layout(dp=256, hsdp_replicas=2, zero=3)
    )
    assert [
        (message.collective_kind, message.ranks, message.bytes, message.repetitions) for message in collectives
    ] == [
        ("all_gather", 128, 2 * (2 * v * h + h), 1),
        ("reduce_scatter", 128, 4 * (2 * v * h + h), 1),
        ("all_reduce", 2, 4 * (2 * v * h + h) // 128, 1),
        ("all_gather", 128, 2 * layer, 126),
        ("all_gather", 128, 2 * layer, 125),
        ("reduce_scatter", 128, 4 * layer, 126),
        ("all_reduce", 2, 4 * layer // 128, 126),
    ]


# --- experts of other ranks -------------------------------------------------------------------------------------------

MIXTURE = "qwen3-30b-a3b?num_hidden_layers=2&num_experts=16&vocab_size=1024"


@pytest.mark.parametrize(("ep", "dp"), [(2, 4), (4, 4), (4, 32)])
def test_ranks_of_experts_shard_their_own_experts_over_fewer_ranks(ep: int, dp: int) -> None:
    """A rank's shards have the bytes that they have without such ranks; its own experts alone are gathered.

    Of more ranks than experts each has a part of every matrix (torchtitan, distributed/fsdp.py, `Shard(1)`).
    """
    spec = llmcalc.load(MIXTURE).model
    assert spec.decoder is not None
    experts = 2 * 16 * 3 * 2048 * 768
    dense = params(spec).total - experts
    run = TrainingConfig(batch=1, seq=64)
    layout = Layout(dp=dp, ep=ep, zero=3)
    device = fsdp_memory(spec, run, layout, 1)
    shards = device.moments["step"]["weights"] // 4
    assert abs(shards - (dense + experts) / dp) <= 2048  # rows of small tensors are padded
    of_experts = [
        message for message in step_collectives_of_rank(spec, run, layout) if message.bytes * ep == 2 * experts // 2
    ]
    assert sum(message.repetitions for message in of_experts if message.collective_kind == "all_gather") == (
        0 if ep == dp else 2 + 1
    )
    assert {message.ranks for message in of_experts} == (set() if ep == dp else {dp // ep})
    layouts = (layout, replace(layout, ep=1))
    gathered_bytes = [fsdp_memory(spec, run, other, 1).moments["forward"]["weights"] for other in layouts]
    assert gathered_bytes[0] < gathered_bytes[1]


def test_rows_are_sent_to_ranks_of_experts_and_back() -> None:
    """Two all-to-alls in each pass, each with as many rows as tokens choose experts."""
    spec = llmcalc.load(MIXTURE).model
    run = FsdpRun(
        spec,
        TrainingConfig(batch=1, seq=64),
        sharding_of_rank(TrainingConfig(batch=1, seq=64), layout := Layout(dp=4, ep=2, zero=3), 0),
        program=rank_program(spec, layout, 0),
    )
    run.set_up()
    run.replace_batch()
    sent: list[int] = []
    exchange = run.lowering._exchange_rows
    run.lowering._exchange_rows = lambda rows: (sent.append(rows.shape[0]), exchange(rows))[1]  # type: ignore[method-assign]
    run.forward_and_backward()
    assert sent == [64 * 8] * 2 * 2
    with pytest.raises(InputError, match="adapters where ranks divide the experts"):
        sharding_of_rank(TrainingConfig(batch=1, seq=64, adapters=Adapters(8, frozenset({"q_proj"}))), layout, 0)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "rank", "changes", "words"),
    [
        (Layout(ep=2, dp=2, tp=2, zero=3), 0, {}, "--ep 2: with FSDP2 and --tp 2 it is not modelled"),
        (Layout(dp=4, zero=3), 4, {}, "--rank 4: the layout has 4 ranks; expected one from 0 to 3"),
        (Layout(dp=4, zero=3), 0, {"has_master_weights": True}, "FSDP2 with master weights"),
        (Layout(dp=4, zero=3), 0, {"optimizer": "muon"}, "--optimizer muon: on shards it is not modelled"),
    ],
)
def test_what_is_not_modelled(layout: Layout, rank: int, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fsdp_memory(family("llama3-8b"), TrainingConfig(batch=1, seq=9, **changes), layout, rank)


def test_states_of_8_bits_are_those_of_local_rows() -> None:
    """torchao/optim/adam.py, `_new_buffer`: two states of the local tensor, with a scale per 256, and maps."""
    small_model = llmcalc.load("qwen3-0.6b", num_hidden_layers=2).model
    options: dict[str, Any] = {"phase": "training", "seq": 64, "optimizer": "adamw-8bit-torchao"}
    phases = llmcalc.memory(small_model, devices=3, fsdp=3, **options).document["memory"]["by_phase"]
    expected = 0
    for trained_tensor in trained_tensors(small_model.tree()):
        rows, *other_sizes = trained_tensor.tensor.shape
        size = prod((-(-rows // 3), *other_sizes))
        is_quantized = size >= 4096 and size % 256 == 0
        state = size + 4 * size // 256 + 4 * 256 if is_quantized else 4 * size
        expected += trained_tensor.copies * 2 * state
    assert phases["step"]["optimizer"] == expected
    with pytest.raises(InputError, match="on shards it is not modelled"):
        check_optimizer(TrainingConfig(optimizer="adamw-8bit-torchao"), fsdp_version=1)


def test_layers_that_share_parameters_are_refused() -> None:
    with pytest.raises(InputError, match="layers that share parameters"):
        fsdp_memory(family("albert-base-v2"), TrainingConfig(batch=1, seq=9), Layout(dp=4, zero=3))


# --- as torchtitan calls it -------------------------------------------------------------------------------------------


def test_master_weights_are_the_shards() -> None:
    spec, training = family("llama3-8b"), TrainingConfig(batch=1, seq=9, has_master_weights=True)
    before, since = (
        torchtitan_config_and_settings(spec, training, day)
        for day in (SEPARATE_HEAD_SINCE - timedelta(1), SEPARATE_HEAD_SINCE)
    )
    sharded = replace(
        training, has_master_weights=False, kernel_choices=replace(training.kernel_choices, joins_rope_halves=True)
    )
    assert before == (sharded, FsdpSettings(copies_gathered_tokens=True))
    assert since == (sharded, replace(SINCE, copies_gathered_tokens=True))
    assert torchtitan_config_and_settings(spec, training) == (sharded, SINCE)
    assert torchtitan_config_and_settings(spec, replace(training, has_master_weights=False))[1] == replace(
        SINCE, dtype="bfloat16"
    )
    assert torchtitan_config_and_settings(family("gpt2"), training)[1] == FsdpSettings(
        keeps_last_layer_gathered=False
    )  # its head is the embedding


def test_no_layer_stays_gathered_after_its_forward_pass_in_torchtitan_since() -> None:
    """Between both passes all that is gathered is the last norm and the head: torch has no layer whole then."""
    spec, training, layout = (
        family("llama3-8b"),
        TrainingConfig(batch=2, seq=7, has_master_weights=True),
        Layout(dp=5, zero=3),
    )
    training, fsdp = torchtitan_config_and_settings(spec, training)
    theirs = by_torch(spec, training, layout, 1, replace(SINCE, dtype=fsdp.dtype), watch=Followed)
    before = by_torch(
        spec, training, layout, 1, replace(SINCE, dtype=fsdp.dtype, keeps_last_layer_gathered=True), watch=Followed
    )
    module: Any = spec.reference()
    layer = 2 * sum(-(-len(weight) // 5) * 5 * weight[0].numel() for weight in module.layers[0].parameters())
    assert differences(replayed(spec, training, layout, 1, fsdp), theirs) == {}
    assert before.bytes[Seen(2, 0, "live")] - theirs.bytes[Seen(2, 0, "live")] == layer


def test_ranks_of_a_cluster() -> None:
    """51 rows of 24 on 7 ranks: eight each, and three on the last one, which has fewer states."""
    spec = family("llama3-8b")
    memory_estimate = memory(spec, Settings("training", batch=1, seq=9, attn_implementation="eager"))
    cluster = Cluster.with_framework(memory_estimate, Layout(dp=7, zero=3), "fsdp2", "2025-01-01")
    first, last = cluster.by_rank
    # with the mask that the class adds to its scores
    choices = torchtitan_config_and_settings(spec, memory_estimate.training())[0].kernel_choices
    training = TrainingConfig(batch=1, seq=9, implementation="fused", kernel_choices=choices)
    own = replayed(spec, training, Layout(dp=7, zero=3), 0).bytes[Seen(2, 0, "backward")]
    assert first.device.exact_bytes == own
    assert last.device.exact_bytes < first.device.exact_bytes
    assert cluster.device_rank is first
    assert first.device.terms[0].status == "exact"
    assert cluster.messages == [
        Message("dp", 7, "all_gather", 7 * 2 * (2 * 8 * 24 + 4), 1),
        Message("dp", 7, "reduce_scatter", 7 * 4 * (2 * 8 * 24 + 4), 1),
        Message("dp", 7, "all_gather", 7 * 2 * LAYER, 5),
        Message("dp", 7, "reduce_scatter", 7 * 4 * LAYER, 3),
    ]


SINCE = FsdpSettings(outer_groups="separate", keeps_last_layer_gathered=False)
"""As torchtitan calls it since 2025-07-28."""

LAYER = 4 * 24 + 2 * 2 * 24 + 4 * 24 + 2 * 6 * 24 + 4 * 40 + 2 * 4
"""Elements of a layer's largest part of 7: rows of q (24), k and v (12), o (24), gate and up (40), down (24), norms."""


# --- with tensor parallelism ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fsdp", [TORCHTITAN_FSDP_SETTINGS, FsdpSettings(outer_groups="separate")])
def test_a_rank_of_divided_products(fsdp: FsdpSettings) -> None:
    """Layers that run again leave nothing behind, and few of them stand for all (processes: tests/witnesses)."""
    spec = with_layer_count(family("llama3-8b"), 12)
    training = TrainingConfig(batch=2, seq=7, recompute=parse_recompute("full"))
    layout = Layout(tp=2, dp=3, zero=3)
    run = FsdpRun(
        spec, training, sharding_of_rank(training, layout, 1, fsdp), fsdp, program=rank_program(spec, layout, 1)
    )
    run.set_up()
    run.step()
    run.meter.peaks = {}
    run.step()
    assert run.meter.by_kind["activations"] == 2 * 7 * 8  # the token ids
    found = fsdp_memory(spec, training, layout, 1, CudaRuntime(0, 0), fsdp)
    assert found.exact_bytes == max(peak.bytes for peak in run.meter.peaks.values())
    assert found.terms[0].status == "source"


# --- without a dispatch mode ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "recompute"),
    [
        pytest.param("gpt2", "none", marks=pytest.mark.exhaustive),
        ("gemma2-9b", "full"),
        pytest.param("qwen3-8b", "none", marks=pytest.mark.exhaustive),
    ],
)
def test_gradients_of_gathered_parameters_are_added_where_torch_adds_them(name: str, recompute: str) -> None:
    """The profiler's events: a parameter that is gathered is a plain tensor. The first two have tied embeddings."""
    spec, training, layout = (
        family(name),
        TrainingConfig(batch=2, seq=7, recompute=parse_recompute(recompute)),
        Layout(dp=3, zero=3),
    )
    training = replace(training, implementation="fused")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as events:
        by_torch(spec, training, layout, 0, watch=Unwatched)
    sums = GradientSums()

    def add(size: int, in_place: bool) -> None:
        nonlocal sums
        sums = sums.with_addition(size, in_place)

    run = FsdpRun(spec, training, sharding_of_rank(training, layout, 0), TORCHTITAN_FSDP_SETTINGS)
    run.graph.gradient_sum_hook = add
    run.set_up()
    for _ in range(2):
        run.step()
    assert read_events(events).gradient_sums == sums
    assert sums.in_place_bytes > 0
    assert sums.out_of_place_bytes > 0


class Unwatched:
    """Watches nothing."""

    peak = now = 0

    def __init__(self, model: Any, optimizer: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def restart(self) -> None: ...

    def found(self) -> tuple[()]:
        return ()
