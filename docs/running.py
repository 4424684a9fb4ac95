"""Runs commands as a reader would, in a folder with the files that they name."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock


def printed(command: str) -> str:
    """Returns the output of a command at 100 columns without colour."""
    from llmcalc.cli.main import main

    out = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["llmcalc", *shlex.split(command)]),
        mock.patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        main()
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}

LOGS = Path(__file__).resolve().parent.parent / "tests/data/logs"

TEXTS = {
    "rows.csv": "users,seq,seconds\n1,2048,9.1ms\n8,2048,10.2ms\n64,2048,21ms\n64,8192,44ms\n",
    "config.json": json.dumps(CONFIG),
    "llmcalc.lock.json": json.dumps(
        {"lock": 1, "llmcalc": "0.0.1", "models": [{"target": "gpt2", "params": {"total": 124439807}}]}
    ),
    "my-gpu.toml": "memory_bytes = 25769803776\n",
    "deepspeed.json": json.dumps(
        {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 2},
            "bf16": {"enabled": True},
            "wall_clock_breakdown": False,
            "own": 1,
        }
    ),
    "train.sh": (
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        "torchrun --nproc_per_node 2 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 2 --hidden-size 64 "
        "--num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --vocab-size 128 --micro-batch-size 1 "
        "--global-batch-size 2 --bf16 --use-mcore-models --train-iters 1\n"
    ),
    "trace.csv": (LOGS.parent / "requests.csv").read_text(),
    "serve.sh": "vllm serve Qwen/Qwen3-8B --max-num-seqs 64 --max-model-len 16384\n",
    "grpo.yaml": (
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_vllm: true\nnum_generations: 8\nmax_prompt_length: 256\n"
        "max_completion_length: 256\nper_device_train_batch_size: 8\noutput_dir: out\n"
    ),
    "dpo.yaml": (
        "model_name_or_path: gpt2\ntorch_dtype: bfloat16\nper_device_train_batch_size: 1\nmax_length: 64\n"
        "max_prompt_length: 32\nbeta: 0.1\noutput_dir: out\n"
    ),
    "sft.yaml": "model: gpt2\nmodel_class: llm\nmicro_batch_size: 1\ncutoff_len: 64\ntrain_dataset: data.yaml\n",
    "server.log": (LOGS / "vllm_v1.log").read_text(),
    "oom.log": (LOGS / "torch_other_processes.log").read_text(),
    "buffers.log": (LOGS / "llamacpp.log").read_text(),
    "llmcalc.toml": """\
[[model]]
target = "llama3-8b"
params = "<= 8.1B"
kv_per_token = "<= 128 KiB"
fits = ["h100-sxm"]

[[model]]
target = "mixtral-8x7b"
memory = { max = "80 GiB", phase = "decode", seq = 8192, quantize = "awq-int4-g128" }
""",
}
"""File → what is in it."""


def checkpoint(tensors: dict[str, tuple[int, ...]]) -> bytes:
    """A file of safetensors with zeros in float32. tensors: name → shape."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in tensors.items():
        start, end = end, end + 4 * _elements(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


def _elements(shape: tuple[int, ...]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


CHECKPOINT = {
    "model.embed_tokens.weight": (64, 8),
    "lm_head.weight": (64, 8),  # stored a second time
    "model.layers.0.self_attn.q_proj.weight": (8, 9),  # misshapen
    "model.layers.0.self_attn.rotary_emb.inv_freq": (2,),  # a buffer
    "model.layers.0.extra.weight": (3,),
}
"""Tensors of the model in `config.json`, and others."""


@contextlib.contextmanager
def folder(path: Path) -> Iterator[None]:
    """Writes the files that commands name into a folder, and runs what is inside there."""
    for name, text in TEXTS.items():
        (path / name).write_text(text)
    (path / "model.safetensors").write_bytes(checkpoint(CHECKPOINT))
    with contextlib.chdir(path):
        yield
