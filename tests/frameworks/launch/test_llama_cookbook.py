"""Commands of llama-cookbook's finetuning.py (meta-llama/llama-cookbook at 1a97f6f, getting-started/finetuning)."""

from __future__ import annotations

import pytest

from llmcalc.errors import InputError
from llmcalc.frameworks.launch.launch_types import Launch
from llmcalc.frameworks.launch.read_launch_file import read_launch

TORCHRUN = "torchrun --nnodes 1 --nproc_per_node 4 finetuning.py --enable_fsdp"
FILES = "--dist_checkpoint_root_folder model_checkpoints --dist_checkpoint_folder fine-tuned --output_dir o"


def launch_of(arguments: str, command: str = TORCHRUN) -> Launch:
    """Returns what a command reads."""
    return read_launch(f"{command} --model_name meta-llama/Llama-3.1-8B {FILES} {arguments}")


@pytest.mark.parametrize("arguments", ["", "--fsdp_config.pure_bf16 --use_fast_kernels", "--low_cpu_fsdp"])
def test_full_training_has_weights_of_16_bits_under_fsdp(arguments: str) -> None:
    """`torch_dtype="auto"`; packed samples of 4,096 tokens and checkpoints are defaults (configs)."""
    launch = launch_of(arguments)
    assert (launch.framework, launch.layout.dp, launch.layout.zero) == ("fsdp2", 4, 3)
    assert (launch.settings["batch"], launch.settings["seq"], launch.settings["recompute"]) == (4, 4096, "full")
    assert (launch.settings["dtype"], launch.settings["master_weights"]) == ("bf16", "none")
    assert not launch.counts_longest_samples


def test_adapters_and_weights_of_4_bits() -> None:
    launch = launch_of("--use_peft --peft_method lora --quantization 4bit --quantization_config.quant_type nf4")
    assert (launch.settings["lora_rank"], launch.settings["lora_targets"]) == (8, ("q_proj", "v_proj"))
    assert launch.settings["base"] == "nf4"
    launch = launch_of("--use_peft --lora_config.r 32 --fsdp_config.fsdp_cpu_offload --batching_strategy padding")
    assert launch.settings["lora_rank"] == 32
    assert launch.counts_longest_samples


def test_one_device() -> None:
    """Checkpoints are off on one device; `--quantization` without a value prepared the model, which turned them on."""
    launch = launch_of("--use_peft --quantization 8bit", "python finetuning.py")
    assert (launch.framework, launch.settings["base"]) == ("torch", "int8")
    assert "recompute" not in launch.settings
    launch = launch_of("--use_peft --quantization", "python -m llama_recipes.finetuning")
    assert (launch.settings["base"], launch.settings["recompute"]) == ("int8", "full-reentrant")


def test_the_script_of_2023_has_eager_attention() -> None:
    launch = launch_of("--use_peft --pure_bf16", "torchrun --nproc_per_node 4 llama_finetuning.py --enable_fsdp")
    assert (launch.settings["attn_implementation"], launch.settings["seq"]) == ("eager", 2048)
    assert launch.settings["dtype"] == "bf16"
    launch = launch_of("", "torchrun --nproc_per_node 4 llama_finetuning.py --enable_fsdp")
    assert (launch.settings["dtype"], launch.settings["master_weights"]) == ("bf16", "fp32")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--use_peft --peft_method llama_adapter", "peft_method: 'llama_adapter'; expected lora"),
        ("--quantization 2bit", "quantization: '2bit'; expected 4bit or 8bit"),
        ("--freeze_layers", "freeze_layers (training of some layers is not modelled)"),
        ("--hsdp --sharding_group_size 4", "hsdp (groups of fewer devices than all are not modelled)"),
        ("--frozen 1", "frozen (no argument that is known"),
    ],
)
def test_what_is_not_modelled_is_named(arguments: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        launch_of(arguments)
    assert message in str(error.value)
