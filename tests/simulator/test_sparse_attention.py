"""Latent attention to selected tokens and the loss of its indexer hold what torch holds when it runs them.

The functions are those of megatron/core/transformer/experimental_attention_variant/dsa.py and dsa_masking.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from llmcalc.frameworks.megatron.kernels.sparse_attention import absorbed_attention, indexer_loss
from llmcalc.simulator.meter import Meter
from llmcalc.simulator.tensor import DTYPES, empty
from tests.simulator.replayed_kernel import held_by_kernel
from tests.simulator.witness import Held, measured

NEVER = float("-inf")


def valid_keys(tokens: int, device: Any) -> Tensor:
    starts = torch.zeros(tokens, dtype=torch.int64, device=device)
    ends = torch.arange(1, tokens + 1, dtype=torch.int64, device=device)
    keys = torch.arange(tokens, dtype=torch.int64, device=device)
    return (keys.unsqueeze(0) >= starts.unsqueeze(-1)) & (keys.unsqueeze(0) < ends.unsqueeze(-1))


def masked(scores: Tensor) -> Tensor:
    valid = valid_keys(scores.shape[-1], scores.device)
    return scores.masked_fill(~valid, NEVER)


def scatter(mask: Tensor, chosen: Tensor) -> None:
    for start in range(0, mask.shape[1], 256):
        part = chosen[:, start : start + 256]
        valid = part >= 0
        safe = part.clamp_min(0)
        source = torch.where(
            valid,
            torch.zeros((), dtype=mask.dtype, device=mask.device),
            torch.full((), NEVER, dtype=mask.dtype, device=mask.device),
        )
        mask[:, start : start + 256].scatter_reduce_(-1, safe, source, reduce="amax", include_self=True)


def shares(logits: Tensor, valid: Tensor) -> Tensor:
    kept = logits.masked_fill(~valid, torch.finfo(logits.dtype).min)
    has = valid.any(dim=-1, keepdim=True)
    most = kept.max(dim=-1, keepdim=True).values
    most = torch.where(has, most, torch.zeros_like(most))
    probs = torch.exp(kept - most)
    probs = probs.masked_fill(~valid, 0.0)
    probs = probs / probs.sum(dim=-1, keepdim=True).clamp_min(1e-10)
    return probs.masked_fill(~valid, 0.0)


def log_shares(logits: Tensor, valid: Tensor) -> Tensor:
    kept = logits.masked_fill(~valid, torch.finfo(logits.dtype).min)
    has = valid.any(dim=-1, keepdim=True)
    safe = torch.where(has, kept, torch.zeros_like(kept))
    logs = torch.log_softmax(safe, dim=-1)
    return logs.masked_fill(~valid, 0.0)


def attention(query: Tensor, key: Tensor, chosen: Tensor, latent: int) -> Tensor:
    tokens, batch, heads, _ = query.shape
    q, k = query.permute(1, 2, 0, 3), key.permute(1, 2, 3, 0)
    scores = torch.matmul(q.float(), k.float()) * 0.1
    mask = torch.full((batch, tokens, tokens), NEVER, device=query.device)
    scatter(mask, chosen)
    mask = masked(mask)
    scores = scores + mask.unsqueeze(1)
    valid = torch.isfinite(mask)
    scores = shares(scores.float(), valid.unsqueeze(1).expand(batch, heads, tokens, tokens))
    value = key[..., :latent].permute(1, 2, 0, 3)
    out = torch.matmul(scores.to(value.dtype), value)
    return out.permute(2, 0, 1, 3).contiguous()


def index_scores(q: Tensor, weights: Tensor, k: Tensor) -> Tensor:
    scores = torch.einsum("sbhd,tbd->sbht", q.float(), k.float())
    scores = torch.relu(scores)
    scores = scores * weights.unsqueeze(-1)
    scores = scores.sum(dim=2)
    return scores.transpose(0, 1)


def of_attention(query: Tensor, key: Tensor) -> Tensor:
    tokens, batch, heads, size = query.shape
    q = query.permute(1, 2, 0, 3).reshape(batch * heads, tokens, size)
    k = key.permute(1, 2, 3, 0).reshape(batch * heads, size, tokens)
    return masked((torch.bmm(q.float(), k.float()) * 0.1).reshape(batch, heads, tokens, tokens))


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, weights: Tensor, k: Tensor, query: Tensor, key: Tensor, top_k: int) -> Any:
        scores = masked(index_scores(q, weights, k))
        best, chosen = scores.topk(min(top_k, k.shape[0]), dim=-1)
        chosen = chosen.masked_fill(best == NEVER, -1)
        del best
        target = of_attention(query, key)
        scores = masked(scores)
        valid = valid_keys(scores.shape[-1], q.device).unsqueeze(0).expand(scores.shape)
        mask = torch.full(scores.shape, NEVER, dtype=torch.float32, device=q.device)
        scatter(mask, chosen)
        target = shares(target, valid.unsqueeze(1).expand(target.shape))
        logs = log_shares(scores, valid)
        target = target.sum(dim=1)
        target = target / target.sum(dim=-1, keepdim=True).clamp_min(1e-10)
        loss = (target * (torch.log(target.clamp_min(1e-10)) - logs)).sum(-1).sum()
        ctx.save_for_backward(q, weights, k, query, key, chosen)
        return chosen, loss

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        q, weights, k, query, key, chosen = ctx.saved_tensors
        scores = index_scores(q, weights, k)
        attended = of_attention(query, key)
        scores = masked(scores)
        valid = valid_keys(scores.shape[-1], q.device).unsqueeze(0).expand(scores.shape)
        mask = torch.full(scores.shape, NEVER, dtype=torch.float32, device=q.device)
        scatter(mask, chosen)
        of_attended = shares(attended, valid.unsqueeze(1).expand(attended.shape))
        del attended
        of_indexer = shares(scores, valid)
        del scores
        summed = of_attended.sum(dim=1)
        del of_attended
        target = summed / summed.sum(dim=-1, keepdim=True).clamp_min(1e-10)
        del summed
        g = (of_indexer - target) * given[1].view(1, 1, 1).expand(target.shape)
        del of_indexer, target, mask
        g = g * valid.float()
        del valid
        g = g.transpose(0, 1)
        g = g.unsqueeze(2)
        again = torch.einsum("sbhd,tbd->sbht", q.float(), k.float())
        opened = torch.relu(again)
        positive = again > 0
        del again
        of_weights = (g * opened).sum(dim=-1)
        of_scores = g * weights.unsqueeze(-1)
        del g, opened
        of_scores = of_scores * positive.float()
        del positive
        of_q = torch.einsum("sbht,tbd->sbhd", of_scores, k.float())
        of_k = torch.einsum("sbht,sbhd->tbd", of_scores, q.float())
        del of_scores
        return of_q.to(q.dtype), of_weights.to(weights.dtype), of_k.to(k.dtype), None, None, None


def held(run: Any, shapes: list[tuple[int, ...]], trained: list[bool]) -> Held:
    return held_by_kernel(
        run, [(shape, "bfloat16", is_trained) for shape, is_trained in zip(shapes, trained, strict=True)]
    )


def inputs(shapes: list[tuple[int, ...]], trained: list[bool]) -> list[Tensor]:
    return [
        torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=one)
        for shape, one in zip(shapes, trained, strict=True)
    ]


@pytest.mark.parametrize("sizes", [(256, 4, 8, 64, 8), (512, 2, 4, 32, 16)])
def test_the_loss_of_an_indexer(sizes: tuple[int, ...]) -> None:
    n, b, h, d, index_heads = sizes
    shapes = [(n, b, index_heads, d), (n, b, index_heads), (n, b, d), (n, b, h, 24), (n, b, 1, 24)]
    trained = [True, True, True, False, False]
    given = inputs(shapes, trained)

    def theirs() -> Tensor:
        q, weights, k, query, key = given
        loss: Tensor = Loss.apply(q, weights, k, query, key.expand(-1, -1, h, -1), 100)[1]  # type: ignore[no-untyped-call]
        return loss

    torch_ = measured(theirs, given)
    ours = held(lambda t, q, w, k, query, key: indexer_loss(t, q, w, k, query, key, 100)[1], shapes, trained)
    assert ours == torch_


@pytest.mark.parametrize("sizes", [(256, 2, 4, 24, 16), (512, 1, 2, 40, 32)])
def test_attention_on_latents(sizes: tuple[int, ...]) -> None:
    n, b, h, size, latent = sizes
    shapes, trained = [(n, b, h, size), (n, b, 1, size)], [True, True]
    given = inputs(shapes, trained)
    chosen = torch.empty((b, n, 100), dtype=torch.int64, device="meta")
    torch_ = measured(lambda: attention(*given, chosen, latent), [*given, chosen])
    ours = held(
        lambda t, query, key: absorbed_attention(t, query, key, empty(Meter(), (b, n, 100), DTYPES["int64"]), latent),
        shapes,
        trained,
    )
    assert ours == torch_
