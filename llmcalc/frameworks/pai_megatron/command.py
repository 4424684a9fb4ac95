"""Reads commands of Pai-Megatron-Patch: Megatron-LM's arguments, with other tokenizers and datasets.

Source: Pai-Megatron-Patch at a098ca5: megatron_patch/arguments.py, and megatron_patch/tokenizer/__init__.py for the
size of the vocabulary: the tokenizer's words and `--extra-vocab-size`.
"""

from __future__ import annotations

from typing import Any

from ...sources.huggingface.family import field_names
from ..launch.command_line import parse_arguments
from ..launch.launch_types import CommandLine, Launch, LaunchReader, LaunchSource, launch_reader, read_integer
from ..launch.unresolved import is_unresolved, unresolved_reason
from ..megatron.launch_file import read_megatron

ARGUMENTS_IGNORED = field_names("""
    patch-tokenizer-type extra-vocab-size max-padding-length train-mode dataset train-data-path valid-data-path
    keep-last epochs train-data generation-length data-dir intermediate-size n-head-kv task inference-output
    num-fewshot-samples patch-size cvcuda-image-processing dataset-config image-folder convert-checkpoint-from
    spatial-merge-size temporal-patch-size disable-vision-class-token ds_config enable-parallel-output
    rotary-scale-factor
    """)
"""Arguments of Pai-Megatron-Patch that do not change the memory of the language model's training step."""

WORDS_BY_TOKENIZER = {
    "Qwen2Tokenizer": 151_643,
    "Qwen3Tokenizer": 151_643,
    "Qwen2VLTokenizer": 151_643,
    "LLamaTokenizer": 32_000,
    "LLama2Tokenizer": 32_000,
    "LLama3Tokenizer": 128_000,
    "MixtralTokenizer": 32_000,
}
"""Tokenizer of Pai-Megatron-Patch → vocabulary size of the models."""


def starts_program(command_line: CommandLine) -> bool:
    """Whether a command has the tokenizer argument of Pai-Megatron-Patch."""
    return any(command_word.partition("=")[0] == "--patch-tokenizer-type" for command_word in command_line.words)


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of a Pai-Megatron-Patch command. Raises `InputError`, which names file and argument."""
    with launch_reader(source_file) as reader:
        if not command_line.program.startswith(("pretrain_", "finetune_", "train_")):
            raise reader.argument_error(
                f"line {command_line.line}: {command_line.program}", "is no training; expected pretrain_*.py"
            )
        arguments = parse_arguments(command_line.words, source_file.name_in_errors)
        megatron_table: dict[str, Any] = {}
        for flag_name, argument_value in arguments.items():
            if flag_name[2:] in ARGUMENTS_IGNORED:
                reader.ignored_arguments.append(flag_name)
            elif flag_name == "--moe-shared-expert-overlap":
                reader.notes.append(f"{flag_name}: shared experts are counted without overlap, an estimate")
            else:
                megatron_table[flag_name] = argument_value
        _set_vocabulary(reader, arguments, megatron_table)
        if "--disable-vision-class-token" in arguments:
            reader.notes.append("the vision tower, which is beside the language model, is not counted")
        return reader.with_recorded_arguments(read_megatron(megatron_table, source_file))


def _set_vocabulary(reader: LaunchReader, arguments: dict[str, Any], megatron_table: dict[str, Any]) -> None:
    """Adds the size of the patch's vocabulary to Megatron-LM's arguments."""
    if "--padded-vocab-size" in arguments or "--vocab-size" in arguments:
        return
    tokenizer_type = str(arguments.get("--patch-tokenizer-type", ""))
    if tokenizer_type not in WORDS_BY_TOKENIZER:
        *_, size_option, vocab_size_text = ("", "", *reader.source.arguments)
        if size_option == "--padded-vocab-size":
            megatron_table[size_option] = str(read_integer(reader, size_option, vocab_size_text))
            return
        raise reader.argument_error(
            "--patch-tokenizer-type",
            f"the vocabulary of {tokenizer_type[:60]} is in its files alone; expected its size as the last argument of "
            "the script, as in --launch 'FILE ARGUMENTS --padded-vocab-size 50304'",
        )
    if is_unresolved(str(arguments.get("--extra-vocab-size"))):
        raise reader.argument_error("--extra-vocab-size", unresolved_reason(str(arguments["--extra-vocab-size"])))
    extra_tokens = read_integer(reader, "--extra-vocab-size", arguments.get("--extra-vocab-size", 0), minimum=0)
    megatron_table["--padded-vocab-size"] = str(WORDS_BY_TOKENIZER[tokenizer_type] + extra_tokens)
