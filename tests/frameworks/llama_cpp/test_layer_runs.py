"""Graphs whose repeated layers are left out have the buffers of graphs with all layers."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.frameworks.engines.registry import engine_and_version
from llmcalc.frameworks.ggml import server as ggml_server
from llmcalc.frameworks.ggml.changes import longest_context, most_layers
from llmcalc.frameworks.ggml.layer_runs import layers_with_graphs
from llmcalc.frameworks.ggml.server import GgmlServer
from llmcalc.frameworks.ik_llama_cpp.server import create_server as ik_server
from llmcalc.frameworks.llama_cpp.server import create_server as llama_server
from llmcalc.sources.hardware import find_hardware

HOSTED: dict[str, Any] = {"override_tensor": "exps=CPU", "n_gpu_layers": 99}
SPLIT: dict[str, Any] = {"tensor_split": "1,2", "n_gpu_layers": "all"}


def server(engine: str, target: str, flags: dict[str, Any]) -> GgmlServer:
    _, version = engine_and_version(engine)
    make = ik_server if engine.startswith("ik") else llama_server
    all_flags = {"quantize": "q4_k_m", "ctx_size": 8192, **flags}
    return make(llmcalc.load(target), find_hardware("rtx-3090"), version, all_flags)


def test_whole_repeats_of_a_pattern_are_left_out() -> None:
    assert (
        layers_with_graphs("a" * 12) == [0, 1, 2, 9, 10, 11] == layers_with_graphs([1] * 12)
    )  # 12 - 3 - 2 = 7: 6 of them
    # three layers that repeat ten times, after two others: 10 - 3 - 2 = 5 repeats, of which four are left out
    assert layers_with_graphs("xy" + "aab" * 10) == [*range(2 + 3 * 3), *range(2 + 7 * 3, 2 + 10 * 3)]
    assert layers_with_graphs("abcdef") == list(range(6))


@pytest.mark.parametrize(
    ("engine", "target", "flags"),
    [
        ("ik_llama.cpp", "deepseek-v2-lite", HOSTED),
        ("ik_llama.cpp==3700", "qwen3-30b-a3b", SPLIT),
        ("llama.cpp==b10488", "deepseek-v2-lite", {"n_cpu_moe": 10, "n_gpu_layers": "all"}),
        ("llama.cpp==b10488", "gemma-3-27b", {"n_gpu_layers": "all"}),
        ("llama.cpp==b10488", "qwen3-30b-a3b", HOSTED),
        ("llama.cpp==b10488", "llama3.1-70b", {"n_gpu_layers": 30}),
    ],
)
def test_all_layers_have_the_same_buffers(
    monkeypatch: pytest.MonkeyPatch, engine: str, target: str, flags: dict[str, Any]
) -> None:
    loaded = server(engine, target, {"fit": "off", **flags} if engine.startswith("llama") else flags)
    counts: list[tuple[int, int]] = []

    def counted(keys: list[Any]) -> list[int]:
        chosen = layers_with_graphs(keys)
        counts.append((len(chosen), len(keys)))
        return chosen

    monkeypatch.setattr(ggml_server, "layers_with_graphs", counted)
    buffers = loaded.compute_buffers(loaded.placement)
    assert counts[0][0] < counts[0][1]
    monkeypatch.setattr(ggml_server, "layers_with_graphs", lambda keys: list(range(len(keys))))
    assert loaded.compute_buffers(loaded.placement) == buffers


def test_a_search_finds_the_last_value_that_a_gpu_holds() -> None:
    loaded = server("llama.cpp==b10488", "llama3.1-70b", {"fit": "off", "ctx_size": 32768})

    def holds(**flags: Any) -> bool:
        changed = loaded.with_flags(**flags)
        buffers = changed.buffers(changed.placement)
        return all(buffers.bytes_on(device) <= changed.free_bytes for device in changed.devices)

    layers = most_layers(loaded)
    assert layers is not None
    assert holds(n_gpu_layers=layers)
    assert not holds(n_gpu_layers=layers + 1)
    small = loaded.with_flags(n_gpu_layers=layers)
    context = longest_context(small.with_flags(ctx_size=131072))
    assert context is not None
    assert holds(n_gpu_layers=layers, ctx_size=context)
    assert not holds(n_gpu_layers=layers, ctx_size=context + 256)
