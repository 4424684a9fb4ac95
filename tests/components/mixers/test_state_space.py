"""Cases that the contract tests of single parts do not cover: shared blocks in a stack, and a grouped convolution's
backward.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from pydantic import ValidationError

import llmcalc
from llmcalc import ops
from llmcalc.components.layers.zamba_layer import ZambaLayer
from llmcalc.components.mixers.mamba2 import Mamba2
from llmcalc.components.stack import Stack
from llmcalc.model import ModelSpec
from llmcalc.witnesses.module_measurements import count_flops
from llmcalc.witnesses.reference import verify_reference
from tests.builders import run_config

SHARING = [layer for layer in ZambaLayer.examples() if not layer.transformer.idle_adapters]


def shared_stack(layer: ZambaLayer) -> ModelSpec:
    """Five layers that use two blocks in rotation: one three times, the other twice."""
    stack = Stack(
        num_hidden_layers=5,
        block=layer,
        variants={"other": layer},
        pattern=("block", "other"),
        shared_layers=("block", "other"),
    )
    return ModelSpec(vocab_size=50, hidden_size=24, tie_word_embeddings=False, decoder=stack)


@pytest.mark.parametrize("layer", SHARING)
def test_shared_blocks_count_once_and_run_in_every_layer(layer: ZambaLayer) -> None:
    spec = shared_stack(layer)
    verdict = verify_reference(spec, batch=2, seq=11)
    assert verdict.ok, verdict.failures
    net = spec.reference().eval()
    first, third = (net.get_submodule(f"layers.{i}.transformer.self_attn.o_proj").weight for i in (0, 2))
    assert first is third
    assert first is not net.get_submodule("layers.1.transformer.self_attn.o_proj").weight


@pytest.mark.parametrize("layer", SHARING)
def test_shared_blocks_decode_as_they_run_at_once(layer: ZambaLayer) -> None:
    torch.manual_seed(0)
    net = shared_stack(layer).reference().eval()
    ids = torch.randint(0, 50, (2, 9))
    store: dict[torch.nn.Module, Any] = {}
    with torch.no_grad():
        pieces = [net(ids[:, :5], cached_tensors=store)] + [
            net(ids[:, i : i + 1], cached_tensors=store, past=i) for i in range(5, 9)
        ]
        torch.testing.assert_close(torch.cat(pieces, 1), net(ids), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("phase", ["prefill", "training"])
def test_adapters_of_a_shared_block_are_held_once(phase: Literal["prefill", "training"]) -> None:
    """Zamba2ForCausalLM holds each layer's adapters once, in the first block of the layers that share one."""
    model = llmcalc.load("zamba2-1.2b")
    use = llmcalc.memory(model, phase=phase, seq=32)
    held_bytes = {kinds["weights"] for kinds in use.document["memory"]["by_phase"].values()}
    assert held_bytes == {2 * llmcalc.params(model).total}


def test_a_block_that_layers_share_holds_no_idle_adapters() -> None:
    idle = next(layer for layer in ZambaLayer.examples() if layer.transformer.idle_adapters)
    with pytest.raises(
        ValidationError, match="shared_layers: the layers called 'block' share a block; idle_adapters stand only"
    ):
        shared_stack(idle)


def test_a_prompt_may_be_read_in_pieces() -> None:
    """A prompt in pieces: chunks start at the start of a piece, and the state continues."""
    torch.manual_seed(0)
    mixer = Mamba2(num_heads=4, head_dim=6, state_size=5, chunk_size=4, n_groups=2)
    block = shared_stack(ZambaLayer.examples()[1]).main.block.model_copy(update={"attention": mixer})
    net = shared_stack(block).reference().eval()  # type: ignore[arg-type]
    ids = torch.randint(0, 50, (2, 13))
    store: dict[torch.nn.Module, Any] = {}
    with torch.no_grad():
        pieces = [
            net(ids[:, :5], cached_tensors=store),
            net(ids[:, 5:12], cached_tensors=store, past=5),
            net(ids[:, 12:], cached_tensors=store, past=12),
        ]
        torch.testing.assert_close(torch.cat(pieces, 1), net(ids), atol=2e-5, rtol=1e-4)


def test_a_depthwise_convolution_costs_in_backward_twice_its_forward() -> None:
    """2 sequences × (11 + 3) outputs × 6 channels × 4 taps × 2 = 1344; torch's own formula gives 6 times that for the
    weight.
    """
    conv = torch.nn.Sequential(torch.nn.Linear(11, 11, bias=False), torch.nn.Conv1d(6, 6, 4, groups=6, padding=3))
    x = torch.randn(2, 6, 11)
    forward, both = count_flops(conv, lambda: [conv(x)], includes_backward=True)
    op = ops.Conv1d(6, 6, kernel=4, groups=6, padding=3)
    assert forward["1"] == op.forward_flops(run_config(batch=2, seq=11)) == 1344
    assert both["1"] - forward["1"] == op.backward_flops(run_config(batch=2, seq=11)) == 2 * 1344
