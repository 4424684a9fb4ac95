"""The encoder of images of llama-server (`--mmproj`), with the arithmetic beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmcalc.errors import InputError
from llmcalc.frameworks.ggml.encoder_graph import encoder_buffers, encoder_shape
from llmcalc.sources.target import load
from tests.engines import engine_memory
from tests.gguf_files import write_gguf


def buffers(target: str = "gemma3-27b", **flags: Any) -> dict[str, int]:
    """The bytes of the model's tensors by device."""
    chosen = {"quantize": "q4_k_m", "ctx_size": 8192, "fit": "off", **flags}
    result = engine_memory(target, hardware="rtx-3090", engine="llama.cpp==b10488", **chosen)
    return {term.device: term.bytes for term in result.terms if term.name == "model_buffer"}


def test_an_encoder_is_on_the_first_gpu() -> None:
    plain, encoder = buffers(), buffers(mmproj="mmproj-model-f16.gguf")
    # the file that is published for Gemma 3 27B has 858 million bytes
    size = encoder["CUDA0"] - plain["CUDA0"]
    assert size == pytest.approx(858e6, rel=0.02)
    assert encoder["CPU"] == plain["CPU"]
    split = {"tensor_split": "1,1", "mmproj": "x.gguf"}
    assert buffers(mmproj_device="CUDA1", **split)["CUDA1"] - buffers(**split)["CUDA1"] == size


def test_an_encoder_may_stay_on_the_host() -> None:
    plain = buffers()
    for flags in ({"mmproj_offload": False}, {"mmproj_device": "none"}):
        host = buffers(mmproj="x.gguf", **flags)
        assert host["CUDA0"] == plain["CUDA0"]
        assert host["CPU"] > plain["CPU"]


def test_a_file_has_its_own_sizes(tmp_path: Path) -> None:
    # 64 x 32 elements of two bytes
    write_gguf(tmp_path / "mmproj.gguf", {"general.architecture": "clip"}, [("v.patch_embd.weight", (64, 32), "F16")])
    plain, encoder = buffers("llama3.1-8b"), buffers("llama3.1-8b", mmproj=str(tmp_path / "mmproj.gguf"))
    assert encoder["CUDA0"] - plain["CUDA0"] == 64 * 32 * 2


@pytest.mark.parametrize(
    ("target", "flags", "message"),
    [
        ("llama3.1-8b", {"mmproj": "x.gguf"}, "no encoder of images in its description"),
        ("gemma3-27b", {"mmproj": "x.gguf", "mmproj_device": "CUDA7"}, "expected one of none, CUDA0"),
    ],
)
def test_wrong_encoders_are_refused(target: str, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        buffers(target, **flags)


LOGGED_BUFFERS = [
    # llama.cpp: pull request 22790 (CUDA), issue 16842 (ROCm), pull requests 22673 (CUDA) and 16837 (Metal)
    ("gemma3-4b", True, 121.25, 0.001),
    ("mistral-small-3.2-24b", True, 62.62, 0.01),
    ("qwen3.5-4b", True, 223.30, 0.001),
    ("gemma3-12b", False, 1132.00, 0.04),
    # gguf-parser-go: issue 44 (ROCm, whole MiB, the models' sizes are not named)
    ("qwen3-vl-4b", True, 323, 0.01),
    ("qwen3-vl-4b", False, 4728, 0.001),
    ("qwen2-vl-7b", False, 4598, 0.01),
    ("qwen2-vl-7b", True, 267, 0.16),
    ("qwen2.5-vl-7b", False, 4872, 0.01),
    ("qwen2.5-vl-7b", True, 705, 0.06),
]


def test_compute_buffers_of_encoders_are_near_logged_ones() -> None:
    for target, flash, logged_mib, relative_error in LOGGED_BUFFERS:
        shape = encoder_shape(load(target).model.towers)
        assert shape is not None, target
        mib = encoder_buffers(shape, "CUDA0", flash)["CUDA0"] / 2**20
        assert mib == pytest.approx(logged_mib, rel=relative_error), (target, flash)


def test_the_compute_buffer_of_an_encoder_is_counted_or_said() -> None:
    def compute(target: str, version: str, **flags: Any) -> tuple[dict[str, float], str]:
        chosen = {"quantize": "q4_k_m", "ctx_size": 8192, "parallel": 1, **flags}
        result = engine_memory(target, hardware="h100-sxm", engine=f"llama.cpp=={version}", **chosen)
        mib = {term.device: term.bytes / 2**20 for term in result.terms if term.name == "compute_buffer"}
        return mib, " ".join(result.notes)

    # pull request 16837 let encoders use flash attention, 1132 -> 121.25 MiB, beside 9.19 on the host
    for version, flags, added_mib in (
        ("b10488", {}, 121.25),
        ("b10488", {"flash_attn": "off"}, 1096),
        ("b6325", {}, 1096),
    ):
        plain, _ = compute("gemma3-12b", version, **flags)
        counted, notes = compute("gemma3-12b", version, mmproj="x.gguf", **flags)
        assert counted["CUDA0"] - plain["CUDA0"] == pytest.approx(added_mib, abs=0.01), version
        assert counted["CPU"] - plain["CPU"] == pytest.approx(9.19, abs=0.01)
        assert "encoder" not in notes
    assert "1472 x 1472 pixels" in compute("qwen3-vl-4b", "b10488", mmproj="x.gguf")[1]
    assert (
        "compute buffer of the encoder of images (--mmproj) is not modelled"
        in compute("internvl3-2b", "b10488", mmproj="x.gguf")[1]
    )
