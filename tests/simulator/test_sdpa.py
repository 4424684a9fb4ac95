"""torch's scaled_dot_product_attention: the backend that it chooses, and what each holds."""

from __future__ import annotations

import pytest

from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.indexer import Indexer
from llmcalc.components.mixers.mla import MLA
from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.simulated_run import default_attention
from llmcalc.model import ModelSpec
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.lowering import UnsupportedKernel
from llmcalc.simulator.sdpa import SdpaCall, sdpa_backend
from llmcalc.simulator.tensor import BFLOAT16, FLOAT16, FLOAT32
from llmcalc.sources.target import load
from tests.comparisons import compares, of_run
from tests.contracts.test_parts import around_a_model
from tests.samples import in_one_test
from tests.simulator.models import by_torch, without_values

TRAINING = Settings("training")

SEEDS = 2 * 2 * 8
"""Bytes of the seeds of dropout on meta, of 2 layers: alive, and not counted as saved, as numbers of Python are not."""

B200, H100, A100, RTX4090, T4, CPU = 100, 90, 80, 89, 75, 0


@in_one_test
@pytest.mark.parametrize(
    ("capability", "call", "expected"),
    [
        (H100, SdpaCall(BFLOAT16, 128, 128, 4096, False, True), "cudnn"),
        (A100, SdpaCall(BFLOAT16, 128, 128, 4096, False, True), "flash"),
        (RTX4090, SdpaCall(BFLOAT16, 128, 128, 4096, False, True), "flash"),
        (T4, SdpaCall(FLOAT16, 128, 128, 4096, False, True), "efficient"),
        (T4, SdpaCall(BFLOAT16, 128, 128, 4096, False, True), "math"),
        (H100, SdpaCall(BFLOAT16, 128, 128, 4096, True, True), "cudnn"),
        (A100, SdpaCall(BFLOAT16, 128, 128, 4096, True, True), "efficient"),  # flash takes no mask
        (H100, SdpaCall(BFLOAT16, 256, 256, 4096, True, True), "cudnn"),  # Gemma 3 with a window, as measured
        (B200, SdpaCall(BFLOAT16, 256, 256, 4096, False, True), "flash"),
        (H100, SdpaCall(BFLOAT16, 192, 128, 4096, False, True), "cudnn"),  # latent attention
        (A100, SdpaCall(BFLOAT16, 192, 128, 4096, False, True), "efficient"),
        (H100, SdpaCall(FLOAT32, 128, 128, 4096, False, True), "efficient"),
        (H100, SdpaCall(BFLOAT16, 90, 90, 4096, True, True), "math"),  # no multiple of 8
        (RTX4090, SdpaCall(BFLOAT16, 208, 208, 4096, False, True), "efficient"),
        (RTX4090, SdpaCall(BFLOAT16, 208, 208, 4096, False, False), "flash"),
        (CPU, SdpaCall(BFLOAT16, 64, 64, 4096, True, True), "cpu"),
    ],
)
def test_the_backend_is_torchs(capability: int, call: SdpaCall, expected: str) -> None:
    assert sdpa_backend(capability, call) == expected


def attention(kv_heads: int, **fields: object) -> ModelSpec:
    return around_a_model(Attention(num_attention_heads=4, num_key_value_heads=kv_heads, head_dim=16, **fields))  # type: ignore[arg-type]


@compares(
    lambda kv_heads, capability: of_run(attention(kv_heads), KernelChoices("sdpa", compute_capability=capability))
)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("capability", [CPU, H100, A100])
def test_a_backend_holds_what_torch_holds(kv_heads: int, capability: int) -> None:
    choices = KernelChoices("sdpa", compute_capability=capability)
    ours: list[str] = []
    theirs: list[str] = []
    held = without_values(attention(kv_heads), log=ours, choices=choices)
    saved = held.saved - (SEEDS if capability == H100 else 0)
    reference = by_torch(attention(kv_heads), log=theirs, choices=choices)
    assert held._replace(saved=saved) == reference, "\n".join([*ours, "=====", *theirs])


@pytest.mark.parametrize("capability", [CPU, H100])
def test_a_selection_of_keys_is_a_mask_that_every_layer_saves(capability: int) -> None:
    indexer = Indexer(index_n_heads=3, index_head_dim=10, index_topk=5)
    sizes = {"kv_lora_rank": 12, "q_lora_rank": 20, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    spec, choices = (
        around_a_model(MLA(num_attention_heads=4, indexer=indexer, **sizes)),
        KernelChoices("sdpa", compute_capability=capability),
    )
    simulated = without_values(spec, choices=choices)
    saved = simulated.saved - (SEEDS if capability == H100 else 0)
    assert simulated._replace(saved=saved) == by_torch(spec, choices=choices)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_efficient_backend_holds_what_torch_holds(kv_heads: int) -> None:
    """Without groups; with them torch's math runs, which has no seeds."""
    choices = KernelChoices("sdpa", compute_capability=T4)
    ours: list[str] = []
    theirs: list[str] = []
    held = without_values(attention(kv_heads), log=ours, choices=choices, dtype="float16")
    reference = by_torch(attention(kv_heads), log=theirs, choices=choices, dtype="float16")
    saved = held.saved - (SEEDS if kv_heads == 4 else 0)
    assert held._replace(saved=saved) == reference, "\n".join([*ours, "=====", *theirs])


@pytest.mark.parametrize("capability", [CPU, A100, H100])
def test_one_key_head_that_a_class_does_not_repeat_runs_math(capability: int) -> None:
    """Falcon 7B: torch's other backends refuse unequal numbers of heads without `enable_gqa`."""
    choices = KernelChoices("sdpa", compute_capability=capability, matches_transformers=True)
    broadcast = without_values(attention(1, repeat_kv=False), choices=choices)
    assert (
        broadcast.saved
        == without_values(attention(1), choices=KernelChoices("sdpa-math", matches_transformers=True)).saved
    )
    assert broadcast.saved > without_values(attention(1), choices=choices).saved
    with pytest.raises(ValueError, match="repeat_kv: false is for num_key_value_heads = 1"):
        attention(2, repeat_kv=False)


def test_an_idle_audio_encoder_does_not_choose_the_attention_of_the_text_model() -> None:
    """Gemma 4 E2B's conformer adds scores of distances, but only the text model, which has none, is trained."""
    assert default_attention(TRAINING, load("gemma4-e2b").model) == "sdpa"


def test_a_class_with_scores_in_float32_trains_without_sdpa() -> None:
    """GPT-Neo, GPT-J and CodeGen have no scaled_dot_product_attention in transformers."""
    for name in ("gpt-neo-125m", "gpt-j-6b", "codegen-350m"):
        assert default_attention(TRAINING, load(name).model) == "eager"


def test_classes_with_one_selection_for_all_heads_train_with_sdpa() -> None:
    """DeepSeek-V3.2 and GLM-5 give it to the call as a mask; MiniMax-M3 has one for each head."""
    for name, expected in (("deepseek-v3.2", "sdpa"), ("glm-5", "sdpa"), ("minimax-m3", "eager")):
        assert default_attention(TRAINING, load(name).model) == expected


def test_a_window_makes_a_mask_that_every_layer_saves() -> None:
    """2 layers of 256 tokens, bf16: the mask's copy has 256 · 256 · 2 bytes. cuDNN reads it; keys and values of
    4 heads are the layer's own, so no others are copied.
    """
    plain, limited = attention(4), attention(4, sliding_window=16)
    without, with_mask = (without_values(spec, 1, 256, choices=KernelChoices("sdpa")) for spec in (plain, limited))
    assert with_mask.saved - without.saved == 2 * 2 * 256 * 256


def test_what_torch_does_not_take_is_refused() -> None:
    for refused in (attention(4, sinks=True), attention(4, attn_logit_softcapping=50.0)):
        with pytest.raises(UnsupportedKernel, match="--attn-implementation sdpa takes no"):
            without_values(refused, choices=KernelChoices("sdpa"))


def test_a_mask_with_a_gradient_runs_the_efficient_kernel() -> None:
    """torch's `check_attn_mask_shape` refuses such a mask to cuDNN, and flash attention takes none."""
    call = SdpaCall(BFLOAT16, 64, 64, 512, has_mask=True, needs_gradient=True)
    assert sdpa_backend(90, call) == "cudnn"
    assert sdpa_backend(90, call._replace(mask_needs_gradient=True)) == "efficient"


def test_a_relative_bias_is_a_mask_only_where_its_class_gives_it() -> None:
    """T5 and UMT5 keep one mask [1, heads, queries, keys] per layer and no scores; MPNet's class has no such call."""
    for name in ("t5-small", "umt5-xxl"):
        assert default_attention(TRAINING, load(name).model) == "sdpa"
    for name in ("all-mpnet-base-v2", "switch-base-8", "bloom-560m"):
        assert default_attention(TRAINING, load(name).model) == "eager"
