"""Launch files of programs that train with a framework: axolotl, LLaMA-Factory, TRL, torchtune, LitGPT and others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import llmcalc
from llmcalc.costs.params import params
from llmcalc.errors import InputError
from llmcalc.frameworks.frozen_model import FrozenModel, SecondLoss
from llmcalc.frameworks.launch.adapter_targets import translate_adapter_targets
from llmcalc.frameworks.launch.file_kinds import program_launch_files
from llmcalc.frameworks.launch.launch_types import Launch, OptionOverride
from llmcalc.frameworks.launch.read_launch_file import launch_from_text, read_launch
from llmcalc.frameworks.megatron.named_model import BRIDGE_FUSED_MODEL_TYPES
from llmcalc.frameworks.server_files.read import starts_any_server
from llmcalc.parallel.layout import Layout
from llmcalc.sources.preset import Preset
from llmcalc.sources.presets import known_model, load_preset
from llmcalc.sources.text_class import has_text_class
from llmcalc.workload.loaded_encoders import LoadedEncoders
from tests.builders import with_other_causes
from tests.launch_shares import ANSWERED, outcome
from tests.samples import in_one_test, with_rest

FILES = Path(__file__).parents[2] / "data" / "launch"


def changed(name: str, world_size: int | None = None, **changes: Any) -> Launch:
    """The run of one of the files with other values; None removes a key."""
    data = yaml.safe_load((FILES / name).read_text()) | changes
    text = yaml.safe_dump({key: value for key, value in data.items() if value is not None})
    return launch_from_text(text, name, world_size, launch_folder=FILES)


WITH_A_SCRIPT = ("accelerate_fsdp.yaml", "fsdp1_offloaded.yaml", "fsdp1_two_devices.yaml")
"""Configs that a script or a published command names."""

NEEDS_TARGET = ("unsloth_defaults.yaml",)
REFUSED = {"nemo_t5.yaml": "name: 'megatron_t5': its layers are not read"}

PROGRAM_OF = {
    "automodel_lora.yaml": "NeMo-Automodel",
    "axolotl_qlora.yaml": "axolotl",
    "axolotl_full_fsdp2.yaml": "axolotl",
    "axolotl_fsdp2_offload.yaml": "axolotl",
    "axolotl_zero1.yaml": "axolotl",
    "axolotl_dora.yaml": "axolotl",
    "llama_factory_full_z3.yaml": "LLaMA-Factory",
    "llama_factory_qlora.yaml": "LLaMA-Factory",
    "llama_factory_galore.yaml": "LLaMA-Factory",
    "llama_factory_freeze.yaml": "LLaMA-Factory",
    "llama_factory_version_1.yaml": "LLaMA-Factory",
    "llama_factory_megatron.yaml": "LLaMA-Factory",
    "torchtune_full.yaml": "torchtune",
    "torchtune_lora.yaml": "torchtune",
    "litgpt_lora.yaml": "LitGPT",
    "swift_sft.yaml": "ms-swift",
    "trl_dpo.yaml": "TRL",
    "trl_sft.yaml": "TRL",
    "trl_short.yaml": "TRL",
    "trl_grpo.yaml": "TRL",
    "trl_grpo_liger.yaml": "TRL",
    "trl_gkd.yaml": "TRL",
    "open_instruct_sft.yaml": "open-instruct",
    "unsloth_defaults.yaml": "Unsloth",
    "olmo_tiny.yaml": "OLMo",
    "llm_foundry_mpt.yaml": "LLM Foundry",
    "neox_small.yml": "GPT-NeoX",
    "nanotron_llama.yaml": "nanotron",
    "nemo_gpt.yaml": "NeMo",
    "nemo_rl_grpo.yaml": "NeMo-RL",
    "oumi_sft.yaml": "Oumi",
    "verl_grpo.yaml": "verl",
}


def test_every_file_is_in_a_table() -> None:
    assert {path.name for path in FILES.glob("*.y*ml")} == {*PROGRAM_OF, *REFUSED, *WITH_A_SCRIPT}
    assert {file.program for file in program_launch_files() if file.read_tables is not None} == set(PROGRAM_OF.values())


ASKED = {name: name for name in PROGRAM_OF if name not in NEEDS_TARGET}
SLOW = ("axolotl_qlora.yaml", "llama_factory_full_z3.yaml", "trl_sft.yaml")
"""Files that are answered slowly, of programs that have another."""
FIRST = list(with_other_causes([name for name in ASKED if name not in SLOW], lambda name: [PROGRAM_OF[name]]))
"""A file of each program: what its fields mean, the tests below compare."""


@pytest.mark.parametrize("name", with_rest(ASKED, FIRST))
def test_a_file_is_answered_as_given_and_names_its_program(name: str) -> None:
    said = outcome(FILES / name)
    assert (said.verdict, said.text.split(",")[0]) == (ANSWERED, PROGRAM_OF[name])


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_of_another_program_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(InputError) as stop:
        read_launch(FILES / name)
    assert REFUSED[name] in str(stop.value)
    assert "expected" in str(stop.value)


def test_a_config_of_verl_is_its_command_with_references_resolved() -> None:
    """The references of OmegaConf are those of verl/trainer/config; a zero dropout turns nothing on."""
    launch = read_launch(FILES / "verl_grpo.yaml")
    assert (launch.framework, launch.model_name, launch.layout.dp) == ("fsdp2", "Qwen/Qwen2.5-7B-Instruct", 8)
    assert {"batch": 4, "seq": 1536, "num_microbatches": 16}.items() <= launch.settings.items()
    assert launch.rollout is not None
    assert launch.rollout.flags["max_num_seqs"] == 512
    with pytest.raises(InputError, match="ppo_micro_batch_size_per_gpu: '\\$\\{micro\\}' is known only when"):
        changed("verl_grpo.yaml", actor_rollout_ref={"actor": {"ppo_micro_batch_size_per_gpu": "${micro}"}})


def test_a_recipe_of_verl_names_a_config_beside_it(tmp_path: Path) -> None:
    """A command's overrides replace the values of `--config-name`, to which the config's references then lead."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "my_trainer.yaml").write_text((FILES / "verl_grpo.yaml").read_text())
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m recipe.entropy.main_entropy --config-path=config --config-name my_trainer "
        "trainer.micro_batch=2 actor_rollout_ref.actor.ppo_mini_batch_size=32\n"
    )
    launch = read_launch(script)
    assert {"batch": 2, "num_microbatches": 16}.items() <= launch.settings.items()
    assert "recipe.entropy.main_entropy: its update is counted as that of verl.trainer.main_ppo" in launch.notes
    words = "trainer.micro_batch=2 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"
    script.write_text(f"python3 -m verl.trainer.main_ppo --config-name my_trainer {words}\n")
    assert read_launch(script).model_name == launch.model_name
    script.write_text(f"python3 -m verl.trainer.main_ppo --config-path=config --config-name=other {words}\n")
    assert any(
        note.startswith("--config-name other: other.yaml is not beside the file") for note in read_launch(script).notes
    )
    open_key = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    (tmp_path / "config" / "other.yaml").write_text(f'{open_key.replace(".", ": {")}: "${{oc.env:MICRO}}"' + "}}")
    with pytest.raises(InputError, match=rf"{open_key}: '\$\{{oc\.env:MICRO\}}' is known only when"):
        read_launch(f"python3 -m verl.trainer.main_ppo --config-path={tmp_path / 'config'} --config-name=other a=b")
    (tmp_path / "config" / "other.yaml").write_text("trainer: [")
    with pytest.raises(InputError, match=r"other\.yaml: not valid YAML"):
        read_launch(script)


def test_devices_of_a_config_of_verl_that_are_open_are_asked_for() -> None:
    with pytest.raises(InputError, match=r"trainer.n_gpus_per_node: .*or expected --devices"):
        changed("verl_grpo.yaml", trainer={"n_gpus_per_node": "${oc.env:NGPU}"})


def test_a_file_of_ms_swift_is_the_words_and_the_environment_of_its_command() -> None:
    """swift/cli/main.py, `parse_yaml_args`: the file is the first word, and later words replace its arguments."""
    path = FILES / "swift_sft.yaml"
    launch = read_launch(path)
    assert (launch.framework, launch.layout.dp, launch.layout.zero) == ("deepspeed", 2, 2)
    expected = {"seq": 512, "lora_rank": 8, "num_microbatches": 8, "allocator": "expandable"}
    assert expected.items() <= launch.settings.items()
    typed = read_launch(f"NPROC_PER_NODE=4 swift sft {path} --max_length 256")
    assert (typed.layout.dp, typed.settings["seq"]) == (4, 256)
    megatron = launch_from_text("model: a/b\ntuner_type: full\nmicro_batch_size: 2\nmax_length: 64", "swift.yaml")
    assert (megatron.framework, megatron.settings["batch"]) == ("megatron", 2)
    for size in ("pipeline_model_parallel_size", "context_parallel_size"):
        divided = launch_from_text(f"model: a/b\ntuner_type: full\n{size}: 2\nmax_length: 64", "swift.yaml")
        assert (divided.framework, divided.layout.world_size) == ("megatron", 2)
    with pytest.raises(InputError, match="NNODES: 'a'; expected a whole number"):
        launch_from_text(
            "ENV: {NNODES: a, NPROC_PER_NODE: 2}\nmodel: a/b\ntuner_type: full\nmax_length: 64", "swift.yaml"
        )


def test_a_file_of_ms_swift_may_show_a_process_several_devices() -> None:
    """swift/model/register.py, `get_default_device_map`: as in a script, transformers divides the layers over them."""
    lines = "ENV: {NPROC_PER_NODE: 2, CUDA_VISIBLE_DEVICES: '0,1,2,3'}\nmodel: a/b\ntuner_type: lora\nmax_length: 64\n"
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES: 4 devices of 2 processes"):
        launch_from_text(lines, "swift.yaml")
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES: 4 devices of 1 process:"):
        launch_from_text(lines.replace("NPROC_PER_NODE: 2, ", ""), "swift.yaml")
    assert launch_from_text(lines, "swift.yaml", 4).layout.dp == 4


def test_an_empty_list_in_a_file_of_ms_swift_is_refused() -> None:
    """transformers/hf_argparser.py: a list is read with `nargs="+"`, which wants a word behind the argument."""
    with pytest.raises(InputError, match=r"swift.yaml: target_modules: an empty list; expected one element or more"):
        launch_from_text("model: a/b\ntuner_type: lora\nmax_length: 64\ntarget_modules: []\n", "swift.yaml")


SEQUENCE_RANKS = (
    "NPROC_PER_NODE=8 {} swift sft --model Qwen/Qwen3.5-4B --tuner_type lora --target_modules all-linear "
    "--torch_dtype bfloat16 --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --max_length 65535 "
    "--attn_impl flash_attn --use_logits_to_keep false --sequence_parallel_size 4 --padding_free true"
)


def test_the_loss_of_divided_sequences_of_ms_swift_is_computed_in_chunks() -> None:
    """The log in examples/train/sequence_parallel/sequence_parallel_qwen3_5.sh (3602360a) of ms-swift: 68.05 GiB.

    swift/sequence_parallel/utils.py, `ChunkedCrossEntropyLoss`: the gradient replaces the logits.
    """
    script = SEQUENCE_RANKS.format("CELOSS_PARALLEL_SIZE=2048")
    memory = llmcalc.memory(launch=script).document["memory"]
    assert memory["reserved_bytes"] / 2**30 == pytest.approx(68.05, rel=0.03)  # with all logits half as many more


@pytest.mark.parametrize("tuner", ["swift sft", "megatron sft"])
def test_adapters_beside_an_encoder_that_is_trained_in_full_are_those_of_the_language_model(tuner: str) -> None:
    launch = launch_from_text(f"{tuner} --model a/b --tuner_type lora_llm --max_length 64", "swift.sh")
    assert launch.settings["lora_rank"] == 8
    assert any("lora_llm: the encoder" in note for note in launch.notes)
    with pytest.raises(InputError, match="expected lora, which needs about as much"):
        launch_from_text(f"{tuner} --model a/b --tuner_type adalora --max_length 64", "swift.sh")
    with pytest.raises(InputError, match="expected full, lora or lora_llm"):
        launch_from_text(f"{tuner} --model a/b --tuner_type reft --max_length 64", "swift.sh")


def test_nanotrons_model_and_layout() -> None:
    """nanotron of 2026-04: the vocabulary is a multiple of the tensor ranks, and sums of gradients are in fp32."""
    launch = read_launch(FILES / "nanotron_llama.yaml")
    layout = launch.layout
    assert (launch.framework, launch.software_stack) == ("megatron", "nanotron")
    assert (layout.tp, layout.pp, layout.dp, layout.zero, layout.sequence_parallel) == (2, 2, 2, 1, True)
    expected = {"batch": 3, "seq": 512, "num_microbatches": 4, "grad_dtype": "fp32", "cross_entropy": "eager"}
    assert expected.items() <= launch.settings.items()
    assert launch.spec is not None
    assert params(launch.spec).total == 1002 * 256 + 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 704 + 512) + 256
    recomputed = {"parallelism": {"tp": 2, "recompute_layer": True}}
    assert changed("nanotron_llama.yaml", **recomputed).settings["recompute"] == "full"
    with pytest.raises(InputError, match=r"model\.model_config: no is_llama_config"):
        changed("nanotron_llama.yaml", model={"model_config": {}})
    with pytest.raises(InputError, match=r"parallelism\.pp_engine"):
        changed("nanotron_llama.yaml", parallelism={"pp": 2, "pp_engine": "afab"})


@pytest.mark.parametrize(
    ("place", "key", "value", "message"),
    [
        ((), "fp8", {"enabled": True}, "not understood, and may change memory: fp8 "),
        ((), "lora", {"rank": 8}, "lora"),
        ((), "data_stages", [{"name": "long", "sequence_length": 8192}], r"data_stages\.sequence_length"),
        (("tokens",), "batch_size", 8, r"tokens\.batch_size"),
        (("optimizer",), "zero", 1, r"optimizer\.zero"),
        (("model",), "quantization", 8, r"model\.quantization"),
        (("model", "model_config"), "_attn_implementation", "sdpa", "'sdpa' is not modelled"),
        (("model", "model_config"), "rope_theta", "x", "rope_theta: 'x'; expected a number"),
    ],
)
def test_a_key_of_nanotron_that_is_not_known_is_named(
    place: tuple[str, ...], key: str, value: Any, message: str
) -> None:
    """nanotron refuses keys that its classes lack (src/nanotron/config/config.py, `get_config_from_dict`)."""
    config = yaml.safe_load((FILES / "nanotron_llama.yaml").read_text())
    table = config
    for name in place:
        table = table[name]
    table[key] = value
    with pytest.raises(InputError, match=message):
        changed("nanotron_llama.yaml", **config)


def test_a_file_without_a_model_asks_for_one() -> None:
    with pytest.raises(InputError, match="names no model; add TARGET"):
        llmcalc.memory(launch=FILES / "unsloth_defaults.yaml")
    answer = llmcalc.memory("llama3.2-1b", launch=FILES / "unsloth_defaults.yaml")
    assert answer.document["launch"]["program"] == "Unsloth"


def test_the_number_of_devices_that_is_assumed_is_among_the_first_notes(run: Any) -> None:
    words = "memory", "--launch", str(FILES / "torchtune_lora.yaml")
    assert "1 device is assumed; --devices says another number" in run(*words).out
    assert "1 device is assumed" not in run(*words, "--devices", "8").out


def test_a_run_that_does_not_fit_names_the_length_of_samples_unless_they_are_packed(run: Any) -> None:
    """Samples of verl's GRPO and of a trainer without packing may be shorter than the longest."""
    note = "2 samples are counted at the longest that the file allows, --seq 2048; shorter ones need less"
    words = "memory", "--launch", str(FILES / "llama_factory_qlora.yaml"), "--hardware", "4GiB"
    assert note in " ".join(run(*words).out.split())
    assert "that the file allows" not in run(*words, "--seq", "1024").out + run(*words[:-1], "h100").out
    longest = {name: read_launch(FILES / name).counts_longest_samples for name in ("verl_fsdp.sh", "trl_sft.yaml")}
    assert longest == {"verl_fsdp.sh": True, "trl_sft.yaml": False}


def test_an_error_about_an_option_of_the_file_names_the_files_argument(run: Any) -> None:
    """FSDP has no 8-bit AdamW of bitsandbytes; nobody typed the option that stands for the Trainer's `optim`."""
    text = (FILES / "trl_sft.yaml").read_text() + "\noptim: adamw_bnb_8bit\n"
    path = Path("sft.yaml")
    path.write_text(text)
    words = "memory", "qwen2.5-0.5b", "--launch", str(path), "--devices", "2", "--framework", "fsdp2", "--fsdp", "2"
    error = run(*words).error
    assert "sft.yaml: optim adamw_bnb_8bit (--optimizer adamw-8bit-trainer): on shards it is not modelled" in error
    assert "sft.yaml" not in run(*words, "--optimizer", "adamw-8bit").error


def test_ranks_say_that_encoders_are_not_counted(run: Any) -> None:
    words = "memory", "qwen3-vl-2b", "--framework", "megatron", "--tp", "2", "--seq", "64"
    assert "not counted: encoders of images and sound, " in run(*words).out
    assert "--with-towers: encoders of images and sound are not modelled" in run(*words, "--with-towers").error


@in_one_test
@pytest.mark.parametrize(
    ("command", "shards", "bits"),
    [
        ("swift sft --tuner_type lora --torch_dtype bfloat16 --deepspeed zero2", 1, 16),
        ("swift sft --tuner_type full --torch_dtype bfloat16 --deepspeed zero3", 2, 16),
        ("trl sft --dtype float32 --max_length 64", 1, 32),
        ("python run_clm.py --block_size 64 --torch_dtype bfloat16", 1, 0),  # AutoModelForCausalLM
    ],
)
def test_programs_that_load_the_encoders_of_a_model(command: str, shards: int, bits: int) -> None:
    """trl/trainer/utils.py, `create_model_from_path`, and swift/model/register.py: the class of the checkpoint."""
    name_flag = "--model" if command.startswith("swift") else "--model_name_or_path"
    words = f"{command} {name_flag} Qwen/Qwen3-VL-2B-Instruct --per_device_train_batch_size 1"
    document = llmcalc.memory(launch=words, devices=2, seq=64).document
    terms = {term["name"]: term["bytes"] for term in document["memory"]["terms"]}
    encoder_elements = llmcalc.params("qwen3-vl-2b", with_towers=True).total - llmcalc.params("qwen3-vl-2b").total
    assert terms.get("encoders: weights", 0) == encoder_elements * bits // 8 // shards
    if bits:
        counted_text = "frozen weights" if "swift" in command else "weights, gradients and states"
        assert any(f"their {counted_text} are counted" in note for note in document["notes"])


FREEZES: dict[str, Any] = {
    "trl sft": (True, {}),
    "llamafactory-cli train --stage sft --finetuning_type full --template qwen3_vl --cutoff_len 64 --bf16 true": (
        False,
        {"--freeze_vision_tower false": True, "--freeze_vision_tower true": False},
    ),
    "swift sft --tuner_type full": (False, {"--freeze_vit false": True}),
}


@in_one_test
@pytest.mark.parametrize(
    ("command", "is_trained"),
    [
        case
        for command, (is_trained, arguments) in FREEZES.items()
        for case in [
            (command, is_trained),
            *((f"{command} {argument}", other_value) for argument, other_value in arguments.items()),
        ]
    ],
)
def test_encoders_are_trained_or_frozen_as_the_program_does(command: str, is_trained: bool) -> None:
    """LLaMA-Factory (hparams/finetuning_args.py) and ms-swift (arguments/tuner_args.py) freeze encoders by default."""
    name_flag = "--model" if command.startswith("swift") else "--model_name_or_path"
    document = llmcalc.memory(launch=f"{command} {name_flag} Qwen/Qwen3-VL-2B-Instruct", seq=64).document
    assert ("encoders: optimizer" in {term["name"] for term in document["memory"]["terms"]}) == is_trained


@in_one_test
@pytest.mark.parametrize(
    ("name", "frozen", "trained"),
    [
        ("verl", {"actor_rollout_ref.actor.freeze_vision_tower": True}, {}),
        ("axolotl", {"freeze_mm_modules": True}, {}),
        ("automodel", {"freeze_config": {}}, {"freeze_config": {"freeze_vision_tower": False}}),
    ],
)
def test_arguments_that_freeze_encoders(name: str, frozen: dict[str, Any], trained: dict[str, Any]) -> None:
    """verl/workers/config/actor.py; nemo_automodel/components/utils/model_utils.py, `apply_parameter_freezing`."""
    for arguments, is_trained in ((frozen, False), (trained, True)):
        if name == "verl":
            words = "".join(f" {key}={value}" for key, value in arguments.items())
            launch = launch_from_text((FILES / "verl_fsdp.sh").read_text().rstrip() + words, "verl.sh")
        else:
            launch = changed("axolotl_full_fsdp2.yaml" if name == "axolotl" else "automodel_lora.yaml", **arguments)
        assert launch.encoders is not None
        assert launch.encoders.is_trained == is_trained


def test_a_text_class_of_a_model_has_no_encoders(tmp_path: Path) -> None:
    """transformers/models/auto/modeling_auto.py: `AutoModelForCausalLM` has classes without encoders of some types."""
    path = tmp_path / "train.py"
    for class_name, model_name, has_encoders in (
        ("AutoModelForCausalLM", "Qwen/Qwen3.5-4B", False),
        ("AutoModelForImageTextToText", "Qwen/Qwen3.5-4B", True),
        ("AutoModelForCausalLM", "google/gemma-3-4b-it", True),
    ):
        path.write_text(
            f"from transformers import {class_name}\nfrom trl import SFTConfig, SFTTrainer\n"
            f'model = {class_name}.from_pretrained("{model_name}")\n'
            "SFTTrainer(model=model, args=SFTConfig(max_length=64, per_device_train_batch_size=1)).train()\n"
        )
        terms = {term["name"] for term in llmcalc.memory(launch=str(path)).document["memory"]["terms"]}
        assert ("encoders: weights" in terms) == has_encoders
    for name, model_type in (("qwen3.5-35b-a3b", "qwen3_5_moe"), ("llama4-scout", "llama4")):
        preset = known_model(name)
        assert preset is not None
        assert has_text_class(preset)
        assert has_text_class(preset.model_copy(update={"config": {"model_type": model_type}}))


def test_a_frozen_copy_has_the_encoders_too_and_unsloth_quantizes_none() -> None:
    """trl/trainer/dpo_trainer.py loads the reference model by the same class."""
    words = "trl dpo --model_name_or_path Qwen/Qwen3-VL-2B-Instruct --max_length 64"
    terms = {term["name"]: term["bytes"] for term in llmcalc.memory(launch=words).document["memory"]["terms"]}
    assert terms["reference model encoders: weights"] == terms["encoders: weights"]
    adapters = llmcalc.memory("qwen3-vl-2b", "training", lora_rank=8, base="nf4", dtype="bf16", seq=64)
    encoder_elements = llmcalc.params("qwen3-vl-2b", with_towers=True).total - llmcalc.params("qwen3-vl-2b").total
    for is_quantized in (False, True):
        weights, *others = adapters.memory.tower_bytes(LoadedEncoders(is_quantized=is_quantized))
        assert not others
        assert (weights.bytes == 2 * encoder_elements) != is_quantized


def test_encoders_that_are_trained_are_divided_with_the_model() -> None:
    """Replicas divide gradients from stage 2 on, weights from stage 3 on (deepspeed/runtime/zero)."""
    options: dict[str, Any] = {"phase": "training", "framework": "deepspeed", "devices": 4, "seq": 64}
    answer = llmcalc.memory("qwen3-vl-2b", zero=2, with_towers=True, **options).document
    terms = {term["name"]: term["bytes"] for term in answer["memory"]["terms"]}
    weights, gradients, states = (terms[f"encoders: {kind}"] for kind in ("weights", "gradients", "optimizer"))
    assert weights == 4 * gradients
    assert 6 * weights <= 4 * states < 6 * weights + 10_000  # step counts


def test_linear_experts_of_llama_4_are_quantized_with_the_layers_and_take_no_adapters() -> None:
    linearized: dict[str, Any] = {"llama4_linearized_experts": True, "lora_target_linear": None}
    launch = changed("axolotl_qlora.yaml", **linearized, lora_target_modules=["self_attn.q_proj"])
    assert launch.settings["quantized_experts"] is True
    for targets in (["experts.up_projs.[0-9]+$"], None):
        more = {"lora_target_linear": True} if targets is None else {"lora_target_modules": targets}
        with pytest.raises(InputError, match="llama4_linearized_experts"):
            changed("axolotl_qlora.yaml", **linearized | more)


def test_a_model_that_is_not_here_asks_for_a_target() -> None:
    with pytest.raises(InputError, match="its model, 'nobody/nothing', cannot be read") as stop:
        llmcalc.memory(launch=_with_model("nobody/nothing"))
    assert "add TARGET" in str(stop.value)


def test_a_model_in_a_folder_of_a_variable_is_known_by_its_name() -> None:
    """verl's scripts have `$HOME/verl/models/Qwen3-235B-A22B` by default."""
    for folder in ("$HOME/models/Qwen3-0.6B", "$HOME/models/Qwen3-0.6B/"):
        answer = llmcalc.memory(launch=f"trl sft --model_name_or_path {folder} --max_length 64")
        assert any("by its name it is the preset qwen3-0.6b" in note for note in answer.document["notes"])
    for unknown in ("$HOME/$NAME", "$HOME/qwen-sft"):
        with pytest.raises(InputError, match="is known only when the script runs; add TARGET"):
            llmcalc.memory(launch=f"trl sft --model_name_or_path {unknown} --max_length 64")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


def _with_model(name: str) -> Path:
    path = Path("sft.yaml")
    path.write_text((FILES / "trl_sft.yaml").read_text().replace("Qwen/Qwen2.5-0.5B", name))
    return path


# ---- settings, program by program


def test_qlora_of_axolotl() -> None:
    launch = read_launch(FILES / "axolotl_qlora.yaml")
    assert (launch.kind, launch.framework, launch.model_name) == ("axolotl", "torch", "meta-llama/Llama-3.2-1B")
    assert launch.settings == {
        "phase": "training",
        "batch": 2,
        "num_microbatches": 4,
        "seq": 1024,
        "optimizer": "paged-adamw-8bit-trainer",
        "dtype": "bf16",
        "precision": "autocast",
        "recompute": "full-reentrant",
        "attn_implementation": "flash",
        "lora_rank": 16,
        "lora_targets": ("all-linear",),
        "lora_dropout": True,
        "base": "nf4-dq",
        "allocator": "expandable",
        "fused_adapters": True,
    }
    assert launch.assumed_defaults == {
        "bf16": True,
        "gradient_checkpointing_kwargs.use_reentrant": True,
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }
    assert (launch.program, launch.version) == ("axolotl", "0.18.0")


def test_axolotl_fills_in_its_defaults() -> None:
    unset = {"sequence_len": None, "micro_batch_size": None, "optimizer": None, "attn_implementation": None}
    launch = changed("axolotl_qlora.yaml", **unset)
    assert "attn_implementation" not in launch.settings  # transformers chooses, for MPT eager attention
    assert (launch.settings["seq"], launch.settings["batch"]) == (512, 1)
    assert launch.assumed_defaults["optimizer"] == "adamw_torch_fused"


def test_keys_of_axolotl_without_a_value_ask_for_nothing() -> None:
    more = "gptq_groupsize:\nmodel_config:\n  output_router_logits: true\n"
    text = (FILES / "axolotl_qlora.yaml").read_text() + more
    launch = launch_from_text(text, "axolotl.yaml", None, launch_folder=FILES)
    assert launch.settings == read_launch(FILES / "axolotl_qlora.yaml").settings
    assert any("the loss of the routers is not counted" in note for note in launch.notes)


def test_scales_of_axolotls_weights_in_4_bits() -> None:
    for is_quantized, base in ((True, "nf4-dq"), (False, "nf4")):
        changes = {"bnb_config_kwargs": {"bnb_4bit_use_double_quant": is_quantized}}
        assert changed("axolotl_qlora.yaml", **changes).settings["base"] == base


def test_axolotls_optimizers_are_the_trainers() -> None:
    for name, optimizer in (("adamw_torch_4bit", "adamw-4bit-torchao"), ("adamw_torch_8bit", "adamw-8bit-torchao")):
        assert changed("axolotl_qlora.yaml", optimizer=name).settings["optimizer"] == optimizer
    low_rank = {"optimizer": "galore_adamw", "optim_target_modules": ["self_attn", "mlp"], "optim_args": {"rank": 64}}
    assert changed("axolotl_zero1.yaml", **low_rank).settings["optimizer"] == "galore-r64"


def test_axolotls_kernels_of_adapters_are_those_of_the_file_or_the_automatic_ones() -> None:
    """utils/schemas/validation.py, `check_auto_enable_lora_kernels`: one key of the file decides on all kernels."""
    eight_bits = {"load_in_4bit": None, "load_in_8bit": True}
    stacks: list[tuple[dict[str, Any], str]] = [
        ({}, "axolotl"),
        ({"lora_mlp_kernel": False}, ""),
        ({"lora_mlp_kernel": True, "trust_remote_code": True}, "axolotl"),
        ({"trust_remote_code": True}, ""),
        ({"rl": "dpo"}, ""),
        ({"rl": "dpo", "lora_mlp_kernel": True}, "axolotl"),
        ({"adapter": "lora", **eight_bits}, ""),
        ({"load_in_8bit": True}, "axolotl"),
        ({"lora_embedding_kernel": True}, ""),
    ]
    for changes, stack in stacks:
        launch = changed("axolotl_qlora.yaml", **changes)
        assert (launch.software_stack, launch.settings.get("fused_adapters", False)) == (stack, bool(stack)), changes
    fsdp = {"fsdp": ["full_shard"], "fsdp_config": {"offload_params": False}}
    for fsdp_version, is_fused in ((1, False), (2, True)):
        launch = changed("axolotl_qlora.yaml", 2, **fsdp, fsdp_version=fsdp_version)
        assert launch.settings.get("fused_adapters", False) is is_fused


@pytest.mark.parametrize(
    ("targets", "is_fused"), [(["q_proj", "v_proj"], False), (["q_proj", "k_proj", "v_proj"], True)]
)
def test_axolotls_kernels_of_adapters_take_all_projections_of_a_group(targets: list[str], is_fused: bool) -> None:
    """monkeypatch/lora_kernels.py leaves other layers to PEFT, with a warning."""
    launch = changed("axolotl_qlora.yaml", lora_target_linear=None, lora_target_modules=targets)
    settings = translate_adapter_targets(launch, load_preset("llama3.2-1b").model).settings
    assert settings.get("fused_adapters", False) is is_fused


def test_notes_say_where_axolotls_kernels_of_adapters_are_not_those_of_the_answer() -> None:
    """Dropout beside the kernels: axolotl b3289fd190 of 2026-03-22."""
    dropout_note = "which versions before 0.16 turn on only with lora_dropout: 0"
    runs: list[tuple[dict[str, Any], bool, str]] = [
        ({}, True, dropout_note),
        ({"lora_qkv_kernel": True, "lora_o_kernel": True}, False, "counted and timed as PEFT's, an upper bound"),
        ({"lora_mlp_kernel": True, "lora_o_kernel": True}, True, "lora_mlp_kernel without lora_qkv_kernel: attention"),
        ({"peft_use_dora": True}, False, "adapters with DoRA are not modelled: PEFT's layers are counted"),
        ({"deepspeed": "deepspeed_configs/zero3.json"}, False, "with ZeRO-3 are not modelled: PEFT's layers"),
    ]
    for changes, is_fused, note in runs:
        launch = changed("axolotl_qlora.yaml", 2, **changes)
        assert launch.settings.get("fused_adapters", False) is is_fused
        assert note in "; ".join(launch.notes), changes
    assert dropout_note not in "; ".join(changed("axolotl_qlora.yaml", lora_dropout=0).notes)


def test_axolotl_trains_in_bf16_under_fsdp() -> None:
    launch = read_launch(FILES / "axolotl_full_fsdp2.yaml", 8)
    assert launch.framework == "fsdp2"
    assert launch.layout == Layout(dp=8, zero=3, cp_comm="allgather")
    assert {
        "dtype": "bf16",
        "master_weights": "none",
        "recompute": "full",
        "norm": "fused",
    }.items() <= launch.settings.items()
    assert launch.settings["cross_entropy"] == "chunked"


def test_shards_on_the_host() -> None:
    launch = read_launch(FILES / "axolotl_fsdp2_offload.yaml", 8)
    assert (launch.framework, launch.layout.zero, launch.framework_settings.offloads_to_host) == ("fsdp2", 3, True)
    assert not read_launch(FILES / "axolotl_full_fsdp2.yaml", 8).framework_settings.offloads_to_host
    assert changed("torchtune_lora.yaml", 2, fsdp_cpu_offload=True).framework_settings.offloads_to_host
    whole, offloaded = (
        llmcalc.memory(launch=FILES / "axolotl_fsdp2_offload.yaml", devices=devices).document for devices in (1, 8)
    )
    assert offloaded["memory"]["by_kind"].get("optimizer", 0) == 0
    assert whole["host_bytes"] > 7 * offloaded["host_bytes"] > 0


def test_adapters_with_magnitudes() -> None:
    """DoRA by the names of each program; and what a restart of ReLoRA takes is no part of a step."""
    launch = read_launch(FILES / "axolotl_dora.yaml")
    assert {"use_dora": True, "lora_rank": 16, "base": "nf4-dq"}.items() <= launch.settings.items()
    assert any("the sum of one layer's weight and its adapter, made at each restart" in note for note in launch.notes)
    model = {**yaml.safe_load((FILES / "torchtune_lora.yaml").read_text())["model"], "use_dora": True}
    table = {"name": "lora", "r": 8, "use_dora": True}
    swift = "swift sft --model Qwen/Qwen2.5-0.5B --use_dora true --max_length 512"
    for other_launch in (
        changed("torchtune_lora.yaml", model=model),
        changed("llama_factory_qlora.yaml", use_dora=True),
        changed("llama_factory_version_1.yaml", peft_config=table, quant_config=None),
        changed("trl_sft.yaml", use_peft=True, use_dora=True),
        launch_from_text(swift, "swift.sh"),
        launch_from_text((FILES / "unsloth_sft.py").read_text().replace("r=8", "r=8, use_dora=True"), "sft.py"),
    ):
        assert other_launch.settings["use_dora"] is True
    assert "use_dora" not in changed("axolotl_dora.yaml", peft_use_dora=None).settings


def test_the_last_layers_of_llama_factory() -> None:
    """model/adapter.py, `_setup_freeze_tuning`: trained layers in float32 beside frozen ones, but for pure_bf16."""
    launch = read_launch(FILES / "llama_factory_freeze.yaml")
    assert {"trainable_layers": 4, "dtype": "bf16", "precision": "autocast"}.items() <= launch.settings.items()
    pure = changed("llama_factory_freeze.yaml", bf16=None, pure_bf16=True, freeze_trainable_layers=None)
    assert (pure.settings["trainable_layers"], pure.settings.get("precision")) == (2, None)
    table = {"name": "freeze", "freeze_trainable_layers": 3}
    version_1 = changed("llama_factory_version_1.yaml", peft_config=table, quant_config=None)
    assert version_1.settings["trainable_layers"] == 3
    for changes, message in (
        ({"freeze_trainable_layers": -2}, "freeze_trainable_layers (-2: the first layers are not modelled"),
        (
            {"freeze_trainable_modules": "mlp"},
            "freeze_trainable_modules ('mlp' is not modelled; whole layers alone are",
        ),
        ({"freeze_extra_modules": ["norm"]}, "freeze_extra_modules"),
        ({"quantization_bit": 4}, "with finetuning_type freeze, quantized weights take no gradient"),
    ):
        with pytest.raises(InputError) as error:
            changed("llama_factory_freeze.yaml", **changes)
        assert message in str(error.value)


QUANTIZER = "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer"


def test_quantization_aware_training_of_torchtune() -> None:
    """A tied output head rounds nothing there (torchtune/modules/tied_linear.py)."""
    table = {"_component_": QUANTIZER, "groupsize": 128}
    launch = changed("torchtune_lora.yaml", quantizer=table, fake_quant_after_n_steps=1000)
    assert launch.settings["fake_quantize"] == "int8-int4:128:untied"
    assert any("the steps after it are counted" in note for note in launch.notes)
    assert (
        changed("torchtune_lora.yaml", quantizer={"_component_": QUANTIZER}).settings["fake_quantize"][-10:]
        == "256:untied"
    )
    for changes, reason in (
        (
            {"quantizer": {"_component_": "torchtune.x.Int4WeightOnlyQATQuantizer"}},
            "'Int4WeightOnlyQATQuantizer' is not",
        ),
        ({"quantizer": table, "compile": True}, "what torch.compile keeps of rounded weights is not modelled"),
    ):
        with pytest.raises(InputError, match=f"quantizer .{reason}"):
            changed("torchtune_lora.yaml", **changes)


def test_configs_of_deepspeed_come_with_the_program() -> None:
    launch = read_launch(FILES / "axolotl_zero1.yaml", 2)
    assert (launch.framework, launch.layout, launch.framework_settings.stage) == ("deepspeed", Layout(dp=2, zero=1), 1)
    assert any("the file of that name that comes with the program is read" in note for note in launch.notes)
    launch = read_launch(FILES / "llama_factory_full_z3.yaml", 2)
    assert launch.layout == Layout(dp=2, zero=3)
    assert (launch.settings["num_microbatches"], launch.settings["master_weights"]) == (2, "fp32")


def test_a_named_file_is_read_from_the_current_folder() -> None:
    folder = Path("deepspeed_configs")
    folder.mkdir()
    (folder / "zero1.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}')
    launch = read_launch(FILES / "axolotl_zero1.yaml", 2)
    assert launch.layout.zero == 2
    assert launch.notes == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rl": "grpo"}, "rl ('grpo' is not modelled; dpo, ipo, simpo, orpo, kto are)"),
        ({"fp8": True}, "fp8 (products in 8 bits"),
        ({"optimizer": "came_pytorch"}, "optimizer ('came_pytorch' is not modelled)"),
        ({"bnb_config_kwargs": {"blocksize": 128}}, "bnb_config_kwargs.blocksize (it is not modelled"),
        (
            {"model_config": {"num_hidden_layers": 2}},
            "model_config.num_hidden_layers (this field of the config is not replaced",
        ),
        ({"expert_parallel_size": 4}, "expert_parallel_size (it is modelled as 1)"),
        ({"use_sonicmoe": True}, "use_sonicmoe (SonicMoE's kernels are not modelled)"),
        ({"adapter": "llama-adapter"}, "adapter: 'llama-adapter'; expected lora or qlora"),
        ({"lora_r": None}, "lora_r: missing"),
        ({"attn_implementation": "fp8"}, "attn_implementation: 'fp8'; expected eager"),
        ({"sequence_length": 4}, "sequence_length (no key that is known)"),
    ],
)
def test_what_axolotl_is_refused_for(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as stop:
        changed("axolotl_qlora.yaml", **changes)
    assert said in str(stop.value)


def test_llama_factory_checkpoints_layers_and_adapts_all_of_them() -> None:
    launch = read_launch(FILES / "llama_factory_qlora.yaml")
    wanted = {"recompute": "full-reentrant", "lora_rank": 8, "lora_targets": ("all-linear",), "base": "nf4-dq"}
    assert wanted.items() <= launch.settings.items()
    assert launch.settings["seq"] == launch.assumed_defaults["cutoff_len"] == 2048
    assert "master_weights" not in launch.settings


def test_a_recipe_of_orpo_is_known_by_its_path() -> None:
    """Its keys are those of DPO, which has a reference model."""
    text = (FILES / "trl_dpo.yaml").read_text().replace("loss_type: sigmoid\n", "")
    assert launch_from_text(text, "dpo/full.yaml").frozen_model is not None
    orpo = launch_from_text(text, "orpo/full.yaml")
    assert orpo.frozen_model is None
    assert any("taken for one of ORPO" in note for note in orpo.notes)


@in_one_test
@pytest.mark.parametrize(
    ("name", "devices", "allocator"),
    [
        ("axolotl_qlora.yaml", 1, "expandable"),
        ("torchtune_lora.yaml", 1, "expandable"),
        ("llm_foundry_mpt.yaml", 1, "expandable"),
        ("llama_factory_galore.yaml", 1, None),
        ("llama_factory_full_z3.yaml", 8, "expandable"),  # launcher.py starts several processes by torchrun
        ("trl_sft.yaml", 1, None),
    ],
)
def test_programs_that_ask_for_expandable_segments(name: str, devices: int, allocator: str | None) -> None:
    launch = read_launch(FILES / name, devices)
    assert launch.settings.get("allocator") == allocator
    assert ("PYTORCH_ALLOC_CONF" in launch.assumed_defaults) == (allocator is not None)


def test_a_file_of_llama_factory_that_predicts_is_no_training() -> None:
    with pytest.raises(InputError, match="do_train: not true: the file predicts or evaluates"):
        changed("llama_factory_qlora.yaml", do_train=None, do_predict=True)


def test_experts_in_4_bits_of_axolotl() -> None:
    changes = {"lora_target_linear": None, "lora_target_modules": ["q_proj"], "quantize_moe_experts": True}
    settings = changed("axolotl_qlora.yaml", **changes).settings
    assert (settings["base"], settings["quantized_experts"]) == ("nf4-dq", True)
    divided = changed("axolotl_qlora.yaml", 2, **changes, fsdp_version=2, fsdp_config={"reshard_after_forward": True})
    assert any(note.startswith("experts in 4 bits are assumed to be divided") for note in divided.notes)
    with pytest.raises(InputError, match="quantize_moe_experts"):
        changed("axolotl_qlora.yaml", **changes | {"adapter": "lora", "load_in_4bit": False, "load_in_8bit": True})


def test_adapters_of_experts_of_axolotl() -> None:
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    assert changed("axolotl_qlora.yaml", lora_target_parameters=experts).settings["lora_experts"] is True
    for changes in ({"lora_target_parameters": experts[:1]}, {"quantize_moe_experts": True}):
        with pytest.raises(InputError, match="lora_target_parameters"):
            changed("axolotl_qlora.yaml", **{"lora_target_parameters": experts, **changes})


def test_dpo_of_llama_factory_keeps_the_logits_of_the_policy() -> None:
    """Until its metrics are computed, after the pass of the reference model: one more copy in float32."""
    pairs = changed("llama_factory_qlora.yaml", stage="dpo")
    assert isinstance(pairs.frozen_model, SecondLoss)
    assert (pairs.frozen_model.bytes_per_logit, pairs.frozen_model.name) == (4, "logits of the policy")
    assert changed("llama_factory_qlora.yaml", stage="dpo", pref_loss="simpo").frozen_model is None


def test_muon_and_pissa_of_llama_factory() -> None:
    muon = changed("llama_factory_galore.yaml", use_galore=None, galore_layerwise=None, use_muon=True)
    assert (muon.settings["optimizer"], muon.settings["optimizer_impl"]) == ("muon", "loop")
    with pytest.raises(InputError, match="use_muon"):
        changed("llama_factory_full_z3.yaml", 8, use_muon=True)
    pissa = changed("llama_factory_qlora.yaml", quantization_bit=None, pissa_init=True)
    assert "lora_rank" in pissa.settings
    assert any("pissa_init" in note for note in pissa.notes)
    with pytest.raises(InputError, match="LLaMA-Factory refuses it with quantization_bit"):
        changed("llama_factory_qlora.yaml", pissa_init=True)


def test_llama_factory_trains_in_fp32_without_zero_3() -> None:
    changes = {"finetuning_type": "full", "quantization_bit": None}
    assert changed("llama_factory_qlora.yaml", **changes).settings["precision"] == "autocast"
    pure = changed("llama_factory_qlora.yaml", pure_bf16=True, **changes).settings
    assert (pure["dtype"], pure["master_weights"]) == ("bf16", "none")


def test_axolotl_may_compute_log_probabilities_of_the_reference_before_it_trains() -> None:
    pairs: dict[str, Any] = {"rl": "dpo", "sample_packing": None}
    assert changed("axolotl_full_fsdp2.yaml", 2, **pairs).frozen_model is not None
    assert changed("axolotl_full_fsdp2.yaml", 2, **pairs, precompute_ref_log_probs=True).frozen_model is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stage": "ppo"}, "stage ('ppo' is not modelled; sft, pt, rm, dpo, kto are)"),
        (
            {"finetuning_type": "oft"},
            "finetuning_type ('oft' is not modelled; lora, which needs about as much, is; --allow",
        ),
        ({"freeze_language_model": True}, "encoders trained beside a frozen language model"),
        ({"quantization_bit": 3}, "quantization_bit (3 by bnb is not modelled"),
        ({"use_galore": True}, "use_galore: LLaMA-Factory refuses it with adapters; expected finetuning_type: full"),
        (
            {"use_badam": True},
            "use_badam (one block trained at a time (--allow-unknown counts all",
        ),
        ({"cutof_len": 1}, "cutof_len (no argument that is known)"),
    ],
)
def test_what_llama_factory_is_refused_for(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as stop:
        changed("llama_factory_qlora.yaml", **changes)
    assert said in str(stop.value)


def test_projected_gradients_of_llama_factory() -> None:
    settings = read_launch(FILES / "llama_factory_galore.yaml").settings
    assert changed("llama_factory_galore.yaml", galore_target="mlp,self_attn").settings == settings
    wanted = {"optimizer": "galore-r64", "optimizer_in_backward": True, "dtype": "bf16", "master_weights": "none"}
    assert wanted.items() <= settings.items()
    apollo = changed("llama_factory_galore.yaml", use_galore=None, use_apollo=True, gradient_accumulation_steps=4)
    assert apollo.settings["optimizer"] == "apollo-r16"
    assert apollo.assumed_defaults["apollo_rank"] == 16
    assert "optimizer_in_backward" not in apollo.settings
    mini = changed("llama_factory_galore.yaml", use_galore=None, use_adam_mini=True).settings
    assert (mini["optimizer"], mini["optimizer_impl"]) == ("adam-mini", "loop")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gradient_accumulation_steps": 2}, "galore_layerwise: LLaMA-Factory refuses it with 2 gradient accumulation"),
        ({"galore_rank": 0}, "galore_rank: 0; expected a whole number of at least 1"),
        ({"galore_rank": 100_000}, "galore_rank: 100,000; expected at most 99,999"),
        ({"galore_target": "q_proj"}, "galore_target (all alone is modelled)"),
        ({"galore_proj_type": "full"}, "galore_proj_type (std alone is modelled)"),
        ({"optim": "adamw_8bit"}, "optim (with use_galore adamw_torch alone is modelled)"),
        ({"deepspeed": "z3.json"}, "use_galore: LLaMA-Factory refuses it with DeepSpeed"),
    ],
)
def test_what_projected_gradients_are_refused_for(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as stop:
        changed("llama_factory_galore.yaml", **changes)
    assert said in str(stop.value)


def test_layers_updated_in_the_backward_pass_have_one_device() -> None:
    with pytest.raises(InputError, match=r"galore_layerwise: LLaMA-Factory refuses it with 2 devices; expected 1"):
        read_launch(FILES / "llama_factory_galore.yaml", 2)


def test_adapters_of_torchtune() -> None:
    launch = read_launch(FILES / "torchtune_lora.yaml")
    assert launch.model_name == "llama3.2-1b"
    targets = ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    wanted = {"lora_rank": 32, "lora_targets": targets, "lora_library": "torchtune", "lora_dtype": "bf16"}
    assert wanted.items() <= launch.settings.items()
    assert {"cross_entropy": "split", "recompute": "full", "optimizer_impl": "fused"}.items() <= launch.settings.items()
    assert read_launch(FILES / "torchtune_lora.yaml", 2).layout == Layout(dp=2, zero=3)


def test_a_builder_of_torchtune_that_is_not_known() -> None:
    with pytest.raises(InputError, match="'lora_llama9_1b' is not known"):
        changed("torchtune_lora.yaml", model={"_component_": "torchtune.models.x.lora_llama9_1b"})


def test_builders_of_torchtune_are_presets() -> None:
    from llmcalc.frameworks.torchtune.models import PRESET_BY_BUILDER

    for preset in PRESET_BY_BUILDER.values():
        assert isinstance(llmcalc.load(preset), Preset)


def test_litgpt_pretrains_compiled_with_shards_in_fp32() -> None:
    """pretrain.py: torch.compile, a fused optimizer, and under `bf16-mixed` fp32 shards that are gathered in bf16."""
    unset = dict.fromkeys(("checkpoint_dir", "lora_r", "lora_dropout"))
    pretraining = {**unset, "model_name": "tiny-llama-1.1b", "precision": "bf16-mixed"}
    launch = changed("litgpt_lora.yaml", 4, **pretraining)
    names = ("compile", "optimizer_impl", "dtype", "master_weights", "num_microbatches", "cross_entropy")
    assert [launch.settings.get(name) for name in names] == [True, "fused", "bf16", "fp32", 1, "eager"]
    assert (launch.framework, launch.model_name, launch.settings.get("recompute")) == ("fsdp2", "tiny-llama-1.1b", None)
    single = changed("litgpt_lora.yaml", 1, **pretraining)
    assert (single.framework, single.settings["precision"]) == ("torch", "autocast")


def test_adapters_of_litgpt() -> None:
    launch = read_launch(FILES / "litgpt_lora.yaml")
    assert launch.model_name == "meta-llama/Llama-3.2-1B"
    wanted = {"lora_targets": ("q_proj", "v_proj"), "lora_library": "litgpt", "lora_dropout": True, "loss_chunk": 128}
    assert wanted.items() <= launch.settings.items()
    assert launch.settings["num_microbatches"] == 4  # 8 = 2 · 4
    assert changed("litgpt_lora.yaml", quantize="bnb.nf4").settings["base"] == "nf4"


def test_trl_loads_weights_in_fp32_and_checkpoints() -> None:
    launch = read_launch(FILES / "trl_sft.yaml")
    wanted = {"precision": "autocast", "recompute": "full", "seq": 2048, "cross_entropy": "recomputed"}
    assert wanted.items() <= launch.settings.items()
    assert {"dtype": "float32", "gradient_checkpointing": True, "bf16": True}.items() <= launch.assumed_defaults.items()


def test_grpo_counts_prompt_and_completion() -> None:
    launch = read_launch(FILES / "trl_grpo.yaml")
    assert (launch.settings["seq"], launch.settings["batch"]) == (1024, 8)
    assert launch.assumed_defaults["beta"] == 0.0
    assert launch.assumed_defaults["vllm_mode"] == "colocate"
    assert launch.rollout is not None
    assert (launch.rollout.engine, launch.rollout.reference_model.weights_location) == ("vllm", "none")
    reference = changed("trl_grpo.yaml", beta=0.04).rollout
    assert reference is not None
    assert reference.reference_model.weights_location == "device"
    server = changed("trl_grpo.yaml", vllm_mode="server").rollout
    assert server is not None
    assert server.engine == ""


def test_log_probabilities_by_liger_take_less_than_logits_of_completions() -> None:
    launch = read_launch(FILES / "trl_grpo_liger.yaml")
    loss = {"cross_entropy": "selective-chunked", "logits_to_keep": 3584, "norm": "liger"}
    assert loss.items() <= launch.settings.items()
    assert any("Liger's log-probabilities of the last 3584 tokens" in note for note in launch.notes)
    named = changed("trl_grpo_liger.yaml", liger_kernel_config={"fused_linear_cross_entropy": False}).settings
    assert named["cross_entropy"] == "selective-chunked"
    earlier = changed("trl_grpo_liger.yaml", use_liger_kernel=None, use_liger_loss=True).settings
    assert ("norm" in earlier, earlier["cross_entropy"]) == (False, "selective-chunked")
    plain = changed("trl_grpo_liger.yaml", use_liger_kernel=None).settings
    assert plain["cross_entropy"] == "selective"


@pytest.mark.parametrize(
    ("changes", "has_log_probabilities"),
    [
        ({}, False),
        ({"beta": 0.04}, True),
        ({"use_vllm": True}, True),
        ({"use_vllm": True, "vllm_importance_sampling_correction": False}, False),
        ({"num_iterations": 2}, True),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, False),
        ({"gradient_accumulation_steps": 4, "generation_batch_size": 32}, True),
    ],
)
def test_log_probabilities_without_gradients_are_of_what_compares_with_them(
    changes: dict[str, Any], has_log_probabilities: bool
) -> None:
    rollout = changed("trl_grpo_liger.yaml", **changes).rollout
    assert rollout is not None
    assert rollout.has_log_probabilities == has_log_probabilities


def test_pairs_need_a_reference_model_without_adapters() -> None:
    """With adapters the reference is the frozen weights; a pair is two sequences."""
    assert changed("trl_sft.yaml", beta=0.1).frozen_model == FrozenModel("trl/trainer/dpo_trainer.py")
    shards = changed("trl_sft.yaml", 4, beta=0.1, fsdp="full_shard").frozen_model
    assert shards == FrozenModel("trl/trainer/dpo_trainer.py", "float32", 4)
    assert changed("trl_sft.yaml", beta=0.1, use_peft=True).frozen_model is None
    assert changed("trl_sft.yaml", beta=0.1, precompute_ref_log_probs=True).frozen_model is None
    assert changed("trl_sft.yaml", beta=0.1, use_peft=True).settings["batch"] == 4
    assert changed("axolotl_qlora.yaml", rl="dpo").settings["batch"] == 4
    assert changed("llama_factory_qlora.yaml", stage="dpo").settings["batch"] == 4
    sharded = changed("axolotl_full_fsdp2.yaml", 8, rl="dpo").frozen_model
    assert sharded is not None
    assert sharded.rank_count == 8
    assert changed("axolotl_full_fsdp2.yaml", rl="orpo").settings["batch"] == 8


@pytest.mark.parametrize(
    ("file_name", "changes"),
    [
        ("trl_sft.yaml", {"loss_type": "orpo", "use_liger_kernel": True}),
        ("trl_sft.yaml", {"loss_type": "kto", "use_liger_kernel": True}),
        ("axolotl_qlora.yaml", {"rl": "dpo", "cut_cross_entropy": True}),
        ("llama_factory_qlora.yaml", {"stage": "dpo", "enable_liger_kernel": True}),
    ],
)
def test_losses_without_labels_have_all_logits(file_name: str, changes: dict[str, Any]) -> None:
    launch = changed(file_name, **changes)
    assert launch.settings["cross_entropy"] == "eager"
    assert any("counted with all logits" in note for note in launch.notes)


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_losses_of_ms_swift_have_all_logits(loss: str) -> None:
    command = f"swift rlhf --rlhf_type {loss} --model a/b --tuner_type lora --use_liger_kernel true"
    assert launch_from_text(command, "pairs.sh").settings["cross_entropy"] == "eager"


@pytest.mark.parametrize("use_peft", [False, True])
def test_pairs_by_liger_have_the_logits_of_one_pair(use_peft: bool) -> None:
    launch = changed("trl_sft.yaml", beta=0.1, use_liger_kernel=True, use_peft=use_peft)
    assert (launch.settings["cross_entropy"], launch.settings["batch"]) == ("chunked", 4)
    assert launch.frozen_model is not None
    loss = launch.frozen_model.parts[-1]
    assert isinstance(loss, SecondLoss)
    assert (loss.bytes_per_logit, loss.chunk_tokens, loss.chunk_bytes_per_logit, len(launch.frozen_model.parts)) == (
        0,
        2 * 2048,
        6,
        2 - use_peft,
    )


def test_patterns_of_the_whole_language_model_freeze_nothing_of_it() -> None:
    whole = ["^model.language_model.*", "^lm_head.*"]
    assert changed("axolotl_full_fsdp2.yaml", 8, unfrozen_parameters=whole).unknown_arguments == {}
    with pytest.raises(InputError, match=r"unfrozen_parameters .training of some parameters alone"):
        changed("axolotl_full_fsdp2.yaml", 8, unfrozen_parameters=["model.layers.[0-7]."])


def test_version_1_of_llama_factory_runs_two_losses() -> None:
    """transformers computes its own loss, because the batch has labels; several sequences are copied once more."""
    launch = read_launch(FILES / "llama_factory_version_1.yaml", 2)
    wanted = {"base": "nf4-dq", "lora_rank": 8, "lora_targets": ("all-linear",), "recompute": "full", "seq": 512}
    assert wanted.items() <= launch.settings.items()
    assert (launch.framework, launch.layout.zero, launch.framework_settings.reduction_format) == ("fsdp2", 3, "float32")
    assert launch.frozen_model == SecondLoss("llamafactory/v1/core/base_trainer.py, compute_log_probs", 8)
    dpo = changed("llama_factory_version_1.yaml", 2, pref_loss="sigmoid", peft_config=None, quant_config=None)
    assert dpo.settings["batch"] == 4
    assert dpo.frozen_model == FrozenModel("trl/trainer/dpo_trainer.py", rank_count=2)
    divided = changed("llama_factory_version_1.yaml", 8, cp_size=4, global_batch_size=8)
    assert (divided.settings["seq"], divided.settings["num_microbatches"], divided.layout.dp) == (128, 2, 8)
    with pytest.raises(InputError, match="cp_size: 3 on 8 devices; expected --devices with a multiple of 3"):
        changed("llama_factory_version_1.yaml", 8, cp_size=3)
    with pytest.raises(InputError, match=r"cp_mode .'ring' is not modelled; ulysses is"):
        changed("llama_factory_version_1.yaml", 8, cp_size=2, cp_mode="ring")


def test_a_pair_of_open_instruct_is_two_sequences() -> None:
    assert changed("open_instruct_sft.yaml", loss_type="simpo").settings["batch"] == 2


def test_llama_factory_trains_with_megatron_core() -> None:
    """MCoreAdapter has no mixed_precision; Megatron-Bridge, which has it, adapts its own four layers."""
    launch = read_launch(FILES / "llama_factory_megatron.yaml", 8)
    assert (launch.framework, launch.layout) == ("megatron", Layout(tp=2, pp=2, dp=2, zero=1, sequence_parallel=True))
    names = ("batch", "seq", "num_microbatches", "recompute", "grad_dtype", "cross_entropy")
    assert [launch.settings[name] for name in names] == [2, 1024, 4, "full", "fp32", "eager"]
    plain = changed("llama_factory_megatron.yaml", 8, use_distributed_optimizer=None)
    assert plain.layout.zero == 0
    bridge = changed(
        "llama_factory_megatron.yaml", 8, mixed_precision="bf16_mixed", finetuning_type="lora", lora_rank=4
    )
    assert (bridge.settings["lora_library"], bridge.settings["lora_rank"]) == ("megatron-bridge", 4)
    assert bridge.settings["cross_entropy"] == "native"
    losses = [
        changed("llama_factory_megatron.yaml", 8, cross_entropy_loss_fusion=True, tensor_model_parallel_size=tp)
        for tp in (1, 2)
    ]
    assert [launch.settings["cross_entropy"] for launch in losses] == ["fused", "native"]
    activations = (plain, bridge, changed("llama_factory_megatron.yaml", 8, bias_activation_fusion=True))
    assert [getattr(launch.framework_settings, "fuses_activation", True) for launch in activations] == [
        False,
        BRIDGE_FUSED_MODEL_TYPES,
        True,
    ]
    command = "USE_MEGATRON_BRIDGE=1 llamafactory-cli train llama_factory_megatron.yaml\n"
    typed = launch_from_text(command, "run.sh", 8, launch_folder=FILES)
    assert any("MCoreAdapter is assumed" in note for note in launch.notes)
    assert not any("MCoreAdapter" in note for note in typed.notes)
    for changes, message in (
        ({"finetuning_type": "lora"}, "finetuning_type ('lora' is not modelled with MCoreAdapter; full is)"),
        ({"stage": "dpo"}, "stage ('dpo' is not modelled; sft and pt with Megatron)"),
        ({"mixed_precision": "bf16_with_mxfp8_mixed"}, "mixed_precision ('bf16_with_mxfp8_mixed' is not modelled"),
        ({"pipeline_model_parallel_size": 3}, "--devices: 8; expected a multiple of tp · pp · cp = 6"),
    ):
        with pytest.raises(InputError) as stop:
            changed("llama_factory_megatron.yaml", 8, **changes)
        assert message in str(stop.value)


def test_the_model_of_olmo() -> None:
    launch = read_launch(FILES / "olmo_tiny.yaml", 2)
    assert launch.spec is not None
    h, inner = 256, 1024  # mlp_ratio 8 · h, of which SwiGLU takes two halves
    layer = 4 * h * h + 3 * h * inner + 2 * h
    assert params(launch.spec).total == 2 * 50304 * h + 4 * layer + h
    assert (launch.framework, launch.layout.dp, launch.settings["num_microbatches"]) == ("torch", 2, 2)
    sharded = changed("olmo_tiny.yaml", 2, fsdp={"precision": "mixed"}, ddp=None)
    assert (
        sharded.framework,
        sharded.framework_settings.has_flat_parameters,
        sharded.framework_settings.reduction_format,
    ) == (
        "fsdp2",
        True,
        "",
    )


@pytest.mark.parametrize(
    ("file_name", "changes", "outer_groups"),
    [
        ("axolotl_full_fsdp2.yaml", {}, "separate"),
        ("axolotl_full_fsdp2.yaml", {"fsdp_version": 1}, "together"),
        ("olmo_tiny.yaml", {"fsdp": {"wrapping_strategy": "by_block"}, "ddp": None}, "together"),
        ("olmo_tiny.yaml", {"fsdp": {"wrapping_strategy": "by_block_and_size"}, "ddp": None}, "separate"),
        ("llm_foundry_mpt.yaml", {}, "together"),
        ("nemo_rl_grpo.yaml", {}, "together"),
        ("litgpt_lora.yaml", {}, "together"),
        ("torchtune_lora.yaml", {}, "together"),
        ("torchtune_lora.yaml", {"custom_sharded_layers": ["tok_embeddings"]}, "embedding"),
        ("torchtune_lora.yaml", {"custom_sharded_layers": ["tok_embeddings", "output"]}, "separate"),
    ],
)
def test_modules_outside_the_layers_are_groups_as_the_program_wraps_them(
    file_name: str, changes: dict[str, Any], outer_groups: str
) -> None:
    """Programs differ in the modules that they give to `fully_shard` or to FSDP's wrapping policy.

    accelerate at 16cb6eb, utils/fsdp_utils.py, `fsdp2_prepare_model`; olmo/model.py; torchtune 0.7, training/
    _distributed.py, `shard_model`.
    """
    assert changed(file_name, 2, **changes).framework_settings.outer_groups == outer_groups


def test_peak_of_torchtunes_70b_on_8_devices(run: Any, tmp_path: Path) -> None:
    """13.9 GiB with shards on the host (torchtune 0.7, README.md; recipes/configs/llama3_1/70B_full.yaml)."""
    data = yaml.safe_load((FILES / "torchtune_lora.yaml").read_text()) | {
        "model": {"_component_": "torchtune.models.llama3_1.llama3_1_70b"},
        "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 2048},
        "custom_sharded_layers": ["tok_embeddings", "output"],
        "gradient_accumulation_steps": 1,
        "fsdp_cpu_offload": True,
        "compile": True,
    }
    path = tmp_path / "70b_full.yaml"
    path.write_text(yaml.safe_dump(data))
    document = run("memory", "--launch", str(path), "--devices", "8", "--format", "json").document
    assert document["memory"]["peak_bytes"] / 2**30 == pytest.approx(13.9, rel=0.01)


def test_the_model_of_llm_foundry() -> None:
    launch = read_launch(FILES / "llm_foundry_mpt.yaml", 2)
    assert launch.spec is not None
    h, f = 256, 1024
    layer = 4 * h * h + 4 * h + 2 * h * f + f + h + 4 * h  # products and biases, two norms with biases
    assert params(launch.spec).total == 50368 * h + 512 * h + 4 * layer + 2 * h
    assert (launch.framework, launch.settings["seq"], launch.framework_settings.reduction_format) == (
        "fsdp2",
        512,
        "bfloat16",
    )


# ---- options beside a file, and what is filled in


def test_an_option_beside_a_file_replaces_its_value() -> None:
    launch = read_launch(FILES / "axolotl_qlora.yaml", options={"seq": 256, "lora_rank": 8, "fsdp": 1})
    assert (launch.settings["seq"], launch.settings["lora_rank"]) == (256, 8)
    assert launch.option_overrides == {
        "seq": OptionOverride(256, 1024),
        "lora_rank": OptionOverride(8, 16),
        "fsdp": OptionOverride(1, None),
    }


def test_precision_beside_a_file_replaces_all_formats() -> None:
    launch = read_launch(FILES / "trl_grpo.yaml", options={"precision": "bf16-master"})
    assert launch.settings["precision"] == "bf16-master"
    assert not {"dtype", "master_weights"} & set(launch.settings)


def test_a_file_without_a_framework_takes_that_of_the_options() -> None:
    launch = read_launch(FILES / "open_instruct_sft.yaml", 4, options={"zero": 3})
    assert (launch.framework, launch.layout.zero, launch.layout.dp) == ("fsdp2", 3, 4)


def test_a_framework_that_contradicts_the_files_is_refused() -> None:
    with pytest.raises(InputError, match=r"--framework megatron: .* runs FSDP2"):
        read_launch(FILES / "axolotl_full_fsdp2.yaml", 8, options={"framework": "megatron"})


def test_the_document_lists_program_defaults_and_overrides() -> None:
    answer = llmcalc.memory(launch=FILES / "axolotl_qlora.yaml", seq=256)
    launch = answer.document["launch"]
    assert (launch["program"], launch["version"]) == ("axolotl", "0.18.0")
    assert launch["filled_in"]["bf16"] is True
    assert launch["overridden"] == {"seq": {"file": 1024, "option": 256}}
    assert any("defaults of axolotl 0.18.0: bf16 true" in note for note in answer.document["notes"])


def test_weights_of_the_trainer_keep_the_checkpoints_format() -> None:
    """transformers 5 loads weights as they are published; `bf16: true` is autocast, which matters in fp32 alone."""
    path = Path("trainer.yaml")
    path.write_text("model_name_or_path: gpt2\nper_device_train_batch_size: 1\nbf16: true\nblock_size: 64\n")
    in_bf16 = llmcalc.memory("llama3.2-1b?num_hidden_layers=2", launch=path).document
    assert in_bf16["workload"]["dtype"] == "bfloat16"
    assert any("states in bfloat16, the checkpoint's number format" in note for note in in_bf16["notes"])
    in_fp32 = llmcalc.memory("gpt2?num_hidden_layers=2", launch=path).document
    assert in_fp32["workload"]["dtype"] == "float32"


# --- GPT-NeoX -------------------------------------------------------------------------------------------------------


def test_the_model_of_gpt_neox() -> None:
    launch = read_launch(FILES / "neox_small.yml", 2)
    assert launch.spec is not None
    block = launch.spec.decoder.block
    assert (block.parallel, block.attention.position.partial_rotary_factor) == ("separate", 0.25)
    assert launch.spec.vocab_size == 50_304  # 50,257 in a multiple of 128
    assert (launch.settings["recompute"], launch.settings["attn_implementation"]) == ("full", "flash")
    assert (launch.settings["dtype"], launch.settings["master_weights"]) == ("fp16", "fp32")
    assert (launch.layout.dp, launch.layout.zero, launch.framework_settings.overlap_comm) == (2, 1, True)


def test_layers_that_ranks_of_gpt_neox_divide_run_as_under_megatron() -> None:
    changes = {"model_parallel_size": 2, "pipe_parallel_size": 2, "zero_optimization": {"stage": 1}}
    launch = changed("neox_small.yml", 8, **changes)
    assert (launch.framework, launch.layout.tp, launch.layout.pp, launch.layout.dp) == ("megatron", 2, 2, 2)
    assert (launch.layout.zero, launch.settings["grad_dtype"]) == (1, "bf16")
    assert launch.spec is not None
    assert launch.spec.vocab_size % 256 == 0
    with pytest.raises(InputError, match=r"zero_optimization\.stage"):
        changed("neox_small.yml", 8, **changes | {"zero_optimization": {"stage": 3}})


def test_a_gated_network_of_gpt_neox_has_two_thirds_of_the_width() -> None:
    """Llama 7B's 32,768: two thirds of it are 21,845, half of that is 10,922, and 43 · 256 = 11,008 hold it."""
    changes = {"activation": "swiglu", "mlp_multiple_of": 256, "intermediate-size": 32_768, "norm": "rmsnorm"}
    launch = changed("neox_small.yml", 2, **changes)
    assert launch.spec.decoder.block.feed_forward.intermediate_size == 11_008


def test_layers_of_mamba_in_gpt_neox_have_no_network() -> None:
    launch = changed("neox_small.yml", 2, **{"attention-config": [[["mamba"], 4]], "gpt-j-residual": None})
    block = launch.spec.decoder.block
    assert (block.attention.type, block.attention.intermediate_size, block.attention.time_step_rank) == (
        "mamba",
        512,
        16,
    )
    assert block.feed_forward.type == "none"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model-parallel-size": 2, "fp16": None}, "precision (missing, or fp32, which is not modelled with layers"),
        ({"attention-config": [[["local", "global"], 2]]}, "attention_config ('global, local' is not modelled"),
        ({"pos-emb": "rpe"}, "pos_emb: 'rpe'; expected learned"),
        ({"norm": "scalenorm"}, "norm: 'scalenorm'; expected layernorm or rmsnorm"),
        ({"hidden_dropout": 0.1}, "hidden_dropout (0.1 is not modelled)"),
        ({"rotary-pct": 2}, "rotary_pct: 2; expected a share from 0 to 1"),
    ],
)
def test_what_of_gpt_neox_is_not_modelled_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as stop:
        changed("neox_small.yml", 2, **changes)
    assert said in str(stop.value)


def test_frozen_weights_in_8_bits() -> None:
    axolotl = changed("axolotl_qlora.yaml", adapter="lora", load_in_4bit=None, load_in_8bit=True)
    factory = changed("llama_factory_qlora.yaml", quantization_bit=8)
    assert axolotl.settings["base"] == factory.settings["base"] == "int8"


def test_the_norms_of_olmo_2() -> None:
    model = {**yaml.safe_load((FILES / "olmo_tiny.yaml").read_text())["model"], "layer_norm_type": "rms"}
    launch = changed("olmo_tiny.yaml", 2, model={**model, "norm_after": True, "attention_layer_norm": True})
    block = launch.spec.decoder.block
    assert (block.norm_placement, block.attention.qk_norm.scope) == ("output", "projection")


def test_a_cached_reference_of_open_instruct_needs_no_copy() -> None:
    launch = changed("open_instruct_sft.yaml", 2, loss_type="dpo_norm", use_lora=None)
    assert launch.settings["batch"] == 2
    assert any("cached" in note for note in launch.notes)


# --- NeMo -------------------------------------------------------------------------------------------------------------


def with_model(**changes: Any) -> dict[str, Any]:
    data = yaml.safe_load((FILES / "nemo_gpt.yaml").read_text())
    return {"model": {**data["model"], **changes}}


def test_nemo_is_read_as_arguments_of_megatron() -> None:
    launch = read_launch(FILES / "nemo_gpt.yaml")
    assert (launch.framework, launch.program, launch.layout.tp, launch.layout.dp) == ("megatron", "NeMo", 2, 4)
    assert (launch.layout.sequence_parallel, launch.layout.zero) == (True, 1)
    assert launch.spec is not None
    table = 256 * (-(-50_257 // 256) * 256)  # of words padded to 128 · tp
    attention = 256 * 256 * 2 + 2 * 256 * 2 * 32
    assert params(launch.spec).total == 2 * table + 4 * (attention + 3 * 256 * 704 + 2 * 256) + 256
    settings = launch.framework_settings
    assert (launch.settings["batch"], settings.seq_length, settings.bf16, settings.swiglu) == (2, 512, True, True)
    assert "model.init_method_std" in launch.ignored_arguments


def test_values_of_nemo_that_change_memory_are_read_or_refused() -> None:
    assert changed("nemo_gpt.yaml", **with_model(activations_checkpoint_granularity="selective")).framework_settings
    assumed = changed("nemo_gpt.yaml", **with_model(tokenizer={"library": "sentencepiece"}))
    assert assumed.assumed_defaults["model.override_vocab_size"] == 32_000
    without_o2 = changed("nemo_gpt.yaml", **with_model(megatron_amp_O2=False))
    assert any("under autocast" in note for note in without_o2.notes)
    for change, text in (
        ({"activation": "reglu"}, "model.activation"),
        ({"peft": {"peft_scheme": "lora"}}, "adapters under Megatron-Core"),
        ({"num_layers": None}, "TARGET"),
        ({"fp8": True}, "model.fp8"),
        ({"normalization": "batch"}, "model.normalization"),
    ):
        with pytest.raises(InputError, match=text):
            changed("nemo_gpt.yaml", **with_model(**change))


def test_a_config_in_a_container_is_the_one_that_comes_with_the_program() -> None:
    """modal-labs/llm-finetuning names /workspace/axolotl/deepspeed_configs/zero3_bf16.json."""
    launch = changed("axolotl_zero1.yaml", 2, deepspeed="/workspace/axolotl/deepspeed_configs/zero1.json")
    assert launch.framework == "deepspeed"
    assert launch.layout.zero == 1
    with pytest.raises(InputError, match="no such file"):
        changed("axolotl_zero1.yaml", 2, deepspeed="/workspace/axolotl/deepspeed_configs/other.json")


def test_simpo_has_pairs_and_no_reference() -> None:
    """princeton-nlp/SimPO, training_configs/: `gamma_beta_ratio` is an argument of SimPO's trainer alone."""
    simpo, dpo = changed("trl_dpo.yaml", gamma_beta_ratio=0.5, loss_type=None), changed("trl_dpo.yaml")
    assert simpo.settings["batch"] == dpo.settings["batch"]
    assert simpo.frozen_model is None
    assert isinstance(dpo.frozen_model, FrozenModel) or any("reference model" in note for note in dpo.notes)


def test_oumi_is_trl_with_its_arguments(tmp_path: Path) -> None:
    """Oumi passes its tables to TRL's trainers; under FSDP accelerate checkpoints layers (core/distributed.py)."""
    alone, sharded = changed("oumi_sft.yaml"), changed("oumi_sft.yaml", 8)
    recipe = {
        "model_name_or_path": "meta-llama/Llama-3.2-1B", "dtype": "bfloat16", "bf16": False, "max_length": 1024,
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "attn_implementation": "sdpa",
        "loss_type": "nll",  # pyproject.toml of 2026-08-21: trl>=0.24,<1.5
    }  # fmt: skip
    expected = launch_from_text(yaml.safe_dump(recipe), "trl.yaml")
    assert {**alone.settings, "seq": 1024} == {**expected.settings, "optimizer_impl": "fused"}
    assert (sharded.framework, sharded.layout.dp, sharded.layout.zero) == ("fsdp2", 8, 3)
    assert (sharded.settings["recompute"], sharded.settings["master_weights"]) == ("full", "none")
    training = yaml.safe_load((FILES / "oumi_sft.yaml").read_text())["training"]
    adapted = changed(
        "oumi_sft.yaml",
        fsdp=None,
        training={**training, "use_peft": True, "mixed_precision_dtype": "NONE"},
        peft={"lora_r": 16, "lora_target_modules": ["q_proj"], "q_lora": True, "bnb_4bit_quant_type": "nf4"},
    )
    settings = {"lora_rank": 16, "lora_targets": ("q_proj",), "base": "nf4", "precision": "fp32"}
    assert adapted.settings.items() >= settings.items()
    deepspeed = {"enable_deepspeed": True, "zero_stage": "ZERO_3", "precision": "BF16"}
    zero = changed("oumi_sft.yaml", 4, fsdp=None, deepspeed=deepspeed)
    assert (zero.framework, zero.layout.zero) == ("deepspeed", 3)
    assert (zero.settings["dtype"], zero.settings["master_weights"]) == ("bf16", "fp32")
    liger = {"model_name": "gpt2", "enable_liger_kernel": True, "torch_dtype_str": "auto"}
    plain = changed("oumi_sft.yaml", fsdp=None, model=liger, training={"trainer_type": "HF"})
    assert (plain.settings["batch"], plain.keeps_checkpoint_dtype, "seq" in plain.settings) == (8, True, False)
    trained = {**training, "trainer_kwargs": {"max_length": 4096, "use_liger_kernel": True}}
    lengths = changed("oumi_sft.yaml", fsdp=None, training=trained)  # training_config.py: the model's length replaces
    assert (lengths.settings["seq"], lengths.settings["cross_entropy"]) == (1024, "chunked")
    towers: dict[str, Any] = {"lora_r": 16, "lora_target_modules": ["q_proj"], "lora_exclude_modules": [".*vision.*"]}
    adapted = changed("oumi_sft.yaml", fsdp=None, training={**training, "use_peft": True}, peft=towers)
    assert adapted.settings["lora_rank"] == 16
    towers["lora_exclude_modules"] = [r".*layers\.0\..*"]
    with pytest.raises(InputError, match=r"peft\.lora_exclude_modules"):
        changed("oumi_sft.yaml", fsdp=None, training={**training, "use_peft": True}, peft=towers)
    path = tmp_path / "train.yaml"
    path.write_text((FILES / "oumi_sft.yaml").read_text())
    typed = read_launch(f"oumi distributed torchrun --nproc-per-node 8 -m oumi train -c {path}")
    assert (typed.layout, typed.settings) == (sharded.layout, sharded.settings)


@pytest.mark.parametrize(
    ("table", "values", "message"),
    [
        ("training", {"trainer_type": "OUMI"}, "training.trainer_type: 'OUMI'; expected one of TRL_SFT, TRL_DPO"),
        ("training", {"mixed_precision_dtype": "int8"}, "training.mixed_precision_dtype: 'int8'; expected NONE"),
        ("training", {"unheard": 1}, r"training.unheard \(no key that is known\)"),
        ("model", {"model_name": "gpt2", "freeze_layers": ["layers.0"]}, "model.freeze_layers"),
        ("model", {"model_name": "gpt2", "model_kwargs": {"quantization_config": {}}}, "model_kwargs.quantization"),
        ("fsdp", {"enable_fsdp": True, "mixed_precision": "fp8"}, "fsdp.mixed_precision: 'fp8'; expected bf16"),
        ("fsdp", {"enable_fsdp": True}, r"fsdp.auto_wrap_policy \(missing, which is NO_WRAP: other groups"),
        ("fsdp", {"enable_fsdp": "maybe"}, "yaml: fsdp.enable_fsdp: 'maybe'; expected true or false"),
        ("training", {"use_peft": "maybe"}, "yaml: training.use_peft: 'maybe'; expected true or false"),
        ("training", {"per_device_train_batch_size": 0}, "yaml: training.per_device_train_batch_size: 0; expected"),
        ("deepspeed", {"enable_deepspeed": True, "zero_stage": 4}, "deepspeed.zero_stage: '4'; expected ZERO_0"),
    ],
)
def test_what_is_refused_of_oumi(table: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        changed("oumi_sft.yaml", 2, **{table: values})


def test_a_component_of_torchtune_is_replaced_by_its_name() -> None:
    """torchtune/config/_utils.py, `_merge_yaml_and_cli_args`, as in the README's own command."""
    command = f"tune run lora_finetune_single_device --config {FILES / 'torchtune_lora.yaml'} optimizer="
    settings = read_launch(command + "bitsandbytes.optim.AdamW8bit optimizer.lr=1e-4").settings
    assert settings["optimizer"] == "adamw-8bit"
    logits = read_launch(command + "torch.optim.AdamW loss=torch.nn.CrossEntropyLoss").settings["logits_dtype"]
    assert logits == "fp32"
    pairs = read_launch(command + "torch.optim.AdamW loss=torchtune.rlhf.loss.DPOLoss").settings["logits_dtype"]
    assert pairs == "fp32"


def test_a_config_of_verls_fine_tuning_is_read_without_its_command(tmp_path: Path) -> None:
    config_file = tmp_path / "sft_trainer.yaml"
    config_file.write_text(
        "data: {train_batch_size: 64, micro_batch_size: null, micro_batch_size_per_gpu: 2, max_length: 512}\n"
        "model: {partial_pretrain: Qwen/Qwen2.5-0.5B, enable_gradient_checkpointing: false}\n"
        "optim: {lr: 1e-5}\ntrainer: {total_epochs: 4}\n"
    )
    launch = read_launch(config_file, 4)
    assert (launch.model_name, launch.layout.dp, launch.framework) == ("Qwen/Qwen2.5-0.5B", 4, "fsdp2")
    assert (launch.settings["batch"], launch.settings["num_microbatches"], launch.settings["seq"]) == (2, 8, 512)
    assert "recompute" not in launch.settings


def test_a_script_with_another_name_for_the_model(tmp_path: Path) -> None:
    script = tmp_path / "sft.sh"
    command = "python sft.py --per_device_train_batch_size 1 --block_size 512 --bf16 True"
    script.write_text(f"{command} --model_name Qwen/Qwen2.5-0.5B --train_file_path data\n")
    assert read_launch(script).model_name == "Qwen/Qwen2.5-0.5B"
    server = "text-generation-launcher --model-id gpt2 &\n"
    script.write_text(server + script.read_text().replace("python sft", "python3.11 -u sft"))
    assert not starts_any_server(script)


def test_a_script_of_chinese_llama_alpaca(tmp_path: Path) -> None:
    """ymcui/Chinese-LLaMA-Alpaca-3, scripts/training/run_clm_sft_with_peft.py."""
    script = tmp_path / "run_sft.sh"
    script.write_text(
        "torchrun run_clm_sft_with_peft.py --model_name_or_path meta-llama/Meta-Llama-3-8B --do_train --bf16 "
        "--per_device_train_batch_size 1 --max_seq_length 512 --torch_dtype bfloat16 --dataset_dir data "
        "--lora_rank 64 --trainable q_proj,v_proj --modules_to_save embed_tokens,lm_head --load_in_kbits 16\n"
    )
    launch = read_launch(script, 1)
    assert (launch.settings["lora_rank"], launch.settings["dtype"]) == (64, "bf16")
    assert "base" not in launch.settings
    assert "lora_r" not in launch.assumed_defaults
    quantized = script.read_text().replace("load_in_kbits 16", "load_in_kbits 4 --quant_type nf4")
    script.write_text(quantized.replace("--max_seq_length 512 ", ""))
    launch = read_launch(script, 1)
    settings = launch.settings
    assert (settings["base"], settings["precision"], settings["seq"]) == ("nf4-dq", "autocast", 1024)
    assert "max_length" not in launch.assumed_defaults
    script.write_text(quantized.replace("--dataset_dir", "--full_finetuning True --dataset_dir"))
    with pytest.raises(InputError, match="quantized weights take no gradient"):
        read_launch(script, 1)


def test_the_command_that_trains_among_others(tmp_path: Path) -> None:
    """A reward model's server of OpenRLHF; a config before the arguments of a script named train.py."""
    script = tmp_path / "train.sh"
    script.write_text(
        "python -m openrlhf.cli.serve_rm --port 5000 &\n"
        "python -m openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-0.5B --micro_train_batch_size 1 --max_len 512\n"
    )
    assert read_launch(script, 1).program == "OpenRLHF"
    (tmp_path / "config.yaml").write_text("model_name_or_path:\ndata_path:\nbeta: 0.1\nmax_length: 64\nbf16: true\n")
    arguments = "--model_name_or_path=Qwen/Qwen2.5-0.5B --data_path=x --per_device_train_batch_size=3"
    script.write_text(f"python train.py config.yaml {arguments}\n")
    launch = read_launch(script, 1)
    assert (launch.model_name, launch.settings["seq"]) == ("Qwen/Qwen2.5-0.5B", 64)


def test_hyphens_in_arguments_of_the_trainer_and_earlier_flash_attn(tmp_path: Path) -> None:
    """transformers/hf_argparser.py; LLaMA-Factory before 0.7, hparams/model_args.py."""
    script = tmp_path / "sft.sh"
    script.write_text("python sft.py --model-name gpt2 --per-device-train-batch-size 3 --max-seq-length 64\n")
    settings = read_launch(script).settings
    assert (settings["batch"], settings["seq"]) == (3, 64)
    command = "python src/train_bash.py --stage sft --do_train --model_name_or_path Qwen/Qwen1.5-0.5B --bf16"
    script.write_text(f"{command} --finetuning_type full --per_device_train_batch_size 1 --flash_attn\n")
    assert read_launch(script).settings["attn_implementation"] == "flash"
    script.write_text(script.read_text().replace("--flash_attn", "--flash_attn False"))
    assert read_launch(script).settings["attn_implementation"] == "sdpa"
