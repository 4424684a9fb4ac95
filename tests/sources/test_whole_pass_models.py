"""Models that read a sequence in one pass: what is refused of them, and configs that their readers refuse."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.components.layers.block import Block
from llmcalc.components.layers.reversible_layer import ReversibleStreams
from llmcalc.components.mixers.chunked_attention import ChunkedAttention
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.norm import Norm
from llmcalc.components.stack import Stack
from llmcalc.costs.cache import kv
from llmcalc.costs.flops import flops
from llmcalc.errors import InputError
from llmcalc.sources.huggingface.description import read_config
from llmcalc.workload.workload import Workload
from tests.builders import spec_of
from tests.families.bert.perceiver import SMALL as PERCEIVER
from tests.families.bert.reformer import SMALL as REFORMER
from tests.families.gpt.blt import BLT
from tests.families.seq2seq.dia import DIA
from tests.samples import in_one_test
from tests.simulator.models import by_torch, without_values

MODELS = {"a model of patches of bytes": BLT, "a model of reversible layers": REFORMER}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_without_decoding_keeps_no_cache(name: str) -> None:
    spec = spec_of(MODELS[name])
    with pytest.raises(InputError, match=f"{name} keeps no KV cache"):
        kv(spec, seq=8)
    with pytest.raises(InputError, match=f"--phase decode: {name} keeps no cache"):
        flops(spec, Workload(batch=1, seq=1, context=7, phase="decode"))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "patches": ({**BLT, "max_patch_length": 8}, "max_patch_length: 8; expected null"),
    "patcher": (
        {**BLT, "patcher_config": {**BLT["patcher_config"], "vocab_size": 9}},
        r"patcher_config\.vocab_size: 9; expected at least 96",
    ),
    "widths": (
        {**BLT, "decoder_config": {**BLT["decoder_config"], "hidden_size": 24}},
        r"decoder_config\.hidden_size: 24; expected 16",
    ),
    "buckets": ({**REFORMER, "num_buckets": None}, "num_buckets: null; expected an even number"),
    "kinds": ({**REFORMER, "attn_layers": ["global"]}, "attn_layers: .*expected a list of 'local' and 'lsh'"),
    "axes": ({**REFORMER, "axial_pos_embds_dim": [12, 21]}, "axial_pos_embds_dim: .*whose sum is 32"),
    "values": ({**PERCEIVER, "v_channels": 16}, r"v_channels: 16; expected 32 \(d_latents\)"),
    "classes": ({**PERCEIVER, "architectures": ["PerceiverForSequenceClassification"]}, "architectures: "),
    "channels": ({**DIA, "delay_pattern": [0, 1]}, "delay_pattern: .*3 numbers"),
}


@in_one_test
@pytest.mark.parametrize("name", REFUSED)
def test_a_config_that_its_class_would_not_run_is_refused(name: str) -> None:
    config, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        read_config(config)


def test_attention_in_chunks_stands_in_reversible_layers() -> None:
    """It keeps no cache, and only the streams of reversible layers say that their model does not decode."""
    (mixer, _), norm = ChunkedAttention.examples(), Norm(type="rmsnorm")
    block = Block(
        attention=mixer,
        feed_forward=FeedForward(type="mlp", intermediate_size=8, hidden_act="gelu"),
        norm=norm,
        norm_placement="pre",
    )
    for streams, message in (
        (None, "need one with type = 'reversible'"),
        (ReversibleStreams(block=4, least=4, norm=norm), "every layer is of type"),
    ):
        with pytest.raises(ValueError, match=message):
            Stack(num_hidden_layers=1, block=block, streams=streams)


def test_latents_hold_what_torch_holds() -> None:
    spec = spec_of({**PERCEIVER, "architectures": ["PerceiverForMaskedLM"], "max_position_embeddings": 7})
    assert without_values(spec) == by_torch(spec)
