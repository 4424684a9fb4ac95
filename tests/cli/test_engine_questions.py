"""The questions of docs/engines.md are each answered by their command."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from llmcalc.cli.main import app
from tests.in_process import Result
from tests.samples import with_rest

ROOT = Path(__file__).parents[2]
SECTION = re.search(r"## Questions that are often asked\n(.*?)\n## ", (ROOT / "docs/engines.md").read_text(), re.DOTALL)
COMMANDS = [] if SECTION is None else re.findall(r"`llmcalc ([^`]+)` \|\n", SECTION[1])


def test_there_are_fifteen() -> None:
    assert len(COMMANDS) == 15


LARGE = "deepseek-v3"
"""A model whose answers take seconds; each engine that the page asks about it answers about another, too."""


@pytest.mark.parametrize("command", with_rest({c: c for c in COMMANDS}, [c for c in COMMANDS if LARGE not in c]))
def test_a_question_has_an_answer(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code in (0, 1), result.output
    assert "GiB" in result.output or "tokens" in result.output
    assert not result.output.startswith("error:")


@pytest.mark.usefixtures("servers_without_changes")
@pytest.mark.parametrize(
    ("general", "own"),
    [
        ("vllm --seq 8k --users 8", "vllm --max-model-len 8192 --max-num-seqs 8"),
        ("vllm --kv-dtype=fp8 --devices 2", "vllm --kv-cache-dtype fp8 --tensor-parallel-size 2"),
        ("sglang -s 8k --devices 2", "sglang --context-length 8192 --tp-size 2"),
        ("llama.cpp --seq 8k --kv-dtype q8_0 --devices 2", "llama.cpp -c 8192 -ctk q8_0 -ctv q8_0 -dev 0,1"),
    ],
)
def test_options_of_llmcalc_set_the_flags_of_an_engine(general: str, own: str) -> None:
    documents = [
        CliRunner().invoke(
            app, ["memory", "qwen3-8b", "--hardware", "h100", "--format", "json", "--engine", *line.split()]
        )
        for line in (general, own)
    ]
    assert documents[0].exit_code == 0, documents[0].output
    assert documents[0].output == documents[1].output


@pytest.mark.usefixtures("servers_without_changes")
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
def test_quantized_weights_leave_more_room_for_the_cache(engine: str, run: Callable[..., Result]) -> None:
    scheme = "q4_k_m" if engine == "llama.cpp" else "fp8-dynamic"
    words = ["qwen3-14b", "--engine", engine, "--hardware", "l40s", "--quantize", scheme, "--format", "json"]
    tokens_of_cache, tokens_of_memory, tokens_in_bf16 = (
        run(*line).document["kv_tokens"]
        for line in (["kv", *words], ["memory", *words], ["kv", *words[:5], *words[7:]])
    )
    assert tokens_of_cache == tokens_of_memory >= tokens_in_bf16
    assert engine == "llama.cpp" or tokens_of_cache > 1.3 * tokens_in_bf16


def test_weights_have_no_scheme_in_a_cache_without_an_engine(run: Callable[..., Result]) -> None:
    assert "for the tokens beside weights add --engine" in run("kv", "qwen3-8b", "--quantize", "fp8-dynamic").error


@pytest.mark.parametrize("command", ["memory", "fit", "kv"])
@pytest.mark.parametrize("argument", ["-s 8k", "-s abc", "-s=8k"])
def test_a_short_option_that_would_be_an_idle_flag_of_the_engine_is_refused(command: str, argument: str) -> None:
    line = f"{command} qwen3-8b --engine llama.cpp --hardware h100 {argument}"
    assert str(CliRunner().invoke(app, line.split()).exception) == (
        "-s: is --seed of llama.cpp, which changes no memory; expected --seq or -c, or remove it"
    )


def test_a_wrong_length_beside_an_engine_names_the_option_that_was_typed() -> None:
    answer = CliRunner().invoke(app, ["memory", "qwen3-8b", "--engine", "vllm", "--hardware", "h100", "--seq", "abc"])
    assert "--seq: 'abc'" in str(answer.exception)


@pytest.mark.usefixtures("servers_without_changes")
def test_users_limit_the_sequences_of_memory_and_fit_alike(run: Callable[..., Result]) -> None:
    words = ["gpt2", "--engine", "vllm", "--hardware", "t4", "--users", "8"]
    fit = run("fit", *words, "--format", "json").document
    assert run("memory", *words, "--format", "json").document["kv_tokens"] == fit["options"][0]["kv_tokens"]
    assert "with --max-num-seqs 8, by --users" in run("fit", *words).out
    for command in "memory", "fit":
        error = run(command, *words, "--max-num-seqs", "4").error
        assert "--users 8: --max-num-seqs says 4; expected at least 8" in error


@pytest.mark.usefixtures("servers_without_changes")
@pytest.mark.parametrize(
    ("flags", "layout", "users"),
    [("", {"--tensor-parallel-size": 4, "--pipeline-parallel-size": 2}, 78.4),
     ("--tp 8", None, 39.8),
     ("--dp 8", {}, 13.2),
     ("--dp 8 --enable-expert-parallel", {}, 13.6)],
    ids=["stages", "tensor parallelism alone", "ranks that divide each expert", "ranks with attention of their own"],
)  # fmt: skip
def test_users_are_divided_over_stages_and_data_parallel_ranks(flags: str, layout: Any, users: float) -> None:
    """Caches of latents are copied by tensor parallelism, and divided by stages; `--devices` counts all replicas.

    Experts of data-parallel ranks gather the tokens of all eight in the profile run, which leaves less cache.
    """
    line = f"fit deepseek-r1 --hardware h200 --devices 8 --users 64 --seq 16k --engine vllm==0.33 {flags}"
    document = json.loads(CliRunner().invoke(app, [*line.split(), "--max-num-seqs", "1024", "--format", "json"]).output)
    (option,) = document["options"]
    assert option["devices"] == 8
    assert option["max_concurrency"] == pytest.approx(users, abs=0.05)
    assert option["fits"] == (layout is not None)
    assert layout in (None, option["flags"])


def test_users_on_screens_are_those_of_all_data_parallel_ranks() -> None:
    line = "fit qwen3-8b --hardware h100 --devices 2 --users 100 --seq 4k --engine vllm==0.33 --dp 2"
    output = CliRunner().invoke(app, line.split()).output
    tokens, users = re.findall(r"h100-sxm +2 +— +([\d,]+) +([\d.]+)", output)[0]
    assert float(users) == pytest.approx(2 * int(tokens.replace(",", "")) / 4096, abs=1)
    assert "data-parallel ranks" in output


@pytest.mark.usefixtures("servers_without_changes")
@pytest.mark.parametrize("engine", ["vllm==0.11.0", "vllm", "sglang"])
def test_blocks_with_a_scale_that_ranks_divide_are_refused(engine: str, run: Callable[..., Result]) -> None:
    """vllm#17569: "The output_size of gate's and up's weight = 192 is not divisible by … block_n = 128"."""
    words = f"memory qwen3-30b-a3b --quantize fp8-block128 --engine {engine} --hardware l40s".split()
    assert "192 rows are not a multiple of the block of 128" in run(*words, "--tp", "4").error
    whole_experts = "--enable-expert-parallel" if engine.startswith("vllm") else "--ep-size=4"
    for layout in (["--tp", "2"], ["--tp", "4", whole_experts]):
        assert run(*words, *layout, "--format", "json").document["kv_tokens"] > 0
    assert "192 rows" in run("fit", *words[1:], "--tp", "4").error


@pytest.mark.parametrize(
    ("words", "least_capability"),
    [
        ("memory qwen2.5-7b --quantize awq-int4-g128 --hardware v100-32gb --engine vllm", "awq from 7.5"),
        ("memory qwen2.5-7b --quantize fp8 --hardware t4 --engine vllm==0.11.0", "fp8 from 8.0"),
        ("memory qwen2.5-7b --quantize nvfp4 --hardware v100-32gb --engine vllm", "nvfp4 from 7.5"),
        ("memory gpt-oss-20b --hardware t4 --tp 2 --engine vllm", "mxfp4 from 8.0"),
        ("kv qwen2.5-7b --kv-dtype fp8 --hardware v100-32gb --engine vllm", "a cache in fp8 from 8.0"),
        ("memory minicpm3-4b --kv-dtype fp8 --hardware a100-80gb --engine vllm", "latents in fp8 from 8.9"),
        ("fit deepseek-v3.2 --hardware a100-80gb --devices 16 --engine vllm", "an indexer from 9.0"),
        ("memory qwen2.5-7b --quantize fp8 --hardware t4 --engine sglang", "fp8 from 8.0"),
        ("memory deepseek-v3.2 --hardware a100-80gb --tp 8 --engine sglang", "an indexer from 9.0"),
        ("memory qwen2.5-7b --quantize fp8 --hardware a100-80gb --engine tensorrt-llm", "fp8 from 8.9"),
        ("memory llama3.1-8b --hardware v100-32gb --engine tensorrt-llm", "NVIDIA (8.0 or higher)"),
        (
            "serve qwen2.5-7b --quantize awq-int4-g128 --hardware v100-32gb --input 1000 --output 200 --concurrency 8",
            "awq from 7.5",
        ),
    ],
)
def test_kernels_that_an_accelerator_lacks_are_refused(
    words: str, least_capability: str, run: Callable[..., Result]
) -> None:
    """`get_min_capability` of the engine's quantization methods, `supports_compute_capability` of its attention."""
    result = run(*words.split())
    assert result.code == 2
    assert least_capability in result.error.replace("compute capability ", "")


def test_kernels_that_an_accelerator_lacks_are_not_advised(run: Callable[..., Result]) -> None:
    document = run("memory", "qwen2.5-7b", "--hardware", "v100-32gb", "--engine", "vllm", "--format", "json").document
    flags = {change["flag"] for change in document["changes"]}
    assert "--enforce-eager" in flags
    assert not {"--kv-cache-dtype fp8", "--quantization fp8"} & flags


def test_a_search_over_accelerators_passes_those_without_kernels(run: Callable[..., Result]) -> None:
    options = run("fit", "gpt-oss-20b", "--engine", "vllm", "--format", "json").document["options"]
    names = {option["hardware"] for option in options}
    assert "h100-sxm" in names
    assert not {"t4", "v100-32gb"} & names


def test_a_server_is_sought_among_the_formats_that_an_accelerator_runs(run: Callable[..., Result]) -> None:
    words = "serve qwen2.5-7b --quantize auto,awq-int4-g128 --hardware v100-32gb --input 1000 --output 200"
    assert run(*words.split(), "--concurrency", "8").code == 0


@pytest.mark.usefixtures("servers_without_changes")
@pytest.mark.parametrize(("target", "is_float32"), [("gemma3-1b", True), ("qwen2.5-1.5b", False)])
def test_classes_that_refuse_float16_run_in_float32_without_bfloat16(
    target: str, is_float32: bool, run: Callable[..., Result]
) -> None:
    """vllm/config/model.py, `_FLOAT16_NOT_SUPPORTED_MODELS` and `_resolve_auto_dtype`."""
    words = ("memory", target, "--engine", "vllm", "--max-model-len", "8192", "--format", "json")
    t4, l4, t4_in_float32 = (
        run(*words, "--hardware", *rest).document["memory"]["by_kind"]["weights"]
        for rest in (["t4"], ["l4"], ["t4", "--dtype", "float32"])
    )
    assert t4 == (t4_in_float32 if is_float32 else l4)
    assert (t4_in_float32 - l4) == pytest.approx(l4, rel=0.03)  # rests of segments are not doubled


@pytest.mark.usefixtures("servers_without_changes")
@pytest.mark.parametrize(
    "words",
    [
        "TheBloke/Mistral-7B-Instruct-v0.2-GPTQ --engine vllm==0.11.0 --hardware l40s --quantization gptq",
        "gpt-oss-20b --engine vllm --hardware h100",
        "deepseek-v3 --engine sglang --hardware h200 --tp 8",
        "Qwen/Qwen3-8B-FP8 --engine tensorrt-llm --hardware h100",
    ],
)
def test_quantized_weights_keep_their_format_beside_a_number_format(words: str, run: Callable[..., Result]) -> None:
    """`--dtype` is the format of activations: vllm/config/model.py, `get_supported_act_dtypes`.

    vLLM 0.11.0 with Mistral 7B in GPTQ, `--dtype float16 --quantization gptq`, on a DGX Spark loads 3.8844 GiB
    (ArmDeveloperEcosystem/arm-learning-paths, a chatbot with speech recognition on a DGX Spark).
    """
    published, in_float16 = (
        run("memory", *words.split(), *dtype_words, "--format", "json").document["memory"]["by_kind"]["weights"]
        for dtype_words in ([], ["--dtype", "float16"])
    )
    assert published == in_float16


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("gemma3-1b --hardware h100 --dtype half", "--dtype half: vLLM refuses it for Gemma3ForCausalLM"),
        ("gemma3-1b --hardware t4 --quantize fp8", "in float32 it runs no quantized weights"),
        ("qwen2.5-1.5b --hardware t4 --dtype bfloat16", "--dtype bfloat16: vLLM refuses it on T4"),
        (
            "Qwen/Qwen2.5-7B-Instruct-AWQ --hardware t4 --dtype float",
            "--dtype float32: quantized weights are multiplied",
        ),
    ],
)
def test_number_formats_that_vllm_refuses(words: str, reason: str, run: Callable[..., Result]) -> None:
    assert reason in run("memory", *words.split(), "--engine", "vllm").error


def test_layouts_whose_ranks_divide_groups_are_passed(run: Callable[..., Result]) -> None:
    """Ranks of 29,568 / 2 and / 4 columns have no whole groups of 128, so stages divide the model."""
    words = ("qwen2.5-72b", "--quantize", "awq-int4-g128", "--engine", "vllm", "--max-model-len", "8192")
    option = run("fit", *words, "--hardware", "rtx-4090", "--format", "json").document["options"][0]
    assert option["flags"] == {"--pipeline-parallel-size": 4}


@pytest.mark.parametrize("command", ["fit", "memory"])
def test_sizes_that_a_checkpoint_may_have_padded(command: str, tmp_path: Path, run: Callable[..., Result]) -> None:
    """QwenLM/Qwen3-VL#231: intermediate_size is 29,696 in quantized checkpoints, not 29,568, which 4 ranks divide."""
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve Qwen/Qwen2.5-72B-Instruct-AWQ --tensor-parallel-size 4 --max-model-len 8192\n")
    error = run(command, "--launch", str(script), "--hardware", "a100-40gb").error
    assert "7,392 columns are not a multiple of group_size 128" in error
    assert "quantized checkpoints may have padded ones; expected its config.json as TARGET" in error


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("--engine vllm --tp 8 --draft mtp", '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\''),
        ("--engine vllm --dp 8 --ep 8", "--enable-expert-parallel alone"),
        ("--engine sglang --tp 8 --draft mtp", "--speculative-algorithm nextn"),
    ],
)
def test_options_that_an_engine_lacks_name_what_says_the_same(
    words: str, remedy: str, run: Callable[..., Result]
) -> None:
    assert remedy in run("memory", "deepseek-v3", "--hardware", "h200", *words.split()).error


def test_llama_cpp_runs_on_gpus_alone(run: Callable[..., Result]) -> None:
    words = ("memory", "llama3.2-1b", "--engine", "llama.cpp", "--hardware")
    assert "expected a GPU of NVIDIA or AMD or Apple or Intel" in run(*words, "gaudi3").error
    assert run(*words, "arc-pro-b60").code == 0


def test_programs_that_run_llama_cpp_and_cards_of_two_sizes_say_what_to_type(run: Callable[..., Result]) -> None:
    for words, message in (
        (("--engine", "lmstudio"), "--engine: LM Studio runs llama.cpp; expected llama.cpp"),
        (("--engine", "mlx"), "--engine: MLX's server is not modelled; without --engine, --quantize mlx-4bit"),
        (("--engine", "llama.cpp", "--hardware", "rtx-3060"), "the larger one with --devices 2 -ts 24,12"),
        (("--launch", "koboldcpp -m model.gguf"), "It runs llama.cpp: type its flags to --engine llama.cpp"),
    ):
        assert message in run("memory", "qwen3-14b", "--hardware", "rtx-3090", *words).error


def test_a_launch_file_with_slots_asks_for_as_many_users(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text("llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M -c 16384 -np 2 -ngl 99\n")
    words = ("fit", "--launch", str(file), "--hardware", "rtx-4090")
    assert "2 users of 8,192 tokens" in run(*words).out
    assert "1 user of " in run(*words, "--users", "1").out
    file.write_text("llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M -c 16384 -np 2 --kv-unified -ngl 99\n")
    assert "1 user of 16,384 tokens" in run(*words).out  # slots that share the cache


def test_an_option_of_a_launch_file_is_named_as_the_files(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(
        "stage: sft\nfinetuning_type: lora\nlora_target: q_proj\ndataset: alpaca_en_demo\ntemplate: default\n"
        "output_dir: out\nper_device_train_batch_size: 1\n"
    )
    for words in (("memory",), ("time", "--hardware", "h100")):
        error = run(words[0], "mamba2-370m", *words[1:], "--launch", str(file)).error
        assert "train.yaml: --lora-targets q_proj of the file" in error
