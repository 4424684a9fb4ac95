"""Commands of FlagEmbedding 1.4.0 (FlagOpen/FlagEmbedding at 7ed43d6, examples/finetune)."""

from __future__ import annotations

import pytest

from llmcalc.errors import InputError
from llmcalc.frameworks.launch.launch_types import Launch
from llmcalc.frameworks.launch.read_launch_file import read_launch

DATA = "--train_data a.jsonl b.jsonl --cache_path c --query_max_len 64 --passage_max_len 256 --train_group_size 4"
TRAINING = "--output_dir o --learning_rate 1e-5 --per_device_train_batch_size 8 --gradient_checkpointing --bf16"
LOSS = "--negatives_cross_device --temperature 0.02 --sentence_pooling_method cls --normalize_embeddings True"


def launch_of(module: str, model_id: str, arguments: str = "") -> Launch:
    """Returns what a command reads."""
    command = f"torchrun --nproc_per_node 2 -m FlagEmbedding.{module} --model_name_or_path {model_id}"
    return read_launch(f"{command} {DATA} {TRAINING} {arguments}")


@pytest.mark.parametrize("module", ["finetune.embedder.encoder_only.base", "baai_general_embedding.finetune.run"])
def test_an_embedder_encodes_a_query_and_passages(module: str) -> None:
    """A micro-batch has the tokens of 8 queries and 32 passages (AbsModeling.py, `forward`), and no logits."""
    launch = launch_of(module, "BAAI/bge-large-en-v1.5", LOSS)
    assert (launch.model_name, launch.layout.world_size) == ("BAAI/bge-large-en-v1.5", 2)
    assert (launch.settings["batch"], launch.settings["seq"]) == (8 * (64 + 4 * 256) // 256, 256)
    assert launch.score_head_num_labels == 0
    assert "lora_rank" not in launch.settings
    assert launch.settings["recompute"] == "full"


def test_an_embedder_of_a_language_model_has_adapters() -> None:
    """Source: finetune/embedder/decoder_only/base/arguments.py, whose `use_lora` is true by default."""
    module = "finetune.embedder.decoder_only.base"
    launch = launch_of(
        module, "Qwen/Qwen2.5-0.5B", "--lora_rank 32 --target_modules q_proj v_proj --use_flash_attn True"
    )
    assert (launch.settings["lora_rank"], launch.settings["lora_targets"]) == (32, ("q_proj", "v_proj"))
    assert launch.settings["attn_implementation"] == "flash"
    assert launch.score_head_num_labels == 0
    assert "lora_rank" not in launch_of(module, "Qwen/Qwen2.5-0.5B", "--use_lora False").settings


def test_a_reranker_scores_pairs() -> None:
    """A pair has at most the tokens of both texts (abc/finetune/reranker/AbsDataset.py)."""
    launch = launch_of("finetune.reranker.encoder_only.base", "BAAI/bge-reranker-v2-m3")
    assert (launch.settings["batch"], launch.settings["seq"], launch.score_head_num_labels) == (32, 320, 1)
    launch = launch_of("finetune.reranker.decoder_only.base", "google/gemma-2b")
    assert (launch.settings["cross_entropy"], launch.score_head_num_labels) == ("flash-in-place", None)


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("finetune.reranker.decoder_only.layerwise", "", "scores of several layers are not modelled"),
        ("finetune.embedder.encoder_only.m3", "--fix_encoder True", "training of the heads alone is not modelled"),
        ("finetune.embedder.encoder_only.base", "--train_group_size many", "train_group_size: 'many'"),
    ],
)
def test_what_is_not_modelled_is_named(module: str, arguments: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        launch_of(module, "BAAI/bge-m3", arguments)
    assert message in str(error.value)
