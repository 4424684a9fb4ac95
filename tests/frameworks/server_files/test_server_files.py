"""Launch files of servers: what each form says, what replaces it, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.engines.registry import ENGINE_FOLDERS
from llmcalc.frameworks.launch.command_line import split_typed_launch
from llmcalc.frameworks.server_files.accelerators import accelerator_of_label
from llmcalc.frameworks.server_files.programs import server_start_of, version_of_image
from llmcalc.frameworks.server_files.read import servers_of_file, servers_of_text
from tests.engines import engine_memory, without_changes
from tests.in_process import command
from tests.samples import in_one_test

SERVING = Path(__file__).parents[2] / "data" / "launch" / "serving"

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"

FORMS: dict[str, list[tuple[str, str, str, dict[str, Any]]]] = {
    "llama_swap.yaml": [
        ("llama.cpp", "", "qwen3-8b", {"ctx_size": "8192", "n_gpu_layers": "99", "parallel": "2"}),
        ("vllm", "0.19.0", "qwen3-8b", {"max_model_len": "16384"}),
    ],
    "vllm_recipe.yaml": [
        ("vllm", "", "Qwen/Qwen3-8B", {"VLLM_USE_V2_MODEL_RUNNER": "0", "block_size": "32"}),
        ("vllm", "", "Qwen/Qwen3-4B", {"VLLM_USE_V2_MODEL_RUNNER": "0", "block_size": "32", "kv_cache_dtype": "fp8"}),
    ],
    "srt_slurm.yaml": [
        (
            "sglang",
            "",
            "/models/deepseek-r1",
            {"disaggregation_mode": "prefill", "mem_fraction_static": "0.95", "tp_size": "4"},
        ),
        (
            "sglang",
            "",
            "/models/deepseek-r1",
            {"disaggregation_mode": "decode", "mem_fraction_static": "0.9", "tp_size": "8"},
        ),
    ],
    "llm_inference_service.yaml": [
        ("vllm", "0.19.0", "Qwen/Qwen3-8B", {"enable_lora": True, "max_lora_rank": "64", "max_loras": "2"}),
        ("vllm", "0.19.0", "Qwen/Qwen3-8B", {"enable_lora": True, "max_lora_rank": "64", "max_loras": "2"}),
    ],
    "vllm_serve.sh": [
        (
            "vllm",
            "0.19.0",
            LLAMA,
            {
                "tensor_parallel_size": "2",
                "max_model_len": "16384",
                "max_num_seqs": "64",
                "gpu_memory_utilization": "0.85",
            },
        )
    ],
    "vllm_with_config.sh": [
        (
            "vllm",
            "",
            "qwen3-8b",
            {
                "max_model_len": "32k",
                "kv_cache_dtype": "fp8",
                "enable_prefix_caching": True,
                "enable_chunked_prefill": False,
                "compilation_config": '{"cudagraph_mode": "FULL_DECODE_ONLY", "pass_config": {"enable_noop": true}}',
                "max_num_seqs": "128",
                "dtype": "half",
            },
        )
    ],
    "docker_run.sh": [
        (
            "vllm",
            "0.21.0",
            LLAMA,
            {
                "tensor_parallel_size": "2",
                "max_model_len": "65536",
                "limit_mm_per_prompt": '{"image": 0, "video": 0}',
                "kv_transfer_config": '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}',
            },
        ),
        (
            "sglang",
            "0.5.9",
            "Qwen/Qwen3-8B",
            {"tp_size": "1", "mem_fraction_static": "0.8", "attention_backend": "triton"},
        ),
    ],
    "compose.yml": [
        (
            "vllm",
            "0.31.0",
            "google/gemma-3-27b-it",
            {"tensor_parallel_size": "2", "max_model_len": "32768", "limit_mm_per_prompt": '{"image": 2}'},
        ),
        ("sglang", "0.5.5", "Qwen/Qwen3-8B", {"context_length": "8192"}),
    ],
    "deployment.yaml": [
        (
            "vllm",
            "0.24.0",
            LLAMA,
            {"tensor_parallel_size": "2", "max_model_len": "32768", "gpu_memory_utilization": "0.9"},
        )
    ],
    "kserve.yaml": [("vllm", "", "Qwen/Qwen3-8B", {"max_model_len": "8192", "enforce_eager": True})],
    "llm_d_values.yaml": [
        (
            "vllm",
            "",
            "Qwen/Qwen3-32B",
            {
                "tensor_parallel_size": "4",
                "data_parallel_size": "1",
                "max_model_len": "16000",
                "block_size": "128",
            },
        ),
        (
            "vllm",
            "",
            "Qwen/Qwen3-32B",
            {
                "tensor_parallel_size": "1",
                "max_model_len": "16000",
                "kv_transfer_config": '{"kv_connector":"NixlConnector","kv_role":"kv_both"}',
            },
        ),
    ],
    "dynamo.yaml": [("vllm", "", "Qwen/Qwen3-8B", {"tensor_parallel_size": "2"})],
    "workers.sh": [
        (
            "vllm",
            "",
            "Qwen/Qwen3-235B-A22B",
            {
                "max_model_len": "32768",
                "tensor_parallel_size": "4",
                "enable_expert_parallel": True,
                "compilation_config": '{"cudagraph_capture_sizes": [1, 2, 4, 8]}',
                "enable_prefix_caching": False,
            },
        )
    ],
    "sglang_two_nodes.sh": [("sglang", "", "qwen3-32b", {"tp_size": "8"})],
    "sglang_compose.yml": [("sglang", "", LLAMA, {"dp_size": "2", "quantization": "fp8"})],
    "ray_serve.py": [
        ("vllm", "", "Qwen/Qwen3-32B", {"tensor_parallel_size": "2", "max_model_len": "16384"}),
        ("vllm", "", "Qwen/Qwen3-8B", {"enforce_eager": True, "gpu_memory_utilization": "0.8"}),
    ],
    "modal_app.py": [
        (
            "vllm",
            "0.19.0",
            "Qwen/Qwen3-8B",
            {"enforce_eager": False, "tensor_parallel_size": "2", "max_num_seqs": "64"},
        )
    ],
    "skypilot.yaml": [("vllm", "0.19.0", "Qwen/Qwen3-8B", {"tensor_parallel_size": "2", "max_model_len": "8192"})],
    "production_stack_values.yaml": [
        (
            "vllm",
            "0.24.0",
            "Qwen/Qwen3-8B",
            {
                "enable_prefix_caching": False,
                "max_model_len": "8192",
                "max_num_seqs": "32",
                "tensor_parallel_size": "2",
                "gpu_memory_utilization": "0.8",
            },
        ),
        ("vllm", "", LLAMA, {"enable_lora": True, "max_loras": "4"}),
    ],
    "ray_service.yaml": [
        ("vllm", "", "Qwen/Qwen3-8B", {"max_model_len": "8192", "enable_prefix_caching": True}),
    ],
    "kubeai.yaml": [
        ("vllm", "", "Qwen/Qwen3-8B", {"tensor_parallel_size": "2", "max_model_len": "16384"}),
        ("vllm", "", "Qwen/Qwen3-4B", {}),
    ],
    "vllm_config.yaml": [
        ("vllm", "", "qwen3-8b", {"tensor_parallel_size": "2", "max_model_len": "32k", "kv_cache_dtype": "fp8"})
    ],
}
"""File → engine, version, model and flags of each server."""

OTHER_ENGINES = {
    "Modelfile": "ollama",
    "llama_server.sh": "llama.cpp",
    "ik_llama.sh": "ik_llama.cpp",
    "trtllm.sh": "tensorrt-llm",
}
"""File → its engine, which may be modelled or not."""


@in_one_test
@pytest.mark.parametrize("name", FORMS)
def test_what_a_file_says(name: str) -> None:
    servers = servers_of_file(SERVING / name)
    assert [(s.engine, s.version, s.model_name, dict(s.flag_values)) for s in servers] == FORMS[name]


@pytest.mark.parametrize(
    ("name", "hardware", "gpus"),
    [
        ("ray_serve.py", "l40s", None),
        ("modal_app.py", "h100-sxm", 2),
        ("skypilot.yaml", "l4", 2),
        ("production_stack_values.yaml", "l40s", 2),
        ("ray_service.yaml", "a10g", None),
        ("kubeai.yaml", "l4", 2),
    ],
)
def test_a_file_names_its_accelerators(name: str, hardware: str, gpus: int | None) -> None:
    server = servers_of_file(SERVING / name)[0]
    assert (server.hardware, server.gpu_count) == (hardware, gpus)


def test_an_engine_inside_a_program_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "offline.py"
    file.write_text('from vllm import LLM\nllm = LLM(model="Qwen/Qwen3-8B")\n')
    with pytest.raises(InputError, match=r"line 2: LLM\(…\) starts vLLM inside a program"):
        servers_of_file(file)


def test_what_a_python_file_computes_is_known_only_when_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text('words = ["vllm", "serve", "qwen3-8b", "--max-num-seqs", str(choose())]\n')
    with pytest.raises(InputError, match=r"--max-num-seqs: 'choose\(…\)' is known only when the script runs"):
        servers_of_file(file)
    file.write_text('words = ["vllm", "serve", "qwen3-8b"]\nwords += more_flags()\n')
    with pytest.raises(InputError, match="is known only when the script runs"):
        servers_of_file(file)
    file.write_text('words = ["vllm", "serve", "qwen3-8b"]\nwords = words_of(words)\n')
    assert servers_of_file(file) == []


def test_letters_of_a_compose_file_are_no_commands_of_a_shell(tmp_path: Path) -> None:
    file = tmp_path / "compose.yml"
    lines = ["services:", "  chat:", "    image: vllm/vllm-openai", "    entrypoint:", "    - /bin/bash", "    - -c"]
    lines += ["    - |", '      echo "a `quoted` word \\\\" >&2', '      vllm serve "$$@"', "    - --"]
    lines += ["    command: --model qwen3-8b --max-num-seqs ${SEQS:-8}"]
    file.write_text("\n".join(lines))
    assert dict(servers_of_file(file)[0].flag_values) == {"max_num_seqs": "8"}


def test_a_template_is_refused_as_one(tmp_path: Path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text("vllm serve qwen3-8b {{- if .Eager }}--enforce-eager{{- end }} --max-num-seqs 8\n")
    with pytest.raises(InputError, match="a template"):
        servers_of_file(file)


@pytest.mark.parametrize(
    ("variables", "values"),
    [
        ("LLAMA_ARG_CTX_SIZE=8192 LLAMA_ARG_KV_UNIFIED=on", {"ctx_size": "8192", "kv_unified": True}),
        ("LLAMA_ARG_KV_UNIFIED=0 LLAMA_ARG_N_PARALLEL=2", {"kv_unified": False, "parallel": "2"}),
        ("LLAMA_ARG_ENDPOINT_METRICS=1 LLAMA_ARG_N_GPU_LAYERS=20", {"n_gpu_layers": "20"}),
        ("LLAMA_ARG_SPEC_DRAFT_MODEL=llama3.2-1b", {"model_draft": "llama3.2-1b"}),
    ],
)
def test_variables_stand_for_flags(variables: str, values: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text("".join(f"export {word}\n" for word in variables.split()) + "llama-server -m llama3.1-8b.gguf\n")
    assert dict(servers_of_file(file)[0].flag_values) == values


def test_a_fork_is_known_by_its_image_or_by_a_flag_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "compose.yml"
    service = "services:\n  chat:\n    image: {}\n    command: -m model.gguf {}\n"
    texts = {
        ("ghcr.io/ikawrakow/ik-llama-cpp", "-c 4096"): "ik_llama.cpp",
        ("ghcr.io/ggml-org/llama.cpp:server", "-c 4096 -khad"): "ik_llama.cpp",
        ("ghcr.io/ggml-org/llama.cpp:server", "-c 4096"): "llama.cpp",
    }
    for (image, flags), engine in texts.items():
        file.write_text(service.format(image, flags))
        assert servers_of_file(file)[0].engine == engine


@pytest.mark.parametrize("name", FORMS)
def test_every_file_is_answered(name: str) -> None:
    answer = llmcalc.memory(launch=SERVING / name, hardware="b200")
    documents = answer.document if isinstance(answer.document, list) else [answer.document]
    assert [document["launch"]["kind"] for document in documents] == [engine for engine, *_ in FORMS[name]]
    assert all(document["terms"] and document["launch"]["filled_in"] for document in documents)


@pytest.mark.parametrize(("name", "engine"), OTHER_ENGINES.items())
def test_other_engines_are_asked_by_name(name: str, engine: str) -> None:
    if engine in ENGINE_FOLDERS:
        assert [server.engine for server in servers_of_file(SERVING / name)] == [engine]
    else:
        with pytest.raises(InputError, match=f"starts a server of {engine}, which is not modelled"):
            servers_of_file(SERVING / name)


def test_experts_on_the_cpu_leave_the_weights_of_the_device() -> None:
    with without_changes():
        answer = llmcalc.memory(launch=SERVING / "ktransformers.sh", hardware="h100").result
    typed = engine_memory("qwen3-235b-a22b", engine="sglang", hardware="h100", mem_fraction_static=0.9)
    # 94 layers, 32 of 128 experts of three matrices of 4,096 x 1,536 on the device, 2 bytes
    experts = 94 * (128 - 32) * 3 * 4096 * 1536 * 2
    assert typed.term_bytes("weights") - answer.term_bytes("weights") == experts


def test_a_file_is_answered_as_its_flags() -> None:
    answer = llmcalc.memory(launch=SERVING / "deployment.yaml")
    typed = llmcalc.memory(
        "llama3.1-8b",
        engine="vllm==0.24.0",
        hardware="h100",
        tensor_parallel_size=2,
        max_model_len=32768,
        gpu_memory_utilization=0.9,
    )
    assert answer.document["terms"] == typed.document["terms"]
    launch = answer.document["launch"]
    assert (launch["program"], launch["version"], launch["gpu"]) == ("vLLM", "0.24.0", "NVIDIA-H100-80GB-HBM3")
    assert launch["env"] == {"MODEL": LLAMA}  # and no token
    assert launch["filled_in"] == answer.document["assumed"]
    assert answer.document["devices"] == launch["gpus"] == 2


def test_variables_and_arguments_are_typed_beside_a_script() -> None:
    file = SERVING / "vllm_serve.sh"
    (server,) = servers_of_file(f"TP=4 NAME=qwen3-8b EXTRA=1 {file} --kv-cache-dtype fp8")
    assert server.model_name == "qwen3-8b"
    assert {
        "tensor_parallel_size": "4",
        "enforce_eager": True,
        "kv_cache_dtype": "fp8",
    }.items() <= server.flag_values.items()


def test_flags_typed_beside_a_file_replace_its_own() -> None:
    answer = llmcalc.memory(
        launch=SERVING / "vllm_serve.sh", engine="vllm==0.33", hardware="h100", max_num_seqs=32, kv_cache_dtype="fp8"
    )
    launch = answer.document["launch"]
    assert answer.document["engine"]["version"] == "0.33"
    assert launch["overridden"] == {
        "--max-num-seqs": {"file": "64", "option": 32},
        "--kv-cache-dtype": {"file": None, "option": "fp8"},
    }
    assert "with --max-num-seqs 32, --kv-cache-dtype fp8 in the place of its own" in answer.report().tables[0].subtitle


def test_an_engine_beside_a_file_takes_its_servers_alone() -> None:
    answer = llmcalc.memory(launch=SERVING / "compose.yml", engine="sglang", hardware="h100")
    assert answer.document["launch"]["place"] == "services.small"
    with pytest.raises(InputError, match="starts no such server"):
        llmcalc.memory(launch=SERVING / "vllm_serve.sh", engine="sglang", hardware="h100")


def test_the_commands() -> None:
    file = str(SERVING / "vllm_serve.sh")
    missing = command("memory", "--launch", file)
    assert missing.code == 2
    result = command("memory", "--launch", file, "--hardware", "h100", "--max-model-len", "8k", "--format", "json")
    assert result.document["max_model_len"] == 8000
    assert command("memory", "llama3.1-405b", "--launch", file, "--hardware", "h100").code == 1
    fit = command("fit", "--launch", file, "--hardware", "rtx-4090", "--users", "4", "--seq", "4k", "--format", "json")
    assert fit.document["max_model_len"] == 4096
    several = command("memory", "--launch", str(SERVING / "compose.yml"), "--hardware", "h100", "--format", "json")
    assert [document["launch"]["place"] for document in json.loads(several.out)] == [
        "services.chat",
        "services.small",
    ]


def read(text: str, name: str = "serve.sh", **options: Any) -> Any:
    return servers_of_text(text, split_typed_launch(name), **options)


REFUSED = {
    "vllm serve qwen3-8b --max-model-lenn 4": "serve.sh: line 1: --max-model-lenn: vLLM has no such flag. Did you",
    "vllm serve qwen3-8b --max-model-len": "line 1: --max-model-len: the value is missing",
    "vllm serve qwen3-8b --tensor-parallel-size $GPUS": r"--tensor-parallel-size: '\$GPUS' is known only when",
    "vllm serve qwen3-8b other": "'other' stands behind no flag",
    "vllm serve --config missing.yaml": "missing.yaml: no such file beside serve.sh",
    "vllm serve qwen3-8b --deploy-config x.yaml --omni": "line 1: --omni: starts vLLM-Omni",
    "cat > c.yaml <<E\na: 1\n$(date)\nE\nvllm serve --config c.yaml": r"c.yaml: line 2: '\$\(date\)' is known only",
    "cat > c.yaml <<E\n- 1\nE\nvllm serve --config c.yaml": "the configuration is no table",
    "cat > c.yaml <<E\nmax-model-lenn: 1\nE\nvllm serve --config c.yaml": "--max-model-lenn: vLLM has no such flag",
    "python -m ktransformers.server.main --model-path x": "starts a server of ktransformers, which is not modelled",
    "text-generation-launcher --model-id gpt2": "starts a server of TGI, .* alone: llmcalc memory MODEL --hardware",
    "docker run ghcr.io/huggingface/text-generation-inference:3 --model-id gpt2": "starts a server of TGI",
    "lmdeploy serve api_server internlm/internlm2_5-7b-chat --tp 2": "starts a server of LMDeploy",
    "lms load qwen3-8b --gpu max": "starts a server of LM Studio, .*It runs llama.cpp",
    "lemonade load Qwen3-8B-GGUF --ctx-size 8192": "starts a server of Lemonade, .*It runs llama.cpp",
    "mlx_lm.server --model mlx-community/Qwen3-8B-4bit": "starts a server of MLX",
    "python3 -m atom.entrypoints.openai_server --model openai/gpt-oss-120b -tp 1": "starts a server of ATOM",
    "python -m mlx_lm.server --model mlx-community/Qwen3-8B-4bit": "starts a server of MLX",
    "vllm serve x '": "a quote ' that does not end",
}


@in_one_test
@pytest.mark.parametrize(("text", "message"), REFUSED.items())
def test_wrong_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read(text)
    assert "\n" not in str(error.value)


def test_a_pod_whose_image_starts_a_server_of_another_engine(tmp_path: Path) -> None:
    container = (
        "    spec:\n      containers:\n      - {name: a, image: gcr.io/huggingface-text-generation-inference-cu121}\n"
    )
    manifest = f"kind: Deployment\nspec:\n  template:\n{container}---\nkind: Service\n"
    with pytest.raises(InputError, match="Deployment: starts a server of TGI, which is not modelled"):
        read(manifest, "pod.yaml")


def test_a_server_whose_flags_contradict_its_model_names_its_place(tmp_path: Path) -> None:
    (tmp_path / "s.sh").write_text("echo\nvllm serve qwen3-8b --tensor-parallel-size 3\n")
    with pytest.raises(InputError, match=r"s.sh: line 2: --tensor-parallel-size 3: does not divide"):
        llmcalc.memory(launch=tmp_path / "s.sh", hardware="h100")


def test_a_model_that_cannot_be_read_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "s.sh").write_text("vllm serve /models/chat\n")
    with pytest.raises(InputError, match=r"line 1: its model, '/models/chat', cannot be read .*add TARGET"):
        llmcalc.memory(launch=tmp_path / "s.sh", hardware="h100")
    assert llmcalc.memory("qwen3-8b", launch=tmp_path / "s.sh", hardware="h100").ok
    (tmp_path / "t.sh").write_text('vllm serve "$MODEL"\n')
    with pytest.raises(InputError, match="known only when the script runs; add TARGET"):
        llmcalc.memory(launch=tmp_path / "t.sh", hardware="h100")


def test_unknown_flags_may_be_allowed() -> None:
    (server,) = read("vllm serve qwen3-8b --new-flag a b --max-num-seqs 4", allows_unknown_flags=True)
    assert server.unknown_flags == {"--new-flag": "vLLM has no such flag"}
    assert server.flag_values == {"max_num_seqs": "4"}


@in_one_test
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("vllm serve qwen3-8b --limit-mm-per-prompt.image 0 --limit-mm-per-prompt.video=2",
         {"limit_mm_per_prompt": {"image": "0", "video": "2"}}),
        ("vllm serve qwen3-8b -tp 2 -O.cudagraph_mode=NONE", {"tensor_parallel_size": "2",
         "compilation_config": {"cudagraph_mode": "NONE"}}),
        ("vllm serve qwen3-8b --no-enforce-eager --cuda-graph-sizes 1 2 4 --port 1", {"enforce_eager": False,
         "cudagraph_capture_sizes": "1 2 4"}),
        ("env A=1 numactl -N 0 uv run vllm serve qwen3-8b --dtype half &", {"dtype": "half"}),
        ("tmux new -d -s x 'vllm serve qwen3-8b --dtype half'", {"dtype": "half"}),
        ("bash -lc 'exec vllm serve qwen3-8b \"$@\"' -- --dtype half", {"dtype": "half"}),
        ("docker exec -it box vllm serve qwen3-8b --dtype half", {"dtype": "half"}),
        ("VLLM_USE_V1=0 vllm serve qwen3-8b", {"VLLM_USE_V1": "0"}),
    ],
)  # fmt: skip
def test_forms_of_flags_and_commands(text: str, values: dict[str, Any]) -> None:
    (server,) = read(text)
    assert server.flag_values == values


def test_older_options_of_tensorrt_llm_that_change_no_memory() -> None:
    """Options of 0.17 to 0.20 that later releases nest in `cuda_graph_config` and `moe_config`."""
    options = "use_cuda_graph: true\ncuda_graph_padding_enabled: true\ncuda_graph_max_batch_size: 64\n"
    options += "cuda_graph_batch_sizes: [1, 8, 64]\nmoe_backend: CUTLASS\nkv_cache_config:\n  dtype: fp8\n"
    text = f"cat > o.yml <<E\n{options}E\ntrtllm-serve qwen3-8b --extra_llm_api_options o.yml"
    (server,) = read(text)
    assert server.flag_values == {"kv_cache_dtype": "fp8"}


def test_a_variable_that_is_not_set_is_left_out_with_a_note() -> None:
    (server,) = read("vllm serve qwen3-8b --max-num-seqs 4 $EXTRA ${MORE[@]}")
    assert server.flag_values == {"max_num_seqs": "4"}
    assert "$EXTRA is not set and left out" in server.notes


def test_the_first_word_names_the_model_before_a_flag() -> None:
    (server,) = read("vllm serve qwen3-8b --model llama3.1-8b")
    assert server.model_name == "qwen3-8b"


def test_a_configuration_of_another_engine_that_stands_alone() -> None:
    assert read("model: qwen3-8b\nmax-model-len: 8k\nlearning_rate: 1\n", "c.yaml") == []
    (server,) = read("model: qwen3-8b\nmax_model_len: 8k\nlimit_mm_per_prompt: {image: 0}\n", "c.yaml")
    assert server.flag_values == {"max_model_len": "8k", "limit_mm_per_prompt": {"image": "0"}}


def test_servers_that_are_the_same_are_one() -> None:
    (server,) = read("for i in 0 1; do\nCUDA_VISIBLE_DEVICES=$i vllm serve qwen3-8b --port 800$i &\ndone")
    assert server.notes == ("line 2 starts the same server",)


def test_a_template_asks_for_what_it_makes() -> None:
    text = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: {{ .Values.image }}\n    args: [--model=x]\n"
    with pytest.raises(InputError, match="helm template"):
        read(text, "pod.yaml")


def test_files_of_other_programs_start_no_server() -> None:
    assert read("torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2\npip install vllm") == []
    assert read("services:\n  db:\n    image: postgres:17\n", "compose.yml") == []
    assert read("model: x\nlearning_rate: 1e-5\n", "train.yaml") == []
    assert read("FROM python:3.12\nRUN pip install vllm\n", "Dockerfile") == []


@in_one_test
@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", "h100-sxm"),
        ("NVIDIA-A100-SXM4-40GB", "a100-40gb"),
        ("nvidia-tesla-a100", "a100-40gb"),
        ("nvidia-l4", "l4"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "rtx-pro-6000"),
        ("p5en.48xlarge", "h200"),
        ("p5.2xlarge", "h100-sxm"),  # another size of a known machine
        ("Standard_ND96is_H100_v5", "h100-sxm"),
        ("Standard_ND96isr_H100_v5", "h100-sxm"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", ""),
        ("NVIDIA-H100-96GB-HBM3", ""),
        ("true", ""),
        ("24GiB", ""),
        ("x.toml", ""),
    ],
)
def test_accelerators_of_labels(label: str, name: str) -> None:
    assert accelerator_of_label(label) == name


def test_an_unknown_label_is_named() -> None:
    text = (SERVING / "deployment.yaml").read_text().replace("NVIDIA-H100-80GB-HBM3", "NVIDIA-NEW")
    (server,) = read(text, "pod.yaml")
    assert (server.hardware, server.gpu_name) == ("", "NVIDIA-NEW")


@in_one_test
@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.19.0", "0.19.0"),
        ("vllm/vllm-openai:v0.11.0-x86_64", "0.11.0"),
        ("vllm/vllm-openai:nightly", ""),
        ("vllm/vllm-openai@sha256:0.1", ""),
        ("nvcr.io/nvidia/vllm:25.09-py3", ""),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.9.0", ""),
        ("lmsysorg/sglang:v0.4.9.post6-cu126", "0.4.9.post6"),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda-b4719", "b4719"),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda13-b10795", "b10795"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc6", "1.2.0rc6"),
        ("registry:5000/vllm:v0.20.1", "0.20.1"),
    ],
)
def test_versions_of_images(image: str, version: str) -> None:
    assert version_of_image(image) == version


def test_an_image_starts_its_own_server() -> None:
    start = server_start_of(["--model", "x"], "vllm/vllm-openai:latest")
    assert start is not None
    assert (start.program.engine, start.arguments) == ("vllm", ("--model", "x"))
    assert server_start_of(["nvidia-smi"], "vllm/vllm-openai:latest") is None
    assert server_start_of(["--model", "x"], "postgres") is None


def test_a_model_on_another_machine_is_the_preset_of_its_name(tmp_path: Path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text("vllm serve /data/models/Qwen3-8B --max-model-len 8192\n")
    answer = llmcalc.memory(launch=file, hardware="h100")
    named = llmcalc.memory("qwen3-8b", hardware="h100", engine="vllm", max_model_len=8192)
    assert answer.result.terms == named.result.terms
    file.write_text("vllm serve /data/models/my-own --max-model-len 8192\n")
    with pytest.raises(InputError, match="'/data/models/my-own', cannot be read"):
        llmcalc.memory(launch=file, hardware="h100")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("macros: {a: '${a}'}\nmodels: {x: {cmd: 'llama-server ${a}'}}\n", "models.x: macros name each other"),
        ("models: {x: {cmd: 'llama-server \"-m'}}\n", "models.x: a quote does not end"),
        (
            "macros: {a: '${b}${b}${b}', b: '" + "x" * 40000 + "'}\nmodels: {x: {cmd: '${a}${a}${a}'}}\n",
            "models.x: its command grows too long",
        ),
        (
            "services: {x: {image: 'vllm/vllm-openai-cpu:v0.19.0', command: '--model qwen3-8b'}}\n",
            "services.x: vllm/vllm-openai-cpu:v0.19.0 serves from CPUs",
        ),
    ],
)
def test_wrong_configurations_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        servers_of_text(text, split_typed_launch("config.yaml"))


@pytest.mark.parametrize(
    ("tag", "scheme"),
    [
        ("llama3.2:3b", "q4_k_m"),  # of most tags without a format
        ("llama3.2:1b", "q8_0"),  # 1.3 GB
        ("llama3.2:1b-instruct-q8_0", "q8_0"),
        ("llama3.2:1b-instruct-q4_K_M", "q4_k_m"),
        ("llama3.2:1b-instruct-fp16", "bf16"),
        ("gemma3:1b-it-qat", "q4_0"),
    ],
)
def test_a_tag_of_the_library_of_ollama_names_model_and_format(tag: str, scheme: str, tmp_path: Path) -> None:
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {tag}\nPARAMETER num_ctx 8192\n")
    document = command("memory", "--launch", str(modelfile), "--hardware", "rtx-3060", "--format", "json").document
    assert document["model"]["name"] == tag.partition("-")[0].replace(":", "-")
    assert document["terms"][0]["from"].startswith(scheme)


@pytest.mark.parametrize(
    ("target", "file_name", "scheme"),
    [
        ("qwen3-0.6b", "Qwen3-0.6B-Q4_K_M.gguf", "q4_k_m"),
        ("qwen3-0.6b", "my-finetune-Q8_0.gguf", "q8_0"),
        ("qwen3-0.6b", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", "bf16"),  # another model, which TARGET replaces
    ],
)
def test_a_target_has_the_format_of_the_file_in_its_place(
    target: str, file_name: str, scheme: str, tmp_path: Path
) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(f"./llama-server -m {file_name} -ngl 99 -c 8192\n")
    document = command("memory", target, "--launch", str(script), "--hardware", "rtx-3060", "--format", "json").document
    assert document["model"]["name"] == target
    assert document["terms"][0]["from"].startswith(scheme)
    assert any("--quantize replaces it" in note for note in document["notes"]) == (scheme != "bf16")


@pytest.mark.parametrize(
    "line", ['a = f"{a}{a}"', "a = [a, a]", "a = [*a, *a]", 'a = {"x": a, "y": a}', 'a = "x".join([a, a])']
)
def test_a_value_that_doubles_at_each_line_is_refused(line: str, tmp_path: Path) -> None:
    start = 'a = "xxxxxxxxxx"\n' if '"{a}' in line or "join" in line else "a = [1]\n"
    file = tmp_path / "serve.py"
    file.write_text(start + f"{line}\n" * 60 + 'import subprocess\nsubprocess.run(["vllm", "serve", str(a)])\n')
    with pytest.raises(InputError, match=r"serve\.py: its expressions put together more than 1,000,000 letters"):
        servers_of_file(file)


def test_fields_of_tensorrt_llms_file_that_change_no_memory_are_read(tmp_path: Path) -> None:
    """`attention_dp_config` and the markers of profilers (llmapi/llm_args.py), as NVIDIA's curated files have them."""
    fields = "attention_dp_config:\n  enable_balance: true\n  timeout_iters: 1\nenable_layerwise_nvtx_marker: false\n"
    fields += "enable_autotuner: false\nkv_cache_config:\n  mamba_ssm_cache_dtype: float32\n"
    (tmp_path / "options.yaml").write_text(fields)
    script = tmp_path / "serve.sh"
    script.write_text("trtllm-serve openai/gpt-oss-20b --max_seq_len 4096 --config options.yaml\n")
    assert [server.engine for server in servers_of_file(script)] == ["tensorrt-llm"]


def test_a_daemon_serves_what_a_script_runs_or_downloads() -> None:
    """Ollama's settings are those of `ollama serve`; without `ollama run` its models are those of `ollama pull`."""

    def servers(script: str) -> list[tuple[str, str, str]]:
        served = servers_of_text(script, split_typed_launch("serve.sh"))
        return [(server.engine, server.model_name, server.env.get("OLLAMA_NUM_PARALLEL", "")) for server in served]

    daemon = "OLLAMA_NUM_PARALLEL=4 ollama serve &\nollama pull qwen3:8b\n"
    assert servers(daemon) == [("ollama", "qwen3:8b", "4")]
    assert servers(daemon + "ollama run llama3.2:3b\n") == [("ollama", "llama3.2:3b", "4")]
    assert servers("ollama serve\n") == [("ollama", "", "")]
    assert servers(daemon + "torchrun train.py --model x\n") == []
