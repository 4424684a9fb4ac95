"""Operations that the host launches for a layer of transformers' classes, as torch's dispatcher counts them.

Views run nothing. On a processor attention is one operation, and dropout three, of which one is counted as on a GPU;
a layer of a decoder also fills a cache, which time does not count.
"""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.sources.target import load
from llmcalc.timing.software_stacks import find_stack, with_attention
from llmcalc.timing.step import StepPlan
from llmcalc.timing.work_recorder import rank_work

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 100, "use_cache": False,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 16}
GPT2 = {
    "n_embd": 64, "n_head": 4, "vocab_size": 100, "use_cache": False, "attn_pdrop": 0.0, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip
V4 = {
    **GROUPED, "head_dim": 32, "q_lora_rank": 32, "o_lora_rank": 16, "o_groups": 2, "moe_intermediate_size": 32,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "qk_rope_head_dim": 16, "sliding_window": 16,
    "num_nextn_predict_layers": 0, "compress_rates": {"heavily_compressed_attention": 4},
    "experts_implementation": "grouped_mm",
}  # fmt: skip
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama3-8b": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "qwen3-0.6b": ("Qwen3Config", "Qwen3ForCausalLM", GROUPED),
    "bert-base": ("BertConfig", "BertModel", {**SIZES, "attention_probs_dropout_prob": 0.0}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "qwen3-30b-a3b": (
        "Qwen3MoeConfig", "Qwen3MoeForCausalLM",
        {**GROUPED, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
         "experts_implementation": "grouped_mm"},
    ),
    "gemma2-2b": ("Gemma2Config", "Gemma2ForCausalLM", {**GROUPED, "attn_implementation": "eager"}),
    "aya-23-8b": ("CohereConfig", "CohereForCausalLM", GROUPED),
    "opt-1.3b": (
        "OPTConfig", "OPTForCausalLM",
        {**SIZES, "ffn_dim": 96, "word_embed_proj_dim": 64, "attn_implementation": "eager"},
    ),
    "deepseek-v4-flash": ("DeepseekV4Config", "DeepseekV4ForCausalLM", V4),
}  # fmt: skip
"""Preset → class of transformers of the same layers, with small sizes."""

TOLERANCES = {"gpt2": 0.35, "gemma2-2b": 0.12, "aya-23-8b": 0.12, "deepseek-v4-flash": 0.2}
"""Preset → relative error of its operations, where it exceeds 8 %.

GPT-2's class joins the products of queries, keys and values, which the work counts one by one. Casts of Gemma's
1 + weight to float32, rotary embeddings in float32 and DeepSeek-V4's entries of windows are not counted.
"""

NOT_RUN = {
    "bernoulli_",
    "div_",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_unsafe_view",
}


class Operations(TorchDispatchMode):
    """Counts the operations that are no views."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = any(
            value.alias_info is not None and not value.alias_info.is_write for value in function._schema.returns
        )
        self.count += not views and function.overloadpacket.__name__ not in NOT_RUN
        return function(*args, **(kwargs or {}))


def operations(preset: str, layers: int) -> tuple[int, int]:
    """Returns the operations of the forward and of the backward pass of a model with some number of layers."""
    config, model_class, settings = MODELS[preset]
    name = "n_layer" if preset == "gpt2" else "num_hidden_layers"
    if "compress_rates" in settings:
        kinds = {"layer_types": ["heavily_compressed_attention"] * layers, "mlp_layer_types": ["hash_moe"] * layers}
        settings = {**settings, **kinds}
    model = getattr(transformers, model_class)(getattr(transformers, config)(**settings, **{name: layers}))
    model = model.to(torch.bfloat16).train()
    ids = torch.randint(0, 100, (2, 16))
    with Operations() as forward:  # type: ignore[no-untyped-call]
        result = model(ids) if preset == "bert-base" else model(ids, labels=ids)
        loss = result.last_hidden_state.sum() if preset == "bert-base" else result.loss
    with Operations() as backward:  # type: ignore[no-untyped-call]
        loss.backward()
    return forward.count, backward.count


@pytest.mark.parametrize("preset", MODELS)
def test_a_layer_launches_what_its_class_runs(preset: str) -> None:
    few, many = operations(preset, 2), operations(preset, 4)
    stack = with_attention(find_stack("torch"), MODELS[preset][2].get("attn_implementation"))
    work = rank_work(load(preset).model, StepPlan(micro_batch=1, seq=64).rank_pass(stack))
    for backward in (False, True):
        counted = sum(
            kernel.runs_per_layer * stack.launches_by_verb.get(kernel.step_verb, kernel.launches)[backward]
            for kernel in work.kernels
            if kernel.layer_kind_index == 0
        )
        measured = (many[backward] - few[backward]) / 2
        assert counted == pytest.approx(measured, rel=TOLERANCES.get(preset, 0.08)), (counted, measured)


class FusedAdapter(torch.autograd.Function):
    """A frozen layer with an adapter whose sums are parts of the products, in the steps of Unsloth's LoRA_W."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, down: Any, up: Any) -> Any:
        ctx.save_for_backward(x, weight, down, up)
        return (x @ weight.t()).addmm_(x @ down.t().to(x.dtype), up.t().to(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, down, up = ctx.saved_tensors
        down, up = down.to(x.dtype), up.to(x.dtype)
        gradients = [torch.empty_like(tensor).addmm_(*factors, beta=0) for tensor, factors in (
            (down, ((gradient @ up).t(), x)), (up, (gradient.t(), x @ down.t()))
        )]  # fmt: skip
        return (gradient @ weight).addmm_(gradient @ up, down), None, *gradients


def test_a_fused_adapter_launches_what_its_steps_run() -> None:
    """Adapters are in float32 and their products in 16 bits, so that autograd casts their gradients; they had none
    forward and six operations backward.
    """
    x, weight = (torch.randn(shape, dtype=torch.bfloat16) for shape in ((16, 8), (24, 8)))
    down, up = torch.randn(4, 8, requires_grad=True), torch.randn(24, 4, requires_grad=True)
    x.requires_grad = True
    with Operations() as forward:  # type: ignore[no-untyped-call]
        loss = FusedAdapter.apply(x, weight, down, up)  # type: ignore[no-untyped-call]
    gradient = torch.ones_like(loss)
    with Operations() as backward:  # type: ignore[no-untyped-call]
        loss.backward(gradient)
    counted = [
        3 * launches for launches in find_stack("unsloth").launches_by_verb["adapter"]
    ]  # two products, and what is beside
    assert counted == pytest.approx([forward.count - 1, backward.count - 1], abs=0.01)  # without the frozen product


def test_repeated_heads_and_operations_of_a_graph_take_time() -> None:
    """Before 5.23 a token of 64 sequences moved nine times the cache of Llama 3.1 8B, whose groups have four heads."""
    seconds = {
        stack: llmcalc.time("llama3.1-8b", phase="decode", hardware="h100", batch=64, seq=1024, stack=stack)
        .report()
        .data
        for stack in ("gpt-fast", "transformers-graphs", "transformers-graphs-before-5-23")
    }
    fused, packed, repeated = (float(data["seconds"]["estimate"]) for data in seconds.values())  # type: ignore[call-overload]
    assert fused < packed < repeated
    assert repeated > 2.5 * packed
