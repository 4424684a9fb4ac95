"""The worst known `config.json` files, and the command line's messages for damaged ones.

Each takes less than 2 s and 300 MB with every command that reads it; a rejected one leaves no output file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.components.base import LARGEST_SIZE
from llmcalc.components.rope import Rope
from llmcalc.errors import InputError
from llmcalc.sources.huggingface.config import Config as TypedConfig
from tests.families import shapes_of
from tests.samples import in_one_test
from tests.sources.test_fuzz_config import LLAMA, SIZED, Config

DEEP = {**LLAMA, "num_hidden_layers": 100_000}
MIXED = {**DEEP, "model_type": "qwen3", "num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 16}
KINDS = {
    "model_type": "gemma3n_text",
    **SIZED,
    "num_hidden_layers": 256,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_kv_shared_layers": 0,
    "layer_types": ["full_attention"] * 256,
    "intermediate_size": list(range(100, 356)),
}
SOME = json.dumps(LLAMA)
EVERY_COMMAND = ("params", "flops", "kv", "memory", "explain", "compare", "convert")

FINE: dict[str, tuple[Any, tuple[str, ...]]] = {
    "as deep as may be": (DEEP, EVERY_COMMAND),
    "a pattern that never ends": (
        {
            **MIXED,
            "layer_types": [*["full_attention", "sliding_attention", "full_attention"] * 33_333, "sliding_attention"],
        },
        EVERY_COMMAND,
    ),
    "the last layer alone differs": (
        {**MIXED, "layer_types": ["full_attention"] * 99_999 + ["sliding_attention"]},
        ("params", "flops", "kv"),
    ),
    "as many kinds as may be": (KINDS, ("params", "flops", "kv", "memory", "convert")),
    "every size as large as may be": (
        {
            **LLAMA,
            **dict.fromkeys((*SIZED, "head_dim", "num_key_value_heads", "max_position_embeddings"), 2**40),
            "num_hidden_layers": 100_000,
        },
        EVERY_COMMAND,
    ),
    "layers taken one by one": (
        {
            **LLAMA,
            "num_hidden_layers": 1000,
            "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32},
        },
        ("memory",),
    ),
    "lists that nobody asked for": ({**LLAMA, "x": [[]] * 1_240_000}, ("params",)),
    "tables that nobody asked for": ({**LLAMA, "x": [{"": 0}] * 550_000}, ("params",)),
    "labels": (
        lambda: {
            **LLAMA,
            "architectures": ["LlamaForSequenceClassification"],
            "id2label": {str(i): "" for i in range(350_000)},
        },
        ("params",),
    ),
    "a name and fields that a terminal obeys": (
        {**LLAMA, "_name_or_path": "\x1b[31m\n" * 1000, "\x1b[31mred\n": 1},
        ("params",),
    ),
    "a field twice: the last holds": (SOME[:-1] + ', "num_hidden_layers": 0, "num_hidden_layers": 3}', ("params",)),
    "a byte order mark": (b"\xef\xbb\xbf" + SOME.encode(), ("params",)),
}
"""Configs that are counted: (content, or a function that makes a large one; commands)."""

REFUSED: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "a million layers": (
        {**LLAMA, "num_hidden_layers": 10**6},
        EVERY_COMMAND,
        "num_hidden_layers: 1000000; expected a positive whole number, at most 100000",
    ),
    "a billion layers": ({**MIXED, "num_hidden_layers": 10**9}, ("params",), "num_hidden_layers: 1000000000"),
    "more layers than are taken one by one": (
        {**DEEP, "quantization_config": {"quant_method": "fp8"}},
        ("memory",),
        "too many for --quantize; expected at most 1000",
    ),
    "layers in an order that does not come again": (
        {**MIXED, "layer_types": [*["full_attention"] * 50_000, *["sliding_attention"] * 50_000]},
        ("memory",),
        "50,000 layers that repeat no pattern are too many for memory; expected at most 256",
    ),
    "more kinds than may be": (
        {
            **KINDS,
            "num_hidden_layers": 257,
            "intermediate_size": list(range(1, 258)),
            "layer_types": ["full_attention"] * 257,
        },
        ("params",),
        "more than 256 kinds",
    ),
    "more kinds than are explained": (KINDS, ("explain",), "256 kinds of layers are too many for one formula"),
    "a list of layers that are none": (
        {**MIXED, "layer_types": ["x"] * 900_000},
        ("params",),
        "layer_types: a list; expected 100000 times full_attention",
    ),
    "a list of sizes": (
        {**LLAMA, "hidden_size": [2**39] * 300_000},
        ("params",),
        "hidden_size: a list; expected a positive whole number",
    ),
    "sizes past all": (
        {**LLAMA, **dict.fromkeys(SIZED, 10**4000)},
        ("params",),
        "…; expected a positive whole number, at most",
    ),
    "10^5 tables in each other": ('{"a": ' * 10**5 + "1" + "}" * 10**5, ("params",), "nested too deeply"),
    "10^5 lists in each other": ('{"a": ' + "[" * 10**5 + "]" * 10**5 + "}", ("params",), "nested too deeply"),
    "100 lists in each other": (
        SOME[:-1] + ', "quantization_config": ' + "[" * 100 + "]" * 100 + "}",
        ("params", "memory"),
        "nested too deeply",
    ),
    "a number of 10^5 digits": (SOME.replace("64", "6" * 10**5), ("params",), "a number of thousands of digits"),
    "a float of 10^5 digits": (
        SOME.replace("64", "6" * 10**5 + ".0"),
        ("params",),
        "hidden_size: inf; expected a positive whole number",
    ),
    "NaN": (SOME.replace("64", "NaN"), ("params",), "hidden_size: nan; expected a positive whole number"),
    "-Infinity": (SOME.replace("64", "-Infinity"), ("params",), "hidden_size: -inf; expected a positive whole number"),
    "too large a file": ({**LLAMA, "x": "x" * 5_000_000}, EVERY_COMMAND, "bytes is too large"),
    "half a letter of UTF-16": (SOME.encode("utf-16")[:-1], ("params",), "is not UTF-16); expected a .json file in"),
    "UTF-16 without its mark": (SOME.encode("utf-16-le"), ("params",), "not valid JSON"),
    "truncated": (SOME[:-9], ("params",), "not valid JSON"),
    "binary": (bytes(range(256)) * 99, ("params",), "not a text file"),
    "empty": (b"", ("params",), "not valid JSON: it is empty"),
    "a comma after the last field": ('{"model_type": "llama",}', ("params",), "comma"),
    "a comment": ('// llama\n{"model_type": "llama"}', ("params",), "JSON has no comments"),
    "a page of HTML": ("<!DOCTYPE html><html>", ("params",), "it is a page of HTML or XML; expected the raw file"),
    "a pointer": ("version https://git-lfs.github.com/spec/v1\n", ("params",), "which git lfs pull fetches"),
    "200,000 unknown fields": (  # each was compared with all names, in 40 seconds
        {**LLAMA, **{f"field{number}": 1 for number in range(200_000)}},
        ("params",),
        "config: 200,000 fields are unknown; expected at most 1,000",
    ),
    "single quotes": ("{'model_type': 'llama'}", ("params",), "double quotes"),
    "a list": ("[]", ("params",), "expected a JSON object"),
    "null": ("null", ("params",), "expected a JSON object"),
    "an empty table": ("{}", ("params",), "model_type: missing"),
    "a list for a model type": ('{"model_type": ["llama"]}', ("params",), "model_type: "),
    "a slow pattern": (
        {**LLAMA, "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["(.|.)" * 40 + "x"]}},
        ("memory",),
        "expected a pattern that is quick to match",
    ),
    "patterns that are slow together": (
        {
            **LLAMA,
            "num_hidden_layers": 900,
            "quantization_config": {
                "quant_method": "fp8",
                "modules_to_not_convert": [f".*.*.*.*{i}x" for i in range(99)],
            },
        },
        ("memory",),
        "its patterns take longer than 1 s",
    ),
}
"""Configs that are rejected: (content, commands, words of the message)."""

MEASURED = """
import io, json, resource, sys
from contextlib import redirect_stderr, redirect_stdout
from llmcalc.cli.main import main
resource.setrlimit(resource.RLIMIT_CPU, (240, 240))  # what does not end is killed: all of them take 20 s
for line in sys.stdin.read().splitlines():
    sys.argv = ["llmcalc", *json.loads(line)]
    out, err, code = io.StringIO(), io.StringIO(), 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = stop.code
    except BaseException as error:
        code = repr(error)
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(json.dumps([code, out.getvalue()[:2000], err.getvalue(), int(peak)]))
"""


def measured(commands: list[list[str]]) -> list[tuple[Any, str, str, int]]:
    """Returns (exit code, start of stdout, stderr, peak memory so far in KiB) of commands that one process runs in
    sequence.
    """
    lines = "\n".join(json.dumps(command) for command in commands)
    done = subprocess.run([sys.executable, "-c", MEASURED], input=lines, capture_output=True, text=True, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def written(content: Any, folder: Path, name: str) -> str:
    path = folder / re.sub(r"\W+", "-", name) / "config.json"
    path.parent.mkdir()
    content = content() if callable(content) else content
    path.write_bytes(
        content
        if isinstance(content, bytes)
        else (content if isinstance(content, str) else json.dumps(content)).encode()
    )
    return str(path)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its memory there")
@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["most commands", "every command"]
)
def test_the_worst_come_to_an_end_in_little_memory(every: bool, tmp_path: Path) -> None:
    """every: with every command that reads a config. Else the first alone; the deepest has two more, which read every
    layer's tensors and write all layers.
    """
    cases = [*((name, *case, "") for name, case in FINE.items()), *((name, *case) for name, case in REFUSED.items())]
    paths = {name: written(content, tmp_path, name) for name, content, *_ in cases}
    questions = [(name, commands[0], paths[name], words) for name, _, commands, words in cases]
    questions += [
        (name, command, paths[name], words)
        for name, content, commands, words in cases
        for command in commands[1:]
        if every or (content is DEEP and command in ("memory", "convert"))
    ]
    found = measured([[command, path] for _, command, path, _ in questions])
    assert len(found) == len(questions)
    for (name, command, _, words), (code, out, err, peak) in zip(questions, found, strict=True):
        where = f"{command} of {name}: {code} {err[:300]}"
        assert code == (2 if words else 0), where
        assert words in err, where
        assert all(line.isprintable() and len(line) < 1100 for line in err.splitlines()), where
        assert bool(out) is not bool(words), where
        assert err.count("error: ") == bool(words), where
        assert peak < 300_000, (where, peak)


# --- elements of lists ------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("item", ["4", True, None, -1, 2.0, LARGEST_SIZE + 1, [4]], ids=repr)
def test_an_element_that_is_no_size_is_refused(item: Any) -> None:
    assert TypedConfig({"widths": [0, 4]}, {}, "toy").integers("widths") == [0, 4]
    with pytest.raises(InputError, match=r"^widths: .*; expected a list of whole numbers$"):
        TypedConfig({"widths": [4, item]}, {}, "toy").integers("widths")


@pytest.mark.parametrize("item", [4, True, None, ["full"]], ids=repr)
def test_an_element_that_is_no_text_is_refused(item: Any) -> None:
    assert TypedConfig({"kinds": ["full"]}, {}, "toy").texts("kinds") == ["full"]
    with pytest.raises(InputError, match=r"^kinds: .*; expected a list of texts$"):
        TypedConfig({"kinds": ["full", item]}, {}, "toy").texts("kinds")


@in_one_test
@pytest.mark.parametrize("kind", ["granite_swa", "muse_spark_text"])
@pytest.mark.parametrize("base", ["10000", True, None, -1, LARGEST_SIZE + 1], ids=repr)
def test_a_base_of_rope_that_is_no_number_is_refused(base: Any, kind: str) -> None:
    config = next(shape for shape in shapes_of(kind) if shape.get("layer_rope_theta"))
    bases = config["layer_rope_theta"]
    for wrong in ([base, *bases[1:]], bases[1:], base if base is not None else "none"):
        with pytest.raises(InputError, match=r"^layer_rope_theta: .*; expected \d+ bases of RoPE"):
            llmcalc.params({**config, "layer_rope_theta": wrong})


def test_each_layer_has_its_base_of_rope() -> None:
    config = next(shape for shape in shapes_of("granite_swa") if shape.get("layer_rope_theta"))
    stack = llmcalc.load(config).model.main
    positions = [stack.variants[name].attention.position for name in stack.layer_names()]
    bases = [position.rope_theta if isinstance(position, Rope) else 0 for position in positions]
    assert bases == config["layer_rope_theta"] == [0, 10000.0, 500000, 0.0]


@pytest.mark.parametrize("class_name", ["T5EncoderModel", "T5ForTokenClassification"])
def test_an_encoder_of_t5_with_cross_attention_is_refused(class_name: str) -> None:
    config = {**shapes_of("t5")[0], "architectures": [class_name]}
    assert llmcalc.params({**config, "is_decoder": False}).total == llmcalc.params(config).total
    with pytest.raises(InputError, match=r"^is_decoder: true; expected false .*cross-attention"):
        llmcalc.params({**config, "is_decoder": True})
    music = next(shape for shape in shapes_of("musicgen") if shape["text_encoder"]["model_type"] == "t5")
    with pytest.raises(InputError, match=r"^text_encoder.is_decoder: true"):
        llmcalc.params({**music, "text_encoder": {**music["text_encoder"], "is_decoder": True}})


# --- the command line -------------------------------------------------------------------------------------------------

GEMMA = shapes_of("gemma3_text")[0]
DAMAGED: dict[str, tuple[Config, str]] = {
    "a wrong type": ({**LLAMA, "hidden_size": "64"}, "hidden_size: '64'; expected a positive whole number"),
    "a missing field": (
        {"model_type": "t5gemma", "encoder": {"hidden_size": 0}},
        "encoder.hidden_size: 0; expected a positive whole number",
    ),
    "another name for it": ({**shapes_of("mixtral")[0], "num_local_experts": -1}, "num_local_experts: -1; expected"),
    "a name of its family": ({**shapes_of("gpt2")[0], "n_embd": None}, "n_embd: null; expected"),
    "null": ({**LLAMA, "hidden_size": None}, "hidden_size: null; expected a positive whole number"),
    "true": ({**LLAMA, "hidden_size": True}, "hidden_size: true; expected a positive whole number"),
    "in a wrapper": (
        {"model_type": "gemma3", "text_config": {**GEMMA, "num_hidden_layers": 0}},
        "text_config.num_hidden_layers: 0; expected",
    ),
    "a wrapper around nothing": (
        {"model_type": "gemma3", "text_config": 7},
        "text_config: 7; expected a table of fields",
    ),
    "a wrapper around a wrapper of nothing": (
        {"model_type": "colpali", "vlm_config": {"model_type": "paligemma"}},
        "vlm_config.model_type: 'paligemma' wraps a text model, but the config has no text_config; expected a "
        "text_config in vlm_config",
    ),
    "a wrapper around an unknown": (
        {"model_type": "llava", "text_config": {"model_type": "lama"}},
        "text_config.model_type: 'lama' is not supported. Did you",
    ),
    "a wrapper that only names its text model": (
        {"model_type": "ultravox", "text_model_id": "meta-llama/Llama-3.2-1B-Instruct"},
        "text_model_id: 'meta-llama/Llama-3.2-1B-Instruct' names the text model, whose sizes are not in this config",
    ),
    "a tie that is none": (
        {"model_type": "gemma3", "tie_word_embeddings": 7, "text_config": GEMMA},
        "json: tie_word_embeddings: 7; expected",
    ),
    "sizes that do not fit": (
        {**LLAMA, "num_key_value_heads": 3},
        "num_key_value_heads: 3 does not divide num_attention_heads 4",
    ),
    "what the description calls otherwise": (
        {**shapes_of("mixtral")[0], "num_local_experts": 1},
        "num_experts_per_tok: 2 is more than num_experts 1 (in the config: num_local_experts)",
    ),
    "an unknown number format": ({**LLAMA, "torch_dtype": "float7"}, "'float7'"),
}
"""(config, words of the message with which every command rejects it)."""


@pytest.mark.parametrize("name", DAMAGED)
def test_every_command_says_what_is_wrong(name: str, run: Any, tmp_path: Path) -> None:
    config, words = DAMAGED[name]
    checkpoint, report = tmp_path / "model.safetensors", tmp_path / "report"
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    checkpoint.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    path = written(config, tmp_path, "damaged")
    for line in (*EVERY_COMMAND, "shape", "verify", "memory --quantize q4_k_m", "convert --to hf"):
        command, *options = line.split()
        assert words in run(command, path, *options, "-o", str(report)).error
        assert words in run(command, str(Path(path).parent), *options).error
    assert words in run("check", str(checkpoint), path, "-o", str(report)).error
    assert words in run("compare", "gpt2", path, "-o", str(report)).error
    assert not report.exists()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["damaged", "model.safetensors"]


BERT = {"model_type": "bert", **SIZED}
REFUSED_LATER: dict[str, tuple[Config, str]] = {
    "kv": (BERT, "an encoder-only model keeps no KV cache"),
    "flops --phase decode": (BERT, "--phase decode: an encoder-only model keeps no cache"),
    "memory": (
        {**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 5}},
        "quantization_config of awq: bits: 5",
    ),
    "explain q_prj": (LLAMA, "NODE: the model has no node 'q_prj'"),
    "shape": (BERT, "shape: only decoders are supported, and this model is an encoder"),
    "verify --seq 5000": (BERT, "--seq: 5000 tokens"),
    "verify --against published": (LLAMA, "no exact parameter count was published"),
    "convert --to hf --set k_bias=true": (LLAMA, "no transformers class is known here that computes this architecture"),
}
"""Errors found after reading a config: (the command, words of its message)."""


@pytest.mark.parametrize("line", REFUSED_LATER)
def test_what_is_found_later_names_the_model_too(line: str, run: Any, tmp_path: Path) -> None:
    config, words = REFUSED_LATER[line]
    command, *options = line.split()
    file = written(config, tmp_path, "somewhere")
    assert f"error: {file}: {words}" in run(command, file, *options).error


def test_a_file_that_is_there_stays_as_it_is(run: Any, tmp_path: Path) -> None:
    """Damage that is detected when the output is written, after the config was read."""
    path, report = (
        written({**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 5}}, tmp_path, "damaged"),
        tmp_path / "report",
    )
    report.write_text("of yesterday")
    error = run("memory", path, "-o", str(report)).error
    assert "bits: 5; expected one of 4 (--quantize none counts without it)" in error
    error = run("params", "gpt2", path, "--set", "num_key_value_heads=3", "-o", str(report)).error
    assert "num_key_value_heads: 3 does not divide" in error
    assert report.read_text() == "of yesterday"
    note = "the format of the weights is not read (quantization_config of awq: bits: 5): counted as without it"
    for command in ("params", "flops", "kv"):
        assert run(command, path, "--format", "json", "-o", str(report)).code == 0
        assert note in json.loads(report.read_text())["notes"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["damaged", "report"]


def albert(**fields: int) -> dict[str, Any]:
    return {**shapes_of("albert")[0], "num_hidden_layers": 6, **fields}


def test_the_width_of_mobilebert_is_that_of_its_bottleneck() -> None:
    """Its class derives `true_hidden_size`, and has the value that a file states, whatever its bottleneck is."""
    total = llmcalc.params({"model_type": "mobilebert"}).total
    assert llmcalc.params({"model_type": "mobilebert", "true_hidden_size": 128}).total == total
    with pytest.raises(InputError, match="true_hidden_size: 64; expected one of 128"):
        llmcalc.params({"model_type": "mobilebert", "true_hidden_size": 64})


def test_a_class_of_both_stacks_of_t5gemma_is_no_encoder() -> None:
    """Its class has both stacks whatever `is_encoder_decoder` states; a file without a class's name is the encoder."""
    both_stacks, *_, encoder = shapes_of("t5gemma")
    assert llmcalc.params(encoder).total == llmcalc.params({**encoder, "architectures": None}).total
    with pytest.raises(InputError, match="is_encoder_decoder: false; expected true, as T5GemmaFor"):
        llmcalc.params({**both_stacks, "is_encoder_decoder": False})


def test_layers_of_albert_are_those_of_its_groups() -> None:
    """Without `inner_group_num` a group has one layer; all layers run, and each layer of a group has parameters."""
    single, double = (llmcalc.load(albert(**fields)).model for fields in ({}, {"inner_group_num": 2}))
    layers = [model.main.num_hidden_layers for model in (single, double)]
    assert layers == [6, 12]
    first, second = (int(llmcalc.params(albert(**fields)).total) for fields in ({}, {"inner_group_num": 2}))
    third = int(llmcalc.params(albert(inner_group_num=3)).total)
    assert 0 < second - first == third - second
    with pytest.raises(InputError, match="inner_group_num: 10001; expected at most 100000 layers"):
        llmcalc.load(albert(num_hidden_layers=10, inner_group_num=10_001))


@pytest.mark.parametrize(
    ("section", "name", "value", "expected"),
    [
        ("encoder", "n_layers", 3, "encoder.n_layers: 3; expected 2, as encoder_config.num_hidden_layers"),
        (
            "transf_decoder.config_dict",
            "inner_size",
            64,
            "config_dict.inner_size: 64; expected 48, as intermediate_size",
        ),
        ("head", "num_classes", 8, "head.num_classes: 8; expected 96, as vocab_size"),
        ("encoder_config", "num_key_value_heads", 2, "encoder_config.num_key_value_heads: 2; expected one of 8"),
    ],
)
def test_sizes_of_nemo_are_those_that_the_class_reads(section: str, name: str, value: int, expected: str) -> None:
    """Published configs of Cohere Transcribe have NeMo's sections alone; the class reads its defaults."""
    outer, _, inner = section.partition(".")
    table: dict[str, Any] = {name: value}
    shape = shapes_of("cohere_asr")[0]
    with pytest.raises(InputError, match=re.escape(expected)):
        llmcalc.load({**shape, outer: {inner: table} if inner else table})
