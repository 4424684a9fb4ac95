"""The kernels and options that users can choose for the run that a replay follows."""

from __future__ import annotations

from fractions import Fraction

from ..frozen import frozen
from ..workload.execution import AttentionImplementation, CrossEntropy, Mamba2Implementation, NormImplementation
from ..workload.fake_quantization import FakeQuantizationOptions


@frozen
class KernelChoices:
    """The kernels and options that a user has chosen for the run that a replay follows.

    attention: `eager` computes all scores, step by step; `sdpa` is the backend that torch's
        scaled_dot_product_attention chooses; `sdpa-math` is its fallback, in float32; `flash` keeps no scores.
    norm: `eager` normalizes step by step in float32; `fused` is one kernel.
    cross_entropy: `eager` copies the logits to float32; `fused` writes their gradient over them; `chunked` computes
        them, and their gradients, for a few tokens at a time; `split` runs the output head for a chunk of tokens at a
        time and computes the loss of each chunk by itself, and the graph keeps them all (torchtune,
        `CEWithChunkedOutputLoss`; LitGPT, `chunked_cross_entropy`); `recomputed` runs the output head in float32 for a
        chunk of tokens of all sequences at a time, and again in the backward pass (TRL, `chunked_nll`); `flash` keeps
        the logits and makes their gradient in the backward pass, and `flash-in-place` writes it over them there
        (flash-attn's cross-entropy); `selective` divides the last logits by a temperature in place and computes the
        labels' log-probabilities sequence by sequence (TRL's GRPO, `selective_log_softmax`); `selective-chunked`
        computes the last log-probabilities, and their gradients, for a sequence and a part of the vocabulary at a time
        (Liger-Kernel's GRPO).
    mamba2: `combined` runs all of Mamba-2 after its input projection as one function, which keeps little; `steps` runs
        its convolution, scan and norm one after another (mamba_ssm's `use_mem_eff_path=False`).
    logits_dtype: the number format in which the loss reads the logits; by default that of `float32_loss` for `eager`,
        else their own.
    float32_loss: whether an eager loss reads a float32 copy of the logits (default), as its head states, or the logits.
    scales_logits, caps_logits: whether the logits are multiplied by a number, and capped by tanh, before an eager or a
        `recomputed` loss, as their head states; false by default.
    loss_chunk: of a `split`, `recomputed` or `chunked` cross-entropy, the tokens of a chunk; by default an eighth of
        them (torchtune) of a `split` one, 256 (TRL) of a `recomputed` one, and Liger-Kernel's of a `chunked` one.
    logits_to_keep: of a `selective`, `selective-chunked` or `split` cross-entropy, the tokens at the end of each
        sequence whose loss is computed, of `selective` from as many logits and one more; None (default) for all.
    divides_logits: whether the logits are divided in place by a temperature before the loss (reinforcement learning);
        false by default.
    keeps_logits: whether the training loop names the logits, in the type that the loss reads, until the backward pass
        has run; false by default.
    fused_qkv: whether queries, keys and values are one product, whose result they are views of (GPT-NeoX, Qwen 1,
        Phi-3, LitGPT); false by default.
    matches_transformers: whether parts run as the classes of transformers run them where the reference does otherwise:
        one product for queries, keys and values by `Attention.fused_qkv`, and a mask that eager attention adds to the
        scores; false by default.
    fused_gate: whether gated activations are one kernel, which keeps gate and up-projection and writes their gradients
        over them (Liger-Kernel); false by default.
    fused_adapters: whether the adapters of a layer's attention and of its gated network run in functions that save
        their input once (axolotl's kernels/lora.py); false by default.
    compiled: whether torch.compile is estimated for layers and loss: norms are one kernel, a gated activation is
        computed again in the backward pass, and so is what the loss computes of the logits; false by default.
    compiled_loss: whether torch.compile is estimated for the loss too, if it is for layers; true by default.
    expert_capacity: the rows that each expert takes over its even share of them, padded; None (default) if no row is
        dropped. Neither depends on how evenly the router spreads the tokens where one device has all experts: without a
        capacity all experts together have top_k rows per token, in one grouped product, and with one each has as many.
    compute_capability: ten times the compute capability of the GPU, by which `sdpa` chooses its backend; 0 for a CPU.
        Default: that of an H100.
    joins_rope_halves: whether RoPE makes a tensor by head of its two halves, after which fused attention's output is
        copied: torchtitan's complex numbers, whose published peaks fit it; false by default, as in transformers.
    fused_layer_norm: whether LayerNorm is one kernel (torch.nn.LayerNorm) where other norms run step by step; false by
        default.
    unfused_gelu: whether `gelu_new` runs step by step (default), as in the classes of transformers, or as torch's
        kernel.
    fake_quantization: what linear layers round before their product (quantization-aware training); None (default) for
        nothing.
    multiprocessors: multiprocessors of the GPU whose workspaces kernels allocate; 0 (default) for none, as on meta and
        a CPU.
    """

    attention: AttentionImplementation = "eager"
    norm: NormImplementation = "eager"
    cross_entropy: CrossEntropy = "eager"
    mamba2: Mamba2Implementation = "combined"
    logits_dtype: str | None = None
    float32_loss: bool = True
    scales_logits: bool = False
    caps_logits: bool = False
    loss_chunk: int | None = None
    logits_to_keep: int | None = None
    divides_logits: bool = False
    keeps_logits: bool = False
    fused_qkv: bool = False
    matches_transformers: bool = False
    fused_gate: bool = False
    fused_adapters: bool = False
    compiled: bool = False
    compiled_loss: bool = True
    expert_capacity: Fraction | None = None
    compute_capability: int = 90
    joins_rope_halves: bool = False
    fused_layer_norm: bool = False
    unfused_gelu: bool = True
    fake_quantization: FakeQuantizationOptions | None = None
    multiprocessors: int = 0

    @property
    def is_on_gpu(self) -> bool:
        """Whether kernels run on a GPU, where kernels allocate temporary memory."""
        return self.multiprocessors > 0

    @property
    def compiles_loss(self) -> bool:
        """Whether torch.compile is estimated for the loss."""
        return self.compiled and self.compiled_loss


EAGER_CHOICES = KernelChoices()
"""The default choices: every operation runs separately, as in the PyTorch reference."""
