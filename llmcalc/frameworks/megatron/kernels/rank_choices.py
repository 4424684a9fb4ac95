"""The kernel options of a Megatron-LM rank."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ....frozen import frozen
from ..parallel_adapters import ParallelAdapters

AttentionBackend: TypeAlias = Literal["fused", "flash", "unfused", "local"]

LossImplementation: TypeAlias = Literal["unfused", "native", "te"]

TokenDispatcher: TypeAlias = Literal["allgather", "alltoall", "hybridep"]


Fp8Recipe: TypeAlias = Literal["none", "tensorwise", "delayed", "blockwise", "mxfp8"]


@frozen
class RankKernelChoices:
    """The kernels of a rank, with the parallel sizes and the settings by which the kernels are chosen.

    tp, cp, ep, etp: ranks of the tensor, context, expert and expert-tensor parallel groups.
    sequence_parallel: whether activations between the products of tensor parallelism are divided by tokens.
    uses_transformer_engine: whether layers are Transformer Engine's; if not, Megatron-Core's own.
    attention_backend: the backend of attention.
    attention_dropout, hidden_dropout: dropout probabilities; 0 runs no dropout.
    fuses_softmax: whether one kernel of Megatron-Core's own attention may scale and mask scores and take the softmax.
    runs_softmax_in_fp32: whether the unfused softmax computes in float32.
    scales_attention_scores: whether scores are scaled before the unfused softmax.
    has_batch_mask: whether a mask comes with the batch.
    context_parallel_exchange: how context parallelism exchanges keys and values; a2a also where heads are sent inside
        of a ring.
    fuses_gradient_accumulation: whether products add weight gradients to the main gradients themselves.
    fuses_bias_and_activation: whether one kernel computes the bias and the activation after a product.
    fuses_rope: whether one kernel rotates queries and keys.
    fuses_latent_rope: whether one kernel rotates latent attention's.
    has_user_buffers: whether products overlap with communication of a tensor group, in Transformer Engine's own
        buffers.
    scales_logits: whether logits are multiplied by a number.
    loss_implementation: the implementation of the loss.
    is_deterministic: whether algorithms are deterministic.
    multiprocessor_count: multiprocessors of the GPU.
    has_padding_mask: whether attention that is not causal takes a padding mask.
    fuses_weighted_activation: whether experts without a gate weight their activation's output in the same kernel.
    uses_grouped_gemm: whether all experts of a rank are one grouped product.
    dispatcher: how tokens are sent to their experts.
    fuses_permutation: whether one kernel sorts rows by expert.
    runs_router_in_fp32: whether the router computes in float32.
    capacity_factor: padded rows of an expert per row of an even share; None (default) if no row is dropped.
    has_auxiliary_loss: whether the router has an auxiliary loss.
    has_z_loss: whether the router has a loss of the size of its logits.
    runs_shared_experts_first: whether shared experts run before the router.
    detaches_layer_inputs: whether each layer begins a graph of its own, so that passes of two micro-batches can
        overlap.
    combines_in_one_function: whether one function combines the outputs of experts; its caller still refers to its
        argument.
    wgrad_deferral_limit: micro-batches whose weight gradient of the output layer is computed at the end of a step, 0
        for all; None (default) for none.
    fp8_recipe: the recipe of 8-bit products.
    has_fp8_weights: whether weights of linear layers have 8 bits.
    saves_transposed_operands: whether an operand that is read by columns is saved transposed, where a tensor has one
        scale.
    amax_history_length: maxima per tensor that delayed scaling remembers.
    bf16_layer_counts: numbers of the first and of the last layers that stay in 16 bits.
    model_layer_count: layers of the whole model.
    trains_indexer: whether indexers learn the shares of attention.
    recomputes_attention_core: whether the core of attention is recomputed.
    recompute: which layers are recomputed: groups of `recompute_layer_count` (uniform), or the first ones (block).
    recompute_layer_count: layers per group, or the number of the first ones.
    recomputes_norms: whether the outputs of norms before sublayers are freed and recomputed.
    recomputes_expert_activations: whether the outputs of experts' activations are freed and recomputed.
    recomputes_up_projections: whether the outputs of projections of latents are freed and recomputed.
    recomputed_module_kinds: kinds of modules of a layer that are recomputed, each by itself.
    adapters: the low-rank adapters that are trained beside frozen weights; None (default) if the weights are trained.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    uses_transformer_engine: bool = True
    attention_backend: AttentionBackend = "fused"
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    fuses_softmax: bool = True
    runs_softmax_in_fp32: bool = False
    scales_attention_scores: bool = False
    has_batch_mask: bool = True
    context_parallel_exchange: str = "p2p"
    fuses_gradient_accumulation: bool = True
    fuses_bias_and_activation: bool = True
    fuses_rope: bool = True
    fuses_latent_rope: bool = True
    has_user_buffers: bool = False
    scales_logits: bool = False
    loss_implementation: LossImplementation = "unfused"
    is_deterministic: bool = False
    multiprocessor_count: int = 132
    has_padding_mask: bool = False
    fuses_weighted_activation: bool = False
    uses_grouped_gemm: bool = False
    dispatcher: TokenDispatcher = "allgather"
    fuses_permutation: bool = False
    runs_router_in_fp32: bool = False
    capacity_factor: float | None = None
    has_auxiliary_loss: bool = True
    has_z_loss: bool = False
    runs_shared_experts_first: bool = True
    combines_in_one_function: bool = False
    detaches_layer_inputs: bool = False
    wgrad_deferral_limit: int | None = None
    fp8_recipe: Fp8Recipe = "none"
    has_fp8_weights: bool = False
    saves_transposed_operands: bool = True
    amax_history_length: int = 1
    bf16_layer_counts: tuple[int, int] = (0, 0)
    model_layer_count: int = 0
    trains_indexer: bool = False
    recomputes_attention_core: bool = False
    recompute: Literal["none", "uniform", "block"] = "none"
    recompute_layer_count: int = 1
    recomputes_norms: bool = False
    recomputes_expert_activations: bool = False
    recomputes_up_projections: bool = False
    recomputed_module_kinds: frozenset[str] = frozenset()
    adapters: ParallelAdapters | None = None
