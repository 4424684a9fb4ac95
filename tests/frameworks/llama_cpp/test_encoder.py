"""The encoder of images of llama-server (`--mmproj`), with the arithmetic beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import llmcalc
from llmcalc.errors import InputError
from tests.gguf_files import write_gguf


def buffers(target: str = "gemma3-27b", **flags: Any) -> dict[str, int]:
    """The bytes of the model's tensors by device."""
    chosen = {"quantize": "q4_k_m", "ctx_size": 8192, "fit": "off", **flags}
    result = llmcalc.memory(target, hardware="rtx-3090", engine="llama.cpp==b10488", **chosen).result
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
