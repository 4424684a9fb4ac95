"""Every kind of bad input gives exit code 2 and one line on stderr that names the field and the fix, and nothing else.

The cases here are named; `test_fuzz_input.py` damages every field in every way.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from llmcalc.cli.main import COMMANDS, app
from llmcalc.questions.other_names import OTHER_COMMANDS, OTHER_OPTION_NAMES
from tests.samples import spread, with_rest

MODEL = """
[model]
vocab_size = 100
hidden_size = 64
tie_word_embeddings = true
[model.decoder]
num_hidden_layers = 2
final_norm = { type = "rmsnorm" }
[model.decoder.block]
norm = { type = "rmsnorm" }
norm_placement = "pre"
[model.decoder.block.attention]
num_attention_heads = 4
num_key_value_heads = 2
position = { type = "rope" }
[model.decoder.block.feed_forward]
intermediate_size = 40
hidden_act = "silu"
"""


def refused(result: Any, *words: str) -> None:
    """Checks for one line on stderr with each of the words, exit code 2, and nothing on stdout."""
    for word in words:
        assert word in result.error


def test_the_model_that_is_damaged_below_is_right(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text("\ufeff" + MODEL)  # some editors write a byte order mark
    assert run("params", str(path)).code == 0


DAMAGE = {
    "a number where text belongs": ('"silu"', "3", ["feed_forward.hidden_act: 3", "'silu'"]),
    "an unknown field at the top": ("[model]", "tittle = 'x'\n[model]", ["tittle: unknown field"]),
    "in the model": (
        "vocab_size",
        "vocab_sise = 3\nvocab_size",
        ["model.vocab_sise: unknown field", "Did you mean vocab_size"],
    ),
    "in a stack": (
        "num_hidden_layers = 2",
        "num_hidden_layers = 2\nn_layer = 2",
        ["model.decoder.n_layer: unknown field"],
    ),
    "in a part": (
        "num_attention_heads = 4",
        "num_attention_heads = 4\nn_head = 4",
        ["model.decoder.block.attention.n_head: unknown field"],
    ),
    "in an inline table": ('"rope"', '"rope", theta = 3', ["attention.position.theta: unknown field", "rope_theta"]),
    "an unknown type": ('"rope"', '"rop"', ["attention.position.type: 'rop' is not known", "'rope'"]),
    "a type that is a list": ('"rope"', "[1]", ["attention.position.type"]),
    "an unknown norm": (
        'final_norm = { type = "rmsnorm"',
        'final_norm = { type = "batchnorm"',
        ["final_norm.type: 'batchnorm'", "'rmsnorm'"],
    ),
    "a missing field": ("hidden_size = 64\n", "", ["model.hidden_size: required field is missing"]),
    "a missing table": (
        '[model.decoder.block.feed_forward]\nintermediate_size = 40\nhidden_act = "silu"',
        "",
        ["block.feed_forward: required field is missing"],
    ),
    "key/value heads that do not divide": (
        "num_key_value_heads = 2",
        "num_key_value_heads = 3",
        ["num_key_value_heads: 3", "a divisor of 4"],
    ),
    "heads that do not divide": (
        "num_attention_heads = 4",
        "num_attention_heads = 6",
        ["num_attention_heads: 6 does not divide hidden_size 64"],
    ),
    "an odd head for RoPE": ("num_key_value_heads = 2", "head_dim = 5", ["attention.position: RoPE would rotate 5"]),
    "a date": ("hidden_size = 64", "hidden_size = 2024-01-01", ["model.hidden_size: a date is not a whole number"]),
    "a time": (
        "hidden_size = 64",
        "hidden_size = 2024-01-01T00:00:00Z",
        ["model.hidden_size: a datetime is not a whole number"],
    ),
    "a size in hexadecimal without end": (
        "hidden_size = 64",
        "hidden_size = 0x" + "f" * 9000,
        ["model.hidden_size: a number of thousands of digits"],
    ),
    "too many digits for Python": ("hidden_size = 64", "hidden_size = " + "9" * 9000, ["not valid TOML", "digits"]),
    "1 for true": ("= true", "= 1", ["model.tie_word_embeddings: 1 is not true or false"]),
    "a table where a number belongs": (
        "hidden_size = 64",
        "hidden_size = {}",
        ["model.hidden_size: a table is not a whole number"],
    ),
    "a number where a table belongs": (
        'norm = { type = "rmsnorm" }\nnorm_placement',
        "norm = 3\nnorm_placement",
        ["block.norm: 3 is not a table"],
    ),
    "a pattern of no such layer": (
        "num_hidden_layers = 2",
        "num_hidden_layers = 2\npattern = ['full']",
        ["pattern: there is no layer called 'full'"],
    ),
    "an empty pattern": ("num_hidden_layers = 2", "num_hidden_layers = 2\npattern = []", ["model.decoder.pattern"]),
    "a variant called block": (
        "\n[model.decoder.block]",
        "\n[model.decoder.variants.block]\n[model.decoder.block]",
        ["variants.block", "another name"],
    ),
    "encoder and decoder without cross-attention": (
        "[model.decoder]",
        "encoder = 3\n[model.decoder]",
        ["model.encoder: 3 is not a table"],
    ),
    "a weight dtype that is none": ("[model]", "dtype = 'bf17'\n[model]", ["dtype: unknown dtype 'bf17'", "bf16"]),
    "nan": ('"rope"', '"rope", rope_theta = nan', ["rope_theta: nan is not a finite number"]),
    "infinity": ('"rope"', '"rope", rope_theta = inf', ["rope_theta: inf is not a finite number"]),
    "text for a real number": ('"rope"', '"rope", rope_theta = "1e4"', ["rope_theta: '1e4' is not a number"]),
    "cut short": (
        'feed_forward]\nintermediate_size = 40\nhidden_act = "silu"\n',
        "feed_for",
        ["not valid TOML", "at end of document"],
    ),
    "a table twice": ("[model.decoder.block]", "[model]", ["not valid TOML"]),
    "a line break in a name": ("vocab_size", '"vocab\\nsize" = 3\nvocab_size', ["vocab\\nsize: unknown field"]),
    "a control sequence": ('"silu"', '"\\u001b[31mred"', ["hidden_act: '\\x1b[31mred'"]),
    "lists without end": ("hidden_size = 64", "hidden_size = " + "[" * 5000 + "]" * 5000, ["nested too deeply"]),
    "tables without end": ("hidden_size = 64", "hidden_size." + "a." * 5000 + "a = 1", ["nested too deeply"]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_description(name: str, run: Any, tmp_path: Path) -> None:
    before, after, words = DAMAGE[name]
    assert before in MODEL
    path = tmp_path / "model.toml"
    path.write_text(MODEL.replace(before, after, 1))
    refused(run("params", str(path)), *words)


def test_files_that_are_none(run: Any, tmp_path: Path) -> None:
    for name, content, word in [
        ("empty", b"", "model: required field is missing"),
        ("binary", bytes(range(256)), "not a text file"),
        ("nul", b"\0" * 99, "not valid TOML"),
    ]:
        path = tmp_path / f"{name}.toml"
        path.write_bytes(content)
        refused(run("params", str(path)), word)
    sparse = tmp_path / "sparse.toml"
    with sparse.open("wb") as file:
        file.truncate(100_000_000)
    refused(run("params", str(sparse)), "100,000,000 bytes is too large")
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")  # reading it would block
    for target, word in [
        ("folder.toml", "folder"),
        ("pipe.toml", "is not a regular file"),
        (".", "folder"),
        ("none.toml", "No such file"),
        ("none/x.toml", "No such"),
    ]:
        refused(run("params", str(tmp_path / target)), word)
    for target in ("", " ", "/dev/zero", "x" * 5000, "a\nb", "\udcff", "x" * 5000 + ".toml"):
        refused(run("params", target))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(MODEL)
    path.chmod(0)
    refused(run("params", str(path)), "Permission denied")


SETS = {
    "num_attention_heads": "expected path=value",
    "=3": "expected path=value",
    "hidden_sise=3": "Did you mean hidden_size",
    "num_experts=3": "no part of this model has a field 'num_experts'",
    "layers=3": "Did you mean num_hidden_layers?",
    "num_layers=3": "no part of this model has a field 'num_layers'; expected a field of its parts. Did you mean num_",
    "n_embd=3": "the model has no field 'n_embd'. Did you mean hidden_size?",
    "hidden_size.x=3": "no field 'hidden_size.x'",
    "qqq=3": "the model has no field 'qqq'. llmcalc convert TARGET prints the fields that it has",
    "eps=1e-6": "'eps' is ambiguous; expected one of decoder.",
    "hidden_size=big": "model.hidden_size: 'big' is not a whole number",
    "hidden_size=4096.0": "4096.0 is not a whole number",
    "hidden_size=none": "none is not a whole number",
    "num_attention_heads=7": "num_key_value_heads: 8 does not divide num_attention_heads 7",
    "norm=3": "block.norm: 3 is not a table",
    "decoder=3": "model.decoder: 3 is not a table",
    "decoder.block.attention={}": "num_attention_heads: required field is missing",
    'attention={"type": null}': "attention.type",
    "pattern=block": "'block' is not a list",
    'variants={"a": 3}': "variants.a: 3 is not a table",
    "head=" + "[" * 60 + "]" * 60: "nested too deeply",
    "a\nb=1": "a\\nb",
    "x" * 5000 + "=1": "xxx … xxx",
}


@pytest.mark.parametrize("override", SETS)
def test_a_wrong_override(override: str, run: Any) -> None:
    refused(run("params", "llama3-8b", "--set", override), SETS[override])


def test_files_that_cannot_be_written_are_refused(run: Any, tmp_path: Path) -> None:
    refused(run("params", "gpt2", "-o", str(tmp_path / "none" / "x")), "--output", "there is no folder")
    refused(run("params", "gpt2", "-o", str(tmp_path / ("x" * 300))), "--output")
    if Path("/proc/self").is_dir():  # where not even root may write
        refused(run("params", "gpt2", "-o", "/proc/x"), "--output")


APART = ("check", "plot", "diff", "budget", "schema", "web", "mcp", "explain-log")
"""Commands of other words: check takes a checkpoint first and explain-log a log, plot has commands of its own, diff
takes two TARGETs, budget a file, schema, web and mcp nothing.
"""


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in APART])
def test_what_every_command_refuses(command: str, run: Any, tmp_path: Path) -> None:
    name, wrong, near = ("h100", "h1000", "h100-sxm") if command == "hardware" else ("gpt2", "gpt22", "gpt2")
    needed = {
        "fit": ("--hardware", "h100"),
        "plan": ("--hardware", "h100", "--devices", "1", "--seq", "64", "--set", "num_hidden_layers=2"),
        "time": ("--hardware", "h100"),
        "serve": ("--hardware", "h100", "--input", "64", "--output", "64"),
        "cost": ("--hardware", "h100", "--requests", "9", "--input", "64", "--output", "64"),
    }.get(command, ())
    refused(run(command, wrong, *needed), wrong, "Did you mean", near)
    refused(run(command, "no-such-thing-at-all", *needed), "no-such-thing-at-all")
    refused(run(command, name, *needed, "--nope"), "--nope", f"{command} --help")
    if command != "convert":  # convert writes only TOML
        known = "expected one of table, json, csv, markdown"
        refused(run(command, name, *needed, "--format", "xml"), "--format: 'xml'", known)
        refused(run(command, name, *needed, "--format"), "--format")
    refused(run(command, name, *needed, "-o", str(tmp_path)), "--output", "is a folder")
    if command not in ("presets", "hardware", "shape", "verify"):
        refused(run(command, *needed), "missing argument TARGET", f"{command} --help")
    assert not list(tmp_path.iterdir())


USAGE = {
    "parms llama3-8b": "Did you mean params",
    "--nope": "--nope",
    "llama3-8b": "'llama3-8b' is a model; expected a command first: llmcalc memory llama3-8b",
    "plot my.gguf": "expected a command first: llmcalc plot memory my.gguf",
    "params llama3-8b --json": "No such option: --json; expected --format json (llmcalc params --help explains)",
    "params llama3-8b --quantize q4_k_m": "No such option: --quantize; llmcalc memory and fit have it",
    "serve llama3-8b --launch compose.yml": "(llmcalc memory and llmcalc fit take --launch FILE)",
    "params llama3-8b --nonsense": "No such option: --nonsense",
    "memory llama3-8b --gpu h100": "No such option: --gpu; expected --hardware",
    "plan qwen3-0.6b --engine vllm": "No such option: --engine; expected llmcalc fit, memory, time or kv",
    "kv llama3-8b --ctx 8k": "No such option: --ctx; expected --seq",
    "serve llama3-8b --isl 4k": "No such option: --isl; expected --input",
    "serve llama3-8b --qps 4": "No such option: --qps; expected --rate (",
    "time llama3-8b --mfu 0.4": "expected --measured SECONDS of a step (llmcalc flops --tokens-per-second has",
    "time llama3-8b --tokens 1T": "expected --seq of each sequence (llmcalc cost takes the --tokens of a training run)",
    "cost llama3-8b --mfu 0.4": "expected --step SECONDS of a measured step",
    "flops llama3-8b --mfu": "No such option: --mfu; expected --tokens-per-second",
    "fit llama3-8b --vram 24": "expected --hardware SIZE, such as 24GiB",
    "memory llama3-8b --flash-attn": "expected --attn-implementation flash",
    "memory llama3-8b --zero3": "expected --zero 3",
    "memory llama3-8b --tensor-model-parallel-size 2": "expected --tp",
    "memory llama3-8b --per-device-train-batch-size 2": "expected --batch",
    "mfu llama3-8b": "Did you mean flops --tokens-per-second?",
    "schedule --pp 4": "Did you mean plot schedule?",
    "params gpt2 -o counts.xlsx": "counts.xlsx: .xlsx is not written; expected .json, .csv or .md, or .txt for",
    "trace llama3-8b": "Did you mean serve --trace?",
    "memory llama3-8b --engine trtllm --hardware h100": "Did you mean tensorrt-llm?",
    "time llama3-8b --isl 4k": "No such option: --isl; expected --phase prefill --seq N for a prompt",
    "plan llama3-8b --hardware h100 --launch run.sh": "expected --global-batch N and the run's other settings "
    "(llmcalc memory and llmcalc time take --launch FILE)",
    "memory llama3-8b --engine vllm --hardware h100 --context 8k": "no such flag. Did you mean --max-model-len?",
    "memory llama3-8b --engine vllm --accelerator h100": "vLLM has no such flag; expected --hardware",
    "fit llama3-8b 3090": "'3090': llmcalc fit takes one accelerator as --hardware rtx-3090",
    "fit llama3-8b 2 3090": "'2 3090': llmcalc fit takes an accelerator as an option (2 3090: 2 "
    "accelerators; expected one, --hardware rtx-3090, and --devices 2 where a command has it)",
    "time llama3-8b h100 8k": "'h100 8k': llmcalc time takes one accelerator as --hardware h100-sxm",
    "memory llama3-8b 8 h100 80gb": "(8 h100 80gb: 8 accelerators; expected one, --hardware h100-sxm, and --devices 8",
    "memory llama3-8b 8 users": "'8 users': llmcalc memory takes no further argument",
    "time llama3-8b qwen3-8b h100": "takes one model; llmcalc compare takes several",
    "fit llama3-8b 8": "'8': llmcalc fit takes no further argument",
    "fit llama3-8b --engine vllm --gpu h100": "--gpu: vLLM has no such flag; expected --hardware",
    "fit llama3-8b --engine vllm --hardware h100 --json": "vLLM has no such flag; expected --format json",
    "params llama3-8b --format md": "expected one of table, json, csv, markdown. Did you mean markdown?",
    "memory gpt2 --dtype int4 --quantize nf4": "with --quantize nf4 this is the format of the tensors that stay",
    "memory llama3-8b --zero 3 --phase inference": "--framework fsdp2 (--fsdp or --zero 3): is of training; ",
    "memory llama3-8b --batch_size 4": "No such option: --batch_size; expected --batch",
    "memory llama3-8b --load-in-4bit": "expected --quantize nf4, or --base nf4 with --lora-rank N",
    "memory llama3-8b --gpu-memory-utilization 0.9": "a flag of an engine needs --engine, such as vllm",
    "memory llama3-8b llama3-70b": "'llama3-70b': llmcalc memory takes one model; llmcalc compare takes several",
    "schema llama3-8b": "'llama3-8b': llmcalc schema takes no model (llmcalc schema --help explains)",
    "cost llama3-8b --hardware h100 --days 3": "No such option: --days (llmcalc cost --help explains)",
    "cost llama3-8b --hardware h100 --optimzer muon": "No such option: --optimzer. Did you mean --optimizer, ",
    "memory llama3-8b --phase training --framework megatron --fsdp 8": "--fsdp: without --launch, --framework",
    "time llama3-8b --hardware h100 --framework megatron --fsdp 8": "megatron has at most ZeRO stage 1; ",
    "plan llama3-8b --hardware h100 --devices 8 --framework megatron --zero 3": "--zero 3: without --launch, ",
    "hardware 0GiB": "error: 0GiB: not a memory size; expected whole bytes, more than 0, such as 24GiB",
    "memory llama3-8b --engine vllm=": "--engine vllm=: expected two equals signs: vllm==VERSION",
    "memory llama3-8b --engine vllm=0.19=1": "--engine vllm=0.19=1: expected two equals signs: vllm==0.19=1",
    "memory llama3-8b --hardware 0GiB": "--hardware: 0GiB: not a memory size; expected whole bytes, more than 0",
    "budget one two": "'two': llmcalc budget takes no further argument",
    "plan llama3-8b": "missing option --hardware NAME, such as h100 (llmcalc plan --help explains)",
    "cost llama3-8b": "such as h100 (llmcalc cost --help explains); for example: llmcalc cost llama3-8b --tokens 1T "
    "--hardware h100 --devices 64, or llmcalc cost phi-4 --requests 1M --input 4k --output 1k --hardware l4",
    "memory llama3-8b --max_new_tokens 512": "--max_new_tokens; expected --seq N, the tokens of prompt and answer",
    "memory llama3-8b --n_ctx 4096": "No such option: --n_ctx; expected --seq",
    "memory llama3-8b --n_gpu_layers 35": "--n_gpu_layers; a flag of an engine needs --engine, such as llama.cpp",
    "params llama3-8b -o json": "--output: json is a format; expected --format json, or a file such as answer.json",
    "fit llama-70b": "Did you mean llama3.3-70b, llama3.1-70b, llama3-70b?",
    "params deepseek": "Did you mean deepseek-v",  # the newest, not the shortest name
    "params gpt-4o": "'gpt-4o': its maker publishes no size or config",
    "memory llama3-8b --engine ollama --hardware 2xm4-max": "2 devices; a Mac has one GPU, and several are not joined",
    "memory llama3-8b --engine llama.cpp --hardware 17x3090": "17 devices; expected at most 16, as many as ggml has",
    "time llama3-8b --engine llama.cpp --hardware 17x3090": "llama.cpp divides layers among up to 16 accelerators",
    "time llama3-8b --engine vllm --hardware 3x3090": "--devices 3: vLLM divides each matrix among all of them (tp 3), "
    "and --tp does not divide the heads; nearest layouts: --dp 3",
    "time llama3-8b --engine lmstudio --hardware 3090": "LM Studio runs llama.cpp; expected llama.cpp with",
    "time llama3-8b --engine vllm=0.9 --hardware 3090": "--engine vllm=0.9: expected two equals signs: vllm==0.9",
    "memory gpt2 --phase training --lora-rank 8 --lora-targets ,": "--lora-targets: names no layer; expected all",
    "memory llama3-8b --engine vllm --hardware 3x3090": "--hardware 3x3090: --tensor-parallel-size 3: does not divide",
    "memory llama3-8b --hardware 4x780m": "--hardware: 780m: a GPU in a processor",
    "params qwen1.5": "Did you mean qwen1.5-4b, qwen1.5-7b, qwen1.5-14b?",
    "models": "there is no command 'models'. Did you mean presets?",
    "kv llama3-8b --tensor-parallel-size 8": "No such option: --tensor-parallel-size; expected --tp",
    "serve mixtral-8x7b --tp 2 --enable-expert-parallel": "expected --ep N, as many as --tp times --dp",
    "memory --model llama3-8b": "No such option: --model; expected the model without it: llmcalc memory llama3-8b",
    "kv llama3-8b --dtype fp16x": "error: --dtype: unknown cache format 'fp16x'",
    "memory llama3-8b --phase training --fsdp --hardware h100": "--fsdp: expects a value before --hardware",
    "explain llama3-8b kv": "the model has no node 'kv'. It is a quantity of every node: --quantity kv",
    "check compose.yml": "is read as CHECKPOINT (a launch file: llmcalc memory --launch compose.yml); expected",
    "check llama3-8b": "missing argument TARGET: 'llama3-8b' is read as CHECKPOINT; expected TARGET after it",
    "params /dev/stdin": "/dev/stdin: a pipe is no file of a model; expected -, and the text on standard input",
    "shape 7B": "'7B' is a size and no model; expected a model's name (llmcalc presets --min-params 6.3B --max-params "
    "7.7B lists some), or llmcalc shape --params 7B",
    "memory llama3-8b --seq 10.000": "--seq: '10.000': groups of digits have commas or underscores between them; "
    "expected 10000",
    "flops llama3-8b --seq 0.125": "--seq: '0.125' is not a whole number",
    "check llama3-8b --params 8.03B": "No such option: --params; it compares a checkpoint; llmcalc budget checks "
    "numbers, such as params = '<= 8.1B' in a table [[model]] of llmcalc.toml",
    "budget --params 8B": "No such option: --params; bounds stand in FILE, such as params = '<= 8.1B' in a table",
    "budget --max-params 8B": "bounds stand in FILE, such as params = '<= 8.1B' in a table [[model]]",
    "time llama3-8b --hardware h100 --ttft 1s": "No such option: --ttft; llmcalc serve has it",
    "memory llama3-8b --dtype exl2": "Schemes of quantized weights are values of --quantize.",
    "shape --params 7.000.000.000": "--params: '7.000.000.000': groups of digits have commas or underscores between",
    "memory llama3-8b --hardware cpu": "--hardware: cpu: no figures are known of it; expected its memory alone, such",
    "fit gemma3-4b --hardware mini-gx20": "no accelerator called 'mini-gx20'",  # which is no 20 of a mini-g
    "fit gemma3-4b --hardware groq": "--hardware: groq: weights lie in the SRAM of many such chips, whose times",
    "fit gemma3-4b --hardware iphone": "--hardware: iphone: no figures are known of it; expected its memory alone",
    "fit gemma3-4b --hardware 64gb-ram": "expected its memory alone, such as 64GiB, a processor with figures (epyc-",
    "time gemma3-4b --hardware ryzen-5950x": "or for times a .toml file with like = 'ryzen-9-7950x', memory_bytes, "
    "memory_bandwidth (channels x 8 bytes x rate) and peak_flops = { float32 = cores x FLOP per clock "
    "(16 for 128-bit units, 32 for AVX2, 64 for AVX-512) x clock }",
    "time gemma3-4b --hardware epyc": "a processor with figures (epyc-9354, epyc-9554, epyc-9654), or for times",
    "memory gemma3-4b --hardware raspberry-pi-5-64gb": "does not sell the Raspberry Pi 5 with 64 GB; expected one of "
    "raspberry-pi-5-1gb, raspberry-pi-5-2gb, ",
    "memory qwen3-8b --engine vllm --hardware ryzen-9-7950x": "expected a GPU of NVIDIA",
    "compare h100 h200": "'h100' is an accelerator; expected a model's name (llmcalc hardware has their figures",
    "memory llama3-8b --ep 2 --devices 2": "--ep 2: the model has no routed experts to divide; remove it",
    "time llama3-8b --ep 2 --devices 2 --hardware h100": "--ep 2: the model has no routed experts to divide; remove it",
    "kv llama3-8b --ep 2": "--ep 2: the model has no routed experts to divide; remove it",
    "fit llama3-8b --ep 2 --tp 2 --hardware h100": "--ep 2: the model has no routed experts to divide; remove it",
    "fit llama3-8b --hardware h100 --pp 48": "--pp 48: more stages than the 32 layers; nearest layouts: --pp 32;",
    "time llama3-8b --hardware h100 --devices 96 --pp 48": "--pp 48: more stages than the 32 layers; nearest layouts: "
    "--pp 32 --dp 3",
    "cost llama3-8b --hardware h100 --devices 96 --pp 48 --tokens 1T": "most because more stages than layers; nearest "
    "layouts: --pp 32 --dp 3",
    "memory llama3-8b --engine lmdeploy": "--engine: LMDeploy is not modelled; without --engine, memory has the",
    "fit llama3-8b --engine exllamav3": "EXL2 and EXL3, are not modelled; without --engine, a scheme with about as",
    "time llama3-8b --hardware h100 --n-cpu-moe 9": "llmcalc memory, fit and kv take it with --engine llama.cpp",
    "memory llama3-8b --dtype q4_k_m": "Schemes of quantized weights are values of --quantize.",
    "memory llama3-8b --engine ktransformers": "expected llama.cpp, whose --n-cpu-moe N leaves the experts",
    "memory llama3-8b --hardware 24G": "--hardware: 24G: not understood as a memory size; expected 24GB or 24GiB",
    "memory llama3-8b --hardware 24,5GB": "24,5GB: not understood as a memory size; expected 24.5GB or 24.5GiB",
    "memory llama3-8b --hardware 24 GiB": "'GiB': llmcalc memory takes a size and its unit as one word, such as 24GiB",
    "memory llama3-8b --hardware 80": "--hardware: 80: not understood as a memory size; expected 80GB or 80GiB",
    "memory llama3-8b --engine vllm=0.19": "--engine vllm=0.19: expected two equals signs: vllm==0.19",
    "compare llama3-8b,gpt2": "'llama3-8b,gpt2': models are separate words; expected llama3-8b gpt2",
    "flops llama3-8b --batch 0": "--batch: 0 is too small; expected at least 1",
    "flops llama3-8b --batch -1": "--batch: -1 is too small",
    "flops llama3-8b --batch abc": "--batch: 'abc' is not a whole number",
    "flops llama3-8b --seq 1.5": "--seq: '1.5' is not a whole number",
    "flops llama3-8b --seq 99999999999999999999": "is too large; expected at most",
    "flops llama3-8b --phase eat": "--phase: 'eat'",
    "flops llama3-8b --phase decode --context 0": "--context: decoding needs at least one token before it",
    "flops bert-base --phase decode --context 9": "bert-base: --phase decode",
    "flops llama3-8b bert-base --phase decode": "bert-base: --phase decode: an encoder-only model keeps no cache",
    "flops llama3-8b --source 4": "--source: only applies to encoder-decoder models",
    "kv bert-base": "bert-base: an encoder-only model keeps no KV cache",
    "kv llama3-8b --kv-dtype bf17": "--kv-dtype: unknown cache format 'bf17'",
    "memory llama3-8b --kv-dtype=": "--kv-dtype: unknown cache format ''",
    "memory llama3-8b --phase training --optimizer adamx": "--optimizer: 'adamx'",
    "memory llama3-8b --hardware h1000": "h100-sxm",
    "convert gpt2 -o gpt2.yaml": "--output: gpt2.yaml: no format is known by .yaml; expected .toml or .json, or --to",
    "memory --launch missing.sh --hardware h100 --max-num-seqs 32": "missing.sh: No such file or directory",
    "fit llama3-8b --hardware h100,a100": "expected one (memory takes --hardware h100 --hardware a100)",
    "fit llama3-8b --hardware h100 --hardware=a100": "--hardware: h100 and a100: the answer is for one accelerator",
    "compare llama3-8b --sort weight": "--sort: there is no 'weight'; expected one of params",
    "explain llama3-8b attention": "no node 'attention'. Did you mean self_attn?",
    "explain t5-small attention": "Did you mean self_attn, cross_attn?",
    "explain llama3-8b feed_forward": "Did you mean mlp?",
    "memory gpt2 --phase training --framework megatron --tp 2 --pp-layout 99999999999999999999": "--pp-layout: "
    "99999999999999999999 layers of a stage; expected at most 100,000",
    "serve gpt2 --hardware h100 --input 1000000000000 --output 1000000000000": "--input, --output: 2,000,000,000,000 "
    "tokens of a request are too many; expected at most",
    "shape": "expected a TARGET",
    "shape --params -3": "--params: '-3'",
    "shape --params nan": "--params: 'nan'",
    "explain llama3-8b no_such_node": "no node 'no_such_node'",
    "verify": "missing argument TARGET; expected one or more, or --all",
    "params gpt2 --format": "--format: expects a value (llmcalc params --help explains)",
    "memory gpt2 --draft mtp": "'mtp' drafts tokens without a model, for llmcalc serve --draft alone; expected",
    "memory gpt2 --draft eagle": "'eagle' is a kind of draft models; expected a draft's own config: its hub id, folder",
    "cost llama3-8b --tokens 1B --hardware h100 --devices 8 --ep 2": "--ep 2: the model has no routed experts",
    "verify llama3-8b --all": "--all: verifies all presets; expected --all or TARGETs, not both",
    "memory gpt2 --engine vllm --hardware h100 --phase decode": "--phase: vLLM has no such flag; remove it, or remove"
    " --engine (--phase is an option of runs without an engine)",
    "memory llama3-8b --engine vllm --hardware h100 --fsdp 8": "--fsdp: vLLM has no such flag; remove it, or",
    "memory llama3-8b --engine vllm --hardware h100 --optimizer adamw": "--optimizer: vLLM has no such flag; remove it",
    "memory llama3-8b --engine vllm --hardware h100 --lora-rank 8": "--lora-rank: vLLM has no such flag; remove it",
    "memory llama3-8b --engine vllm --hardware h100 --cp 2": "--cp: vLLM has no such flag; remove it, or",
    "memory llama3-8b --engine tensorrt-llm --hardware h100 --pp 2": "has no such flag. Did you mean --pp-size?",
    "memory llama3-8b --engine tensorrt-llm --hardware h100 --tp 2": "Did you mean --tensor-parallel-size?",
    "memory llama3-8b --engine vllm --hardware h100 --qqq 8": "--qqq: vLLM has no such flag; remove it",
    "memory gpt2 --engine llama.cpp --hardware h100 --tp 2": "--tp: llama.cpp has no such flag; expected --devices 2",
    "memory llama3-8b --engine ollama --hardware h100 --tp 2": "expected --devices 2, over which it divides",
    "time llama3-8b --engine llama.cpp --hardware 2x3090 --tp 2": "--tp: llama.cpp has no such flag",
    "memory llama3-8b --phase training --hardware 2x3090 --fsdp 4": "--fsdp 4 does not divide 2 devices",
    "memory llama3-8b --hardware 2x3090 --tp 4": "--hardware 2x3090: --tp 4 does not divide 2 devices",
    "verify llama3-8b --against you": "--against: 'you'",
    'params bert-base --set pooler={"dense":false}': "model.pooler.num_labels: missing; a pooler without a dense map",
    "params llama3-8b --set contact_head={}": "model.contact_head: reads the attention maps of an encoder whose layers",
    'params bert-base --set mtp={"num_nextn_predict_layers":1}': "model.mtp: multi-token prediction stands on a "
    "decoder",
}


@pytest.mark.parametrize("line", USAGE)
def test_bad_usage(line: str, run: Any) -> None:
    refused(run(*line.split()), USAGE[line])


def test_options_are_read_with_underscores_too_and_help_by_other_spellings(run: Any) -> None:
    assert run("kv", "gpt2", "--kv_dtype=fp8").out == run("kv", "gpt2", "--kv-dtype", "fp8").out
    assert run("kv", "-h").out == run("help", "kv").out == run("kv", "--help").out
    assert run("version").out == run("--version").out


def test_every_other_name_stands_for_an_option_of_some_command() -> None:
    commands = [typer.main.get_command(app).get_command(None, command) for command in COMMANDS]
    options = {name for command in commands for parameter in command.params for name in parameter.opts}
    assert {name.partition(" ")[0] for name in OTHER_OPTION_NAMES} <= options
    assert {name.partition(" ")[0] for name in OTHER_COMMANDS} <= set(COMMANDS)


SHALLOW = "gpt2?num_hidden_layers=2"
RUNS = {
    "memory": (SHALLOW, "--phase", "training", "--tp", "2"),
    "fit": (SHALLOW, "--hardware", "h100", "--devices", "2"),
    "plan": (SHALLOW, "--hardware", "h100", "--devices", "2", "--seq", "64"),
}


def options_of(command: str) -> set[str]:
    """The options of a command that take a value."""
    return {
        max(option.opts, key=len)
        for option in typer.main.get_command(app).get_command(None, command).params  # type: ignore[attr-defined]
        if option.param_type_name == "option" and not option.is_flag
    }


@pytest.mark.parametrize(
    ("command", "value"),
    spread(
        with_rest(
            {f"{command}-{value}": (command, value) for command in RUNS for value in ("xyz", "-1", "")},
            ["memory-xyz", "memory--1", "plan--1"],
        )
    ),
)
def test_an_error_names_its_option_once(
    command: str, value: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `fit` and `plan`, the options that `memory` does not have."""
    monkeypatch.chdir(tmp_path)  # --output takes any name
    options = options_of(command) - (options_of("memory") if command != "memory" else set())
    assert len(options) > (0 if command != "memory" else 30)
    messages = [run(command, *RUNS[command], option, value).err for option in sorted(options)]
    assert sum(message.startswith("error: --") for message in messages) > (0 if command != "memory" else 20)
    for message in messages:
        assert message.count("\n") <= 1
        assert not re.search(r"(\S+: )\1", message), message


def test_a_witness_that_cannot_hold_the_sizes(run: Any) -> None:
    pytest.importorskip("torch")
    refused(
        run("verify", "llama3-8b", "--set", f"hidden_size={2**40}", "--set", f"intermediate_size={2**40}"),
        "llama3-8b: --against reference cannot run",
    )


def test_nothing_is_half_written(run: Any, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    refused(run("verify", "gpt2", "--junit", str(report), "-o", str(tmp_path)), "--output")
    refused(run("verify", "gpt2", "--junit", str(tmp_path)), "--junit")
    refused(run("params", "gpt2", "no-such-model", "-o", str(report)), "no-such-model")
    assert not list(tmp_path.iterdir())


LARGE = [
    "llama3-8b --set num_hidden_layers=100000",
    "gemma2-9b --set num_hidden_layers=100000",
    "mixtral-8x7b --set num_experts=1000000",
]


@pytest.mark.parametrize("arguments", LARGE)
def test_the_largest_sizes_take_no_memory(arguments: str) -> None:
    """Depth and experts are numbers, never lists of parts: the largest sizes need at most 400 MB of address space."""
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (400_000_000,) * 2)\nfrom llmcalc.cli.main "
        "import main\nmain()"
    )
    for command in ("params", "flops"):
        line = [sys.executable, "-c", code, command, *arguments.split()]
        result = subprocess.run(line, capture_output=True, text=True, timeout=300, check=True)
        assert result.stdout
