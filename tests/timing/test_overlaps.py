"""Which messages a framework's settings send beside products, and what that does to a step's exchanges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.frameworks.deepspeed.settings import DeepSpeedSettings
from llmcalc.frameworks.launch.launch_types import Launch
from llmcalc.frameworks.launch.read_launch_file import read_launch
from llmcalc.frameworks.registry import framework
from llmcalc.parallel.layout import Layout
from llmcalc.sources.hardware import load_hardware
from llmcalc.sources.presets import load_preset
from llmcalc.timing.device import device_of
from llmcalc.timing.software_stacks import find_stack, with_overlap, with_overlapped_groups
from llmcalc.timing.step import StepPlan, training_step
from llmcalc.timing.timing_constants import SoftwareStack
from tests.frameworks.megatron.test_megatron_arguments import settings
from tests.samples import in_one_test

DATA = Path(__file__).parents[1] / "data" / "launch"
LLAMA, A100 = load_preset("llama3-8b").model, device_of(load_hardware("a100-80gb"))


def exchange_seconds(stack: SoftwareStack, zero: int, dtype: str = "bf16") -> float:
    """Seconds of the gradients and weights of a step on 32 devices that nothing hides."""
    layout = Layout(dp=32, zero=zero)  # type: ignore[arg-type]
    plan = StepPlan.from_layout(layout, 1, 2, 2048, dtype=dtype)
    return float(training_step(LLAMA, A100, stack, plan).seconds_by_part["data"])


@in_one_test
@pytest.mark.parametrize(
    ("arguments", "groups", "stack"),
    [
        ({}, set(), "megatron-no-overlap"),
        ({"overlap_grad_reduce": True}, {"dp"}, "megatron"),
        ({"overlap_grad_reduce": True, "overlap_param_gather": True}, {"dp", "weights"}, "megatron"),
        ({"tp_comm_overlap": True}, set(), "megatron-no-overlap"),  # without sequence parallelism it does nothing
        ({"tp_comm_overlap": True, "sequence_parallel": True, "tensor_model_parallel_size": 2}, {"tp"}, "megatron"),
        ({"overlap_grad_reduce": True, "enable_cuda_graph": True}, {"dp"}, "megatron-layer-graphs"),
    ],
)
def test_arguments_of_megatron_state_which_messages_overlap(
    arguments: dict[str, Any], groups: set[str], stack: str
) -> None:
    launch = Launch("run.sh", "", "megatron", framework_settings=settings(**arguments))
    megatron = framework("megatron")
    assert megatron.overlapped_parallel_groups is not None
    assert set(megatron.overlapped_parallel_groups(launch) or ()) == groups
    assert megatron.time_stack_name(launch, False, False) == stack


def test_an_option_names_several_groups_whose_messages_overlap() -> None:
    megatron = find_stack("megatron")
    both, alone = with_overlap(megatron, "dp,ep"), with_overlap(megatron, "ep")
    assert set(both.hidden_share_by_group) == {"dp", "ep"}
    assert both.hidden_share_by_group["ep"] == alone.hidden_share_by_group["ep"]
    assert with_overlap(megatron, "ep,dp,tp") == with_overlap(megatron, "all")


def test_weights_that_are_gathered_after_the_update_are_hidden_only_where_the_file_says_so() -> None:
    megatron = find_stack("megatron")
    reduced, gathered = frozenset({"dp"}), frozenset({"dp", "weights"})
    assert with_overlapped_groups(megatron, gathered).hidden_share("weights") == megatron.hidden_share("weights")
    assert with_overlapped_groups(megatron, reduced).hidden_share("weights") == 0
    assert with_overlapped_groups(megatron, reduced).hidden_share("dp") == megatron.hidden_share("dp")


def test_a_pipeline_of_fsdp2_gathers_and_reduces_once_a_step() -> None:
    """`memory` lists its messages once a step (frameworks/fsdp2/messages.py), so `time` prices them once."""
    options: dict[str, Any] = {"hardware": "h100", "framework": "fsdp2", "pp": 2, "fsdp": 16, "seq": 1024}
    exchange_seconds = [
        llmcalc.time("llama3-8b", **options, overlap="none", num_microbatches=count).document["parts"]["data"]
        for count in (2, 8)
    ]
    assert exchange_seconds[0] == pytest.approx(exchange_seconds[1])


def test_deepspeed_hides_gradients_of_stages_1_and_2_only_with_overlap_comm() -> None:
    """Stage 3 overlaps by default; gradients are all-reduced in the format of the weights."""
    deepspeed = find_stack("deepspeed")
    groups = framework("deepspeed").overlapped_parallel_groups
    assert groups is not None

    def groups_of(stage: int, overlap_comm: bool | None) -> frozenset[str] | None:
        own_settings = DeepSpeedSettings(stage=stage, overlap_comm=overlap_comm)  # type: ignore[arg-type]
        return groups(Launch("ds.json", "", "deepspeed", framework_settings=own_settings))

    assert groups_of(2, None) is None
    assert [groups_of(stage, True) for stage in (0, 1, 2)] == [frozenset(), frozenset({"dp"}), frozenset({"dp"})]
    assert groups_of(3, False) == frozenset()
    overlapped = with_overlapped_groups(deepspeed, frozenset({"dp"}))
    for stage in (1, 2):
        assert exchange_seconds(overlapped, stage) < 0.6 * exchange_seconds(deepspeed, stage)
    assert exchange_seconds(overlapped, 3) == exchange_seconds(deepspeed, 3)
    assert exchange_seconds(deepspeed, 1) > 1.4 * exchange_seconds(deepspeed, 0)  # and the weights
    assert exchange_seconds(deepspeed, 0, "fp32") == pytest.approx(2 * exchange_seconds(deepspeed, 0), rel=0.02)


def test_recipes_of_megatron_bridge_overlap_gradients_as_their_common_functions_do(tmp_path: Path) -> None:
    """`_pretrain_common` overlaps both, those of fine-tuning neither; LLaMA-Factory's argument may say false."""
    megatron = framework("megatron")
    recipes = DATA / "megatron_bridge_recipes.py"
    pretraining, adapters = (read_launch(f"{recipes} qwen25_7b_{kind}_config") for kind in ("pretrain_8gpu", "peft"))
    assert megatron.overlapped_parallel_groups is not None
    assert megatron.overlapped_parallel_groups(pretraining) == frozenset({"dp", "weights"})
    assert megatron.time_stack_name(adapters, False, False) == "megatron-no-overlap"
    experts = "model.tensor_model_parallel_size=1 model.expert_model_parallel_size=4"  # whose tokens alltoall exchanges
    assert megatron.time_stack_name(pretraining, False, False) == "megatron"
    assert (
        megatron.time_stack_name(read_launch(f"{recipes} qwen25_7b_pretrain_8gpu_config {experts}"), False, True)
        == "megatron-alltoall"
    )
    text = (DATA / "llama_factory_megatron.yaml").read_text()
    changed = tmp_path / "train.yaml"
    changed.write_text(text.replace("overlap_grad_reduce: true", "overlap_grad_reduce: false"))
    stacks = [
        megatron.time_stack_name(read_launch(path), False, False)
        for path in (DATA / "llama_factory_megatron.yaml", changed)
    ]
    assert stacks == ["megatron", "megatron-no-overlap"]


def test_what_a_launch_file_sets_that_slows_each_step_is_named(run: Any, tmp_path: Path) -> None:
    """Lucie's and nanotron's scripts set these variables, the tests of Megatron-LM the argument."""
    script = tmp_path / "train.sh"
    script.write_text(
        "export CUDA_LAUNCH_BLOCKING=1\nexport TORCH_DISTRIBUTED_DEBUG=DETAIL\n"
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4 "
        "--seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 8 --bf16 "
        "--tokenizer-type NullTokenizer --vocab-size 1000 --deterministic-mode\n"
    )
    answer = run("time", "--launch", str(script), "--hardware", "h100")
    text = " ".join(answer.out.split())
    assert "timed as without CUDA_LAUNCH_BLOCKING=1, TORCH_DISTRIBUTED_DEBUG=DETAIL, --deterministic-mode" in text


RECOMPUTED_SECONDS = {
    "--recompute-granularity selective": (0.01, 0.3),
    "--recompute-granularity selective --recompute-modules layernorm": (0.01, 0.3),
    "--recompute-granularity selective --recompute-modules mlp": (0, 0),  # every layer has experts
    "--recompute-granularity selective --recompute-modules layernorm moe": (0.5, 0.99),
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4": (1, 1),
    "--recompute-granularity full --recompute-method block --recompute-num-layers 2": (0.49, 0.51),
}
"""Arguments of Megatron-LM → bounds of the seconds that they add, as a share of those of every layer."""


@pytest.mark.parametrize("arguments", RECOMPUTED_SECONDS)
def test_what_a_megatron_file_runs_again_takes_time(run: Any, tmp_path: Path, arguments: str) -> None:
    """As `transformer_config.py` of Megatron-Core defines these arguments; an option replaces what the file says."""
    script = tmp_path / "train.sh"
    command = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 2048 --num-attention-heads 16 "
        "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 "
        "--tokenizer-type NullTokenizer --vocab-size 1000 --num-experts 8 --moe-ffn-hidden-size 2048 --swiglu "
        "--moe-grouped-gemm --moe-token-dispatcher-type alltoall --expert-model-parallel-size 8 "
    )

    def seconds(arguments: str, *options: str) -> float:
        script.write_text(command + arguments)
        answer = run("time", "--launch", str(script), "--hardware", "h100", *options, "--format", "json")
        return float(json.loads(answer.out)["seconds"]["estimate"])

    least, most = RECOMPUTED_SECONDS[arguments]
    without, with_all = seconds(""), seconds("", "--recompute", "full")
    assert seconds(arguments, "--recompute", "none") == without
    assert seconds(arguments, "--recompute", "full") == with_all
    assert least - 1e-6 <= (seconds(arguments) - without) / (with_all - without) <= most + 1e-6


def test_experts_get_tokens_by_the_dispatcher_whose_memory_is_counted(run: Any) -> None:
    """The documented run of Qwen3-30B on 16 H100 by plain all-to-all takes 41.3 s (tests/data/timing/CAUSES.md)."""
    step = ("time", "qwen3-30b-a3b", "--hardware", "h100", "--framework", "megatron", "--zero", "1", "--seq", "4k")
    words = *step, "--devices", "16", "--global-batch", "1024"
    text = " ".join(run(*words, "--ep", "16", "--notes").out.split())
    assert "likely 40" in text
    assert "are NCCL's all-to-all; by DeepEP 26 s (--stack megatron-flex)" in text
    text = " ".join(run(*words, "--ep", "16", "--stack", "megatron", "--notes").out.split())
    assert "likely 26" in text
    assert "those of DeepEP; by NCCL's all-to-all 40 s (--stack megatron-alltoall)" in text
    assert "by DeepEP" not in " ".join(run(*words, "--ep", "1", "--notes").out.split())


@pytest.mark.parametrize(
    ("framework_name", "micro_batches"), [("megatron", 6), ("megatron", 8), ("fsdp2", 6), ("fsdp2", 9), ("fsdp2", 3)]
)
def test_an_interleaved_schedule_refuses_the_micro_batches_that_memory_refuses(
    framework_name: str, micro_batches: int
) -> None:
    """Megatron-LM takes whole groups of as many as ranks; torch's ScheduleInterleaved1F1B makes its groups larger."""
    run = {"hardware": "h100", "framework": framework_name, "pp": 4, "vpp": 2, "seq": 512}
    texts = []
    for question in (llmcalc.memory, llmcalc.time):
        try:
            question("llama3.2-1b", phase="training", num_microbatches=micro_batches, **run)
            texts.append("")
        except llmcalc.InputError as error:
            texts.append(str(error))
    assert texts[0] == texts[1]
    assert bool(texts[0]) == ((framework_name, micro_batches) not in {("megatron", 8), ("fsdp2", 6)})
    assert "--microbatch-group" not in texts[0]


def test_a_global_batch_that_an_interleaved_schedule_does_not_take_is_named() -> None:
    with pytest.raises(llmcalc.InputError, match="--global-batch 6 makes --num-microbatches: 6; an interleaved"):
        llmcalc.time("llama3.2-1b", hardware="h100", framework="megatron", pp=4, vpp=2, seq=512, global_batch=6)


def test_an_overlap_that_needs_sequence_parallelism_is_named_without_it(run: Any) -> None:
    words = ("time", "llama3-8b", "--hardware", "h100", "--framework", "megatron", "--tp", "2", "--seq", "4k")
    for options, is_named in (
        (("--overlap", "tp"), True),
        (("--overlap", "dp,tp"), True),
        (("--overlap", "dp,ep"), False),
        (("--overlap", "tp", "--sequence-parallel"), False),
    ):
        text = " ".join(run(*words, *options, "--notes").out.split())
        assert ("timed as without --overlap tp (it needs --sequence-parallel)" in text) is is_named
