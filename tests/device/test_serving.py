"""Passes without gradients on several devices: a rank holds what torch's tensor parallelism holds on a fake group."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import llmcalc
from llmcalc.costs.cache import kv
from llmcalc.costs.params import params
from llmcalc.device.cluster import Cluster
from llmcalc.device.inference import Inference
from llmcalc.device.memory import memory
from llmcalc.device.settings import Settings
from llmcalc.errors import InputError
from llmcalc.layouts.share import of_rank
from llmcalc.model import ModelSpec
from llmcalc.run.layout import Layout
from llmcalc.verify.distributed.parallel import divide_products, keep_stage
from llmcalc.verify.distributed.rank import OnRank
from tests.device.test_inference import Found, replayed
from tests.layouts.fake_ranks import fake_rank

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "decoder.num_hidden_layers": 4,
    "decoder.block.attention.num_attention_heads": 4,
    "decoder.block.attention.num_key_value_heads": 2,
    "decoder.block.attention.head_dim": 8,
    "decoder.block.feed_forward.intermediate_size": 48,
}


def tiny(**changes: Any) -> ModelSpec:
    return llmcalc.load("llama3-8b", **{**TINY, **changes}).model


def by_torch(spec: ModelSpec, how: Inference, layout: Layout, rank: int) -> Found:
    """The reference on one rank of a fake process group: set-up, a prefill and a decoding step."""
    dtype = getattr(torch, how.dtype)
    with fake_rank(layout.at(rank).tp, layout.tp):  # its tensor group alone: stages send nothing here
        mesh = init_device_mesh("cpu", (layout.tp,))
        module: Any = spec.reference().to(dtype)
        mode, peaks, store = OnRank(), dict[str, int](), dict[Any, Any]()
        with mode, torch.no_grad():
            share = of_rank(spec, layout, rank).chunks
            if layout.pp > 1:
                own = range(share.layers[0], share.layers[-1] + 1)
                keep_stage(module, own, share.first, share.last)
            if layout.tp > 1:
                divide_products(module, mesh)
            whole = [*module.parameters(), *module.buffers()]
            gc.collect()
            mode.now = 0
            mode.seen.clear()
            mode.follow(one.to_local() if isinstance(one, DTensor) else one for one in whole)
            del whole
            set_up = mode.now
            for phase, tokens, past in (("prefill", how.seq, 0), ("decode", 1, how.seq)):
                mode.peak = mode.now
                ids = torch.zeros(how.batch, tokens, dtype=torch.int64)
                given = ids if share.first else torch.zeros(how.batch, tokens, spec.hidden_size, dtype=dtype)
                last = phase == "prefill"
                out = module(given, None, store=store, past=past, last_only=last, grouped_experts=True)
                del out, ids, given
                gc.collect()
                peaks[phase] = mode.peak
        return Found(set_up, peaks["prefill"], peaks["decode"], mode.now)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}], ids=["untied", "tied"])
def test_a_rank_holds_what_torch_holds(changes: dict[str, Any], rank: int) -> None:
    spec, how, layout = tiny(**changes), Inference(batch=2, seq=6, dtype="float32"), Layout(tp=2)
    assert replayed(of_rank(spec, layout, rank), how) == by_torch(spec, how, layout, rank)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_a_rank_of_a_pipeline_holds_what_torch_holds(rank: int) -> None:
    spec, how, layout = tiny(), Inference(batch=2, seq=6, dtype="float32"), Layout(tp=2, pp=2)
    assert replayed(of_rank(spec, layout, rank), how) == by_torch(spec, how, layout, rank)
