"""The delta rule that Megatron-LM runs in deterministic mode holds, to the byte, what torch holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from llmcalc.frameworks.megatron.kernels.gated_delta import CHUNK_TOKENS, chunked_delta_rule
from tests.simulator.replayed_kernel import held_by_kernel
from tests.simulator.witness import measured

SIZES = [(2, 130, 3, 16, 24), (1, 64, 2, 32, 32), (3, 7, 1, 8, 4)]
"""(batch, tokens, heads, size of a key, size of a value)"""


def rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """torch_chunk_gated_delta_rule (megatron/core/ssm/gated_delta_net/gdn.py), line by line."""
    given = q.dtype
    query, key, value, strength, decay = [x.transpose(1, 2).contiguous().to(torch.float32) for x in (q, k, v, beta, g)]
    batch, heads, tokens, size = key.shape
    pad = -tokens % CHUNK_TOKENS
    query = F.pad(query, (0, 0, 0, pad))
    key = F.pad(key, (0, 0, 0, pad))
    value = F.pad(value, (0, 0, 0, pad))
    strength = F.pad(strength, (0, pad))
    decay = F.pad(decay, (0, pad))
    query = query * size**-0.5
    v_beta, k_beta = value * strength.unsqueeze(-1), key * strength.unsqueeze(-1)
    query, key, value, k_beta, v_beta = [
        x.reshape(batch, heads, -1, CHUNK_TOKENS, x.shape[-1]) for x in (query, key, value, k_beta, v_beta)
    ]
    decay = decay.reshape(batch, heads, -1, CHUNK_TOKENS)
    mask = torch.triu(torch.ones(CHUNK_TOKENS, CHUNK_TOKENS, dtype=torch.bool, device=q.device), diagonal=0)
    decay = decay.cumsum(dim=-1)
    between = ((decay.unsqueeze(-1) - decay.unsqueeze(-2)).tril().exp().float()).tril()
    attn = -((k_beta @ key.transpose(-1, -2)) * between).masked_fill(mask, 0)
    for i in range(1, CHUNK_TOKENS):
        row = attn[..., i, :i].clone()
        sub = attn[..., :i, :i].clone()
        attn[..., i, :i] = row + (row.unsqueeze(-1) * sub).sum(-2)
    attn = attn + torch.eye(CHUNK_TOKENS, dtype=attn.dtype, device=attn.device)
    value = attn @ v_beta
    k_decayed = attn @ (k_beta * decay.exp().unsqueeze(-1))
    state = torch.zeros(batch, heads, size, value.shape[-1], device=q.device)
    out = torch.zeros_like(value)
    mask = torch.triu(torch.ones(CHUNK_TOKENS, CHUNK_TOKENS, dtype=torch.bool, device=q.device), diagonal=1)
    for i in range((tokens + pad) // CHUNK_TOKENS):
        q_i, k_i, v_i = query[:, :, i], key[:, :, i], value[:, :, i]
        attn = (q_i @ k_i.transpose(-1, -2) * between[:, :, i]).masked_fill_(mask, 0)
        v_prime = k_decayed[:, :, i] @ state
        v_new = v_i - v_prime
        inter = (q_i * decay[:, :, i, :, None].exp()) @ state
        out[:, :, i] = inter + attn @ v_new
        state = (
            state * decay[:, :, i, -1, None, None].exp()
            + (k_i * (decay[:, :, i, -1, None] - decay[:, :, i]).exp()[..., None]).transpose(-1, -2) @ v_new
        )
    del state
    out = out.reshape(batch, heads, -1, out.shape[-1])[:, :, :tokens]
    return out.transpose(1, 2).contiguous().to(given)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_rule_holds_what_torch_holds(sizes: tuple[int, ...]) -> None:
    b, n, h, k, v = sizes
    shapes = [(b, n, h, k), (b, n, h, k), (b, n, h, v), (b, n, h), (b, n, h)]
    types = ["bfloat16", "bfloat16", "bfloat16", "float32", "bfloat16"]
    given = [
        torch.empty(shape, dtype=getattr(torch, dtype), device="meta", requires_grad=True)
        for shape, dtype in zip(shapes, types, strict=True)
    ]
    theirs = measured(lambda: rule(*given), given)
    inputs = [(shape, dtype, True) for shape, dtype in zip(shapes, types, strict=True)]
    assert held_by_kernel(chunked_delta_rule, inputs) == theirs
