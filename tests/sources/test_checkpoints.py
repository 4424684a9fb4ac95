"""Checkpoint headers: small files written by the real libraries, damaged files, and the comparison of a checkpoint with
a spec.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from llmcalc.errors import InputError
from llmcalc.sources.checkpoints.gguf import GGML_TYPES, read_gguf
from llmcalc.sources.checkpoints.gguf_config import gguf_config
from llmcalc.sources.checkpoints.header import Checkpoint, StoredTensor
from llmcalc.sources.checkpoints.read import read_checkpoint
from llmcalc.sources.checkpoints.safetensors import DTYPE_BITS, read_safetensors
from llmcalc.sources.huggingface.registry import family_of
from llmcalc.sources.target import load
from llmcalc.witnesses.checkpoint import match_tensors
from tests.builders import family_shapes, spec_of


def test_safetensors(tmp_path: Path) -> None:
    tensors = {
        "a.weight": torch.zeros(3, 4, dtype=torch.bfloat16),
        "b": torch.zeros(5, dtype=torch.int64),
        "empty": torch.zeros(0, 2),
    }
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    found = read_safetensors(tmp_path / "m.safetensors")
    assert {t.name: (t.dtype, t.shape, t.nbytes) for t in found.tensors} == {
        "a.weight": ("BF16", (3, 4), 24),
        "b": ("I64", (5,), 40),
        "empty": ("F32", (0, 2), 0),
    }
    assert (found.elements, found.nbytes, found.metadata) == (17, 64, {"format": "pt"})


def test_every_format_that_the_library_writes(tmp_path: Path) -> None:
    kinds = [
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ]
    save_file({str(k): torch.zeros(4, 4).to(k) for k in kinds}, tmp_path / "m.safetensors")
    found = read_safetensors(tmp_path / "m.safetensors")
    assert [t.nbytes for t in sorted(found.tensors, key=lambda t: t.name)] == [
        16 * k.itemsize for k in sorted(kinds, key=str)
    ]
    assert {t.dtype for t in found.tensors} <= set(DTYPE_BITS)


def test_sharded(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "two.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"metadata": {"total_size": 20}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
    )
    assert [t.name for t in read_checkpoint(index).tensors] == ["a", "b"]
    assert read_checkpoint(tmp_path).nbytes == 20
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "c": "two.safetensors"}}))
    with pytest.raises(InputError, match=r"c: two.safetensors does not hold it"):
        read_checkpoint(index)
    index.write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    with pytest.raises(InputError, match="beside this one"):
        read_checkpoint(index)
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(InputError, match="No such file"):
        read_checkpoint(index)


def _write_gguf(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_token_list([f"t{i}" for i in range(500)])
    writer.add_array("some.numbers", list(range(300)))
    writer.add_tensor("token_embd.weight", np.zeros((10, 64), dtype=np.float32))
    quantised = gguf.quants.quantize(np.zeros((6, 64), dtype=np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.attn_q.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "m.gguf")
    found = read_gguf(tmp_path / "m.gguf")
    assert [(t.name, t.dtype, t.shape, t.nbytes) for t in found.tensors] == [
        ("token_embd.weight", "F32", (10, 64), 2560), ("blk.0.attn_q.weight", "Q8_0", (6, 64), 6 * 2 * 34),
    ]  # fmt: skip
    assert found.metadata["general.architecture"] == "llama"
    assert found.metadata["tokenizer.ggml.tokens"] == "500 values"


def test_block_sizes_are_those_of_the_library() -> None:
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        assert GGML_TYPES[int(kind)] == (kind.name, block, size)


# --- damaged files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated or not a safetensors"),
        (struct.pack("<Q", 2**63) + b"{}", "header length"),
        (struct.pack("<Q", 1000) + b"{}", "header length 1,000 in a file of 10 bytes"),
        (struct.pack("<Q", 4) + b"[[[[", "not valid JSON"),
        (struct.pack("<Q", 4) + b"[1] ", "not a table of tensors"),
        (struct.pack("<Q", 9) + b'{"a": {}}', "a: expected a known dtype"),
    ],
)
def test_broken_safetensors(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_safetensors(tmp_path / "m.safetensors")


def _header(entry: dict[str, Any]) -> bytes:
    text = json.dumps({"a": entry}).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "the file is truncated"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "4 bytes for F32 of shape"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "is not a valid size"),
        ({"dtype": "F32", "shape": [2**60], "data_offsets": [0, 8]}, "is not a valid size"),
        ({"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}, "known dtype"),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "is not a valid size"),
    ],
)
def test_lying_safetensors(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    (tmp_path / "m.safetensors").write_bytes(_header(entry))
    with pytest.raises(InputError, match=message):
        read_safetensors(tmp_path / "m.safetensors")


def test_a_truncated_checkpoint_is_told(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(100)}, tmp_path / "m.safetensors")
    whole = (tmp_path / "m.safetensors").read_bytes()
    (tmp_path / "m.safetensors").write_bytes(whole[:-100])
    with pytest.raises(InputError, match="truncated"):
        read_safetensors(tmp_path / "m.safetensors")
    _write_gguf(tmp_path / "m.gguf")
    head = (tmp_path / "m.gguf").read_bytes()
    for cut in (2, 10, 30, 200, 2000):
        (tmp_path / "cut.gguf").write_bytes(head[:cut])
        with pytest.raises(InputError, match=r"truncated|GGUF"):
            read_gguf(tmp_path / "cut.gguf")


def test_a_tensor_more_than_there_are_is_told(tmp_path: Path) -> None:
    """What follows is zeros: a tensor without a name."""
    _write_gguf(tmp_path / "m.gguf")
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    assert content[8] == 2
    content[8] = 3
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(InputError, match="has no name"):
        read_gguf(tmp_path / "m.gguf")


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_damage_gives_a_message(tmp_path: Path, data: Any) -> None:
    _write_gguf(tmp_path / "m.gguf") if not (tmp_path / "m.gguf").exists() else None
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    for at, value in data.draw(
        st.lists(st.tuples(st.integers(0, min(len(content), 20_000) - 1), st.integers(0, 255)), min_size=1, max_size=8)
    ):
        content[at] = value
    (tmp_path / "bad.gguf").write_bytes(content)
    with suppress(InputError):  # anything else is a failure
        found = read_gguf(tmp_path / "bad.gguf")
        assert len(found.tensors) <= 2
        assert all(type(size) is int and 0 <= size <= 2**48 for tensor in found.tensors for size in tensor.shape)


# --- comparison with a spec -------------------------------------------------------------------------------------------


def _stored(config: dict[str, Any]) -> Checkpoint:
    """The header that the class of a config would save."""
    fields = {k: v for k, v in config.items() if k != "model_type"}
    with torch.device("meta"):
        model = getattr(transformers, config["architectures"][0])(
            transformers.AutoConfig.for_model(config["model_type"], **fields)
        )
    seen: dict[int, StoredTensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        seen.setdefault(id(tensor), StoredTensor(name, "BF16", tuple(tensor.shape), 2 * tensor.numel()))
    return Checkpoint("safetensors", tuple(seen.values()))


def _deviates(config: dict[str, Any]) -> bool:
    """Whether its class has other parameters than the architecture: an untied BERT or T5."""
    found = family_of(config["model_type"]).deviations
    return any(one.quantity == "parameters" and one.applies_to(spec_of(config)) for one in found)


PLAIN = [
    pytest.param(config, id=name)
    for name, config in family_shapes()
    if not _deviates(config)
    and config["model_type"]
    in ("llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "phi3", "mixtral", "gemma2", "bert", "t5")
]


@pytest.mark.parametrize("config", PLAIN)
def test_a_saved_model_is_what_its_config_says(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = _stored(config)
    matches = match_tensors(load(str(tmp_path)).model, stored)
    assert matches.is_complete, (matches.missing[:3], matches.unexpected[:3], matches.shape_mismatches[:3])
    first = stored.tensors[len(stored.tensors) // 2]
    without = Checkpoint("safetensors", tuple(t for t in stored.tensors if t is not first))
    assert not match_tensors(load(str(tmp_path)).model, without).is_complete


def _changed(change: Callable[[list[StoredTensor]], None], target: str = "llama3-8b") -> Any:
    spec = load(target, ("num_hidden_layers=2",)).model
    h, kv, f, v = 4096, 1024, 14336, 128256
    tensors = [StoredTensor("model.embed_tokens.weight", "BF16", (v, h), 2 * v * h)]
    for i in range(2):
        shapes = {
            "self_attn.q_proj": (h, h),
            "self_attn.k_proj": (kv, h),
            "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, h),
            "mlp.gate_proj": (f, h),
            "mlp.up_proj": (f, h),
            "mlp.down_proj": (h, f),
            "input_layernorm": (h,),
            "post_attention_layernorm": (h,),
        }
        tensors += [StoredTensor(f"model.layers.{i}.{name}.weight", "BF16", shape, 0) for name, shape in shapes.items()]
    tensors += [StoredTensor("model.norm.weight", "BF16", (h,), 0), StoredTensor("lm_head.weight", "BF16", (v, h), 0)]
    change(tensors)
    return match_tensors(spec, Checkpoint("safetensors", tuple(tensors)))


def test_findings_are_named() -> None:
    assert _changed(lambda t: None).is_complete
    missing = _changed(lambda t: t.pop(3))
    assert [e.node for e in missing.missing] == ["layers.0.self_attn.v_proj"]
    extra = _changed(lambda t: t.append(StoredTensor("model.layers.1.self_attn.q_proj.bias", "BF16", (4095,), 0)))
    assert [x.name for x in extra.unexpected] == ["model.layers.1.self_attn.q_proj.bias"]
    wrong = _changed(
        lambda t: t.__setitem__(5, StoredTensor("model.layers.0.mlp.gate_proj.weight", "BF16", (14000, 4096), 0))
    )
    assert [(e.node, s.shape) for e, s in wrong.shape_mismatches] == [("layers.0.mlp.gate_proj", (14000, 4096))]
    buffers = _changed(
        lambda t: t.append(StoredTensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", (64,), 0))
    )
    assert buffers.is_complete
    assert len(buffers.buffers) == 1


def test_the_command(run: Any, tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{k: v for k, v in config.items() if k not in ("architectures", "model_type")})
    )
    model.save_pretrained(tmp_path / "saved")
    file = str(tmp_path / "saved/model.safetensors")
    assert run("check", file, str(tmp_path / "config.json")).code == 0
    result = run("check", file, str(tmp_path / "config.json"), "--set", "num_hidden_layers=3", "--format", "json")
    assert result.code == 1
    assert {m["node"].split(".")[1] for m in json.loads(result.out)["missing"]} == {"2"}
    shown = run("params", file)
    assert shown.code == 0
    total = sum(p.numel() for p in model.parameters())
    assert f"{total:,}" in shown.out
    assert run("params", file, "--format", "json").document["params"]["total"] == total
    assert "does not describe an architecture" in run("flops", file).err


@pytest.mark.parametrize(
    ("groups", "has_correction", "expected"),
    [
        ({"expert_group_count": 4, "expert_group_used_count": 2}, True, (4, 2)),
        ({"expert_group_count": 4, "expert_group_used_count": 2}, False, (4, 2)),
        ({"expert_group_count": 1, "expert_group_used_count": 1}, True, (None, None)),
        ({}, False, (None, None)),
    ],
)
def test_groups_of_experts_in_a_gguf_file(
    groups: dict[str, int], has_correction: bool, expected: tuple[int | None, int | None]
) -> None:
    """DeepSeek-V3 selects from groups by scores with a correction (`exp_probs_b`), DeepSeek-V2 by scores alone."""
    sizes = {
        "block_count": 2, "embedding_length": 32, "feed_forward_length": 48, "attention.head_count": 4,
        "attention.head_count_kv": 1, "attention.q_lora_rank": 16, "attention.kv_lora_rank": 8, "context_length": 64,
        "attention.key_length_mla": 12, "attention.value_length_mla": 8, "rope.dimension_count": 4,
        "leading_dense_block_count": 1, "expert_count": 8, "expert_used_count": 2, "expert_shared_count": 1,
        "expert_feed_forward_length": 16, "attention.layer_norm_rms_epsilon": 1e-6, **groups,
    }  # fmt: skip
    names = ["token_embd.weight", "output.weight", *(["blk.1.exp_probs_b.bias"] if has_correction else [])]
    tensors = tuple(StoredTensor(name, "F32", (96, 32), 4 * 96 * 32) for name in names)
    metadata = {"general.architecture": "deepseek2", **{f"deepseek2.{name}": size for name, size in sizes.items()}}
    spec: Any = spec_of(gguf_config(Checkpoint("gguf", tensors, metadata), "m.gguf"))
    router = spec.decoder.variants["moe"].feed_forward.router
    assert (router.n_group, router.topk_group) == expected
