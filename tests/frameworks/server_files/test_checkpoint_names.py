"""Names of quantized checkpoints in launch files, and words of compose files that the container's shell reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import llmcalc
from llmcalc.costs.quantization.schemes_by_name import scheme_named
from llmcalc.errors import InputError
from llmcalc.frameworks.server_files.read import servers_of_file
from llmcalc.sources.presets import known_checkpoint
from tests.samples import in_one_test

pytestmark = pytest.mark.usefixtures("servers_without_changes")

COMPOSE_WITH_ARGUMENTS = """
services:
  a:
    image: vllm/vllm-openai:v0.24.0
    entrypoint:
      - bash
      - -c
      - |
        exec vllm serve ${EAGER:+--enforce-eager} "$@"
      - --
    command: [--model, Qwen/Qwen3-8B, --max-model-len, "8192"]
"""


POD = """
apiVersion: v1
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:v0.24.0
    command: [bash, -c, "vllm serve Qwen/Qwen3-8B --tensor-parallel-size $(nvidia-smi -L | wc -l)"]
    resources: {limits: {nvidia.com/gpu: 4}}
"""


def test_the_devices_that_a_container_counts_are_those_of_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(POD)
    assert servers_of_file(file)[0].flag_values == {"tensor_parallel_size": "4"}
    file.write_text(POD.replace("    resources", "    # resources"))
    with pytest.raises(InputError, match="known only when the script runs"):
        servers_of_file(file)


@pytest.mark.parametrize("text", [COMPOSE_WITH_ARGUMENTS, COMPOSE_WITH_ARGUMENTS.replace("$", "$$")])
def test_a_dollar_that_begins_no_variable_stays_for_the_shell(text: str, tmp_path: Path) -> None:
    """Compose replaces `$NAME` and `${NAME}` alone, so `"$@"` may stand there once or doubled."""
    file = tmp_path / "compose.yml"
    file.write_text(text)
    server = servers_of_file(file)[0]
    assert (server.model_name, server.flag_values) == ("Qwen/Qwen3-8B", {"max_model_len": "8192"})


@pytest.mark.parametrize(
    ("name", "preset", "scheme"),
    [
        ("/models/Qwen3-8B-AWQ", "qwen3-8b", "awq-int4-g128"),
        ("/models/nytopop_Qwen3-30B-A3B.w4a16", "qwen3-30b-a3b", "w4a16-g128"),  # owner_name, of any owner
        ("/models/huggingface/qwen3.6-27b-autoround-int4", "qwen3.6-27b", "w4a16-g128"),
        ("zai-org/GLM-5.2-FP8", "glm-5.2", "fp8-block128"),
        ("/models/huggingface/hub/models--Qwen--Qwen3-32B-AWQ/snapshots/2a9c1f", "qwen3-32b", "awq-int4-g128"),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", "qwen3.6-35b-a3b", "nvfp4"),
        ("/models/qwen3-14b-gguf/Qwen3-14B-Q4_K_M.gguf", "qwen3-14b", "q4_k_m"),
        ("/models/Llama-3.1-8B-Instruct-GPTQ-Int4/", "llama3.1-8b", "gptq-int4-g128"),
        ("/models/gemma-3-27b-it-qat-Q4_0.gguf", "gemma3-27b", "q4_0"),
        ("unsloth/gemma-3-27b-it-qat-GGUF", "gemma3-27b", "q4_k_m"),
        # llama.cpp's own files of gpt-oss (ggml-org): 12,109,566,560 bytes of the 20B
        ("models/gpt-oss-20b-mxfp4.gguf", "gpt-oss-20b", "mxfp4-moe"),
        ("gpt-oss-120b-mxfp4-00001-of-00003.gguf", "gpt-oss-120b", "mxfp4-moe"),
        ("ggml-org/gpt-oss-20b-GGUF:mxfp4", "gpt-oss-20b", "mxfp4-moe"),
        ("noctrex/Qwen3-30B-A3B-MXFP4_MOE-GGUF", "qwen3-30b-a3b", "mxfp4-moe"),
    ],
)
def test_the_name_of_a_quantized_checkpoint_states_preset_and_scheme(name: str, preset: str, scheme: str) -> None:
    known = known_checkpoint(name)
    assert known is not None
    assert (known[0].name, known[1]) == (preset, scheme)
    assert scheme_named(known[1]) is not None


@in_one_test
@pytest.mark.parametrize("name", ["/models/unknown-8b-AWQ", "Qwen3-8B", "awq", "-fp8", "/models/Qwen3-8B-4bit"])
def test_other_names_state_none(name: str) -> None:
    assert known_checkpoint(name) is None


def test_a_checkpoint_that_is_not_here_is_counted_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text("vllm serve /models/Qwen3-8B-AWQ --quantization awq_marlin --max-model-len 8192\n")
    by_name = llmcalc.memory(launch=file, hardware="rtx-4090", engine="vllm==0.24")
    stated = llmcalc.memory("qwen3-8b", launch=file, hardware="rtx-4090", engine="vllm==0.24", quantize="awq-int4-g128")
    assert by_name.result.terms == stated.result.terms
    note = "by its name it is the preset qwen3-8b in awq-int4-g128, which a TARGET or --quantize replaces"
    assert any(note in text for text in by_name.document["notes"])
    requantized = llmcalc.memory(launch=file, hardware="rtx-4090", engine="vllm==0.24", quantize="fp8-dynamic")
    assert requantized.result.term_bytes("weights") > by_name.result.term_bytes("weights")
    file.write_text("vllm serve /models/some-8b-AWQ\n")
    with pytest.raises(InputError, match="its model, '/models/some-8b-AWQ', cannot be read"):
        llmcalc.memory(launch=file, hardware="rtx-4090")
    file.write_text("vllm serve /models/Qwen3-8B\n")
    plain = llmcalc.memory(launch=file, hardware="rtx-4090")
    assert any("is not here; by its name it is the preset qwen3-8b" in text for text in plain.document["notes"])


@pytest.mark.parametrize(
    ("name", "preset", "scheme"),
    [
        ("unsloth/Qwen3-4B-Instruct-2507-GGUF:Q8_0", "qwen3-4b-2507", "q8_0"),
        ("ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF", "qwen2.5-coder-3b", "q8_0"),
        ("/mnt/gguf/GLM-4.5-Q8_0/GLM-4.5-Q8_0-00001-of-00008.gguf", "glm-4.5", "q8_0"),
        ("bartowski/Qwen3-8B-GGUF:IQ4_XS", "qwen3-8b", "iq4_xs"),
        ("ggml-org/gemma-3-4b-it-GGUF", "gemma3-4b", "q4_k_m"),  # what llama-server takes without a tag
        ("unsloth/Qwen3-8B-GGUF:BF16", "qwen3-8b", "none"),
        ("unsloth/gpt-oss-120b-GGUF:F16", "gpt-oss-120b", ""),  # whose experts stay in MXFP4
        ("/models/google_gemma-3-12b-it-Q5_K_S.gguf", "gemma3-12b", "q5_k_s"),
        ("unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL", "qwen3-8b", "ud-q4_k_xl"),  # which only servers of llama.cpp estimate
        ("bartowski/Qwen_Qwen3-8B-GGUF:Q6_K_L", "qwen3-8b", "q6_k_l"),
        ("nvidia/Qwen3.5-397B-A17B-NVFP4-V2", "qwen3.5-397b-a17b", "nvfp4"),
        ("/models/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b", "fp8-block128"),  # the publisher's is meant
        ("mlx-community/Qwen3-8B-4bit-DWQ", "qwen3-8b", "mlx-int4-g64"),
        ("ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b", "mxfp4-moe"),  # in mxfp4 alone
        ("unsloth/Kimi-K2-Instruct-GGUF", "kimi-k2", "q4_k_m"),  # published in FP8
        ("internlm/internlm2_5-20b-chat-4bit-gptq", "internlm2.5-20b-chat", "gptq-int4-g128"),
        ("ISTA-DASLab/gemma-3-27b-it-GPTQ-4b-128g", "gemma3-27b", "gptq-int4-g128"),
    ],
)
def test_a_repository_of_gguf_files_states_preset_and_type(name: str, preset: str | None, scheme: str) -> None:
    known = known_checkpoint(name)
    assert (None if known is None else (known[0].name, known[1])) == (None if preset is None else (preset, scheme))


def test_a_repository_of_gguf_files_has_the_encoder_too(tmp_path: Path) -> None:
    # llama-server -hf downloads and loads it (common/arg.cpp, --mmproj-auto); Gemma 3's has 420 million parameters
    file, added = tmp_path / "serve.sh", {}
    for words in (
        "-hf ggml-org/gemma-3-4b-it-GGUF",
        "-hf ggml-org/gemma-3-4b-it-GGUF --no-mmproj",
        "-m gemma-3-4b-it-Q4_K_M.gguf --mmproj-auto",
        "-hf ggml-org/gemma-3-4b-it-GGUF --mmproj-auto",
    ):
        file.write_text(f"llama-server {words} -c 8192\n")
        answer = llmcalc.memory(launch=file, hardware="rtx-4090")
        added[words] = answer.result.term_bytes("model_buffer", "CUDA0")
        notes = " ".join(answer.document["notes"])
        assert ("-hf loads it too" in notes) == words.startswith("-m")
        assert ("--no-mmproj leaves it out" in notes) == (words.startswith("-hf") and "--no-mmproj" not in words)
    repository, without, model_file, stated = added.values()
    assert without == model_file < repository == stated
    assert 2 * 400e6 < repository - without < 2 * 440e6


def test_a_repository_of_gguf_files_as_target_is_the_model_in_the_type_of_its_tag() -> None:
    by_name = llmcalc.memory("unsloth/Qwen3-8B-GGUF:Q8_0", "inference", seq=2048)
    assert by_name.states.weights == llmcalc.memory("qwen3-8b", "inference", seq=2048, quantize="q8_0").states.weights
    with pytest.raises(InputError, match=r"types of their own; .* or a mix near it: qwen3-8b --quantize q4_k_m"):
        llmcalc.params("unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL")


def test_a_file_of_a_repository_states_how_it_is_quantized(tmp_path: Path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text("llama-server --hf-repo ggml-org/Qwen3-8B-GGUF --hf-file Qwen3-8B-Q8_0.gguf -c 8192\n")
    assert servers_of_file(file)[0].model_name == "ggml-org/Qwen3-8B-GGUF/Qwen3-8B-Q8_0.gguf"
    answer = llmcalc.memory(launch=file, hardware="rtx-4090")
    assert any("qwen3-8b in q8_0" in text for text in answer.document["notes"])


COMPOSE = """
services:
  vllm:
    image: vllm/vllm-openai:v0.19.0
    volumes: [{volume}]
    command: ["--model", "/mnt/model", "--max-model-len", "8192"]
"""


@pytest.mark.parametrize(
    "text",
    [
        COMPOSE.format(volume='"/data/Qwen3-8B:/mnt/model"'),
        COMPOSE.format(volume='"/data/Qwen3-8B:/mnt/model:ro"'),
        COMPOSE.format(volume="{type: bind, source: /data/Qwen3-8B, target: /mnt/model}"),
        "docker run --gpus all -v /data/Qwen3-8B:/mnt/model -v cache:/root vllm/vllm-openai:v0.19.0 --model /mnt/model",
        "docker run --mount type=bind,src=/data/Qwen3-8B,dst=/mnt/model vllm/vllm-openai:v0.19.0 --model /mnt/model",
        "vllm serve models/Qwen3-8B",
    ],
)
def test_a_model_in_a_mounted_folder_is_that_of_the_host(text: str, tmp_path: Path) -> None:
    file = tmp_path / ("compose.yml" if "services" in text else "serve.sh")
    file.write_text(text)
    document = llmcalc.memory(launch=file, hardware="h100").document
    assert document["model"]["name"] == "qwen3-8b"


def test_a_mount_whose_host_folder_is_not_known_leaves_the_path(tmp_path: Path) -> None:
    file = tmp_path / "compose.yml"
    file.write_text(COMPOSE.format(volume='"${MODELS}:/mnt/model"'))
    with pytest.raises(InputError, match="its model, '/mnt/model', cannot be read"):
        llmcalc.memory(launch=file, hardware="h100")


def test_a_draft_on_another_machine_is_the_preset_of_its_name(tmp_path: Path) -> None:
    folder = "/data/hub/models--meta-llama--Llama-3.2-1B-Instruct/snapshots/9213176726"
    text = (
        "python3 -m sglang.launch_server --model-path /data/Llama-3.1-70B-Instruct --speculative-algorithm STANDALONE "
        "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6 --tp 4 "
        "--mem-fraction-static 0.7 --max-running-requests 1 --context-length 8192 --speculative-draft-model-path "
    )
    files = [tmp_path / "by_path.sh", tmp_path / "by_name.sh"]
    for file, draft in zip(files, (folder, "llama3.2-1b"), strict=True):
        file.write_text(text + draft + "\n")
    by_path, by_name = (llmcalc.memory(launch=file, hardware="h100") for file in files)
    assert by_path.result.terms == by_name.result.terms
    file.write_text(text + "/data/own-draft\n")
    with pytest.raises(InputError, match="cannot be read"):
        llmcalc.memory(launch=file, hardware="h100")


def test_a_variable_in_a_script_is_no_argument_of_the_image(tmp_path: Path) -> None:
    """The head of a Ray cluster starts Ray by a variable, then the server (aibrix, deepseek-r1-pvc.yaml)."""
    file = tmp_path / "head.yaml"
    script = "ulimit -n 65536; echo head; $KUBERAY_GEN_RAY_START_CMD; vllm serve Qwen/Qwen3-8B --tensor-parallel-size 4"
    file.write_text(POD.partition("    command:")[0] + f'    command: [/bin/bash, -lc, --]\n    args: ["{script}"]\n')
    servers = servers_of_file(file)
    assert [(server.model_name, server.flag_values) for server in servers] == [
        ("Qwen/Qwen3-8B", {"tensor_parallel_size": "4"})
    ]


def test_a_router_of_the_engines_project_is_no_server(tmp_path: Path) -> None:
    """Of vllm-project/aibrix, samples/semantic-router."""
    file = tmp_path / "router.yaml"
    container = (
        "{name: extproc, image: 'ghcr.io/vllm-project/semantic-router/extproc:latest', args: ['--secure=false']}"
    )
    file.write_text(POD + f"  - {container}\n")
    assert [server.model_name for server in servers_of_file(file)] == ["Qwen/Qwen3-8B"]
