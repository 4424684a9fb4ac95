"""Python scripts of TRL and of the Trainer, as users write them, are read without running them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.launch.read_launch_file import read_launch

SUPERVISED = """
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

model_id, rank = "meta-llama/Llama-3.1-8B", 64
name = "meta-llama/Llama-3.1-8B"
few_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(
    name, quantization_config=few_bits, torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2"
)
adapters = LoraConfig(r=32, lora_alpha=16, target_modules=["q_proj", "v_proj"])
args = SFTConfig(output_dir="x", per_device_train_batch_size=2, optim="paged_adamw_8bit", max_length=2048)
SFTTrainer(model=model, args=args, peft_config=adapters, train_dataset=data(name)).train()
"""

POLICY = """
from trl import GRPOConfig, GRPOTrainer

def reward(completions):
    return [len(text) for text in completions]

args = GRPOConfig(output_dir="out", num_generations=4, max_completion_length=256)
GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=reward, args=args, train_dataset=load("x")).train()
"""

PLAIN = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

def main():
    model = AutoModelForCausalLM.from_pretrained("EleutherAI/pythia-1.4b")
    args = TrainingArguments("out", per_device_train_batch_size=4, bf16=True, gradient_checkpointing=True)
    Trainer(model=model, args=args, train_dataset=load("x")).train()
"""


def settings_of(tmp_path: Path, text: str) -> tuple[str, dict[str, Any]]:
    """The model and the settings of a script."""
    file = tmp_path / "train.py"
    file.write_text(text)
    launch = read_launch(file, 1)
    return launch.model_name, dict(launch.settings)


def test_supervised_training_with_adapters_on_weights_in_4_bits(tmp_path: Path) -> None:
    model, settings = settings_of(tmp_path, SUPERVISED)
    assert model == "meta-llama/Llama-3.1-8B"
    wanted = {"lora_rank": 32, "lora_targets": ("q_proj", "v_proj"), "base": "nf4-dq", "batch": 2, "seq": 2048,
              "attn_implementation": "flash", "optimizer": "paged-adamw-8bit-trainer", "dtype": "bf16"}  # fmt: skip
    assert {name: settings[name] for name in wanted} == wanted


def test_reinforcement_learning_of_a_model_that_the_trainer_names(tmp_path: Path) -> None:
    model, settings = settings_of(tmp_path, POLICY)
    assert (model, settings["batch"], settings["seq"]) == ("Qwen/Qwen2.5-0.5B-Instruct", 8, 256)
    assert "lora_rank" not in settings


def test_the_trainer_of_transformers_has_its_own_defaults(tmp_path: Path) -> None:
    model, settings = settings_of(tmp_path, PLAIN)
    assert (model, settings["batch"], settings["recompute"]) == ("EleutherAI/pythia-1.4b", 4, "full")
    assert "recompute" not in settings_of(tmp_path, PLAIN.replace(", gradient_checkpointing=True", ""))[1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "per_device_train_batch_size=2",
            "per_device_train_batch_size=int(sys.argv[1])",
            "is known only when the file",
        ),
        ("max_length=2048", "max_lenght=2048", "max_lenght"),
        ('optim="paged_adamw_8bit"', 'optim="adamw_16bit"', "'adamw_16bit' is not modelled"),
        ("args = SFTConfig(", "class SFTConfig(", "not valid Python"),
    ],
)
def test_what_a_script_leaves_open_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings_of(tmp_path, SUPERVISED.replace(old, new))


ADAPTERS = """
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1")
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
args = TrainingArguments("out", per_device_train_batch_size=4, bf16=True)
Trainer(model=model, args=args, train_dataset=load("x")).train()
"""


def test_adapters_beside_weights_in_the_published_format(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(ADAPTERS)
    published = llmcalc.memory(launch=file, seq=512).document["memory"]
    file.write_text(ADAPTERS.replace('"mistralai/Mistral-7B-v0.1")', '"mistralai/Mistral-7B-v0.1", dtype="bfloat16")'))
    assert llmcalc.memory(launch=file, seq=512).document["memory"] == published


def test_a_model_prepared_for_few_bits_has_checkpoints_and_fp32_beside_them(tmp_path: Path) -> None:
    loaded = ADAPTERS.replace('Mistral-7B-v0.1")', 'Mistral-7B-v0.1", quantization_config=few)').replace(
        "\nmodel = AutoModel", "\nfew = BitsAndBytesConfig(load_in_4bit=True)\nmodel = AutoModel"
    )
    prepared = loaded.replace("get_peft_model(model, ", "get_peft_model(prepare_model_for_kbit_training(model), ")
    settings = settings_of(tmp_path, prepared)[1]
    assert (settings["recompute"], settings["precision"], settings.get("dtype")) == ("full", "autocast", None)
    without_checkpoints = prepared.replace("training(model)", "training(model, use_gradient_checkpointing=False)")
    assert "recompute" not in settings_of(tmp_path, without_checkpoints)[1]
    enabled = loaded.replace("model = get_peft", "model.gradient_checkpointing_enable()\nmodel = get_peft")
    assert settings_of(tmp_path, enabled)[1]["recompute"] == "full"


def test_a_trainer_of_trl_with_the_arguments_of_transformers(tmp_path: Path) -> None:
    pairs = ADAPTERS.replace("import AutoModelForCausalLM, Trainer,", "import AutoModelForCausalLM,").replace(
        "Trainer(model=model, args=args,",
        "DPOTrainer(model, args=args, max_length=512, max_prompt_length=128, beta=0.1,",
    )
    settings = settings_of(tmp_path, "from trl import DPOTrainer\n" + pairs)[1]
    assert (settings["batch"], settings["seq"]) == (8, 512)  # 4 pairs
    assert "recompute" not in settings  # the default of TrainingArguments, not of DPOConfig
    supervised = pairs.replace("DPOTrainer", "SFTTrainer").replace(
        " max_length=512, max_prompt_length=128, beta=0.1,", ""
    )
    settings = settings_of(tmp_path, "from trl import SFTTrainer\n" + supervised)[1]
    assert (settings["batch"], settings["seq"]) == (4, 1024)


DECLARED = """
import argparse
from dataclasses import dataclass, field
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

@dataclass
class Adapters:
    rank: int = field(default=16, metadata={"help": "of the adapters"})
    modules: str = "all-linear"

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-name", "-m", default="Qwen/Qwen2.5-7B")
    parser.add_argument("--batch", dest="batch_size", type=int, default=4)
    parser.add_argument("--length", type=int)
    parser.add_argument("--no_checkpoints", action="store_true")
    args = parser.parse_args()
    adapters = Adapters()
    half = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    model = AutoModelForCausalLM.from_pretrained(args.model_name, dtype=half)
    config = SFTConfig("out", per_device_train_batch_size=args.batch_size, max_length=args.length,
        gradient_checkpointing=not args.no_checkpoints)
    peft = LoraConfig(r=adapters.rank, target_modules=adapters.modules)
    SFTTrainer(model=model, args=config, peft_config=peft).train()
"""


def test_arguments_that_a_script_declares(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(DECLARED)
    with pytest.raises(
        InputError, match=r"max_length \(is the file's argument length, without a default; .* --length …"
    ):
        read_launch(file, 1)
    launch = read_launch(f"{file} --length 512", 1)
    settings = launch.settings
    assert launch.model_name == "Qwen/Qwen2.5-7B"
    assert (settings["batch"], settings["seq"], settings["lora_rank"]) == (4, 512, 16)
    assert (settings["dtype"], settings["recompute"]) == ("bf16", "full")
    assert any("batch_size 4" in note for note in launch.notes)
    typed = read_launch(f"{file} --length=256 --batch_size 2 --no_checkpoints --rank 8 --model_name gpt2", 1)
    assert (typed.model_name, typed.settings["batch"], typed.settings["seq"], typed.settings["lora_rank"]) == (
        "gpt2",
        2,
        256,
        8,
    )
    assert "recompute" not in typed.settings
    with pytest.raises(InputError, match="--lr: no argument that the file declares; it declares --rank, --modules"):
        read_launch(f"{file} --lr 1e-4", 1)


def test_a_command_that_runs_a_script_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DECLARED)
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n"
        "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 4 train.py --length 128\n"
    )
    launch = read_launch(script)
    assert (launch.layout.world_size, launch.settings["seq"], launch.settings["batch"]) == (8, 128, 4)


EARLIER_TRAINER = """
from transformers import TrainingArguments
from trl import SFTTrainer
args = TrainingArguments("out", per_device_train_batch_size=2)
SFTTrainer("gpt2", args=args, max_seq_length=64, dataset_text_field="text", train_dataset=data)
"""

TRL_COMMAND = "--model_name_or_path gpt2 --dataset_name a/b --per_device_train_batch_size 2 --learning_rate 1e-4"

PEFT_COMMAND = "train.py --model_name_or_path gpt2 --use_peft_lora True --per_device_train_batch_size 2 --output_dir o"


def test_the_loss_of_sft_is_that_of_the_trl_that_knows_the_arguments(tmp_path: Path) -> None:
    """Chunks are TRL's default since 1.7 (pull request 5846), checkpoints since 0.22; `max_seq_length` ends with 0.20.

    PEFT's examples/sft/train.py and TRL's examples/scripts/sft_*.py call `SFTTrainer` with an `SFTConfig`.
    """
    for text in (
        EARLIER_TRAINER,
        EARLIER_TRAINER.replace('max_seq_length=64, dataset_text_field="text"', "tokenizer=t"),
    ):
        settings = settings_of(tmp_path, text)[1]
        assert not {"cross_entropy", "recompute"} & {*settings}
    current = EARLIER_TRAINER.replace('max_seq_length=64, dataset_text_field="text", ', "")
    assert settings_of(tmp_path, current)[1]["cross_entropy"] == "recomputed"
    for command in (
        f"accelerate launch sft.py {TRL_COMMAND}",
        f"accelerate launch examples/scripts/sft_gpt_oss.py {TRL_COMMAND}",
        f"python train_sft.py {TRL_COMMAND} --assistant_only_loss",
        f"python {PEFT_COMMAND}",
        f"python {PEFT_COMMAND} --max_length 64",
    ):
        settings = read_launch(command, 1).settings
        assert (settings["cross_entropy"], settings["recompute"]) == ("recomputed", "full")
        earlier = read_launch(f"{command} --max_seq_length 64", 1)
        assert not {"cross_entropy", "recompute"} & {*earlier.settings}
        assert "max_seq_length is of TRL before 0.20, whose loss has all logits" in earlier.notes
        assert any("TRL before 0.20, whose defaults are counted: optim adamw_torch" in note for note in earlier.notes)
        assert (settings["optimizer_impl"], earlier.settings["optimizer_impl"]) == ("fused", "foreach")
    command = f"accelerate launch sft.py {TRL_COMMAND} --use_peft --load_in_4bit"  # experts are linear layers there
    assert "quantized_experts" not in read_launch(command, 1).settings
    assert read_launch(f"{command} --max_seq_length 64", 1).settings["quantized_experts"] is True
    assert read_launch(f"python run_clm.py {TRL_COMMAND} --do_train", 1).program == "transformers"


@pytest.mark.parametrize(
    ("trainer", "arguments", "is_earlier"),
    [
        ("SFTTrainer", "tokenizer=t", True),
        ("SFTTrainer", 'dataset_text_field="text"', True),
        ("DPOTrainer", "tokenizer=t", True),
        ("Trainer", "tokenizer=t", True),
        ("SFTTrainer", "processing_class=t", False),
        ("Trainer", "processing_class=t", False),
    ],
)
def test_a_trainer_of_earlier_releases_loads_weights_in_float32(
    tmp_path: Path, trainer: str, arguments: str, is_earlier: bool
) -> None:
    """`Trainer(tokenizer=)` ends with transformers 5 (trainer.py), which loads weights in the checkpoint's dtype.

    TRL's trainers have not had it since 0.16, which knows transformers 4 alone; AdamW is fused since torch 2.8.
    """
    text = f"""
from transformers import AutoModelForCausalLM, TrainingArguments, Trainer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
args = {trainer.replace("Trainer", "Config") if trainer != "Trainer" else "TrainingArguments"}("out", bf16=False)
{trainer}(model, args=args, {arguments}, train_dataset=data)
"""
    (tmp_path / "train.py").write_text(text)
    launch = read_launch(str(tmp_path / "train.py"), 1)
    assert launch.keeps_checkpoint_dtype is not is_earlier
    assert (launch.settings["optimizer_impl"], launch.settings["precision"]) == (
        "foreach" if is_earlier else "fused",
        "fp32",
    )
    note = "transformers before 5 loads weights in float32 where no dtype is written"
    assert (note in launch.notes) is is_earlier


def test_the_optimizer_is_that_of_the_versions(tmp_path: Path) -> None:
    """AdamW is fused by default since torch 2.8; `evaluation_strategy` ends with transformers 4.46.

    Source: transformers/training_args.py (5.23), `default_optim`.
    """
    command = "python run_clm.py --model_name_or_path gpt2 --do_train --block_size 64 --output_dir o"
    earlier, earlier_note = " --evaluation_strategy no", "evaluation_strategy is of transformers before 4.46"
    torch_note = "--torch 2.8 does not change optim adamw_torch"
    for arguments, torch, implementation, notes in (
        ("", None, "fused", []),
        ("", "2.8", "fused", []),
        ("", "2.7", "foreach", []),
        (" --optim adamw_torch_fused", "2.7", "fused", []),
        (earlier, None, "foreach", [earlier_note]),
        (earlier, "2.7", "foreach", [earlier_note]),
        (earlier, "2.8", "foreach", [earlier_note, torch_note]),
        (f"{earlier} --optim adamw_torch", "2.8", "foreach", [earlier_note]),
    ):
        options = {} if torch is None else {"torch": torch}
        launch = read_launch(f"{command}{arguments}", 1, options=options)
        assert launch.settings["optimizer_impl"] == implementation, (arguments, torch)
        assert launch.keeps_checkpoint_dtype is (earlier not in arguments)
        version_notes = [note for note in launch.notes if "optim adamw_torch" in note]
        assert [version_note[: len(note)] for version_note, note in zip(version_notes, notes, strict=True)] == notes
    (tmp_path / "sgd.json").write_text('{"optimizer": {"type": "SGD"}, "zero_optimization": {"stage": 2}}')
    under_deepspeed = f"deepspeed --num_gpus 2 run_clm.py {command.split(maxsplit=2)[2]} --deepspeed {tmp_path}"
    (tmp_path / "auto.json").write_text('{"zero_optimization": {"stage": 2}}')
    for file_name, optimizer in (("sgd.json", "sgd"), ("auto.json", "adamw")):
        launches = [
            read_launch(f"{under_deepspeed}/{file_name}", options=options) for options in ({}, {"torch": "2.7"})
        ]
        assert [launch.settings["optimizer"] for launch in launches] == [optimizer] * 2
        assert launches[0].settings.items() <= launches[1].settings.items()
    checkpoints = "--gradient_checkpointing"
    for arguments, recompute in ((checkpoints, "full"), (f"{checkpoints} --evaluation_strategy no", "full-reentrant")):
        assert read_launch(f"{command} {arguments}", 1).settings["recompute"] == recompute


@pytest.mark.parametrize("stage", [2, 3])
def test_the_chunks_of_sft_run_under_deepspeed(tmp_path: Path, stage: int) -> None:
    (tmp_path / "zero.json").write_text(
        f'{{"zero_optimization": {{"stage": {stage}}}, "bf16": {{"enabled": true}}, '
        '"train_micro_batch_size_per_gpu": "auto"}'
    )
    launch = read_launch(f"trl sft {TRL_COMMAND} --deepspeed {tmp_path / 'zero.json'}", 4)
    assert (launch.layout.zero, launch.settings["cross_entropy"]) == (stage, "recomputed")


def test_samples_are_as_long_as_the_tokenizer_cuts_them(tmp_path: Path) -> None:
    cut = (
        ADAPTERS + "\ndata.map(lambda x: tokenizer(x['text'], truncation=True, max_length=384, padding='max_length'))\n"
    )
    assert settings_of(tmp_path, cut)[1]["seq"] == 384
    assert "seq" not in settings_of(tmp_path, cut.replace("truncation=True", "truncation=False"))[1]


def test_a_script_whose_settings_are_arguments_of_its_command(tmp_path: Path) -> None:
    file = tmp_path / "run_sft.py"
    parsed = "from trl import SFTConfig, TrlParser\nparser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))\n"
    for trainer in (
        "SFTTrainer(model=model_args.model_name_or_path, args=training_args)",
        "SFTTrainer('gpt2', training_args)",
        "SFTTrainer(**trainer_arguments)",
        "",
    ):
        file.write_text(f"{parsed}{trainer}\n")
        with pytest.raises(
            InputError, match="its settings are arguments of its command; expected them behind the file's name"
        ):
            read_launch(file, 1)
    file.write_text(f"{parsed}SFTTrainer('gpt2', args=training_args)\n")
    arguments = "--model_name_or_path gpt2 --per_device_train_batch_size 2 --max_seq_length 64 --bf16"
    launch = read_launch(f"{file} {arguments}", 1)
    assert launch.settings == read_launch(f"python {file} {arguments}", 1).settings
    assert (launch.model_name, launch.settings["seq"]) == ("gpt2", 64)


def test_what_a_script_does_to_its_model_is_counted_or_refused(tmp_path: Path) -> None:
    """Of a change that is not modelled, no run is counted as if it were not there."""
    loaded = 'from_pretrained("EleutherAI/pythia-1.4b")\n'
    for change, named in (
        ("from peft import IA3Config\n    adapters = IA3Config()", "IA3Config"),
        ("for weight in model.parameters():\n        weight.requires_grad = False", "requires_grad"),
        ("model.gpt_neox.layers = model.gpt_neox.layers[:8]", "layers"),
        ("adapters = LoraConfig(r=8, rank_pattern={'dense': 64})", "rank_pattern"),
        ("adapters = LoraConfig(r=8, bias='all')", "bias"),
        ("model.config.num_hidden_layers = 8", "num_hidden_layers"),
    ):
        with pytest.raises(InputError, match=f"may change memory: {named} "):
            settings_of(tmp_path, PLAIN.replace(loaded, f"{loaded}    {change}\n"))
    with pytest.raises(InputError, match=r"GPTNeoXForTokenClassification \(its head is no"):
        settings_of(tmp_path, PLAIN.replace("AutoModelForCausalLM", "GPTNeoXForTokenClassification"))
    with pytest.raises(InputError, match=r"optimizers \(Muon is not modelled"):
        settings_of(tmp_path, PLAIN.replace("args=args", "args=args, optimizers=(Muon(model), None)"))
    eight_bits = "args=args, optimizers=(bnb.optim.Adam8bit(model.parameters()), None)"
    assert settings_of(tmp_path, PLAIN.replace("args=args", eight_bits))[1]["optimizer"] == "adamw-8bit-trainer"
    changes = """    model = torch.compile(model.half())
    for weight in ref_model.parameters():
        weight.requires_grad = False
"""
    _, settings = settings_of(tmp_path, PLAIN.replace(loaded, loaded + changes))
    assert settings["dtype"] == "fp16"


def test_arguments_in_tables_are_read(tmp_path: Path) -> None:
    """Of `model_init_kwargs` and of tables that a call unpacks; a model may be the first argument of its trainer."""
    named = """
from trl import SFTConfig, SFTTrainer
args = SFTConfig("out", model_init_kwargs={"torch_dtype": "bfloat16", "attn_implementation": "flash_attention_2"})
SFTTrainer("Qwen/Qwen3-8B", args=args, train_dataset=load("x")).train()
"""
    model, settings = settings_of(tmp_path, named)
    assert (model, settings["attn_implementation"], settings["dtype"]) == ("Qwen/Qwen3-8B", "flash", "bf16")
    loaded = """
arguments = dict(attn_implementation="flash_attention_2", device_map="auto")
arguments["torch_dtype"] = torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", **arguments)
args = SFTConfig("out", bf16=arguments["torch_dtype"] == torch.bfloat16)
"""
    unpacked = named.replace('"Qwen/Qwen3-8B"', "model").replace("\nargs", f"{loaded}\nunused")
    model, settings = settings_of(tmp_path, unpacked)
    assert (model, settings["attn_implementation"], settings["dtype"]) == ("Qwen/Qwen3-8B", "flash", "bf16")


REWARD = """
from trl import RewardConfig, RewardTrainer
model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", num_labels=1)
adapters = LoraConfig(task_type="SEQ_CLS", modules_to_save=["score"])
args = RewardConfig("out", per_device_train_batch_size=2, max_length=64)
RewardTrainer(model=model, args=args, peft_config=adapters, train_dataset=load("x")).train()
"""


def test_a_reward_model_has_one_score_for_each_answer_of_a_pair(tmp_path: Path) -> None:
    """TRL 1.10, trainer/reward_trainer.py, `compute_loss`; trl/scripts/reward.py."""
    (tmp_path / "reward.py").write_text(REWARD)
    launch = read_launch(tmp_path / "reward.py")
    assert (launch.score_head_num_labels, launch.settings["batch"], launch.settings["seq"]) == (1, 4, 64)
    assert not {"cross_entropy", "loss_chunk"} & {*launch.settings}
    assert llmcalc.memory(launch=tmp_path / "reward.py").document["launch"]["program"] == "TRL"  # `score` is known
    subclass = REWARD.replace("\nRewardTrainer(", "\nclass Mine(RewardTrainer): ...\nMine(")
    (tmp_path / "mine.py").write_text(subclass)
    assert read_launch(tmp_path / "mine.py").score_head_num_labels == 1
    for program in ("trl reward", "python trl/scripts/reward.py", "python examples/scripts/reward_modeling.py"):
        command = read_launch(f"{program} --model_name_or_path a/b --max_length 64 --per_device_train_batch_size 2")
        assert (command.score_head_num_labels, command.settings["batch"], command.settings["seq"]) == (1, 4, 64)
    for option in ({"cross_entropy": "fused"}, {"logits_dtype": "fp32"}, {"loss_chunk": 8}, {"divide_logits": True}):
        with pytest.raises(InputError, match=r"reward.py trains a model without logits; remove the option"):
            llmcalc.memory(launch=tmp_path / "reward.py", **option)


def test_a_trainer_without_a_configuration_has_its_defaults(tmp_path: Path) -> None:
    """The first example of TRL's README."""
    script = 'from trl import SFTTrainer\nSFTTrainer(model="Qwen/Qwen2.5-0.5B", train_dataset=load("x")).train()\n'
    for text in (script, script.replace("train_dataset", "args=None, train_dataset")):
        model, settings = settings_of(tmp_path, text)
        assert model == "Qwen/Qwen2.5-0.5B"
        assert {"batch": 8, "seq": 1024, "recompute": "full", "cross_entropy": "recomputed"}.items() <= settings.items()
    with pytest.raises(InputError, match="a Python file of no program that is read"):
        settings_of(tmp_path, script.replace("train_dataset", "args=get_args(), train_dataset"))


def test_a_trainer_that_is_not_modelled_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ORPOTrainer: training by it is not modelled; expected one of SFTTrainer"):
        settings_of(tmp_path, POLICY.replace("GRPO", "ORPO"))


def test_a_loop_of_the_file_s_own_is_told_what_to_type(tmp_path: Path) -> None:
    loop = 'model = FullyShardedDataParallel(AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B"))\n'
    with pytest.raises(
        InputError, match=r"expected Qwen/Qwen3-8B in its place, with --phase training .* --fsdp N, or"
    ) as error:
        settings_of(tmp_path, loop)
    assert "a file of NeMo" not in str(error.value)  # which is refused


def test_a_branch_that_is_not_run_adds_no_adapters(tmp_path: Path) -> None:
    script = """
from trl import SFTConfig, SFTTrainer
use_peft = True
adapters = LoraConfig(r=16, target_modules="all-linear") if use_peft else None
if not use_peft:
    model = AutoModelForCausalLM.from_pretrained("gpt2", n_layer=2)
SFTTrainer(model="Qwen/Qwen3-8B", args=SFTConfig("out"), peft_config=adapters).train()
"""
    model, settings = settings_of(tmp_path, script)
    assert (model, settings["lora_rank"]) == ("Qwen/Qwen3-8B", 16)
    with pytest.raises(InputError, match=r"n_layer \(the file changes .* expected TARGET with --set n_layer=2\)"):
        settings_of(tmp_path, script.replace("use_peft = True", "use_peft = False"))


def test_what_is_not_quantized_is_float16_before_transformers_5_until_a_trainer_of_trl_prepares_it(
    tmp_path: Path,
) -> None:
    """transformers 4, quantizers/quantizer_bnb_4bit.py, `update_torch_dtype`; TRL 0.19, `_prepare_peft_model`."""
    loaded = ADAPTERS.replace('Mistral-7B-v0.1")', 'Mistral-7B-v0.1", quantization_config=few)').replace(
        "\nmodel = AutoModel", "\nfew = BitsAndBytesConfig(load_in_4bit=True)\nmodel = AutoModel"
    )
    earlier = loaded.replace("bf16=True", "evaluation_strategy='no'")
    assert settings_of(tmp_path, earlier)[1]["dtype"] == "fp16"
    of_trainer = SUPERVISED.replace("max_length", "max_seq_length").replace(" torch_dtype=torch.bfloat16,", "")
    assert settings_of(tmp_path, of_trainer.replace("optim=", "fp16=True, optim="))[1].get("dtype") is None
    assert settings_of(tmp_path, of_trainer.replace("optim=", "bf16=True, optim="))[1]["dtype"] == "bf16"
    of_reward = SUPERVISED.replace("SFT", "Reward").replace("optim=", "bf16=True, optim=")
    of_reward = of_reward.replace("RewardTrainer(model", "RewardTrainer(tokenizer=tokenizer, model")
    assert settings_of(tmp_path, of_reward)[1].get("dtype") is None
