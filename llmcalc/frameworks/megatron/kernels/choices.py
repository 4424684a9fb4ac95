"""Which of several kernels runs for a step of a rank, where a framework has a choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

AttentionBackend: TypeAlias = Literal["fused", "flash", "unfused", "local"]

Loss: TypeAlias = Literal["unfused", "native", "te"]

Dispatcher: TypeAlias = Literal["allgather", "alltoall", "hybridep"]


Recipe: TypeAlias = Literal["none", "tensorwise", "delayed", "blockwise", "mxfp8"]


@dataclass(frozen=True)
class RankChoices:
    """The kernels that a rank runs.

    tensor, context, expert, expert_tensor: ranks of each group.
    sequence_parallel: whether what lies between the products of tensor parallelism is divided by tokens.
    transformer_engine: whether layers are Transformer Engine's; if not, Megatron-Core's own.
    attention: what computes attention. attention_dropout, hidden_dropout: probabilities; 0 runs no dropout.
    softmax_fusion: whether Megatron-Core's own attention may scale, mask and norm scores by one kernel.
    softmax_fp32, scales_scores: without it, whether the softmax is in float32, and whether scores are scaled before it.
    masks: whether a mask comes with the batch.
    exchange: how context parallelism exchanges keys and values; a2a too where heads are sent inside of a ring.
    accumulates: whether products add gradients of weights to the main gradients themselves.
    bias_activation, rope_fusion: whether the bias and the activation after a product, and the rotation of queries and
        keys, are one kernel. mla_fusion: whether the rotation of latent attention is.
    user_buffers: whether products overlap with what a tensor group sends, in buffers of Transformer Engine's own.
    scales_logits: whether logits are multiplied by a number.
    loss: what computes the loss. deterministic: whether algorithms are. multiprocessors: of the GPU.
    padded: whether attention that is not causal takes a mask of padding.
    weighted_activation: whether experts without a gate weight their activation's output in the same kernel.
    grouped: whether all experts of a rank are one grouped product. dispatcher: how tokens reach their experts.
    permute_fusion: whether rows are sorted by one kernel. router_fp32: whether the router computes in float32.
    capacity: rows of an expert over an even share, padded; None if no row is dropped.
    aux_loss: whether the router has an auxiliary loss; z_loss: whether it has one of the size of its logits.
    shared_first: whether shared experts run before the router.
    combined_at_once: whether one function combines the outputs of experts, whose caller names its argument meanwhile.
    deferred: micro-batches for which the gradient of the output layer's weight is computed at the end of a step, 0 for
        all; None (default) if none is.
    narrow: the recipe by which linear layers multiply in 8 bits. narrow_weights: whether their weights are in 8 bits.
    transposes: whether what is read by columns is kept transposed where a tensor has one scale.
    history: how many maxima delayed scaling remembers of each tensor.
    wide_layers: how many of the first and of the last layers stay in 16 bits. layers: of the whole model.
    indexer_loss: whether indexers learn the shares of attention.
    recompute_core: whether the attention's core runs again in the backward pass.
    recompute, recompute_layers: which layers do: groups of so many (uniform), or so many of the first (block).
    recompute_norms, recompute_activation, recompute_up: whether norms before sublayers, activations of experts and
        projections of latents give their outputs back, and make them again.
    recompute_kinds: kinds of modules of a layer that do, each by itself.
    """

    tensor: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence_parallel: bool = False
    transformer_engine: bool = True
    attention: AttentionBackend = "fused"
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    softmax_fusion: bool = True
    softmax_fp32: bool = False
    scales_scores: bool = False
    masks: bool = True
    exchange: str = "p2p"
    accumulates: bool = True
    bias_activation: bool = True
    rope_fusion: bool = True
    mla_fusion: bool = True
    user_buffers: bool = False
    scales_logits: bool = False
    loss: Loss = "unfused"
    deterministic: bool = False
    multiprocessors: int = 132
    padded: bool = False
    weighted_activation: bool = False
    grouped: bool = False
    dispatcher: Dispatcher = "allgather"
    permute_fusion: bool = False
    router_fp32: bool = False
    capacity: float | None = None
    aux_loss: bool = True
    z_loss: bool = False
    shared_first: bool = True
    combined_at_once: bool = False
    deferred: int | None = None
    narrow: Recipe = "none"
    narrow_weights: bool = False
    transposes: bool = True
    history: int = 1
    wide_layers: tuple[int, int] = (0, 0)
    layers: int = 0
    indexer_loss: bool = False
    recompute_core: bool = False
    recompute: Literal["none", "uniform", "block"] = "none"
    recompute_layers: int = 1
    recompute_norms: bool = False
    recompute_activation: bool = False
    recompute_up: bool = False
    recompute_kinds: frozenset[str] = frozenset()
