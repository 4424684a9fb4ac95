"""Launch commands and Python files of programs: what is read of each, and what a refusal says."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.costs.params import params
from llmcalc.device_memory.settings import Settings
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.file_kinds import LAUNCH_FILE_BY_PROGRAM, launch_file_kinds, program_launch_files
from llmcalc.frameworks.launch.python_source import ConfigurationBuilder, UnknownValue, parse_python
from llmcalc.frameworks.launch.read_launch_file import launch_from_text, read_launch
from llmcalc.frameworks.megatron.named_arguments import NamedModelArguments
from llmcalc.frameworks.megatron.named_model import BRIDGE_FUSED_MODEL_TYPES
from llmcalc.frameworks.registry import framework
from llmcalc.frameworks.server_files.read import starts_any_server
from llmcalc.frameworks.verl.command import MBRIDGE_FUSED
from tests.samples import in_one_test

FOLDER = Path(__file__).parents[2] / "data" / "launch"
ENDINGS = (".sh", ".slurm", ".py")
FILES = {path.name: path.read_text() for path in sorted(FOLDER.iterdir()) if path.suffix in ENDINGS}


def typed(text: str) -> str:
    """The text of `--launch` with the file's name in its folder."""
    return " ".join(str(FOLDER / word) if word in FILES else word for word in text.split())


READ: list[tuple[str, str, str, dict[str, Any]]] = [
    # file · kind · framework · layout and settings
    ("GPUS=4 NODES=2 trainer_clm.sh", "trainer", "torch", {"dp": 8, "batch": 2, "seq": 1024, "recompute": "full"}),
    ("BATCH=1 trainer_clm.sh", "trainer", "torch", {"dp": 1, "batch": 1}),
    ("accelerate_fsdp.sh", "trainer", "fsdp2", {"dp": 8, "zero": 3, "dtype": "bf16", "master_weights": "fp32"}),
    ("accelerate_zero3.sh", "trainer", "deepspeed", {"dp": 4, "zero": 3, "batch": 2, "dtype": "bf16"}),
    ("deepspeed_trainer.sh", "trainer", "deepspeed", {"dp": 4, "zero": 2, "num_microbatches": 4}),
    ("fastchat.sh", "fastchat", "fsdp2", {"dp": 4, "seq": 2048, "attn_implementation": "flash"}),
    ("qwen_lora.sh", "fastchat", "torch", {"lora_rank": 64, "lora_targets": ("all-linear",), "seq": 512}),
    ("swift_full.sh", "ms-swift", "deepspeed", {"dp": 4, "zero": 3, "num_microbatches": 8, "seq": 8192}),
    ("swift_dpo.sh", "ms-swift", "torch", {"lora_rank": 8, "num_microbatches": 8, "batch": 4}),
    ("swift_lora.sh", "ms-swift", "torch", {"lora_rank": 16, "num_microbatches": 16, "recompute": "full"}),
    ("swift_megatron.sh", "ms-swift", "megatron", {"tp": 2, "dp": 2, "zero": 1, "seq": 4096, "num_microbatches": 8}),
    (
        "swift_megatron_lora.sh",
        "ms-swift",
        "megatron",
        {"tp": 2, "sequence_parallel": True, "lora_library": "mcore-bridge", "lora_rank": 8, "lora_dropout": True},
    ),
    (
        "swift_megatron_dpo.sh",
        "ms-swift",
        "megatron",
        {"tp": 4, "dp": 1, "batch": 4, "num_microbatches": 8, "optimizer_dtype": "bf16", "grad_dtype": "fp32"},
    ),
    ("swift_megatron_grpo.sh", "ms-swift", "megatron", {"tp": 4, "pp": 2, "seq": 3072, "num_microbatches": 64}),
    ("deepspeed_chat_step1.sh", "deepspeed-chat", "deepspeed", {"dp": 8, "zero": 2, "batch": 8, "dtype": "fp16"}),
    ("deepspeed_chat_step1.sh out 1", "deepspeed-chat", "deepspeed", {"zero": 1}),
    (
        "deepspeed_chat_step3.sh out",
        "deepspeed-chat",
        "deepspeed",
        {"dp": 8, "zero": 3, "batch": 4, "seq": 512, "recompute": "full-reentrant", "logits_dtype": "float16"},
    ),
    ("openrlhf_ppo.sh", "openrlhf", "deepspeed", {"dp": 4, "zero": 3, "batch": 2, "num_microbatches": 16}),
    (
        "verl_fsdp.sh",
        "verl",
        "fsdp2",
        {"dp": 8, "zero": 3, "seq": 1536, "num_microbatches": 16, "optimizer_impl": "foreach"},
    ),
    (
        "verl_fsdp.sh actor_rollout_ref.actor.optim.optimizer=AdamW8bit "
        "actor_rollout_ref.actor.optim.optimizer_impl=bitsandbytes.optim",
        "verl",
        "fsdp2",
        {"optimizer": "adamw-8bit"},
    ),
    ("skyrl_grpo.sh", "skyrl", "fsdp2", {"dp": 4, "zero": 3, "batch": 8, "seq": 1536, "num_microbatches": 10}),
    ("NUM_GPUS=8 skyrl_grpo.sh trainer.policy.model.lora.rank=16", "skyrl", "fsdp2", {"dp": 8, "lora_rank": 16}),
    (
        "STRATEGY=megatron skyrl_grpo.sh trainer.policy.megatron_config.tensor_model_parallel_size=2",
        "skyrl",
        "megatron",
        {"tp": 2, "dp": 2, "sequence_parallel": True, "recompute": "full", "num_microbatches": 20},
    ),
    ("skyrl_sft.sh", "skyrl", "megatron", {"tp": 2, "dp": 2, "batch": 2, "seq": 512, "num_microbatches": 4}),
    ("skyrl_sft.sh strategy=fsdp", "skyrl", "fsdp2", {"dp": 4, "zero": 3, "num_microbatches": 2}),
    ("skyrl_sft.sh max_tokens_per_microbatch=2048", "skyrl", "megatron", {"batch": 2, "seq": 512}),
    (
        "skyrl_sft.sh max_tokens_per_microbatch=2048 use_sequence_packing=true",
        "skyrl",
        "megatron",
        {"batch": 1, "seq": 2048},
    ),
    (
        "python -m skyrl.train.main_sft max_length=64 megatron_config.ddp_config.grad_reduce_in_fp32=false "
        "placement.num_gpus_per_node=8",
        "skyrl",
        "megatron",
        {"tp": 2, "pp": 2, "dp": 2, "batch": 2, "seq": 64, "grad_dtype": "bf16"},
    ),
    ("python -m skyrl.train.entrypoints.main_base", "skyrl", "fsdp2", {"dp": 1, "batch": 1, "seq": 1536}),
    (
        "python -m examples.train_integrations.harbor.entrypoints.main_harbor trainer.policy.model.path=a/b "
        "generator.inference_engine.engine_init_kwargs.max_model_len=32768",
        "skyrl",
        "fsdp2",
        {"seq": 32768},
    ),
    ("verl_megatron.sh", "verl", "megatron", {"tp": 4, "dp": 2, "sequence_parallel": True, "seq": 2048}),
    ("verl_megatron.sh 8", "verl", "megatron", {"tp": 8, "dp": 1}),
    (
        "verl_fsdp.sh model_engine=megatron actor_rollout_ref.actor.megatron.dtype=bfloat16",
        "verl",
        "megatron",
        {"tp": 1, "dp": 8, "zero": 1},
    ),
    (
        "verl_fsdp.sh actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2",
        "verl",
        "fsdp2",
        {"seq": 768, "num_microbatches": 32},
    ),
    (
        "verl_megatron.sh 2 actor_rollout_ref.model.lora.rank=16 actor_rollout_ref.model.lora.dropout=0.1",
        "verl",
        "megatron",
        {"lora_rank": 16, "lora_library": "megatron-bridge", "lora_dropout": True, "lora_dtype": "bf16"},
    ),
    (
        "verl_megatron.sh 4 +actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload=True "
        "+actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction=1.",
        "verl",
        "megatron",
        {"optimizer_offload": True, "tp": 4},
    ),
    ("megatron_deepspeed.slurm", "megatron-deepspeed", "megatron", {"tp": 2, "pp": 2, "dp": 2, "zero": 1}),
    ("pai_qwen2.sh dsw 7B 2 bf16", "pai-megatron-patch", "megatron", {"tp": 2, "dp": 4, "sequence_parallel": True}),
    ("nanogpt_small.py", "nanogpt", "torch", {"dp": 1, "batch": 8, "seq": 512, "num_microbatches": 16}),
    ("nanogpt_small.py --batch_size=4", "nanogpt", "torch", {"batch": 4}),
    ("torchtitan_configs.py llama3_debug", "torchtitan", "fsdp2", {"batch": 4, "seq": 4096, "recompute": "full"}),
    ("torchtitan_configs.py llama3_debug_tp", "torchtitan", "fsdp2", {"tp": 2, "compile": True, "recompute": "none"}),
    ("megatron_bridge_recipes.py qwen25_7b_pretrain_8gpu_config", "megatron-bridge", "megatron", {"tp": 2, "dp": 2}),
    (
        "megatron_bridge_recipes.py qwen25_7b_pretrain_long_config model.tensor_model_parallel_size=4",
        "megatron-bridge",
        "megatron",
        {"tp": 4, "cp": 2, "pp": 2, "seq": 16384, "recompute": "full", "num_microbatches": 64},
    ),
    (
        "megatron_bridge_recipes.py qwen25_7b_peft_config",
        "megatron-bridge",
        "megatron",
        {"tp": 2, "zero": 0, "lora_library": "megatron-bridge", "lora_rank": 16, "seq": 2048},
    ),
    ("megatron_bridge_recipes.py qwen25_7b_peft_config peft.dim=4", "megatron-bridge", "megatron", {"lora_rank": 4}),
    ("size=2 sweep.sh", "trainer", "torch", {"batch": 2}),
    ("swift_grpo.sh", "ms-swift", "deepspeed", {"dp": 2, "zero": 2, "seq": 1536, "batch": 4}),
    ("olmo_core.py", "olmo-core", "torch", {"batch": 4, "seq": 2048, "num_microbatches": 16, "compile": True}),
    ("unsloth_sft.py", "unsloth", "torch", {"batch": 2, "seq": 1024, "lora_rank": 8, "base": "nf4-dq"}),
    ("unsloth_grpo.py", "unsloth", "torch", {"batch": 8, "seq": 512, "lora_rank": 16, "recompute": "full"}),
    ("verl_sft.sh", "verl", "fsdp2", {"dp": 4, "zero": 3, "lora_rank": 8, "batch": 2, "num_microbatches": 8}),
    ("openrlhf_dpo.sh", "openrlhf", "deepspeed", {"dp": 4, "zero": 3, "batch": 4, "num_microbatches": 8}),
    ("openrlhf_kto.sh", "openrlhf", "deepspeed", {"dp": 4, "zero": 3, "batch": 2, "num_microbatches": 8}),
    ("deepspeed_chat_step2_reward.sh out", "deepspeed-chat", "deepspeed", {"batch": 4}),
    ("bigscience_alibi.slurm", "megatron-deepspeed", "megatron", {"tp": 2, "pp": 2, "dp": 2, "zero": 1}),
]


def test_the_allocator_is_that_of_the_commands_environment() -> None:
    text = FILES["swift_full.sh"]
    plain = launch_from_text(text, "swift_full.sh")
    setting = "PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' NPROC_PER_NODE"
    expandable = launch_from_text(text.replace("NPROC_PER_NODE", setting, 1), "swift_full.sh")
    assert (plain.settings.get("allocator"), expandable.settings.get("allocator")) == (None, "expandable")


def test_deepspeeds_own_arguments_name_its_config() -> None:
    """deepspeed.add_config_arguments: `--deepspeed` turns it on, `--deepspeed_config` is the file."""
    text = FILES["deepspeed_trainer.sh"]
    launch = launch_from_text(text, "f.sh", launch_folder=FOLDER)
    own_arguments = text.replace("--deepspeed zero2.json", "--deepspeed --deepspeed_config zero2.json")
    assert own_arguments != text
    assert launch_from_text(own_arguments, "f.sh", launch_folder=FOLDER) == launch


@in_one_test
@pytest.mark.parametrize(("text", "kind", "framework", "values"), READ, ids=[case[0] for case in READ])
def test_a_run_is_read(text: str, kind: str, framework: str, values: dict[str, Any]) -> None:
    launch = read_launch(typed(text))
    assert (launch.kind, launch.framework) == (kind, framework)
    for name, value in values.items():
        actual = getattr(launch.layout, name) if hasattr(launch.layout, name) else launch.settings.get(name)
        assert actual == value, name
    assert launch.spec is not None or launch.model_name


MARIMO = """import marimo
app = marimo.App()


@app.cell
def _(mo):
    mo.md("Don't miss it: `vllm serve` runs what you train")


@app.cell
def _():
    from unsloth import FastLanguageModel
    tokens = 1536
    model, tokenizer = FastLanguageModel.from_pretrained("gpt2", max_seq_length=tokens)


@app.cell
def _(model, lengths):
    model = FastLanguageModel.get_peft_model(model, r=8)
    args = GRPOConfig(max_prompt_length=max(lengths), max_completion_length=tokens - max(lengths))
"""


def test_cells_of_a_notebook_are_read_and_its_prose_is_no_command(tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.py"
    notebook.write_text(MARIMO)
    assert not starts_any_server(notebook)
    launch = read_launch(notebook)
    assert (launch.model_name, launch.settings["seq"], launch.settings["lora_rank"]) == ("gpt2", 1536, 8)
    assert any("computed: together max_seq_length tokens" in note for note in launch.notes)
    for decided, computed in (("r=8", "r=rank()"), ("max_seq_length=tokens", "max_seq_length=2 if length() else 1")):
        name = decided.partition("=")[0]
        with pytest.raises(InputError, match=rf"memory: {name} \(is known only when the file runs\)"):
            launch_from_text(MARIMO.replace(decided, computed), "notebook.py")


def test_quantization_aware_adapters_of_unsloth_are_refused_by_name() -> None:
    """`qat_scheme` is an argument of `from_pretrained` for all weights, and of `get_peft_model` for adapters."""
    for called, rounded in (("r=8", 'r=8, qat_scheme="int4"'), ('"gpt2"', '"gpt2", qat_scheme="int4"')):
        with pytest.raises(InputError, match=r"may change memory: .*qat_scheme \(the rounding"):
            launch_from_text(MARIMO.replace(called, rounded), "notebook.py")


REFUSED = [
    ("nanochat.sh", "scripts.base_train is nanochat's: its models"),
    ("sweep.sh", "a loop trains several times (line 2; size: 1, 2, 4); expected one of them, as in --launch 'size=1 "),
    ("pai_qwen2.sh", "the script takes arguments, as in --launch '"),
    ("torchtitan_configs.py", "2 configurations: llama3_debug, llama3_debug_tp; expected one of them"),
    ("torchtitan_configs.py llama3_debug_pt", "Did you mean llama3_debug_tp, "),
    (
        "megatron_bridge_recipes.py",
        "qwen25_7b_pretrain_8gpu_config, qwen25_7b_pretrain_long_config, qwen25_7b_peft_config",
    ),
    ("nanogpt_small.py --n_head=5", "n_head: 5; expected a divisor of 384"),
]


@in_one_test
@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_refusal_says_what_to_do(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_launch(typed(text))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_recipe_states_bf16_by_the_fields_of_its_mixed_precision() -> None:
    """Megatron-Bridge's recipes of mixtures call `MixedPrecisionConfig`; one stage has all layers in any layout."""
    text = FILES["megatron_bridge_recipes.py"].replace("= 2\n    cfg.model.sequence", "= 1\n    cfg.model.sequence", 1)
    layout, fields = (
        "    cfg.model.pipeline_model_parallel_layout = _layout(1, 1)\n",
        "bf16=True, params_dtype=torch.bfloat16",
    )
    precision = f"    cfg.mixed_precision = MixedPrecisionConfig({fields}, grad_reduce_in_fp32=False)\n"
    text = text.replace("    return cfg\n", layout + precision + "    return cfg\n", 1)
    recipe = ("qwen25_7b_pretrain_8gpu_config",)
    launch = launch_from_text(text, "recipes.py", arguments=recipe)
    assert (launch.layout.pp, launch.settings["grad_dtype"]) == (1, "bf16")
    written = precision.partition(" = ")[2].strip()
    by_name = text.replace(written, 'get_mixed_precision_config("bf16_mixed")')
    assert launch_from_text(by_name, "recipes.py", arguments=recipe).layout.dp == 4
    with pytest.raises(InputError, match=r"mixed_precision .'fp8' is not modelled; bf16_mixed and bf16_with_fp8"):
        launch_from_text(text.replace("bf16=True", "bf16=True, fp8='e4m3'"), "recipes.py", arguments=recipe)


@in_one_test
@pytest.mark.parametrize(
    ("written", "sizes"),
    [
        ("'Et*8|t*20'", (8, 20)),
        ("[['embedding'] + ['decoder'] * 13, ['decoder'] * 15 + ['loss']]", (13, 15)),
        ("[['embedding'] + ['decoder'] * 7] + [['decoder'] * 7] * 3", (7, 7, 7, 7)),
        ("None", None),
    ],
)
def test_the_layers_of_each_stage_of_a_recipe(written: str, sizes: tuple[int, ...] | None) -> None:
    """megatron/core/transformer/pipeline_parallel_layer_layout.py takes a text, or lists of names."""
    launch = launch_from_text(recipe_with_layout(written), "recipes.py", arguments=("qwen25_7b_pretrain_8gpu_config",))
    assert (launch.layout.pp_layout, launch.layout.vpp) == (sizes, max(1, len(sizes or ()) // 2))


def recipe_with_layout(written: str) -> str:
    """A recipe of two pipeline ranks with this layout of their stages."""
    size, rest = "= 2\n", "    cfg.model.sequence"
    layout = f"    cfg.model.pipeline_model_parallel_layout = {written}\n"
    return FILES["megatron_bridge_recipes.py"].replace(f"{size}{rest}", f"{size}{layout}{rest}", 1)


def test_the_layers_of_each_stage_of_a_command() -> None:
    words = "megatron sft --pipeline_model_parallel_size 2 --pipeline_model_parallel_layout 'Et*9|t*19L'"
    text = FILES["swift_megatron.sh"].replace("megatron sft", words)
    assert launch_from_text(text, "swift.sh").layout.pp_layout == (9, 19)


def test_a_layout_that_does_not_fit_the_ranks_of_the_pipeline_is_refused() -> None:
    recipe = ("qwen25_7b_pretrain_8gpu_config",)
    with pytest.raises(InputError, match="pipeline_model_parallel_layout: 3 stages; expected a multiple of the 2"):
        launch_from_text(recipe_with_layout("'Et|t|tL'"), "recipes.py", arguments=recipe)
    with pytest.raises(InputError, match=r"pipeline_model_parallel_layout: 5; expected a text such as Et\|tt\|tL"):
        launch_from_text(recipe_with_layout("5"), "recipes.py", arguments=recipe)


def test_a_recipe_in_8_bits_states_its_scales() -> None:
    text, recipe = FILES["megatron_bridge_recipes.py"], "qwen25_7b_pretrain_8gpu_config"
    spec, precision = llmcalc.load("llama3-8b").model, "mixed_precision=bf16_with_fp8_delayed_scaling_mixed"
    launch = launch_from_text(text, "recipes.py", arguments=(recipe, precision))
    assert (launch.settings["precision"], "dtype" in launch.settings) == ("fp8", False)
    stated = launch.framework_settings.arguments(Settings("training", precision="fp8"), False, spec)
    assert (stated["fp8_recipe"], stated["fp8_amax_history_len"], stated["fp8_param_gather"]) == ("delayed", 1024, True)
    assert launch.framework_settings.arguments(Settings("training", precision="bf16-master"), False, spec) == {}
    for other, message in [
        (
            "mixed_precision=bf16_with_nvfp4_mixed",
            "bf16_with_nvfp4_mixed' is not modelled; bf16_mixed and bf16_with_fp8",
        ),
        ("mixed_precision.fp8_param_gather=false", "mixed_precision.fp8_param_gather (not modelled beside"),
    ]:
        with pytest.raises(InputError, match=re.escape(message)):
            launch_from_text(text, "recipes.py", arguments=(recipe, precision, other))


GRAPHS = """    cfg.model.cuda_graph_impl = "transformer_engine"
    cfg.model.cuda_graph_scope = ["attn"]
    cfg.model.moe_token_dispatcher_type = "flex"
    cfg.model.moe_flex_dispatcher_backend = "hybridep"
    cfg.model.recompute_granularity = "selective"
    cfg.model.recompute_modules = ["moe_act", "layernorm"]
"""


def test_a_recipe_states_what_megatron_lm_has_as_arguments() -> None:
    """HybridEP and modules that run again are counted for a named model as for Megatron-LM's own arguments."""
    text = FILES["megatron_bridge_recipes.py"].replace("    return cfg\n", GRAPHS + "    return cfg\n", 1)
    recipe = ("qwen25_7b_pretrain_8gpu_config",)
    launch = launch_from_text(text, "recipes.py", arguments=recipe)
    assert launch.framework_settings == NamedModelArguments(
        ("moe_act", "layernorm"), uses_hybridep=True, has_layer_graphs=True, fuses_activation=BRIDGE_FUSED_MODEL_TYPES
    )
    spec, options = llmcalc.load("llama3-8b").model, Settings("training")
    assert launch.framework_settings.arguments(options, True, spec) == {
        "recompute_granularity": "selective",
        "recompute_modules": ("moe_act", "layernorm"),
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
    }
    assert launch.framework_settings.arguments(options.with_changes(recompute="full"), False, spec) == {}
    assert any(note.startswith("CUDA graphs: ") for note in launch.notes)
    assert framework("megatron").time_stack_name(launch, False, True) == "megatron-layer-graphs"
    for written, other, message in [
        ('"hybridep"', '"ncclep"', "moe_token_dispatcher_type (flex by ncclep is not modelled"),
        ('["attn"]', '["full_iteration"]', "cuda_graph_impl (a CUDA graph of the whole step"),
        ('"layernorm"', '"mhc"', "recompute_modules (mhc is not modelled"),
    ]:
        with pytest.raises(InputError, match=re.escape(message)):
            launch_from_text(text.replace(written, other), "recipes.py", arguments=recipe)


LOSSES = [
    # file · recipe and overrides · changes of its text · cross_entropy · fuses_activation
    ("megatron_bridge_recipes.py", "qwen25_7b_peft_config", {}, "native", BRIDGE_FUSED_MODEL_TYPES),
    ("megatron_bridge_recipes.py", "qwen25_7b_peft_config model.bias_activation_fusion=true", {}, "native", True),
    (
        "megatron_bridge_recipes.py",
        "qwen25_7b_peft_config model.cross_entropy_fusion_impl=te",
        {},
        "fused",
        BRIDGE_FUSED_MODEL_TYPES,
    ),
    (
        "megatron_bridge_recipes.py",
        "qwen25_7b_peft_config model.cross_entropy_loss_fusion=false",
        {},
        "eager",
        BRIDGE_FUSED_MODEL_TYPES,
    ),
    ("verl_megatron.sh", "", {}, "eager", MBRIDGE_FUSED),
    (
        "verl_megatron.sh",
        "4 actor_rollout_ref.actor.megatron.vanilla_mbridge=False",
        {},
        "eager",
        BRIDGE_FUSED_MODEL_TYPES,
    ),
    (
        "verl_megatron.sh",
        "4 +actor_rollout_ref.actor.megatron.override_transformer_config.bias_activation_fusion=True",
        {},
        "eager",
        True,
    ),
    ("swift_megatron.sh", "", {}, "native", True),
    ("swift_megatron.sh", "", {"--packing true": "--cross_entropy_fusion_impl te"}, "fused", True),
    ("swift_megatron.sh", "", {"--packing true": "--cross_entropy_loss_fusion false"}, "eager", True),
    ("swift_megatron.sh", "", {"--packing true": "--bias_activation_fusion false"}, "native", False),
]


ENDS = ("embedding", "loss")
"""What may take the place of a layer in a pipeline's stages."""


@in_one_test
@pytest.mark.parametrize(("name", "arguments", "changes", "loss", "fuses_activation"), LOSSES)
def test_kernels_of_loss_and_activation_follow_the_program(
    name: str, arguments: str, changes: dict[str, str], loss: str, fuses_activation: bool | frozenset[str]
) -> None:
    """Read: Megatron-Bridge 067f987, models/gpt_provider.py; ms-swift 3602360a, megatron_args.py; mbridge 10cb17f."""
    text = FILES[name]
    for written, other in changes.items():
        text = text.replace(written, other)
    launch = launch_from_text(text, name, 8, arguments=tuple(arguments.split()))
    assert launch.settings["cross_entropy"] == loss
    stated = NamedModelArguments() if launch.framework_settings is None else launch.framework_settings
    assert stated.fuses_activation == fuses_activation


def test_an_unknown_fusion_of_the_loss_is_refused() -> None:
    text = FILES["swift_megatron.sh"].replace("--packing true", "--cross_entropy_fusion_impl liger")
    with pytest.raises(InputError, match=r"cross_entropy_fusion_impl \('liger'; expected native or te"):
        launch_from_text(text, "swift.sh", 4)


@pytest.mark.parametrize(
    ("model", "is_fused"),
    [("llama3-8b", True), ("deepseek-v3", True), ("gpt-oss-20b", True), ("qwen3-8b", False), ("qwen3-30b-a3b", False)],
)
def test_a_recipe_fuses_activations_as_its_model_s_class_does(model: str, is_fused: bool) -> None:
    """Megatron-Bridge 067f987, models/*/*_bridge.py: `bias_activation_fusion`."""
    stated = NamedModelArguments(fuses_activation=BRIDGE_FUSED_MODEL_TYPES)
    arguments = stated.arguments(Settings("training"), False, llmcalc.load(model).model)
    assert arguments == ({} if is_fused else {"no_bias_swiglu_fusion": True, "no_bias_gelu_fusion": True})


def test_a_recipe_for_images_has_the_defaults_of_its_common_function() -> None:
    text = FILES["megatron_bridge_recipes.py"].replace("_peft_common()", "_peft_common_vlm()")
    launch = launch_from_text(text, "recipes.py", arguments=("qwen25_7b_peft_config",))
    assert (launch.settings["seq"], launch.settings["batch"]) == (4096, 2)


def test_a_recipe_applies_the_backend_of_the_flex_dispatcher() -> None:
    """`apply_flex_dispatcher_backend` replaces the dispatcher that the recipe has assigned."""
    assigned = (
        '    cfg.model.moe_token_dispatcher_type = "alltoall"\n    cfg.model.moe_flex_dispatcher_backend = "deepep"\n'
        "    cfg.model.expert_model_parallel_size = 4\n"
    )
    applied = "    apply_flex_dispatcher_backend(cfg.model, cfg.model.moe_flex_dispatcher_backend)\n"
    text = FILES["megatron_bridge_recipes.py"]
    for lines, note_count, stack in [(assigned, 0, "megatron-alltoall"), (assigned + applied, 1, "megatron")]:
        recipes = text.replace("    return cfg\n", lines + "    return cfg\n", 1)
        launch = launch_from_text(recipes, "recipes.py", arguments=("qwen25_7b_pretrain_8gpu_config",))
        assert len([note for note in launch.notes if note.startswith("DeepEP: ")]) == note_count
        assert framework("megatron").time_stack_name(launch, False, True) == stack


def test_verl_counts_embedding_and_loss_as_layers_of_its_pipeline() -> None:
    """Its recipe of Qwen3 235B on 8 stages (examples/grpo_trainer/run_qwen3-235b_megatron_96gb.sh): 94 layers."""
    section = "actor_rollout_ref.actor.megatron"
    words = "main_ppo " + " ".join(
        (
            f"{section}.pipeline_model_parallel_size=8 trainer.nnodes=2",
            *(f"+{section}.override_transformer_config.account_for_{end}_in_pipeline_split=True" for end in ENDS),
        )
    )
    launch = launch_from_text(FILES["verl_megatron.sh"].replace("main_ppo ", f"{words} ", 1), "f.sh", arguments=("2",))
    assert launch.with_stage_sizes(94).layout.pp_layout == (11, *[12] * 6, 11)


def test_a_recipe_counts_embedding_and_loss_as_layers_of_its_pipeline() -> None:
    text = FILES["megatron_bridge_recipes.py"].replace(
        "parallel_size = 2\n    cfg.model.seq", "parallel_size = 4\n    cfg.model.seq"
    )
    for part in ENDS:
        counted = f"    cfg.model.account_for_{part}_in_pipeline_split = True\n    return cfg\n"
        text = text.replace("    return cfg\n", counted, 1)
    launch = launch_from_text(text, "recipes.py", arguments=("qwen25_7b_pretrain_8gpu_config",))
    assert launch.with_stage_sizes(14).layout.pp_layout == (3, 4, 4, 3)
    with pytest.raises(
        InputError, match="count embedding or loss as a layer: 15 parts; expected a multiple of 4 stages"
    ):
        launch.with_stage_sizes(13)


BUDGET = "ac_config=TransformerActivationCheckpointingConfig(mode=Mode.budget, activation_memory_budget=0.5)"
NETWORKS = (
    'ac_config=TransformerActivationCheckpointingConfig(mode=M.selected_modules, modules=["blocks.*.feed_forward"])'
)
ULYSSES = "cp_config=TransformerContextParallelConfig.ulysses(degree=2)"


def test_a_script_of_olmo_core_is_sharded_over_its_devices() -> None:
    """A step of OLMo-core is split over micro-batches of all devices, in tokens."""
    text = FILES["olmo_core.py"]
    launch = launch_from_text(text, "olmo.py", 8)
    assert (launch.framework, launch.layout.dp, launch.layout.zero) == ("fsdp2", 8, 3)
    assert [launch.settings[name] for name in ("num_microbatches", "optimizer_impl", "dtype")] == [2, "fused", "bf16"]
    assert launch.spec is not None
    assert launch.spec.vocab_size == 100_352
    for old, new, message in (
        ("= 4 * common", "= common.batch * common", "rank_microbatch_size: 'rank_microbatch_size'; expected"),
        ("return TransformerTrain", "return cookbook.TransformerTrain", "TransformerTrainModuleConfig: no call in"),
        ("64 * SEQ", "60 * SEQ", "global_batch_size: 122880 tokens; expected a multiple of 65536"),
        ("AdamWConfig(", "LionConfig(", "optim ('LionConfig' is not modelled; AdamWConfig, SkipStepAdamWConfig are)"),
        ("float8_config=None", "float8_config=Float8Config(enabled=True)", "float8_config (its products"),
        ("float8_config=None", "tp_config=rows(4)", "tp_config (only FSDP and parts of sequences are modelled"),
        ("float8_config=None", "cp_config=ring(4)", "cp_config: its degree is not in the script"),
        ("float8_config=None", BUDGET.replace("budget,", "blocks,"), "ac_config.mode ('blocks' is not modelled"),
        ("common.tokenizer", "TokenizerConfig.gpt2()", "TokenizerConfig.gpt2 (the embedding is counted"),
    ):
        with pytest.raises(InputError) as error:
            launch_from_text(text.replace(old, new), "olmo.py", 8)
        assert message in str(error.value)


def test_what_a_script_of_olmo_core_states_of_sequences_replicas_and_recomputation() -> None:
    text = FILES["olmo_core.py"]
    sized = text.replace("DataParallelType.fsdp", "DataParallelType.hsdp, shard_degree=4")
    for source, devices, settings, replicas in (
        (text.replace("float8_config=None", BUDGET), 8, {"recompute": "every:2", "seq": 2048}, 1),
        (text.replace("float8_config=None", BUDGET.replace("0.5", "0.1")), 8, {"recompute": "but-every:10"}, 1),
        (text.replace("float8_config=None", BUDGET.replace("0.5", "0.4")), 8, {"recompute": "but-every:2"}, 1),
        (text.replace("float8_config=None", BUDGET.replace("0.5", "0.7")), 8, {"recompute": "every:4"}, 1),
        (text.replace("float8_config=None", BUDGET.replace("0.5", "0.8")), 8, {"recompute": "every:5"}, 1),
        (text.replace("float8_config=None", NETWORKS), 8, {"recompute": "nodes:mlp"}, 1),
        (text.replace("float8_config=None", ULYSSES), 8, {"seq": 1024, "batch": 4, "num_microbatches": 4}, 1),
        (text.replace("DataParallelType.fsdp", "DataParallelType.hsdp"), 16, {"num_microbatches": 1}, 2),
        (sized.replace("float8_config=None", ULYSSES), 16, {"num_microbatches": 2}, 2),
        (sized, 16, {"num_microbatches": 1}, 4),
    ):
        launch = launch_from_text(source, "olmo.py", devices)
        assert settings.items() <= launch.settings.items()
        assert (launch.layout.dp, launch.layout.hsdp_replicas) == (devices, replicas)


def test_a_script_of_olmo_core_that_changes_its_model_leaves_it_to_target() -> None:
    """Such as the hybrid models, whose scripts replace layers of OLMo 3 after the call that made it."""
    text = FILES["olmo_core.py"]
    call = "return TransformerConfig.olmo2_1B_v2(vocab_size=common.tokenizer.padded_vocab_size())"
    assert call in text
    changed = text.replace(call, call.replace("return", "config =") + "\n    {}\n    return config")
    fused = launch_from_text(changed.format("config.lm_head.loss_implementation = Loss.fused_linear"), "olmo.py", 8)
    assert fused.spec is not None
    assert fused.settings["cross_entropy"] == "chunked"
    for source, target in (
        (changed.format("config.d_model -= 128"), "TransformerConfig.olmo2_1B_v2 with other d_model"),
        (text.replace("olmo2_1B_v2(", "ngpt_1B("), "TransformerConfig.ngpt_1B"),
        (text.replace("olmo2_1B_v2(", "olmo2_1B_v2(n_layers=2, "), "TransformerConfig.olmo2_1B_v2 with other n_layers"),
    ):
        launch = launch_from_text(source, "olmo.py", 8)
        assert (launch.spec, launch.model_name) == (None, target)


COOKBOOK = """
from olmo_core.internal import cookbook
SEQ_LENGTH = 4096
model = TransformerConfig.olmo2_1B_v2(vocab_size=TokenizerConfig.dolma2().padded_vocab_size())
step = cookbook.configure_train_module(
    max_sequence_length=SEQ_LENGTH, rank_microbatch_size=SEQ_LENGTH * 2, learning_rate=1e-4,
    activation_memory_budget=0.75, cp_degree=2, dp_shard_degree=2)
"""


def test_the_cookbook_of_olmo_core_states_the_rest_of_a_step() -> None:
    launch = launch_from_text(COOKBOOK, "olmo.py", 8)
    expected = {"seq": 2048, "batch": 2, "recompute": "every:4", "compile": True, "dtype": "bf16"}
    assert expected.items() <= launch.settings.items()
    assert (launch.layout.dp, launch.layout.zero, launch.layout.hsdp_replicas) == (8, 3, 2)


def test_a_vocabulary_in_files_is_typed_behind_a_script_of_pai() -> None:
    text = FILES["pai_qwen2.sh"].replace("Qwen2Tokenizer", "BloomTokenizerFromHF")
    assert text != FILES["pai_qwen2.sh"]
    arguments = ("dsw", "7B", "2", "bf16")
    with pytest.raises(InputError, match="expected its size as the last argument of the script, as in --launch 'FILE"):
        launch_from_text(text, "pai.sh", arguments=arguments)
    launch = launch_from_text(text, "pai.sh", arguments=(*arguments, "--padded-vocab-size", "250880"))
    assert launch.spec is not None
    assert launch.spec.vocab_size == 250_880


def test_an_engine_sleeps_while_the_training_runs() -> None:
    rollout = read_launch(typed("swift_grpo.sh")).rollout
    assert rollout is not None
    assert (rollout.engine, rollout.engine_sleeps_while_idle, rollout.offloaded_states) == ("vllm", True, {"optimizer"})
    assert rollout.flags["gpu_memory_utilization"] == 0.4
    assert rollout.flags["max_num_seqs"] == 4 * 2
    assert (rollout.reference_model.weights_location, rollout.reference_model.bytes_per_weight) == (
        "device",
        2,
    )  # beta is 0.04 by default


def test_a_micro_batch_of_unsloths_grpo_is_a_whole_group() -> None:
    text = FILES["unsloth_grpo.py"]
    assert any("num_generations, 8" in note for note in launch_from_text(text, "grpo.py").notes)
    in_parts = text.replace("batch_size=4", "batch_size=4, num_generations=4")
    assert launch_from_text(in_parts, "grpo.py").settings["batch"] == 4


SENTENCE_TRANSFORMER = """
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss

model = SentenceTransformer("google-bert/bert-base-uncased", model_kwargs={"torch_dtype": "float32"})
model.max_seq_length = 128
loss = MultipleNegativesRankingLoss(model)
args = SentenceTransformerTrainingArguments(output_dir="models", per_device_train_batch_size=16, bf16=True)
trainer = SentenceTransformerTrainer(model=model, args=args, train_dataset=dataset, loss=loss)
"""

UNSLOTH_EMBEDDING = """
from unsloth import FastSentenceTransformer
model = FastSentenceTransformer.from_pretrained(model_name="unsloth/all-MiniLM-L6-v2", max_seq_length=64)
model = FastSentenceTransformer.get_peft_model(model, r=64)
loss = losses.MultipleNegativesRankingLoss(model)
args = SentenceTransformerTrainingArguments(per_device_train_batch_size=16)
"""


@pytest.mark.parametrize(
    ("losses", "batch"),
    [
        ("MultipleNegativesRankingLoss(model)", 32),
        ("TripletLoss(model)", 48),
        ("BatchAllTripletLoss(model)", 16),
        ("MatryoshkaLoss(model, CachedMultipleNegativesRankingLoss(model, mini_batch_size=4), [8])", 4),
        ("CachedGISTEmbedLoss(model, guide)", 16),
    ],
)
def test_texts_of_examples_of_sentence_transformers(losses: str, batch: int) -> None:
    """sentence-transformers, trainer.py, `collect_features`; losses/CachedMultipleNegativesRankingLoss.py."""
    launch = launch_from_text(
        SENTENCE_TRANSFORMER.replace("MultipleNegativesRankingLoss(model)", losses), "embedding.py"
    )
    expected = {"batch": batch, "seq": 128, "precision": "autocast"}
    assert {name: launch.settings[name] for name in expected} == expected
    assert (launch.model_name, launch.score_head_num_labels) == ("google-bert/bert-base-uncased", 0)


def test_training_of_embeddings_has_no_logits(tmp_path: Path) -> None:
    """Unsloth's defaults: models/sentence_transformer.py (015bdef0d), of an encoder neither 4 bits nor checkpoints."""
    for name, text in (("plain.py", SENTENCE_TRANSFORMER), ("unsloth.py", UNSLOTH_EMBEDDING)):
        file = tmp_path / name
        file.write_text(text)
        document = llmcalc.memory(launch=file).document
        assert document["memory"]["peak_at"]["node"].startswith("layers."), document["memory"]["peak_at"]
    adapted = launch_from_text(UNSLOTH_EMBEDDING, "embedding.py").settings
    assert (adapted["batch"], adapted["seq"], adapted["lora_rank"]) == (32, 64, 64)
    assert not {"base", "recompute"} & {*adapted}


def test_log_probabilities_of_unsloths_grpo() -> None:
    """Of the 256 completion tokens of 8 sequences, 32 chunks of 64 rows (unsloth_zoo, `autotune_batch_and_chunks`).

    The notebook of unslothai/notebooks (2026-08), nb/gpt-oss-(20B)-GRPO.ipynb, runs on a T4.
    """
    settings = read_launch(typed("unsloth_grpo.py")).settings
    loss = {"cross_entropy": "split", "logits_dtype": "bf16", "logits_to_keep": 256, "loss_chunk": 8}
    assert {name: settings[name] for name in loss} == loss
    multiplied = FILES["unsloth_grpo.py"].replace("GRPOConfig(", "GRPOConfig(unsloth_logit_chunk_multiplier=8, ")
    assert launch_from_text(multiplied, "grpo.py").settings["loss_chunk"] == 4


def test_activations_of_verl_wait_on_the_host() -> None:
    text = FILES["verl_fsdp.sh"].replace(
        "main_ppo ", "main_ppo actor_rollout_ref.model.enable_activation_offload=True ", 1
    )
    launch = launch_from_text(text, "verl.sh", 8)
    assert launch.settings["offload_activations"] is True
    assert any("of which five stay, an estimate" in note for note in launch.notes)


def test_a_python_file_that_trains_is_no_server(tmp_path: Path) -> None:
    """Notebooks of Unsloth start vLLM to write data, and then train."""
    file = tmp_path / "data_and_training.py"
    start = 'import subprocess\nserver = subprocess.Popen(["vllm", "serve", "Qwen/Qwen2.5-7B"])\n'
    file.write_text(start)
    assert starts_any_server(file)
    file.write_text(start + FILES["unsloth_sft.py"])
    assert not starts_any_server(file)
    launch = read_launch(file)
    assert launch.settings["lora_rank"] == 8


def test_sums_of_verl_are_in_the_format_of_the_file() -> None:
    text = FILES["verl_fsdp.sh"]
    section = "actor_rollout_ref.actor.fsdp_config.mixed_precision"
    assert launch_from_text(text, "f.sh").framework_settings.reduction_format == "float32"
    in_bf16 = text.replace("main_ppo ", f"main_ppo +{section}.reduce_dtype=bf16 ", 1)
    assert launch_from_text(in_bf16, "f.sh").framework_settings.reduction_format == "bfloat16"
    with pytest.raises(InputError, match="mixed_precision"):
        launch_from_text(text.replace("main_ppo ", f"main_ppo +{section}.param_dtype=fp32 ", 1), "f.sh")


def test_a_process_of_ms_swift_that_sees_several_devices_is_refused() -> None:
    """transformers divides the layers over them (`device_map`)."""
    text = FILES["swift_lora.sh"]
    with pytest.raises(InputError, match=r"CUDA_VISIBLE_DEVICES: 2 devices of 1 process: .* expected NPROC_PER_NODE=2"):
        launch_from_text(text.replace("swift sft", "CUDA_VISIBLE_DEVICES=0,1 swift sft", 1), "f.sh")
    for prefix in ("CUDA_VISIBLE_DEVICES=0", "NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1"):
        assert launch_from_text(text.replace("swift sft", f"{prefix} swift sft", 1), "f.sh").program == "ms-swift"


def test_adapters_of_deepspeed_chat_have_the_format_of_the_weights() -> None:
    text = FILES["deepspeed_chat_step1.sh"]
    settings = launch_from_text(text.replace("--zero_stage", "--lora_dim 64 --zero_stage", 1), "step1.sh").settings
    assert (settings["lora_rank"], settings["lora_dtype"], settings["lora_library"]) == (64, "fp16", "torchtune")
    assert settings["modules_to_save"] == ("embed_tokens", "lm_head")  # all that is not in the layers is trained
    alone = text.replace("--zero_stage", "--lora_dim 64 --only_optimize_lora --zero_stage", 1)
    assert "modules_to_save" not in launch_from_text(alone, "step1.sh").settings


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("actor.optim.override_optimizer_config.optimizer_cpu_offload=True", "optimizer_cpu_offload"),
        ("model.lora.rank=32", r"model\.lora\.rank"),
        ("model.mtp.enable_train=True", "mtp"),
        ("actor.megatron.override_transformer_config.cpu_offloading=True", "cpu_offloading"),
    ],
)
def test_keys_of_verl_that_decide_memory_and_are_not_read_are_refused(override: str, said: str) -> None:
    text = FILES["verl_fsdp.sh"]
    with pytest.raises(InputError, match=said):
        launch_from_text(text.replace("main_ppo ", f"main_ppo actor_rollout_ref.{override} ", 1), "f.sh")
    for harmless in ("actor.optim.lr=1e-6", "actor.clip_ratio_high=0.3", "model.lora.rank=0", "model.use_shm=True"):
        launch_from_text(text.replace("main_ppo ", f"main_ppo actor_rollout_ref.{harmless} ", 1), "f.sh")


def test_a_reward_model_of_openrlhf_has_no_loss_of_logits(tmp_path: Path) -> None:
    """OpenRLHF 0.11, examples/scripts/train_rm.sh; it was refused for its loss, which is of the other trainings."""
    path = tmp_path / "train_rm.sh"
    path.write_text(FILES["openrlhf_dpo.sh"].replace("train_dpo", "train_rm").replace("max_len 1024", "max_len 64"))
    assert llmcalc.memory(launch=path).document["launch"]["program"] == "OpenRLHF"


def test_fused_kernels_of_verl_have_no_logits() -> None:
    text = FILES["verl_fsdp.sh"].replace("main_ppo ", "main_ppo actor_rollout_ref.model.use_fused_kernels=True ", 1)
    launch = launch_from_text(text, "f.sh")
    assert launch.settings["cross_entropy"] == "chunked"
    assert launch.rollout is not None
    assert launch.rollout.bytes_per_logit == 0


@pytest.mark.parametrize(
    ("override", "settings"),
    [
        ("actor.entropy_coeff=0", {"cross_entropy": "flash-in-place", "divide_logits": True}),
        ("actor.entropy_coeff=0.001", {"cross_entropy": None, "divide_logits": True}),
        ("actor.calculate_entropy=True", {"cross_entropy": None, "divide_logits": True}),
        ("model.use_remove_padding=False", {"cross_entropy": None, "divide_logits": True}),
    ],
)
def test_log_probabilities_of_verl_are_written_over_logits(override: str, settings: dict[str, Any]) -> None:
    text = FILES["verl_fsdp.sh"].replace("main_ppo ", f"main_ppo actor_rollout_ref.{override} ", 1)
    read = launch_from_text(text, "f.sh").settings
    assert {name: read.get(name) for name in settings} == settings


def test_dynamic_batches_of_openrlhf_have_tokens_in_the_place_of_sequences() -> None:
    dynamic = " --train.dynamic_batch_enable --rollout.micro_batch_size 8 --rollout.max_tokens_per_gpu 9000"
    launch = launch_from_text(FILES["openrlhf_ppo.sh"].rstrip() + dynamic, "openrlhf.sh")
    assert launch.rollout is not None
    assert (
        launch.rollout.sequence_count,
        launch.rollout.tokens_per_sequence,
        launch.rollout.logit_tokens_per_sequence,
    ) == (1, 9000, 9000)
    assert launch.settings["seq"] == 16192


OWN_ARGUMENTS = {
    "train.py --max_length 64 --use_peft_lora True --use_4bit_quantization True --use_nested_quant True "
    "--use_flash_attn True --gradient_checkpointing True --use_reentrant True": {
        "lora_rank": 64, "base": "nf4-dq", "attn_implementation": "flash", "recompute": "full-reentrant",
    },
    "qlora.py --bf16 --source_max_len 16 --target_max_len 512": {
        "seq": 528, "batch": 1, "num_microbatches": 16, "optimizer": "paged-adamw", "base": "nf4-dq", "lora_rank": 64,
        "lora_targets": ("all-linear",), "recompute": "full",
    },
    "finetune.py --conversation_template llama3 --use_qlora 1 --block_size 64": {"lora_rank": 8, "base": "nf4-dq"},
    "llava/train/train_mem.py --mm_projector_type linear --bf16 True --model_max_length 64": {
        "seq": 64, "dtype": "bf16", "attn_implementation": "flash",
    },
    "train_qwen.py --tune_mm_llm True --bf16 --model_max_length 64": {"seq": 64, "dtype": "bf16"},
    "train.py --template_name qwen --max_seq_length 64 --lora_rank 16 --fp16": {"lora_rank": 16, "base": "nf4-dq"},
}  # fmt: skip
"""A command of a script with arguments of its own → settings that they or the script's defaults decide."""


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("", {"batch": 4, "seq": 256, "num_microbatches": 32, "lora_targets": ("q_proj", "v_proj")}),
        (
            " --batch_size 64 --micro_batch_size 8 --cutoff_len 512 --lora_r 16"
            " --lora_target_modules '[q_proj,k_proj,v_proj,o_proj]'",
            {"batch": 8, "seq": 512, "num_microbatches": 8, "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj")},
        ),
    ],
)
def test_commands_of_alpaca_lora_train_beside_weights_of_8_bits(words: str, settings: dict[str, Any]) -> None:
    """tloen/alpaca-lora at 8bb8579, finetune.py and the README's two commands."""
    launch = launch_from_text(
        f"python finetune.py --base_model huggyllama/llama-7b --data_path x --output_dir o{words}", "x.sh"
    )
    expected = settings | {"base": "int8", "recompute": "full-reentrant", "optimizer_impl": "foreach"}
    assert launch.model_name == "huggyllama/llama-7b"
    assert {name: launch.settings[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "source_tokens", "target_tokens"),
    [
        ("run_summarization.py --source_prefix 'summarize: ' --text_column a --predict_with_generate", 1024, 128),
        ("run_translation.py --source_lang en --target_lang ro --max_source_length 64 --max_target_length 32", 64, 32),
    ],
)
def test_scripts_of_pairs_train_an_encoder_decoder(words: str, source_tokens: int, target_tokens: int) -> None:
    """transformers' examples/pytorch/{summarization,translation}, `DataTrainingArguments`."""
    command = f"python {words} --model_name_or_path google-t5/t5-small --do_train --output_dir o"
    launch = launch_from_text(command, "x.sh")
    assert (launch.settings["source"], launch.settings["seq"]) == (source_tokens, target_tokens)
    assert f"the encoder reads {source_tokens:,} tokens (max_source_length)" in launch.notes


def test_paths_of_data_alone_are_no_alpaca_lora() -> None:
    """`data_path` is an argument of many scripts; 2U1/Qwen-VL-Series-Finetune, scripts/finetune_cls.sh, is one."""
    words = "train_cls.py --data_path x --bf16 True --fp16 False --per_device_train_batch_size 2 --max_length 64"
    settings = launch_from_text(f"python {words} --output_dir o", "x.sh").settings
    assert not {"base", "lora_rank"} & {*settings}
    assert (settings["batch"], settings["seq"]) == (2, 64)


def test_a_script_of_liger_is_known_by_use_liger_without_the_trainers_model() -> None:
    words = "torchrun --nproc-per-node=4 training.py --bf16 --per_device_train_batch_size 64 --learning_rate 6e-6"
    launch = launch_from_text(f"{words} --output_dir out --use_liger True", "run.sh")
    assert (launch.model_name, launch.settings["seq"]) == ("meta-llama/Meta-Llama-3-8B", 512)
    trainer = launch_from_text(f"train.py --use_liger_kernel True --max_length 512 --bf16{SHARED}", "x.sh")
    assert launch.settings["cross_entropy"] == trainer.settings["cross_entropy"]


REFUSED_OWN_ARGUMENTS = {
    "train.py --use_peft_lora 1 --use_unsloth True": "use_unsloth (Unsloth's kernels are not modelled)",
    "train_qwen.py --tune_mm_mlp True": "tune_mm_llm (a frozen language model, its default, is not modelled)",
    "train_mem.py --tune_mm_mlp_adapter True": "training of the projector alone is not modelled",
}

SHARED = " --model_name_or_path Qwen/Qwen2-7B-Instruct --do_train"


@in_one_test
@pytest.mark.parametrize(("words", "settings"), OWN_ARGUMENTS.items())
def test_arguments_of_known_scripts_are_read_as_those_of_the_trainer(words: str, settings: dict[str, Any]) -> None:
    launch = launch_from_text(f"python {words}{SHARED}", "x.sh")
    assert {name: launch.settings[name] for name in settings} == settings


@in_one_test
@pytest.mark.parametrize(("words", "message"), REFUSED_OWN_ARGUMENTS.items())
def test_own_arguments_of_scripts_that_are_not_modelled(words: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        launch_from_text(f"python {words}{SHARED}", "x.sh")
    assert message in str(error.value)


def test_one_process_on_several_devices_is_data_parallel_and_layer_wise_optimizers_refuse_more() -> None:
    command = f"train.py --per_device_train_batch_size 1 --max_length 64{SHARED}"
    notes = launch_from_text(f"CUDA_VISIBLE_DEVICES=0,1 python {command}", "x.sh").notes
    assert any(note.startswith("2 visible devices and one process: the Trainer runs ") for note in notes)
    assert not any("DataParallel" in note for note in launch_from_text(f"python {command}", "x.sh").notes)
    layer_wise = f"{command} --optim galore_adamw_layerwise --optim_target_modules attn mlp"
    assert launch_from_text(f"python {layer_wise}", "x.sh").settings["optimizer_in_backward"]
    with pytest.raises(InputError, match="optim: galore_adamw_layerwise refuses several devices; expected one"):
        launch_from_text(f"torchrun --nproc_per_node 2 {layer_wise}", "x.sh")


def test_openrlhf_copies_logits_to_float32() -> None:
    settings = read_launch(typed("openrlhf_ppo.sh")).settings
    assert (settings["cross_entropy"], settings["logits_dtype"]) == ("flash", "float32")


def test_a_reference_model_under_megatron_is_divided_as_the_trained_weights() -> None:
    launch = read_launch(typed("swift_megatron_dpo.sh"))
    assert launch.frozen_model is not None
    assert launch.frozen_model.is_divided_as_trained
    beside = [name for name in ("--rlhf_type rm", "--rlhf_type kto") if _frozen(name) is not None]
    assert beside == ["--rlhf_type kto"]
    weights = llmcalc.memory(launch=FOLDER / "swift_megatron_dpo.sh").document["memory"]["by_phase"]["step"]["weights"]
    alone = llmcalc.memory(
        "qwen2.5-7b", phase="training", tp=4, framework="megatron", sequence_parallel=True, batch=4, seq=4096
    ).document["memory"]["by_phase"]["step"]["weights"]
    assert weights == 2 * alone


def _frozen(option: str) -> Any:
    return launch_from_text(FILES["swift_megatron_dpo.sh"].replace("--rlhf_type dpo", option), "f.sh").frozen_model


def test_ranks_of_ms_swift_share_a_sequence() -> None:
    text = FILES["swift_full.sh"].replace("swift pt ", "swift pt --sequence_parallel_size 4 ", 1)
    assert "sequence_parallel_size 4" in text
    launch = launch_from_text(text, "f.sh")
    assert launch.settings["seq"] == 8192 // 4
    assert any("1/4 of a sequence" in note for note in launch.notes)
    with pytest.raises(InputError, match="--sequence_parallel_size: 3 on 4 devices"):
        launch_from_text(text.replace("parallel_size 4", "parallel_size 3"), "f.sh")


def test_step_3_of_deepspeed_chat_has_four_models() -> None:
    """OPT-350M has 331,196,416 parameters: its critic's gradients and states are divided by 8, the rest is whole."""
    text, critic = FILES["deepspeed_chat_step3.sh"], 331_196_416
    rollout = launch_from_text(text, "f.sh out").rollout
    assert rollout is not None
    assert (rollout.reference_model.weights_location, rollout.reference_model.rank_count) == ("host", 8)
    assert (
        rollout.reward_model.weights_location,
        rollout.reward_model.rank_count,
        rollout.reward_model.parameter_count,
    ) == (
        "device",
        1,
        critic,
    )
    assert rollout.critic_bytes == 2 * critic + critic // 8 * (2 + 12)
    offloaded = launch_from_text(text.replace("--offload_reference_model", "--offload", 1), "f.sh out").rollout
    assert offloaded is not None
    assert offloaded.critic_bytes == 2 * critic
    unnamed = launch_from_text(text.replace("=facebook/opt-350m", "=./output_step2", 1), "f.sh out")
    assert unnamed.rollout is not None
    assert (unnamed.rollout.critic_bytes, unnamed.rollout.reward_model.parameter_count) == (0, 0)
    assert any("as large as the actor" in note for note in unnamed.notes)


def test_the_reward_model_is_a_row_of_the_phases() -> None:
    document = llmcalc.memory(launch=f"{FOLDER / 'deepspeed_chat_step3.sh'} out").document
    for phase in document["phases"]:
        terms = {term["name"]: term["bytes"] for term in phase["terms"]}
        assert terms["reward"] == 2 * 331_196_416
        assert phase["bytes"] == sum(terms.values())


def test_rollouts_beside_megatron() -> None:
    rollout = read_launch(typed("swift_megatron_grpo.sh")).rollout
    assert rollout is not None
    assert rollout.offloaded_states == {"weights", "gradients", "optimizer", "reference"}
    assert (rollout.engine, rollout.engine_sleeps_while_idle, rollout.flags["max_num_seqs"]) == ("vllm", True, 8)
    assert (rollout.reference_model.weights_location, rollout.reference_model.rank_count) == ("device", 8)


def test_a_teacher_under_megatron_is_refused() -> None:
    with pytest.raises(InputError, match=r"--rlhf_type: 'gkd': its teacher is not modelled; expected dpo, kto"):
        _frozen("--rlhf_type gkd")


def test_generation_without_an_engine() -> None:
    rollout = read_launch(typed("unsloth_grpo.py")).rollout
    assert rollout is not None
    assert (rollout.engine, rollout.logit_tokens_per_sequence) == ("", 257)


def test_frozen_weights_of_verl_are_sharded_in_fp32() -> None:
    launch = read_launch(typed("verl_sft.sh"))
    assert launch.frozen_model is not None
    assert launch.frozen_model.rank_count == 4
    assert launch.frozen_model.weight_bytes(1000, "bfloat16") == 250 * 2  # beyond the 2 bytes that are counted


def test_a_reference_model_is_divided_by_zero_3() -> None:
    launch = read_launch(typed("openrlhf_dpo.sh"))
    assert launch.frozen_model is not None
    assert launch.frozen_model.weight_bytes(1001, "bfloat16") == 251 * 2


def test_the_reference_model_is_among_the_weights() -> None:
    """494,032,768 parameters of two bytes each, all the time."""
    answer = llmcalc.memory(launch=FOLDER / "trl_dpo.yaml")
    document = answer.document
    alone = llmcalc.memory(
        "qwen2.5-0.5b", phase="training", batch=4, seq=1024, num_microbatches=4, recompute="full", precision="bf16",
        attn_implementation="sdpa",
    ).document  # fmt: skip
    copy = 2 * 494_032_768
    assert document["launch"]["frozen_model"]["ranks"] == 1
    assert document["memory"]["exact_bytes"] == alone["memory"]["exact_bytes"] + copy
    terms = {term["name"]: term for term in document["memory"]["terms"]}
    assert (terms["reference model"]["bytes"], terms["reference model"]["status"]) == (copy, "estimate")
    assert sum(term["bytes"] for term in terms.values()) == document["memory"]["device_bytes"]
    step = document["memory"]["by_kind"]["weights"] - alone["memory"]["by_kind"]["weights"]
    assert step == copy
    names = [row.cells[0] for row in answer.report().tables[0].rows]
    (part,) = (i for i, name in enumerate(names) if str(name).startswith("of these: reference model"))
    assert str(names[part + 1]).startswith("peak")  # above the peak, which has it


def test_stages_count_embedding_and_head_as_layers() -> None:
    """BLOOM: 6 layers with the embedding and the head are 8, of which each of 2 stages has 4."""
    launch = read_launch(typed("bigscience_alibi.slurm"))
    assert launch.spec is not None
    assert launch.framework_settings.account_for_embedding_in_pipeline_split
    h, words = 256, 32000
    layer = 12 * h * h + 13 * h
    assert params(launch.spec).total == words * h + 2 * h + 6 * layer + 2 * h  # no positions; a norm after embeddings


COMMANDS = [
    (
        "swift sft --model a/b --tuner_type llamapro",
        "--tuner_type: 'llamapro' is not modelled; expected full, lora or lora_llm",
    ),
    ("swift rlhf --rlhf_type ppo --model a/b", "swift rlhf --rlhf_type: 'ppo': its critic is not modelled"),
    ("swift sft --task_type diffusion --model a/b", "--task_type ('diffusion' is not modelled)"),
    ("swift rlhf --rlhf_type orpo --ref_model c/d --model a/b", "--ref_model (a reference model of other weights"),
    (
        "python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml' actor_rollout_ref.model.path=a/b "
        "actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "model.lora_rank: is of FSDP; expected actor_rollout_ref.model.lora.rank",
    ),
    ("megatron sft --model a/b --tuner_type adalora", "--tuner_type: 'adalora' is not modelled; expected lora, which"),
    (
        "swift sft --model a/b --max_length 64 --optimizer muon",
        "--optimizer (ms-swift's own optimizer 'muon' is not modelled)",
    ),
    (
        "megatron sft --model a/b --tuner_type lora --max_length 64 --modules_to_save output_layer",
        "--modules_to_save ('output_layer' is not modelled",
    ),
    ("megatron rlhf --rlhf_type gkd --model a/b", "megatron rlhf --rlhf_type: 'gkd': its teacher is not modelled"),
    ("swift export --model a/b", "swift export: is no training; expected swift sft"),
    ("trl distillation --config job.yaml", "trl distillation is TRL's: trainings by RLOO"),
    ("python trl/scripts/distillation.py --model_name_or_path a/b", "trl distillation is TRL's"),
    ("litgpt finetune_lora a/b", "litgpt finetune_lora is litgpt's"),
    ("nemo llm pretrain --factory x", "nemo llm is NeMo's"),
    ("deepspeed main.py --actor_zero_stage 3 --actor_model_name_or_path x --enable_ema", "--enable_ema (a moving"),
    ("python -m openrlhf.cli.train_prm --zero_stage 2", "train_prm: is not read; expected train_ppo_ray, train_sft"),
    ("python -m verl.trainer.main_ppo data.max_prompt_length=8", "ppo_micro_batch_size_per_gpu: missing"),
    (
        "python -m skyrl.train.entrypoints.main_base trainer.policy.megatron_config.mtp_loss_topk=64",
        "trainer.policy.megatron_config.mtp_loss_topk (64 is not modelled)",
    ),
    (
        "python -m skyrl.train.entrypoints.main_base trainer.algorithm.use_entropy_loss=true",
        "use_entropy_loss (True is",
    ),
    (
        "python -m skyrl.train.main_sft max_length=64 megatron_config.lora_config.lora_type=canonical_lora",
        "lora_type ('canonical_lora' is not modelled)",
    ),
    ("python -m skyrl.train.entrypoints.serve trainer.policy.model.path=a/b", "serve: generates, evaluates or serves"),
    ("python examples/main_generate.py trainer.policy.model.path=a/b", "main_generate.py: generates"),
    ("python -m skyrl.train.entrypoints.main_generate", "main_generate: generates, evaluates or serves"),
    ("python -m skyrl.train.main_sft model.path=a/b", "max_length: missing"),
    (
        "python -m skyrl.train.main_sft max_length=64 model_config_kwargs.x=1",
        "model_config_kwargs.x (1 is not modelled)",
    ),
    ("python run_recipe.py --recipe my_config train.micro_batch_size=2", "expected --launch 'megatron/bridge/recipes/"),
    ("deepspeed pretrain_gpt.py --num-layers 2 --deepspeed --zero-stage 3", "stage 3 under Megatron-DeepSpeed"),
    ("llamafactory-cli train my.yaml", "my.yaml: names a file, which is not read"),
    ("run_ner.py --model_name_or_path a/b --do_train --per_device_train_batch_size 8", "run_ner.py (its head is no"),
]


@in_one_test
@pytest.mark.parametrize(("command", "message"), COMMANDS, ids=[case[0][:30] for case in COMMANDS])
def test_a_command_is_refused_by_its_program(command: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        launch_from_text(f"#!/bin/bash\n{command}\n", "x.sh")
    assert message in str(error.value)


def test_optimizer_states_of_skyrl_stay_where_its_key_says() -> None:
    """skyrl_train/distributed/fsdp_strategy.py at a9564572; its Megatron strategy does not read the key."""
    command = "python -m skyrl.train.entrypoints.main_base trainer.policy.optimizer_config.offload_after_step=false "
    for words, is_offloaded in (("trainer.strategy=fsdp", False), ("trainer.strategy=megatron", True)):
        rollout = read_launch(command + words).rollout
        assert rollout is not None
        assert ("optimizer" in rollout.offloaded_states) is is_offloaded


def test_several_position_embeddings_are_refused_by_their_argument() -> None:
    script = FILES["bigscience_alibi.slurm"].replace(
        "--position-embedding-type alibi", "--position-embedding-type alibi x"
    )
    with pytest.raises(InputError, match="--position-embedding-type: a list; expected one of"):
        launch_from_text(script, "x.slurm")


def test_variables_of_the_launcher_are_named() -> None:
    (note,) = (note for note in read_launch(FOLDER / "trainer_clm.sh").notes if "assumed;" in note)
    assert note == (
        "1 device is assumed; GPUS, NODES of the launcher is not set: --devices, or --launch 'GPUS=8 NODES=1 FILE', "
        "says another number"
    )


def test_arguments_of_a_script_replace_its_defaults() -> None:
    assert read_launch(typed("qwen_lora.sh --model Qwen/Qwen-14B")).model_name == "Qwen/Qwen-14B"
    assert read_launch(FOLDER / "qwen_lora.sh").model_name == "Qwen/Qwen-7B"


def test_defaults_of_the_program_are_listed() -> None:
    launch = read_launch(FOLDER / "swift_lora.sh")
    assert launch.program == "ms-swift"
    assert launch.assumed_defaults["tuner_type"] == "lora"
    assert launch.assumed_defaults["gradient_accumulation_steps"] == 16
    skyrl = read_launch("python -m skyrl.train.entrypoints.main_base trainer.policy.model.path=gpt2")  # of one device
    assert (skyrl.assumed_defaults["trainer.placement.policy_num_gpus_per_node"], skyrl.layout.world_size) == (1, 1)


def test_the_config_that_a_script_writes_is_read() -> None:
    script = FILES["megatron_deepspeed.slurm"].replace("--zero-stage ${ZERO}", "").replace("ZERO=1", "ZERO=0")
    assert launch_from_text(script, "x.slurm").layout.zero == 0
    assert launch_from_text(script.replace("ZERO=0", "ZERO=1"), "x.slurm").layout.zero == 1


def test_a_file_that_a_program_is_started_with_is_read(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("per_device_train_batch_size: 3\nmax_length: 64\nmodel_name_or_path: a/b\n")
    (tmp_path / "x.sh").write_text("llamafactory-cli train job.yaml\n")
    assert read_launch(tmp_path / "x.sh").settings["batch"] == 3


@in_one_test
@pytest.mark.parametrize(
    ("command", "kind", "values"),
    [
        (
            "axolotl train axolotl_qlora.yaml --micro-batch-size 3 --sequence-len=256",
            "axolotl",
            {"batch": 3, "seq": 256},
        ),
        ("llamafactory-cli train llama_factory_qlora.yaml cutoff_len=512", "llama-factory", {"seq": 512}),
        ("trl sft --config trl_sft.yaml --per_device_train_batch_size 5", "trl", {"batch": 5}),
        ("litgpt finetune_lora --config litgpt_lora.yaml --train.micro_batch_size 4", "litgpt", {"batch": 4}),
        (
            "tune run lora_finetune_single_device --config torchtune_lora.yaml model.lora_rank=8 batch_size=1",
            "torchtune",
            {"batch": 1, "lora_rank": 8},
        ),
        (
            "tune run lora_finetune_single_device --config=torchtune_lora.yaml model.lora_attn_modules=[q_proj]",
            "torchtune",
            {"batch": 2},
        ),
        ("trl sft --model_name_or_path a/b --max_length 64 --per_device_train_batch_size 2", "trl", {"seq": 64}),
        ("llamafactory-cli train --model_name_or_path a/b --stage sft --cutoff_len 64", "llama-factory", {"seq": 64}),
        ("python src/train_bash.py --stage sft --model_name_or_path a/b --cutoff_len 64", "llama-factory", {"seq": 64}),
        ("torchrun ../src/train.py --stage sft --model_name_or_path a/b --cutoff_len 64", "llama-factory", {"seq": 64}),
        ("torchrun train.py --model_name_or_path a/b --data_path x.json --bf16 True", "fastchat", {"seq": 512}),
        (
            "python t.py --model_max_length 64 --per_device_train_batch_size 2 --fp16_backend amp",
            "trainer",
            {"seq": 64},
        ),
        ("python run_clm.py --do_train --model_name_or_path a/b --block_size 64", "trainer", {"batch": 8}),
        ("trl dpo --config trl_sft.yaml --use_peft --per_device_train_batch_size 5", "trl", {"batch": 10}),
        (
            "trl dpo --model_name_or_path a/b --use_peft --max_length 64 --per_device_train_batch_size 2",
            "trl",
            {"seq": 64, "batch": 4},
        ),
        ("trl grpo --config trl_grpo.yaml --beta 0.04 --use_peft", "trl", {"seq": 1024}),
        # The scripts of TRL's repository are its commands: they were read as any script of the Trainer.
        *(
            (
                f"accelerate launch --num_processes 1 {script} --model_name_or_path a/b --use_peft --max_length 64 "
                "--per_device_train_batch_size 2",
                "trl",
                {"seq": 64, "batch": sequences, "cross_entropy": loss},
            )
            for script, sequences, loss in (
                ("trl/scripts/dpo.py", 4, None),
                ("examples/scripts/sft.py", 2, "recomputed"),
                ("/a/trl/scripts/kto.py", 2, None),
            )
        ),
    ],
)
def test_values_typed_behind_a_config_replace_the_file_s(command: str, kind: str, values: dict[str, Any]) -> None:
    launch = launch_from_text(f"#!/bin/bash\n{command}\n", "x.sh", launch_folder=FOLDER)
    assert launch.kind == kind
    assert {name: launch.settings.get(name) for name in values} == values


ZERO_3 = "accelerate launch --num_processes 4 --use_deepspeed --zero_stage 3 --mixed_precision bf16"
ONE_SEQUENCE = "--model_name_or_path a/b --max_length 64 --per_device_train_batch_size 1 --output_dir o"


@pytest.mark.parametrize(
    ("command", "framework", "layout"),
    [
        (f"{ZERO_3} trl/scripts/sft.py {ONE_SEQUENCE}", "deepspeed", (4, 3)),
        (f"{ZERO_3} scripts/run_sft.py trl_sft.yaml", "deepspeed", (4, 3)),
        (f"{ZERO_3} src/train.py llama_factory_qlora.yaml", "deepspeed", (4, 3)),
        (f"{ZERO_3} -m axolotl.cli.train axolotl_dora.yaml", "deepspeed", (4, 3)),
        (f"{ZERO_3} trl/scripts/sft.py {ONE_SEQUENCE} --deepspeed z1.json", "deepspeed", (4, 1)),
        (f"accelerate launch --num_processes 4 --use_fsdp trl/scripts/sft.py {ONE_SEQUENCE}", "fsdp2", (4, 3)),
        (f"trl sft --accelerate_config zero2 {ONE_SEQUENCE}", "deepspeed", (8, 2)),
        (f"trl sft --num_processes=2 --accelerate_config fsdp2 {ONE_SEQUENCE}", "fsdp2", (2, 3)),
        (f"trl sft --num_processes 2 {ONE_SEQUENCE}", "torch", (2, 0)),
    ],
)
def test_accelerate_launch_selects_the_framework_of_every_program(
    command: str, framework: str, layout: tuple[int, int], tmp_path: Path
) -> None:
    for file in FOLDER.glob("*.yaml"):
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "z1.json").write_text('{"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": "auto"}')
    launch = launch_from_text(f"#!/bin/bash\n{command}\n", "x.sh", launch_folder=tmp_path)
    assert (launch.framework, (launch.layout.world_size, launch.layout.zero)) == (framework, layout)


@in_one_test
@pytest.mark.parametrize(
    ("command", "devices"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 llamafactory-cli train llama_factory_qlora.yaml", 4),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 NNODES=2 llamafactory-cli train llama_factory_qlora.yaml", 8),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 llamafactory-cli train llama_factory_qlora.yaml", 2),
        ("export CUDA_VISIBLE_DEVICES=4,5\naxolotl train axolotl_dora.yaml", 2),
        (f"CUDA_VISIBLE_DEVICES=0,1 accelerate launch trl/scripts/sft.py {ONE_SEQUENCE}", 2),
        (f"deepspeed --include localhost:1,2,3 train.py {ONE_SEQUENCE}", 3),
        (f"CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 1 train.py {ONE_SEQUENCE}", 1),
        (f"CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node gpu train.py {ONE_SEQUENCE}", 2),
        (f"CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node $COUNT train.py {ONE_SEQUENCE}", 1),
        (f"CUDA_VISIBLE_DEVICES=0,1 python train.py {ONE_SEQUENCE}", 1),
        (f"CUDA_VISIBLE_DEVICES=0,1 trl sft {ONE_SEQUENCE}", 2),
        (f"CUDA_VISIBLE_DEVICES=0,1 trl sft --accelerate_config single_gpu {ONE_SEQUENCE}", 1),
        (f"CUDA_VISIBLE_DEVICES=0,1 python trl/scripts/sft.py {ONE_SEQUENCE}", 1),
        (f"CUDA_VISIBLE_DEVICES=$DEVICES accelerate launch train.py {ONE_SEQUENCE}", 1),
    ],
)
def test_a_launcher_without_a_number_of_processes_starts_one_on_each_visible_device(command: str, devices: int) -> None:
    launch = launch_from_text(f"#!/bin/bash\n{command}\n", "x.sh", launch_folder=FOLDER)
    assert launch.layout.world_size == devices


def test_devices_of_torchtune_are_typed_before_the_recipe() -> None:
    text = "tune run --nproc_per_node 2 lora_finetune_distributed --config torchtune_lora.yaml\n"
    assert launch_from_text(text, "x.sh", launch_folder=FOLDER).layout.world_size == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("batch_size.x=1", "batch_size.x: batch_size is no table in the config file; expected one of its keys"),
        (f"{'a.' * 30}b=1", "too many dots"),
        ("stray --batch_size 4", "'stray' stands before every argument"),
        ("batch_size=$UNKNOWN", "batch_size"),
    ],
)
def test_values_of_another_form_are_refused(words: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        launch_from_text(f"tune run recipe --config torchtune_lora.yaml {words}\n", "x.sh", launch_folder=FOLDER)
    assert message in str(error.value)


def test_records_have_a_name_of_their_own() -> None:
    names = [file.name for file in launch_file_kinds()]
    assert len(set(names)) == len(names)
    assert len(program_launch_files()) > len(LAUNCH_FILE_BY_PROGRAM)
    assert all(any((file.read_tables, file.read_command, file.read_python)) for file in program_launch_files())


def test_configurations_of_a_model_whose_name_only_begins_alike_are_not_read() -> None:
    """`qwen35_4b` is of torchtitan/models/qwen3_5, whose model is another one than that of qwen3_4b."""
    text = FILES["torchtitan_configs.py"].replace("llama3_debug", "qwen35_4b").replace("debugmodel", "4B")
    with pytest.raises(InputError, match="the model of qwen35_4b is not read"):
        launch_from_text(text, "config_registry.py", arguments=("qwen35_4b",))
    of_qwen3 = text.replace("qwen35_4b", "qwen3_4b")
    assert launch_from_text(of_qwen3, "config_registry.py", arguments=("qwen3_4b",)).framework == "fsdp2"
    for argument in ("num_mtp_layers=1", 'moe_comm_backend="deepep"'):
        changed = of_qwen3.replace('("4B")', f'("4B", {argument})')
        with pytest.raises(InputError, match=f"model_spec.{argument.partition('=')[0]} .no argument of a model"):
            launch_from_text(changed, "config_registry.py", arguments=("qwen3_4b",))


def test_experts_of_a_torchtitan_job_are_on_ranks_of_their_own() -> None:
    job = "[model]\nname = 'qwen3'\nflavor = 'debugmodel_moe'\n[training]\nlocal_batch_size = 1\nseq_len = 64\n"
    launch = launch_from_text(job + "[parallelism]\nexpert_parallel_degree = 4\n", "job.toml", 8)
    assert (launch.layout.dp, launch.layout.ep, launch.layout.expert_shard_count, launch.layout.zero) == (8, 4, 2, 3)


@in_one_test
@pytest.mark.parametrize(
    ("variables", "task", "texts", "labels"),
    [
        ("", "embedding --loss_type infonce", 2, 1),
        ("", "reranker --loss_type pointwise_reranker", 8, 1),
        ("MAX_NEGATIVE_SAMPLES=1", "generative_reranker --loss_type listwise_reranker", 2, None),
        ("MAX_POSITIVE_SAMPLES=2 MAX_NEGATIVE_SAMPLES=3", "reranker", 8, 1),
        ("", "seq_cls --num_labels 2", 1, 2),
    ],
)
def test_a_sample_of_texts_is_as_many_sequences(variables: str, task: str, texts: int, labels: int | None) -> None:
    """Their heads and that of a classifier make no logits of all words (swift/model/register.py)."""
    command = (
        f"{variables} swift sft --model Qwen/Qwen3-Embedding-4B --per_device_train_batch_size 4 --task_type {task}"
    )
    launch = launch_from_text(command, "texts.sh")
    assert launch.settings["batch"] == 4 * texts
    assert launch.score_head_num_labels == labels
    assert launch.settings.get("cross_entropy") == ("chunked" if labels is None else None)
    note = "logits of two words alone" if labels is None else f"{labels} score{'s' * (labels > 1)} a token in place of"
    assert any(text.startswith(f"--task_type {task.split(maxsplit=1)[0]}: {note}") for text in launch.notes)


def test_both_answers_of_packed_pairs_have_the_length_together() -> None:
    """swift/dataset/packing.py, `create_packed_idx`: a row's length is the sum over both answers of a pair.

    ms-swift's examples state 50 GiB for train/packing/dpo.sh, and 45 for megatron/rlhf/rm/moe.sh (3602360a).
    """
    for name in ("swift_dpo.sh", "swift_megatron_dpo.sh"):
        alone = launch_from_text(FILES[name], "dpo.sh").settings["batch"]
        packed = launch_from_text(f"{FILES[name].rstrip()} --packing true\n", "dpo.sh").settings["batch"]
        assert (alone, packed) == (4, 2)


def test_products_in_8_bits_of_megatron_swift_are_read() -> None:
    """examples/megatron/fp8/benchmark.sh of ms-swift; swift/megatron/arguments/megatron_args.py for the defaults."""
    text = f"{FILES['swift_megatron.sh'].rstrip()} --enable_dft_loss true --fp8_format e4m3 --fp8_param_gather true "
    launch = launch_from_text(f"{text} --fp8_recipe blockwise\n", "fp8.sh")
    assert launch.settings["precision"] == "fp8"
    assert launch.framework_settings.fp8_arguments == {
        "fp8_format": "e4m3", "fp8_recipe": "blockwise", "fp8_param_gather": True, "fp8_amax_history_len": 1024,
    }  # fmt: skip
    with pytest.raises(InputError, match=r"--fp8_recipe: 'own'; expected one of delayed, tensorwise, mxfp8, blockwise"):
        launch_from_text(f"{text} --fp8_recipe own\n", "fp8.sh")


def test_a_loss_of_all_logits_is_refused_beside_one_in_chunks() -> None:
    """swift/trainers/utils.py, `per_token_loss_func`, has all logits in float32."""
    command = (
        "swift sft --model a/b --add_non_thinking_prefix false --bnb_4bit_quant_storage bfloat16 --enable_dft_loss true"
    )
    assert "cross_entropy" not in launch_from_text(command, "dft.sh").settings
    with pytest.raises(InputError, match="--enable_dft_loss \\(a loss of all logits beside Liger-Kernel's"):
        launch_from_text(f"{command} --use_liger_kernel true", "dft.sh")


def test_a_classifier_of_megatron_swift_has_scores_in_place_of_logits() -> None:
    """mcore-bridge, model/gpt_model.py, `OutputLayerLinear`; a reward model has one score."""
    text = FILES["swift_megatron.sh"]
    launch = launch_from_text(f"{text.rstrip()} --task_type seq_cls --num_labels 3\n", "cls.sh")
    assert launch.score_head_num_labels == 3
    assert launch.settings == launch_from_text(text, "cls.sh").settings
    reranker = launch_from_text(f"{text.rstrip()} --task_type generative_reranker\n", "rank.sh")
    assert (reranker.score_head_num_labels, reranker.settings["cross_entropy"]) == (None, "native")
    assert any("Megatron-SWIFT has logits of all words" in note for note in reranker.notes)
    reward = FILES["swift_megatron_dpo.sh"].replace("--rlhf_type dpo", "--rlhf_type rm")
    assert launch_from_text(reward, "rm.sh").score_head_num_labels == 1
    run: dict[str, Any] = {"phase": "training", "framework": "megatron", "seq": 64}
    small = "qwen2.5-7b?num_hidden_layers=2&vocab_size=1000"
    with_head = llmcalc.memory(small, **run).document["memory"]["by_phase"]["step"]["weights"]
    scored = f"{small}&head.type=classification&head.num_labels=1&head.bias=false&head.over=token"
    with_scores = llmcalc.memory(scored, **run).document["memory"]["by_phase"]["step"]["weights"]
    assert with_head - with_scores == 2 * 3584 * (1024 - 1)  # Megatron pads a vocabulary to multiples of 128
    with pytest.raises(InputError, match="all-router beside all-linear is not modelled; all-linear alone is"):
        launch_from_text(f"{text.rstrip()} --tuner_type lora --target_modules all-linear all-router\n", "cls.sh")


UNSLOTH_NOTEBOOK = """
from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained("{name}", max_seq_length={tokens}, load_in_4bit=True)
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", {more_targets}]
model = FastLanguageModel.get_peft_model(model, r={rank}, target_modules=targets, use_gradient_checkpointing="unsloth")
options = SFTConfig(per_device_train_batch_size={batch}, gradient_accumulation_steps=4, optim="adamw_8bit")
"""


def unsloth_notebook(name: str, rank: int, batch: int = 2, tokens: int = 2048, more_targets: str = "") -> str:
    return UNSLOTH_NOTEBOOK.format(name=name, rank=rank, batch=batch, tokens=tokens, more_targets=more_targets)


UNSLOTH_PEAKS = [
    pytest.param(unsloth_notebook("unsloth/Meta-Llama-3.1-8B", 16), 7.922, 0.03, marks=pytest.mark.exhaustive),
    pytest.param(unsloth_notebook("unsloth/Qwen3-14B", 32), 14.066, 0.08, marks=pytest.mark.exhaustive),
    pytest.param(unsloth_notebook("unsloth/gemma-2-9b", 16), 9.383, 0.06, marks=pytest.mark.exhaustive),
    (unsloth_notebook("unsloth/mistral-7b-v0.3", 128, more_targets="'embed_tokens', 'lm_head'"), 11.432, 0.02),
    pytest.param(  # whose experts have a test below
        unsloth_notebook("unsloth/gpt-oss-20b", 8, batch=1, tokens=1024), 12.975, 0.09, marks=pytest.mark.exhaustive
    ),
    pytest.param(
        unsloth_notebook("unsloth/gpt-oss-120b", 16, batch=4, tokens=4096), 67.836, 0.05, marks=pytest.mark.exhaustive
    ),
    pytest.param(
        unsloth_notebook("unsloth/ERNIE-4.5-21B-A3B-PT", 8, batch=4), 16.764, 0.11, marks=pytest.mark.exhaustive
    ),
]
"""A notebook, GiB of `torch.cuda.max_memory_reserved`, and the largest error: outputs in unslothai/notebooks (2026-08),
nb/Llama3.1_(8B)-Alpaca.ipynb, Qwen3_(14B).ipynb, Gemma2_(9B)-Alpaca.ipynb, Mistral_(7B)-Text_Completion.ipynb and
gpt-oss-(20B)-Fine-tuning.ipynb on a T4, gpt-oss-(120B)_A100-Fine-tuning.ipynb on an A100,
ERNIE_4_5_21B_A3B_PT-Conversational.ipynb on an L4. Samples may be shorter.
"""


@pytest.mark.parametrize(("text", "measured", "error"), UNSLOTH_PEAKS)
def test_published_peaks_of_unsloths_notebooks(tmp_path: Path, text: str, measured: float, error: float) -> None:
    file = tmp_path / "notebook.py"
    file.write_text(text)
    memory = llmcalc.memory(launch=file).document["memory"]
    assert memory["reserved_bytes"] / 2**30 == pytest.approx(measured, rel=error)


def test_experts_of_unsloth_are_those_of_the_model_and_not_of_its_name(tmp_path: Path) -> None:
    """A folder with a fine-tune of gpt-oss had its experts in 16 bits."""
    file, bytes_by_name = tmp_path / "notebook.py", {}
    gpt_oss, qwen = "gpt-oss-20b?num_hidden_layers=2", "qwen3-8b?num_hidden_layers=2"
    for name in ("unsloth/gpt-oss-20b", "./my-finetune"):
        file.write_text(unsloth_notebook(name, 8, batch=1, tokens=64))
        bytes_by_name[name] = llmcalc.memory(gpt_oss, launch=file).document["memory"]["after_step_bytes"]
    assert len(set(bytes_by_name.values())) == 1
    outer, expert = 2 * 201_088 * 2880 * 2, 3 * 2880**2  # bytes of embedding and head, numbers of an expert
    assert max(bytes_by_name.values()) < outer + 2 * 32 * expert  # one byte a number at most, not two
    finetune = llmcalc.memory(qwen, launch=file).document
    file.write_text(unsloth_notebook("my-gpt-oss-distilled-qwen3", 8, batch=1, tokens=64))
    assert llmcalc.memory(qwen, launch=file).document["memory"] == finetune["memory"]


def test_chunks_of_unsloths_loss() -> None:
    """One chunk up to 4 GiB of float32, else a multiple of four (`get_chunk_size`); a loss on pairs has all logits."""
    text = unsloth_notebook("gpt2", 8)
    launch = launch_from_text(text, "sft.py")
    assert (launch.settings["cross_entropy"], launch.counts_longest_samples) == ("chunked", True)
    chunks = {vocabulary: launch.with_chunked_loss(vocabulary) for vocabulary in (2**18, 2**18 + 1, 2**20 + 1)}
    assert [run.settings["loss_chunk"] for run in chunks.values()] == [4096, 1024, 512]
    packed = launch_from_text(text.replace("optim=", "packing=True, optim="), "sft.py")
    assert not packed.counts_longest_samples
    eager = launch_from_text(
        text.replace("load_in", "attn_implementation='eager', unsloth_tiled_mlp=True, load_in"), "sft.py"
    )
    assert eager.settings["attn_implementation"] == "eager"
    assert any(note.startswith("unsloth_tiled_mlp: ") for note in eager.notes)
    scores = launch_from_text(text.replace("load_in", "num_labels=6, load_in"), "classes.py")
    assert (scores.score_head_num_labels, launch.score_head_num_labels) == (6, None)
    pairs = launch_from_text(text.replace("SFTConfig", "DPOConfig"), "dpo.py")
    assert "loss_chunk" not in pairs.with_chunked_loss(2**20).settings


def test_pictures_of_a_notebook_are_no_letters_of_python() -> None:
    text = FILES["unsloth_sft.py"]
    with_picture = f"{text}\nPICTURE = '{'QUJD' * 50_000}'\n"
    assert launch_from_text(with_picture, "notebook.py") == launch_from_text(text, "notebook.py")
    with pytest.raises(InputError, match="letters of Python; expected at most 150,000"):
        launch_from_text(text + "# a line of prose\n" * 10_000, "notebook.py")


def test_conditions_and_negations_of_known_values_are_read_of_every_program() -> None:
    text = FILES["unsloth_sft.py"].replace("length = 1024", "FULL = False\nlength = 2048 if FULL else 512")
    text = text.replace("load_in_4bit=True", "load_in_4bit=not FULL").replace(
        "optim=", "bf16=is_bf16_supported(), optim="
    )
    assert launch_from_text(text, "sft.py").settings == {
        **launch_from_text(FILES["unsloth_sft.py"], "sft.py").settings,
        "seq": 512,
    }
    with pytest.raises(InputError, match="load_in_4bit"):
        launch_from_text(text.replace("FULL = False", "FULL = ask()"), "sft.py")


def test_nothing_in_python_is_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    text = f"open({str(trace)!r}, 'w')\n" + FILES["torchtitan_configs.py"]
    launch_from_text(text, "configs.py", arguments=("llama3_debug",))
    assert not trace.exists()


def test_values_of_a_condition_are_unknown() -> None:
    text = "def f():\n    c = Config(a=1)\n    if x():\n        c.a = 2\n    c.b.d = 2 * 3\n    return c\n"
    config = ConfigurationBuilder(parse_python(text, "x.py")).configuration_of("f")
    assert isinstance(config["a"], UnknownValue)
    assert config["b.d"] == 6


def test_functions_that_call_each_other_end() -> None:
    with pytest.raises(InputError, match="nested too deeply"):
        launch_from_text(
            "from torchtitan.trainer import Trainer\ndef llama3_a():\n    return llama3_a()\n# Trainer.Config\n",
            "x.py",
            arguments=("llama3_a",),
        )


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_read_or_refused(name: str) -> None:
    text = FILES[name]
    arguments = {"torchtitan_configs.py": ("llama3_debug",), "pai_qwen2.sh": ("dsw", "7B", "2", "bf16")}.get(name, ())
    for cut in range(0, len(text), max(1, len(text) // 40)):
        for damaged in (text[:cut], text[:cut] + "\0((${" + text[cut:], text[:cut] + "'\"" + text[cut:]):
            start = time.process_time()
            message = ""
            try:
                launch_from_text(damaged, name, 8, arguments=arguments)
            except InputError as error:
                message = str(error)
            assert not set("\n\0") & set(message)
            assert time.process_time() - start < 2


def test_attention_that_a_program_leaves_open_is_eager_for_a_model_without_sdpa(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "swift sft --model gpt-oss-20b --tuner_type lora --per_device_train_batch_size 1 --max_length 512\n"
    )
    config = tmp_path / "sft.yaml"
    config.write_text(
        "model_name_or_path: gpt-oss-20b\nstage: sft\ndo_train: true\nfinetuning_type: lora\ntemplate: gpt\n"
        "cutoff_len: 512\nbf16: true\nper_device_train_batch_size: 1\n"
    )
    for file in (script, config):
        answer = llmcalc.memory("gpt-oss-20b?num_hidden_layers=2", launch=file, devices=1)
        assert answer.document["memory"]["device_bytes"] > 2**32
