"""Identity experts: a token is counted as if all its experts were real, and the remarks on fewer real experts are
right.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import IdentityExperts, MoE
from llmcalc.components.networks.router import LinearRouter
from llmcalc.components.norm import Norm
from llmcalc.components.stack import Stack
from llmcalc.costs.flops import flops
from llmcalc.costs.params import params
from llmcalc.model import ModelSpec
from llmcalc.reports.flops import report as flops_report
from llmcalc.reports.params import report as params_report
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.preset import Preset
from llmcalc.studies.rules import flop_rules_for
from llmcalc.witnesses.transformers import build_class_model
from tests.builders import run_config
from tests.families.deepseek.longcat_flash import SMALL

PUBLISHED: dict[str, Any] = {
    "model_type": "longcat_flash",
    "architectures": ["LongcatFlashForCausalLM"],
    "attention_bias": False,
    "attention_method": "MLA",
    "expert_ffn_hidden_size": 2048,
    "ffn_hidden_size": 12288,
    "hidden_size": 6144,
    "kv_lora_rank": 512,
    "max_position_embeddings": 131072,
    "mla_scale_kv_lora": True,
    "mla_scale_q_lora": True,
    "moe_topk": 12,
    "n_routed_experts": 512,
    "num_attention_heads": 64,
    "num_layers": 28,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1e7,
    "routed_scaling_factor": 6.0,
    "v_head_dim": 128,
    "vocab_size": 131072,
    "zero_expert_num": 256,
    "zero_expert_type": "identity",
}
"""huggingface.co/meituan-longcat/LongCat-Flash-Chat, config.json."""


def read(config: dict[str, Any]) -> ModelSpec:
    table, notes = read_config(config)
    assert not notes
    return ModelSpec.model_validate(table)


def two_layers(experts: MoE) -> ModelSpec:
    attention = Attention(num_attention_heads=4, num_key_value_heads=2)
    block = Block(attention=attention, feed_forward=experts, norm=Norm(type="rmsnorm"), norm_placement="pre")
    return ModelSpec(
        vocab_size=50, hidden_size=24, tie_word_embeddings=False, decoder=Stack(num_hidden_layers=2, block=block)
    )


def test_longcat_flash_as_published() -> None:
    """The report (arXiv:2509.01322) states 560B in total and 18.6B to 31.3B, about 27B on average, active, without the
    token embedding.
    """
    h, f, e, z = 6144, 2048, 512, 256
    mla = h * 1536 + 1536 + 1536 * 64 * 192 + h * 576 + 512 + 512 * 64 * 256 + 64 * 128 * h
    dense, expert = 3 * h * 12288, 3 * h * f
    layer = 2 * mla + 2 * dense + 4 * h + h * (e + z)
    count = params(read(PUBLISHED))
    assert count.total == 28 * (layer + e * expert) + 2 * 131072 * h + h == 560_664_958_976
    assert count.active == 28 * (layer + 12 * expert) + 2 * 131072 * h + h
    assert count.active_at_least == count.active - 28 * 12 * expert
    assert (
        count.active_evenly == count.active - 28 * 4 * expert
    )  # 12 · 256 / 768 of a token's experts are identity experts
    table = 131072 * h
    assert [round((n - table) / 1e9, 1) for n in (count.active_at_least, count.active_evenly, count.active)] == [
        18.7,
        27.1,
        31.4,
    ]
    assert count.buffers == 28 * (e + z)


@pytest.mark.parametrize(
    ("fields", "depth"),
    [({"num_layers": 3}, 3), ({"num_hidden_layers": 6}, 3), ({"num_layers": 3, "num_hidden_layers": 6}, 3)],
)
def test_a_layer_counts_as_two_in_num_hidden_layers(fields: dict[str, int], depth: int) -> None:
    assert read({**{k: v for k, v in SMALL.items() if k != "num_layers"}, **fields}).main.num_hidden_layers == depth


def test_depths_that_contradict_are_remarked_on() -> None:
    table, notes = read_config({**SMALL, "num_layers": 4, "num_hidden_layers": 4})
    assert table["decoder"]["num_hidden_layers"] == 2  # as in the configuration class
    assert notes
    assert "num_hidden_layers: 4 is not twice num_layers, 4" in notes[0]


def test_each_layer_keeps_two_caches() -> None:
    spec = read(SMALL)
    bits = spec.tree().total(lambda use: use.cache_bits(16), run_config(seq=10))
    assert bits == 16 * 10 * 2 * 2 * (24 + 4)  # layers, attentions in each, latent and rotary key


def test_what_is_counted_is_the_most_and_is_said() -> None:
    preset = Preset(name="longcat", model=read(PUBLISHED))
    said = (
        "upper bound: every token is counted with real experts (12 of 512 beside 256 identity experts, which hold and "
        "compute nothing)"
    )
    shown = params_report(preset, params(preset.model))
    assert said in shown.tables[0].notes
    assert any("27.95 B on average" in note and "19.50 B at least" in note for note in shown.tables[0].notes)
    assert shown.data["params"]["active_at_least"] == params(preset.model).active_at_least
    assert said in flops_report(preset, flops(preset.model, run_config(seq=8))).data["notes"]


def test_nothing_is_said_of_models_whose_experts_are_all_real() -> None:
    preset = Preset(name="plain", model=read({**SMALL, "zero_expert_num": 0}))
    shown = params_report(preset, params(preset.model))
    assert "active_at_least" not in shown.data["params"]
    assert not any(
        "identity" in note
        for note in (
            *shown.tables[0].notes,
            *flops_report(preset, flops(preset.model, run_config(seq=8))).data["notes"],
        )
    )


def test_no_more_identity_experts_are_passed_than_there_are() -> None:
    expert = FeedForward(intermediate_size=12, hidden_act="silu", gated=True)
    count = params(
        two_layers(
            MoE(
                num_experts=4, num_experts_per_tok=3, identity_experts=IdentityExperts(zero_expert_num=1), expert=expert
            )
        )
    )
    assert count.active - count.active_at_least == 2 * 1 * 3 * 24 * 12  # layers, one of the three experts, its matrices


def test_an_identity_expert_gives_what_it_reads() -> None:
    torch.manual_seed(0)
    expert = FeedForward(intermediate_size=12, hidden_act="silu", gated=True)
    spec = two_layers(
        MoE(
            num_experts=4,
            num_experts_per_tok=2,
            identity_experts=IdentityExperts(zero_expert_num=3),
            expert=expert,
            router=LinearRouter(score_correction="buffer"),
        )
    )
    experts: Any = spec.reference().get_submodule("layers.0.mlp")
    x = torch.randn(2, 5, 24)
    with torch.no_grad():
        experts.score_correction.bias[4:] = 10.0
        torch.testing.assert_close(experts(x), x)  # both experts of a token are identity experts; weights add up to 1
        experts.score_correction.bias[4:] = -10.0
        assert not torch.allclose(experts(x), x)


def test_the_class_is_kept_from_its_identity_experts() -> None:
    model: Any = build_class_model({"architectures": ["LongcatFlashForCausalLM"], **SMALL})
    chosen: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.mlp.router.register_forward_hook(lambda _, __, out: chosen.append(out[2]))
    model(input_ids=torch.randint(0, 96, (2, 16)))
    assert len(chosen) == 2
    assert all(int(one.max()) < SMALL["n_routed_experts"] for one in chosen)


def test_rules_for_one_attention_a_layer_are_not_applied() -> None:
    rules = flop_rules_for(flops(read(PUBLISHED), run_config(seq=8)))
    assert not {"palm_b", "chinchilla_f", "megatron"} & {rule.key for rule in rules}
