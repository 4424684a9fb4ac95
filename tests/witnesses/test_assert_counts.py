"""`llmcalc.testing.assert_counts` of modules that call torch's fused attention, on a CPU and on meta."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from llmcalc.testing import assert_counts
from llmcalc.witnesses.flop_counter import flop_counter
from llmcalc.witnesses.module_measurements import count_flops
from tests.builders import spec_of
from tests.samples import in_one_test

H, HEADS, HEAD, F, LAYERS, VOCAB = 64, 4, 16, 96, 2, 50


class Attention(nn.Module):
    def __init__(self, kv_heads: int, kernel: Any, **options: Any) -> None:
        super().__init__()
        self.kv_heads, self.kernel, self.options = kv_heads, kernel, options
        self.q_proj = nn.Linear(H, HEADS * HEAD, bias=False)
        self.k_proj = nn.Linear(H, kv_heads * HEAD, bias=False)
        self.v_proj = nn.Linear(H, kv_heads * HEAD, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD, H, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            linear(x).unflatten(-1, (heads, HEAD)).transpose(1, 2)
            for linear, heads in (
                (self.q_proj, HEADS), (self.k_proj, self.kv_heads), (self.v_proj, self.kv_heads)
            )
        )  # fmt: skip
        out: Tensor = self.o_proj(self.kernel(q, k, v, **self.options).transpose(1, 2).flatten(2))
        return out


class Layer(nn.Module):
    def __init__(self, kv_heads: int, kernel: Any, **options: Any) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(H), nn.RMSNorm(H)
        self.self_attn = Attention(kv_heads, kernel, **options)
        self.gate_proj, self.up_proj = nn.Linear(H, F, bias=False), nn.Linear(H, F, bias=False)
        self.down_proj = nn.Linear(F, H, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y))


class Decoder(nn.Module):
    def __init__(self, kv_heads: int = HEADS, kernel: Any = functional.scaled_dot_product_attention, **options: Any):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, H)
        self.layers = nn.ModuleList([Layer(kv_heads, kernel, **options) for _ in range(LAYERS)])
        self.norm, self.lm_head = nn.RMSNorm(H), nn.Linear(H, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.lm_head(self.norm(x))
        return out


def spec(kv_heads: int = HEADS) -> Any:
    return spec_of(
        {
            "model_type": "llama", "vocab_size": VOCAB, "hidden_size": H, "num_hidden_layers": LAYERS,
            "intermediate_size": F, "num_attention_heads": HEADS, "num_key_value_heads": kv_heads, "head_dim": HEAD,
        }
    )  # fmt: skip


IDS = (torch.zeros(2, 24, dtype=torch.long),)
SCORES = LAYERS * 2 * (2 * 2 * HEADS * HEAD * 24 * 24)
"""FLOPs of the two products with scores: batch 2, 24 tokens, all pairs."""


@in_one_test
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    ("kv_heads", "options"),
    [
        (HEADS, {}),
        (HEADS, {"is_causal": True}),
        (2, {"enable_gqa": True}),
        (1, {"enable_gqa": True, "is_causal": True}),
        (HEADS, {"dropout_p": 0.1}),
        (2, {"enable_gqa": True, "dropout_p": 0.1, "is_causal": True}),
    ],
)
def test_fused_attention_is_counted(kv_heads: int, options: dict[str, Any], train: bool, device: str) -> None:
    module = Decoder(kv_heads, **options).to(device).train(train)
    assert_counts(module, spec(kv_heads), inputs=tuple(ids.to(device) for ids in IDS))


def test_a_mask_is_no_difference() -> None:
    assert_counts(Decoder(attn_mask=torch.ones(24, 24, dtype=torch.bool).tril()), spec(), inputs=IDS)


def test_a_kernel_without_a_formula_is_said_to_be_one() -> None:
    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)[0]
        return out

    with pytest.raises(AssertionError, match="the difference is attention's products with scores: the module runs a"):
        assert_counts(Decoder(kernel=fused), spec(), inputs=IDS)


def test_a_wrong_module_still_fails() -> None:
    with pytest.raises(AssertionError, match=r"forward FLOPs at batch 2, seq 24: torch counted [\d,]+, the spec gives"):
        assert_counts(Decoder(kernel=lambda q, k, v: v), spec(), inputs=IDS)


class Counting(Decoder):
    """A decoder with dropout, and a buffer that every pass changes."""

    def __init__(self) -> None:
        super().__init__(dropout_p=0.5)
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, ids: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(ids)


def test_the_module_is_as_it_was() -> None:
    module = Counting().train()
    module.lm_head.weight.grad = torch.ones_like(module.lm_head.weight)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    fused, state = torch.backends.mha.get_fastpath_enabled(), torch.random.get_rng_state()
    backends = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()
    assert_counts(module, spec(), inputs=IDS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.device.type == "cpu" and parameter.requires_grad for parameter in module.parameters())
    assert module.training
    assert torch.equal(module.lm_head.weight.grad, torch.ones_like(module.lm_head.weight))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.backends.mha.get_fastpath_enabled() == fused
    assert (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()) == backends


def test_fused_layers_of_torch_are_counted() -> None:
    """In evaluation nn.TransformerEncoderLayer calls one fused operation, and nn.MultiheadAttention another."""
    layer = nn.TransformerEncoderLayer(H, HEADS, F, batch_first=True).eval()
    x = torch.zeros(2, 24, H)
    products = 2 * 2 * 24 * (4 * H * H + 2 * H * F) + SCORES // LAYERS
    assert count_flops(layer, lambda: layer(x))[0][""] == products
    alone = nn.MultiheadAttention(H, HEADS, batch_first=True).eval()
    assert count_flops(alone, lambda: alone(x, x, x, need_weights=False))[0][""] == products - 2 * 2 * 24 * 2 * H * F


def test_both_passes_of_fused_attention() -> None:
    """The backward pass has each product twice."""
    module = Attention(HEADS, functional.scaled_dot_product_attention)
    x = torch.zeros(2, 24, H, requires_grad=True)
    forward, both = count_flops(module, lambda: [module(x)], includes_backward=True)
    assert forward[""] == 2 * 2 * 24 * 4 * H * H + SCORES // LAYERS
    assert both[""] == 3 * forward[""]
    with flop_counter() as counter, torch.no_grad():
        module(x)
    assert counter.get_total_flops() == forward[""]
