"""Adapters of other libraries than peft, and what people combine with adapters: against torch where torch runs it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import llmcalc
from llmcalc.components.layers.block import Block
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.networks.moe import MoE
from llmcalc.components.networks.router import LinearRouter
from llmcalc.costs.adapters import LowRankAdapters
from llmcalc.device_memory.training import TrainingConfig, replay
from llmcalc.errors import InputError
from llmcalc.model import ModelSpec
from llmcalc.simulator.adapters import Adapters
from llmcalc.simulator.autograd import AutogradGraph
from llmcalc.simulator.host_offload import RECENT_TENSORS, HostOffload
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.lowering import UnsupportedKernel
from llmcalc.simulator.meter import Meter
from llmcalc.simulator.tensor import BFLOAT16
from llmcalc.witnesses import kernel_variants
from llmcalc.workload.recompute import RECOMPUTE_MODES
from tests.comparisons import compares, of_run
from tests.contracts.test_parts import around_a_model
from tests.device_memory.published import DATA
from tests.simulator.models import by_torch, without_values

ALL = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
BATCH, TOKENS = 2, 7


def spec(number: int) -> ModelSpec:
    return around_a_model(Block.examples()[number])


class Plain(kernel_variants.Lora):
    """torchtune/modules/peft/lora.py, `LoRALinear.forward`; LitGPT's `LoRALinear` does the same."""

    def forward(self, x: Any) -> Any:
        out = self.base_layer(x)
        lora_out = self.lora_A(self.dropout(x))
        lora_out = 2.0 * self.lora_B(lora_out)
        return out + lora_out


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("number", [0, 2, 12])
def test_torchtune_casts_nothing(number: int, dropout: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    how = Adapters(3, ALL, dropout=dropout, dtype=BFLOAT16, library="torchtune")
    monkeypatch.setattr(kernel_variants, "Lora", Plain)
    held = without_values(spec(number), adapters=how)
    assert held._replace(saved=0) == by_torch(spec(number), adapters=how)._replace(saved=0)


class PlainWithMagnitudes(kernel_variants.Dora):
    """torchtune/modules/peft/dora.py, `DoRALinear.forward`."""

    def forward(self, x: Any) -> Any:
        base_out = self.base_layer(x)
        x = self.dropout(x)
        lora_out = self.lora_B(self.lora_A(x))
        lora_weight = self._lora_weight()
        weight = self.base_layer.weight.to(x.dtype)
        weight_norm = self._row_norms(weight, lora_weight.detach()).detach()
        mag_norm_scale = (self.magnitude / weight_norm).view(1, -1)
        dora_out = (mag_norm_scale - 1) * base_out + mag_norm_scale * lora_out * 2.0
        return dora_out + base_out


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("number", [0, 2])
def test_magnitudes_of_torchtune(number: int, dropout: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    adapters = Adapters(3, ALL, dropout=dropout, dtype=BFLOAT16, library="torchtune", has_dora_magnitudes=True)
    monkeypatch.setattr(kernel_variants, "Dora", PlainWithMagnitudes)
    recorded = without_values(spec(number), adapters=adapters)
    assert recorded._replace(saved=0) == by_torch(spec(number), adapters=adapters)._replace(saved=0)


def test_recurrent_kernels_run_under_autocast_where_weights_have_its_format() -> None:
    """Autocast casts no weight in bf16. Weights in float32 beside bf16 activations need kernels that take both.

    causal-conv1d's does (csrc/causal_conv1d.cpp, `weight_type`); the one kernel of a Mamba-2 layer casts its own.
    """
    model = llmcalc.load("qwen3.5-0.8b?decoder.num_hidden_layers=4").model
    adapters = Adapters(4, frozenset({"q_proj", "k_proj"}))
    run = TrainingConfig(1, 64, autocast=True, adapters=adapters)
    assert replay(model, run).final_bytes > 0
    classes = KernelChoices(matches_transformers=True)
    whole = TrainingConfig(1, 64, autocast=True, dtype="float32", kernel_choices=classes)
    assert replay(model, whole).final_bytes > replay(model, run).final_bytes
    with pytest.raises(UnsupportedKernel, match="no published kernels under autocast"):
        replay(llmcalc.load("mamba2-130m").model, TrainingConfig(1, 64, autocast=True, dtype="float32"))


def test_the_closed_form_of_magnitudes_is_what_a_replay_allocates() -> None:
    """DoRA has one number of 4 bytes for each output of an adapted layer, and a base in 8 bits is refused."""
    layers = "llama3.2-1b?num_hidden_layers=2"
    lora, dora = (
        llmcalc.memory(layers, lora_rank=8, lora_targets=("q_proj", "down_proj"), use_dora=is_dora, seq=128).document
        for is_dora in (None, True)
    )
    weights = [document["memory"]["weights"] for document in (lora, dora)]
    assert weights[1] - weights[0] == 2 * 4 * (2048 + 2048)
    with pytest.raises(InputError, match="--use-dora with --base int8: not modelled together"):
        llmcalc.memory(layers, lora_rank=8, use_dora=True, base="int8")
    with pytest.raises(InputError, match="--use-dora: litgpt has no DoRA"):
        llmcalc.memory(layers, lora_rank=8, use_dora=True, lora_library="litgpt")


@pytest.mark.parametrize("mode", ["full", "full-reentrant", "every:2"])
@pytest.mark.parametrize("number", [0, 2])
def test_with_checkpoints_the_embedding_wants_a_gradient(number: int, mode: str) -> None:
    """transformers' `enable_input_require_grads`, without which a reentrant checkpoint trains nothing."""
    recompute = RECOMPUTE_MODES.get(mode) or RECOMPUTE_MODES["full"].__class__(layers=True, every=2)
    how = Adapters(3, ALL, dropout=True)
    held = without_values(spec(number), recompute=recompute, adapters=how)
    assert held == by_torch(spec(number), recompute=recompute, adapters=how)


@pytest.mark.parametrize("number", [0, 2])
def test_trained_copies_beside_frozen_originals(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`modules_to_save`: what runs is the copy, which is trained; the original lies beside it."""
    adapters = Adapters(3, frozenset({"q_proj"}), copied_modules=frozenset({"embed_tokens", "lm_head"}))
    freeze = kernel_variants.attach_adapters

    def with_copies(module: nn.Module, adapters: Adapters, device: str = "cpu") -> None:
        freeze(module, adapters, device)
        for copied in ("embed_tokens", "lm_head"):
            module.get_submodule(copied).requires_grad_(True)

    monkeypatch.setattr(kernel_variants, "attach_adapters", with_copies)
    live_bytes = without_values(spec(number), adapters=adapters)
    assert live_bytes._replace(saved=0) == by_torch(spec(number), adapters=adapters)._replace(saved=0)


@compares(lambda number, **_: of_run(spec(number), KernelChoices(cross_entropy="split")))
@pytest.mark.parametrize(("chunk", "kept"), [(None, None), (3, None), (2, 5)])
@pytest.mark.parametrize("number", [0, 2])
def test_the_loss_chunk_by_chunk(number: int, chunk: int | None, kept: int | None) -> None:
    choices = KernelChoices(cross_entropy="split", loss_chunk=chunk, logits_to_keep=kept)
    assert without_values(spec(number), choices=choices) == by_torch(spec(number), choices=choices)


LITGPT = {
    "phi-1.5": 62_213_432,
    str(DATA / "published" / "stablelm-alpha-3b.toml"): 124_259_800,
    "llama2-7b": 167_544_040,
}
"""Bytes that one more layer keeps with LitGPT's own code (lit_gpt/{model,lora,rmsnorm}.py at 8641822), its LoRA of rank
8 on queries and values, and one sequence of 1,044 tokens: on meta, with torch 2.13.
"""


@pytest.mark.parametrize("name", LITGPT)
def test_a_layer_keeps_what_litgpt_keeps(name: str) -> None:
    """Equal; but that its RMSNorm keeps the reciprocal of a root in bf16, and here it is in fp32: 2 bytes per row."""
    how = Adapters(8, frozenset({"q_proj", "v_proj"}), dropout=True, dtype=BFLOAT16, library="litgpt")
    choices = KernelChoices("flash", "fused", cross_entropy="split", loss_chunk=128, unfused_gelu=False)
    few, more = (
        without_values(llmcalc.load(name, num_hidden_layers=n).model, 1, 1044, choices=choices, adapters=how).saved
        for n in (1, 2)
    )
    assert more - few == LITGPT[name] + (2 * 2 * 1044 if name == "llama2-7b" else 0)


def test_one_product_has_one_adapter() -> None:
    together = KernelChoices(fused_qkv=True)
    how = Adapters(3, frozenset({"q_proj", "v_proj"}))
    with pytest.raises(UnsupportedKernel, match="one product has one adapter; expected all of q_proj, k_proj, v_proj"):
        without_values(spec(2), choices=together, adapters=how)
    apart, one = (without_values(spec(2), choices=choices) for choices in (KernelChoices(), together))
    assert one.after == apart.after  # the same gradients


def test_an_older_bitsandbytes_keeps_the_inputs_of_its_products() -> None:
    """Per layer and token in bf16: the input of queries, keys and values, that of the output projection, that of gate
    and up, and that of the last product, none of which a frozen product needs. The first layer's wants no gradient.
    """
    part = FeedForward(intermediate_size=24, hidden_act="silu", gated=True)
    model = around_a_model(part)
    assert model.decoder is not None
    layers, h = model.decoder.num_hidden_layers, model.hidden_size
    newest, older = (
        without_values(model, adapters=Adapters(3, frozenset({"k_proj"}), base_storage="nf4", bitsandbytes=version))
        for version in ("", "0.41.1")
    )
    inputs = h + h + h + 24
    assert older.live - newest.live == BATCH * TOKENS * 2 * (layers * inputs - h)
    kept = Adapters(3, ALL, bitsandbytes="0.43.0")
    assert (kept.keeps_inputs, kept.decodes_to_float16) == (True, False)
    assert not Adapters(3, ALL, bitsandbytes="0.43.2").keeps_inputs


def test_a_quantised_head_is_stored_in_4_bits() -> None:
    """LM head of 50 × h: 2 bytes each, or half a byte, an fp32 scale per 64 and a table of 16 in fp32."""
    model = spec(2)
    h = model.hidden_size
    usual, narrow = (
        replay(
            model, TrainingConfig(2, 7, adapters=Adapters(3, ALL, base_storage="nf4", quantized_head=head))
        ).set_up_bytes
        for head in (False, True)
    )
    weights = model.vocab_size * h
    assert usual - narrow == 2 * weights - (-(-weights // 2) + 4 * -(-weights // 64) + 64)


def test_experts_in_4_bits_are_decoded_whole_and_kept_for_the_backward_pass() -> None:
    """Per matrix of all experts: half a byte, an fp32 scale per 64 and a table; decoded, 2 bytes again."""
    expert = FeedForward(intermediate_size=64, hidden_act="silu", gated=True)
    model = around_a_model(MoE(num_experts=4, num_experts_per_tok=2, expert=expert))
    assert model.decoder is not None
    layers, matrix = model.decoder.num_hidden_layers, 4 * 64 * model.hidden_size
    usual, narrow = (
        Adapters(3, frozenset({"k_proj"}), base_storage="nf4", quantized_experts=is_quantized)
        for is_quantized in (False, True)
    )
    set_up = [replay(model, TrainingConfig(2, 7, adapters=adapters)).set_up_bytes for adapters in (usual, narrow)]
    assert set_up[0] - set_up[1] == layers * 3 * (2 * matrix - (matrix // 2 + 4 * matrix // 64 + 64))
    kept = [without_values(model, adapters=adapters).live for adapters in (usual, narrow)]
    assert kept[1] - kept[0] == layers * 3 * 2 * matrix
    with pytest.raises(UnsupportedKernel, match="experts in 8 bits"):
        replay(model, TrainingConfig(2, 7, adapters=Adapters(3, ALL, base_storage="int8", quantized_experts=True)))


def test_the_closed_form_of_experts_in_4_bits() -> None:
    stored, usual = (
        llmcalc.memory(
            "qwen3-30b-a3b?num_hidden_layers=2", phase="training", lora_rank=4, base="nf4", quantized_experts=q
        )
        for q in (True, False)
    )
    matrix = 128 * 768 * 2048
    saved = usual.document["memory"]["exact_bytes"] - stored.document["memory"]["exact_bytes"]
    assert saved == 2 * 3 * (2 * matrix - (matrix // 2 + 4 * matrix // 64 + 64))
    assert stored.document["memory"]["terms"][0]["status"] == "estimate"


@pytest.mark.parametrize("in_float32", [False, True])
def test_a_router_beside_weights_in_4_bits_keeps_its_format(in_float32: bool) -> None:
    """A router of transformers is a parameter, as `Glm4MoeTopkRouter`'s, which bitsandbytes leaves as it is."""
    expert = FeedForward(intermediate_size=64, hidden_act="silu", gated=True)
    saved: set[tuple[int, int]] = set()
    for experts in (4, 8):
        router = LinearRouter(float32_product=in_float32)
        model = around_a_model(MoE(num_experts=experts, num_experts_per_tok=2, expert=expert, router=router))
        plain, narrow = (
            replay(
                model, TrainingConfig(2, 7, adapters=Adapters(3, frozenset({"k_proj"}), base_storage=base))
            ).set_up_bytes
            for base in ("none", "nf4")
        )
        weights, stored = LowRankAdapters(3, frozenset({"k_proj"}), base_format="nf4").quantized_base_count_and_bytes(
            model.tree()
        )
        assert plain - narrow == 2 * weights - stored
        saved.add((plain - narrow, weights))
    assert len(saved) == 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("llama3-8b", {}, "the model has no routed experts"),
        ("mixtral-8x7b", {"lora_dropout": True}, "PEFT has no dropout beside experts"),
        ("mixtral-8x7b", {"fused_adapters": True, "base": "int8"}, "these kernels are not modelled"),
        ("mixtral-8x7b", {"fused_adapters": True}, "no kernel for the default adapters"),
        ("mixtral-8x7b", {"fused_adapters": True, "lora_library": "litgpt"}, "these kernels run PEFT's adapters"),
        ("mixtral-8x7b", {"lora_library": "litgpt"}, "litgpt has no such adapters"),
        ("mixtral-8x7b", {"base": "nf4", "quantized_experts": True}, "not modelled together"),
    ],
)
def test_adapters_of_experts_that_no_library_has_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        llmcalc.memory(f"{name}?num_hidden_layers=1", phase="training", lora_rank=4, lora_experts=True, **options)


def test_an_answer_names_the_adapters_of_experts_that_it_leaves_out() -> None:
    counted, usual = (
        llmcalc.memory(
            "mixtral-8x7b?num_hidden_layers=1", phase="training", lora_rank=4, lora_targets="all-linear", lora_experts=e
        )
        for e in (True, False)
    )
    adapters = 8 * (8 * (4096 + 2 * 14336) + 4 * (14336 + 4096))
    assert counted.states.trained_parameters - usual.states.trained_parameters == adapters
    assert counted.states.uncounted_memory_notes == []
    assert f"adapters of routed experts: {adapters:,} parameters" in usual.states.uncounted_memory_notes[0]


def test_offloaded_tensors_leave_the_device() -> None:
    """Of ten saved tensors the last five stay until the first is needed again; a small one stays as it is."""
    meter = Meter()
    graph = AutogradGraph(meter)
    offload = HostOffload(graph)
    saved = [offload.pack(graph.new_tensor((1024,), BFLOAT16)) for _ in range(10)]
    assert meter.live_bytes == RECENT_TENSORS * 2048
    small = offload.pack(graph.new_tensor((8,), BFLOAT16))
    assert meter.live_bytes == (RECENT_TENSORS - 1) * 2048 + 16
    back = saved[0].unpack()
    assert meter.live_bytes == 2048 + 16
    assert (back.shape, small.unpack().shape) == ((1024,), (8,))


def test_offloading_moves_the_inputs_of_checkpointed_layers() -> None:
    """Of 16 layers, and with a small vocabulary: the peak of the forward pass is in its last layer."""
    model = llmcalc.load("llama3.2-1b", vocab_size=64).model
    here, away = (
        max(peak.bytes for place, peak in found.peaks.items() if place.phase == "forward")
        for found in (
            replay(model, TrainingConfig(2, 512, recompute=RECOMPUTE_MODES["full"], offloads_activations=move))
            for move in (False, True)
        )
    )
    assert here - away >= (16 - RECENT_TENSORS) * 2 * 2 * 512 * model.hidden_size


def test_an_update_in_the_backward_pass_keeps_one_gradient_at_a_time() -> None:
    model = llmcalc.load("llama3.2-1b", num_hidden_layers=4).model
    after, inside = (
        replay(model, TrainingConfig(1, 16, implementation="fused", optimizer_in_backward=early))
        for early in (False, True)
    )
    assert after.final_bytes == inside.final_bytes
    assert {place.phase for place in inside.peaks} == {"forward", "backward"}
    gradients = 2 * llmcalc.params(model).total
    embedding = 2 * model.vocab_size * model.hidden_size
    assert after.peak[1].bytes - inside.peak[1].bytes > gradients - 2 * embedding


def test_compiled_layers_compute_a_gated_activation_again() -> None:
    """Fused norms keep what a compiled layer keeps; of act(gate) · up it keeps both factors' inputs alone."""
    part = FeedForward(intermediate_size=24, hidden_act="silu", gated=True)
    model = around_a_model(part)
    assert model.decoder is not None
    eager, compiled = (
        without_values(model, choices=choices).saved
        for choices in (
            KernelChoices(norm="fused", cross_entropy="fused"),
            KernelChoices(compiled=True, cross_entropy="fused"),
        )
    )
    assert eager - compiled == model.decoder.num_hidden_layers * BATCH * TOKENS * 24 * 2


@pytest.mark.parametrize(("version", "copies"), [("", 1), ("2.0.1", 2), ("2.1", 1)])
def test_adamw_before_torch_2_1_makes_two_temporaries(version: str, copies: int) -> None:
    """pytorch#104898: the denominators were a second copy beside the square roots."""
    model = spec(2)
    replay_result = replay(model, TrainingConfig(2, 7, torch_version=version))
    kept_bytes = replay_result.final_bytes + 2 * llmcalc.params(model).total  # the gradients
    (step,) = [peak.bytes for place, peak in replay_result.peaks.items() if place.phase == "step"]
    assert step == kept_bytes + copies * 2 * llmcalc.params(model).total
    assert torch.__version__ >= "2.1"
