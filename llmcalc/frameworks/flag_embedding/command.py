"""Reads commands of FlagEmbedding, where each training example is a query with several passages.

Source: FlagOpen/FlagEmbedding 1.4.0 (7ed43d6, 2026-04-22): abc/finetune/{embedder,reranker}/{AbsArguments,AbsDataset,
AbsModeling}.py and finetune/*/*/*/{arguments,load_model,modeling}.py. An embedder encodes the queries and all passages
of a micro-batch with their gradients together; a reranker encodes pairs of a query and a passage.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ...sources.huggingface.family import field_names
from ..launch.command_line import marked_model_name, parse_arguments, parsed_arguments
from ..launch.launch_types import CommandLine, Launch, LaunchReader, LaunchSource, launch_reader
from ..launch.trainer import TRAINER_DEFAULTS, known_argument_names, launch_as_trainer

PROGRAMS = re.compile(
    r"FlagEmbedding\.(finetune\.(?P<task>embedder|reranker)\.(?P<model>encoder|decoder)_only\.(?P<kind>\w+)"
    r"|(baai_general_embedding\.finetune|BGE_M3)\.run)"
)
"""Pattern of training modules; the last two are of FlagEmbedding before 1.3, and have an embedder's arguments."""

TEXT_ARGUMENTS = {"train_group_size": 8, "query_max_len": 32, "passage_max_len": 128}
"""Argument about an example's texts → default value: passages per example, tokens per query, tokens per passage."""

ADAPTER_ARGUMENTS = {
    "lora_rank": ("lora_r", 64),
    "lora_dropout": ("lora_dropout", 0.1),
    "target_modules": (
        "lora_target_modules",
        ["v_proj", "q_proj", "k_proj", "gate_proj", "down_proj", "o_proj", "up_proj"],
    ),
    "modules_to_save": ("lora_modules_to_save", None),
}
"""Argument about adapters → the equivalent Trainer argument, and the default value."""

ARGUMENTS_READ = frozenset(
    {*TEXT_ARGUMENTS, *ADAPTER_ARGUMENTS, "use_lora", "use_flash_attn", "unified_finetuning", "fix_encoder"}
)

ARGUMENTS_IGNORED = field_names("""
    train_data cache_path cache_dir config_name tokenizer_name token use_fast_tokenizer use_slow_tokenizer model_type
    max_len pad_to_multiple_of max_example_num_per_dataset query_instruction_for_retrieval query_instruction_format
    passage_instruction_for_retrieval passage_instruction_format query_instruction_for_rerank
    passage_instruction_for_rerank knowledge_distillation shuffle_ratio same_dataset_within_batch same_task_within_batch
    small_threshold drop_threshold sep_token negatives_cross_device temperature temperture fix_position_embedding
    sentence_pooling_method normalize_embeddings normlized sub_batch_size kd_loss_type use_mrl mrl_dims lora_alpha
    from_peft raw_peft peft_model_path additional_special_tokens save_merged_lora_model only_merge_lora_model
    use_self_distill self_distill_start_step colbert_dim example_query_max_len example_passage_max_len
    retrieval_use_examples icl_suffix_str use_inbatch_neg enable_sub_batch query_instruction_for_retrieval
    """)
"""Arguments of the data set and of the embedding loss, whose tensors are small compared with a layer's."""


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command starts a training of FlagEmbedding."""
    return PROGRAMS.fullmatch(command_line.program) is not None


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run that a command starts. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        program_match = PROGRAMS.fullmatch(command_line.program)
        is_reranker, is_decoder = (
            program_match is not None and program_match[group_name] == expected_word
            for group_name, expected_word in (("task", "reranker"), ("model", "decoder"))
        )
        if program_match is not None and program_match["kind"] == "layerwise":
            reader.refuse(command_line.program, "scores of several layers are not modelled; the base reranker is")
        arguments = parse_arguments(command_line.words, source_file.name_in_errors)
        config = parsed_arguments(arguments, reader, ARGUMENTS_READ | (known_argument_names() - {"model_name_or_path"}))
        model_id = marked_model_name(arguments.get("--model_name_or_path"))
        reader.ignored_arguments += [argument_name for argument_name in config if argument_name in ARGUMENTS_IGNORED]
        trainer_table = {
            argument_name: argument_value
            for argument_name, argument_value in config.items()
            if argument_name not in ARGUMENTS_IGNORED and argument_name not in (*ARGUMENTS_READ, "model_name_or_path")
        }
        trainer_table |= _sequence_length_and_batch_size(reader, config, is_reranker)
        if is_decoder and reader.flag(config, "use_lora", True):
            trainer_table |= {"use_peft": True} | {
                trainer_name: reader.value(config, argument_name, default_value)
                for argument_name, (trainer_name, default_value) in ADAPTER_ARGUMENTS.items()
            }
        if reader.flag(config, "use_flash_attn"):
            trainer_table["attn_implementation"] = "flash_attention_2"
        if reader.flag(config, "fix_encoder"):
            reader.refuse("fix_encoder", "training of the heads alone is not modelled")
        if reader.flag(config, "unified_finetuning"):
            reader.notes.append("unified_finetuning: the two small heads of BGE-M3 are not counted")
        reads_words = is_reranker and is_decoder
        if not reads_words:
            reader.score_head_num_labels = 1 if is_reranker else 0
        launched_run = replace(launch_as_trainer(reader, trainer_table, model_id), counts_longest_samples=True)
        if not reads_words:
            return launched_run
        note = "the score is a logit of the last token: the logits of all tokens are counted once"
        return replace(
            launched_run,
            settings={**launched_run.settings, "cross_entropy": "flash-in-place"},
            notes=(*launched_run.notes, note),
        )


def _sequence_length_and_batch_size(reader: LaunchReader, config: dict[str, Any], is_reranker: bool) -> dict[str, Any]:
    """Returns a batch size and a sequence length with as many tokens as all queries and passages of a micro-batch."""
    group_size, query_tokens, passage_tokens = (
        reader.integer(config, argument_name, default_value) for argument_name, default_value in TEXT_ARGUMENTS.items()
    )
    batch_name = "per_device_train_batch_size"
    example_count = reader.integer(config, batch_name, TRAINER_DEFAULTS[batch_name])
    if is_reranker:
        reader.notes.append(f"an example is {group_size} pairs of a query and a passage")
        return {batch_name: example_count * group_size, "max_length": query_tokens + passage_tokens}
    reader.notes.append(f"an example is a query of {query_tokens} tokens and {group_size} passages of {passage_tokens}")
    longest_tokens = max(query_tokens, passage_tokens)
    all_tokens = example_count * (query_tokens + group_size * passage_tokens)
    return {batch_name: -(-all_tokens // longest_tokens), "max_length": longest_tokens}
