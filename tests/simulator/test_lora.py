"""Frozen weights with adapters hold what peft's layers hold, to the byte.

peft is not installed for the tests: `kernel_variants.Lora` repeats the lines of peft 0.21 that run.
"""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.costs.adapter_targets import linear_layers
from llmcalc.costs.adapters import LowRankAdapters
from llmcalc.device_memory.training import TrainingConfig, replay
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.simulator.adapters import Adapters
from llmcalc.simulator.module_frame import UnsupportedKernel
from llmcalc.simulator.tensor import BFLOAT16, FLOAT32
from tests.contracts.test_parts import around_a_model
from tests.simulator.models import by_torch, without_values

ALL = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})

HOW = {
    "queries and values": Adapters(4, frozenset({"q_proj", "v_proj"})),
    "all": Adapters(3, ALL),
    "dropout": Adapters(4, frozenset({"q_proj", "down_proj"}), dropout=True),
    "with magnitudes": Adapters(3, ALL, has_dora_magnitudes=True),
    "with magnitudes and dropout": Adapters(3, ALL, dropout=True, has_dora_magnitudes=True),
    "with magnitudes, of the weights' type": Adapters(
        4, frozenset({"k_proj", "up_proj"}), dtype=BFLOAT16, has_dora_magnitudes=True
    ),
    "of the weights' type": Adapters(4, frozenset({"k_proj", "up_proj"}), dtype=BFLOAT16),
}


def spec(number: int) -> ModelSpec:
    return around_a_model(Block.examples()[number])


@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize("number", [0, 1, 2, 12])
def test_adapters_hold_what_peft_holds(number: int, name: str) -> None:
    ours: list[str] = []
    theirs: list[str] = []
    held = without_values(spec(number), log=ours, adapters=HOW[name])._replace(saved=0)
    assert held == by_torch(spec(number), log=theirs, adapters=HOW[name])._replace(saved=0), "\n".join(
        [*ours, "=", *theirs]
    )


def test_a_linear_layer_that_does_not_run_has_an_adapter_too() -> None:
    """Longformer's projection of global tokens, from the hidden size to 4 heads of 8: peft selects it by its name."""
    model = around_a_model(Attention(num_attention_heads=4, head_dim=8, idle_projections=("q_global_proj",)))
    of_one, of_both = (
        replay(model, TrainingConfig(batch=1, seq=8, adapters=Adapters(4, frozenset(names)))).set_up_bytes
        for names in (["q_proj"], ["q_proj", "q_global_proj"])
    )
    layers = sum(stack.num_hidden_layers for _, stack in model.stacks())
    assert of_both - of_one == layers * 4 * 4 * (model.hidden_size + 4 * 8)  # rank 4, 4 bytes


def test_a_base_in_4_bits_has_scales_and_is_decoded_for_each_product() -> None:
    """A matrix of 100 × 64: 3,200 bytes of codes, a table of 16 numbers, and 4 for each block of 64.

    Loaded on an H200, Qwen3 0.6B had 64 bytes per matrix beside codes and scales (tests/data/gpu/h200/qlora.jsonl).
    """
    plain = Adapters(4, frozenset({"q_proj"}), base_storage="nf4")
    assert plain.stored_bytes(100, 64) == 3200 + 4 * 16 + 4 * 100
    double = Adapters(4, frozenset({"q_proj"}), base_storage="nf4-dq")
    assert double.stored_bytes(100, 64) == 3200 + 4 * 16 + 100 + 4 + 1024 + 4
    assert plain.dtype is FLOAT32
    of_4_bits, of_16 = (without_values(spec(0), adapters=how) for how in (plain, HOW["queries and values"]))
    assert of_4_bits.backward > 0
    assert of_16.backward > 0


def test_a_base_in_8_bits_has_a_scale_a_row_and_keeps_the_inputs_of_its_products() -> None:
    """A matrix of 100 × 64: a byte for each number, and 4 for each of 100 rows."""
    whole, has_8bit_states = (Adapters(4, frozenset({"q_proj"}), base_storage=base) for base in ("none", "int8"))
    assert has_8bit_states.stored_bytes(100, 64) == 6400 + 4 * 100
    plain, quantised = (without_values(spec(0), adapters=how) for how in (whole, has_8bit_states))
    assert quantised.live > plain.live  # whole weights save no input for a frozen weight
    assert quantised.forward > plain.forward  # sums of 4 bytes, beside results in float16 and bfloat16


def test_a_mamba_layer_of_jamba_calls_its_projection_of_steps_where_weights_are_quantised() -> None:
    """transformers' modeling_jamba.py: `self.dt_proj(time_step) - self.dt_proj.bias` if the config is quantized.

    Otherwise it multiplies by the weight itself, which takes neither codes nor an adapter.
    """
    jamba = llmcalc.load("jamba-v0.1?num_hidden_layers=2").model
    stored = {}
    for base in ("none", "nf4"):
        run = TrainingConfig(batch=1, seq=64, adapters=Adapters(4, frozenset({"in_proj"}), base_storage=base))
        stored[base] = replay(jamba, run).final_bytes
    assert stored["nf4"] < stored["none"]
    with pytest.raises(UnsupportedKernel, match="reads this weight itself; expected --lora-targets without it"):
        replay(jamba, TrainingConfig(batch=1, seq=64, adapters=Adapters(4, frozenset({"dt_proj"}))))


def test_the_output_projection_of_mamba_2_stays_in_16_bits_and_passes_its_adapter_by() -> None:
    """`mamba_split_conv1d_scan_combined` takes `out_proj.weight`, the frozen layer's (peft's `BaseTunerLayer`).

    Sources: transformers/models/falcon_h1/modeling_falcon_h1.py; unsloth 015bdef0d, models/llama.py, which leaves the
    layer out of its quantized weights (Falcon-H1's issue 13); of 36 layers with 1,536 × 1,024 weights in 16 bits.
    """
    settings: dict[str, Any] = {"phase": "training", "seq": 64, "lora_rank": 8, "dtype": "bf16"}
    documents = {
        (base, targets): llmcalc.memory("falcon-h1-0.5b", base=base, lora_targets=targets, **settings).document
        for base in ("none", "nf4")
        for targets in ("q_proj,in_proj", "q_proj,in_proj,out_proj")
    }
    for base in ("none", "nf4"):
        plain, adapted = (documents[base, targets] for targets in ("q_proj,in_proj", "q_proj,in_proj,out_proj"))
        weights, gradients = (
            [document["memory"]["by_phase"]["step"][kind] for document in (plain, adapted)]
            for kind in ("weights", "gradients")
        )
        assert weights[1] - weights[0] == 36 * 4 * 8 * (1536 + 1024)
        assert gradients[0] == gradients[1]
    assert any("adapter of out_proj has no gradient" in note for note in adapted["notes"])
    assert any("out_proj is counted in 16 bits" in note for note in plain["notes"])
    with pytest.raises(InputError, match="no adapter has a gradient"):
        llmcalc.memory("nemotron-h-8b", "training", lora_rank=8, lora_targets="out_proj", seq=64)
    model = llmcalc.load("falcon-h1-0.5b").model
    quantized_weights, _ = LowRankAdapters(8, frozenset({"q_proj"}), base_format="nf4").quantized_base_count_and_bytes(
        model.tree()
    )
    linear_weights = sum(
        op.n_in * op.n_out * int(place.copies) for place, op in linear_layers(model.tree(), frozenset())
    )
    assert linear_weights - quantized_weights == 36 * 1536 * 1024


def test_linear_layers_of_encoders_are_quantized_with_the_layers() -> None:
    """bitsandbytes replaces every `nn.Linear` but tied ones and the head (transformers/quantizers/base.py)."""
    transformers = pytest.importorskip("transformers")
    from torch import device, nn
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

    assert transformers
    vision_config = Qwen2_5_VLVisionConfig(hidden_size=1280, intermediate_size=3420, depth=32, out_hidden_size=2048)
    with device("meta"):
        encoder = Qwen2_5_VisionTransformerPretrainedModel(vision_config)
    linear_weights = sum(layer.weight.numel() for layer in encoder.modules() if isinstance(layer, nn.Linear))
    tree = llmcalc.load("qwen2.5-vl-3b").model.tree()
    adapters = LowRankAdapters(8, frozenset({"q_proj"}), base_format="nf4")
    (text_weights, _), (all_weights, _) = (
        adapters.quantized_base_count_and_bytes(tree, parts) for parts in (frozenset[str](), frozenset({"towers"}))
    )
    assert all_weights - text_weights == linear_weights
