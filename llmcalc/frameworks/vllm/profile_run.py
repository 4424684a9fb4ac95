"""The peak memory of vLLM's profile run above the weights, in closed form.

The run is one pass of `max_num_batched_tokens` tokens (v1/worker/gpu_model_runner.py, `profile_run`), then the sampler
on `max_num_seqs` rows of logits (`_dummy_sampler_run`). The coefficients of a pass are of the tensors that are alive at
once in a feed-forward network of a compiled layer; they were compared with start-up logs.
"""

from __future__ import annotations

from typing import NamedTuple

from ..engines.rank import EngineRank
from .encoder_run import EncoderRun
from .expert_kernels import ExpertKernels
from .layer_embeddings import layer_embedding_bytes
from .versions import VLLMRules

HIDDEN_VECTORS = 3.75
"""Number of vectors of the hidden size that exist per token at the peak of a compiled dense network."""

EAGER_HIDDEN_VECTORS = 3
"""Number of vectors of the hidden size per token in V0, which does not compile: Llama 3.1 8B of 0.6.4 on one and two
devices, in three logs to 10 MiB.
"""

EXPERT_VECTORS = 5
"""Number of vectors of the hidden size that exist per token at the peak of a layer with experts."""

ROUTED_COPIES = 2
"""Number of additional vectors of the hidden size per routed row in vLLM's 4-bit CUTLASS kernels.

They are the shuffled result and its product with the router's weights; the sum is a further vector of each token
(fused_moe/cutlass_moe.py, `run_cutlass_moe_fp4`).
"""

COPIES_WITH_SORT = 9.5
"""Number of copies of the logits in a sampler that sorts them, including float32 logits."""


class ProfileRun(NamedTuple):
    """The sizes that determine the memory of vLLM's profile run on one rank.

    tokens, sequence_count: the values of `max_num_batched_tokens` and `max_num_seqs`.
    expert_kernels: the kernels of the rank's experts.
    element_bytes: bytes of an element of activations.
    compute_units: number of compute units of the device.
    is_last_stage: whether the rank has the logits.
    has_chunked_prefill: whether prompts are divided into chunks (V0).
    stage_count: number of pipeline stages.
    encoder_run: the run of the image encoder before the text model; None without an encoder.
    keeps_pixels: whether the encoder's input stays allocated.
    attention_workspace_bytes: bytes of the workspace of sparse attention.
    cublas_workspace_bytes: bytes of cuBLAS's workspace.
    compilation_bytes: peak bytes of compiling; 0 for a start that reads compiled graphs.
    gathering_ranks: data-parallel ranks whose tokens each rank's experts gather; 1 where none are gathered.
    """

    tokens: int
    expert_kernels: ExpertKernels
    sequence_count: int
    element_bytes: int
    compute_units: int
    is_last_stage: bool
    has_chunked_prefill: bool
    stage_count: int
    encoder_run: EncoderRun | None = None
    keeps_pixels: bool = True
    attention_workspace_bytes: int = 0
    cublas_workspace_bytes: int = 0
    compilation_bytes: int = 0
    gathering_ranks: int = 1

    def assumes_expert_widths(self, engine_rank: EngineRank) -> bool:
        """Whether the widths of the rank's expert workspaces are assumed, because they are not known."""
        return self.expert_kernels.have_assumed_widths and engine_rank.widest_network_sizes[2] is not None

    def has_assumed_sizes(self, engine_rank: EngineRank) -> bool:
        """Whether a size is assumed, not read from vLLM's source: workspace, compilation, or experts' widths."""
        return bool(self.attention_workspace_bytes or self.compilation_bytes) or self.assumes_expert_widths(engine_rank)

    @property
    def encoder_bytes(self) -> int:
        """The peak bytes of activations in the image encoder."""
        return 0 if self.encoder_run is None else self.encoder_run.pass_bytes

    @property
    def bytes_of_encoded_images(self) -> int:
        """Bytes of image inputs and encoder outputs that stay allocated while the text model runs."""
        if self.encoder_run is None:
            return 0
        return self.encoder_run.output_bytes + (self.encoder_run.pixel_bytes if self.keeps_pixels else 0)

    def layer_bytes(self, engine_rank: EngineRank, version_rules: VLLMRules) -> int:
        """Returns the peak bytes inside a layer, in the dense network or the experts."""
        intermediate_size, is_gated, rank_experts = engine_rank.widest_network_sizes
        hidden_size, token_count = engine_rank.hidden_size, self.tokens
        if rank_experts is None:
            hidden_vector_count = EAGER_HIDDEN_VECTORS if version_rules.generation == "v0" else HIDDEN_VECTORS
            embedding_bytes = layer_embedding_bytes(engine_rank, token_count, self.element_bytes)
            return (
                int(token_count * 2 * (hidden_vector_count * hidden_size + (3 if is_gated else 2) * intermediate_size))
                + embedding_bytes
            )
        gathered_bytes = 2 * self.gathered_tokens * hidden_size if self.gathering_ranks > 1 else 0
        return token_count * 2 * EXPERT_VECTORS * hidden_size + gathered_bytes + self.expert_bytes(engine_rank)

    @property
    def gathered_tokens(self) -> int:
        """The number of tokens in a step of all ranks from which a rank's experts gather tokens."""
        return self.tokens * self.gathering_ranks

    def expert_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the bytes of the experts' workspaces and copies; 0 without experts.

        Shared workspaces are as wide as in `TritonExperts.workspace_shapes` (fused_moe/experts/triton_moe.py).
        """
        rank_experts = engine_rank.widest_network_sizes[2]
        if rank_experts is None:
            return 0
        expert_width, input_width = rank_experts.intermediate_size, rank_experts.input_width
        row_width, summed_width = max(2 * expert_width, input_width), 0
        if self.expert_kernels.share_workspaces:
            row_width += max(expert_width, input_width)
        else:
            row_width += expert_width + input_width
        if self.expert_kernels.keep_routed_copies:
            row_width += ROUTED_COPIES * input_width
            summed_width = input_width
        expert_tokens = min(self.gathered_tokens, self.expert_kernels.chunk_tokens or self.gathered_tokens)
        return expert_tokens * 2 * (rank_experts.top_k * row_width + summed_width)

    def hidden_vector_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the bytes of hidden states of all tokens and of sampled tokens, and of states sent between stages."""
        hidden_size = engine_rank.hidden_size
        sent_vectors = 2 * self.tokens if self.stage_count > 1 else 0  # states and residuals of the model's dtype
        return (self.tokens + self.sequence_count + sent_vectors) * hidden_size * self.element_bytes

    def sampler_bytes(self, engine_rank: EngineRank, engine_rules: VLLMRules) -> int:
        """Returns the peak bytes in the sampler: copies of the logits in float32, and a buffer of top-k and top-p."""
        logits_bytes = self.sequence_count * engine_rank.vocab_size * 4
        logits_copy_count = engine_rules.logit_copies
        if engine_rules.generation == "v0" and self.has_chunked_prefill and self.tokens <= 2048:
            logits_copy_count = 1.5
        elif self.element_bytes == 4 and logits_copy_count < COPIES_WITH_SORT:
            logits_copy_count += 0.5  # the logits themselves are float32 already
        return (
            int(logits_copy_count * logits_bytes)
            + engine_rules.sampler_rows_per_unit * self.compute_units * engine_rank.vocab_size * 4
        )

    def peak_bytes(self, engine_rank: EngineRank, version_rules: VLLMRules) -> int:
        """Returns the peak bytes of the profile run above the weights."""
        text_model_bytes = (
            max(self.layer_bytes(engine_rank, version_rules), self.bytes_after_layers(engine_rank, version_rules))
            + self.bytes_of_encoded_images
        )
        pass_bytes = (
            max(text_model_bytes, self.encoder_bytes) + self.cublas_workspace_bytes + self.attention_workspace_bytes
        )
        return max(pass_bytes, self.compilation_bytes)

    def bytes_after_layers(self, engine_rank: EngineRank, version_rules: VLLMRules) -> int:
        """Returns the peak bytes after the layers: hidden states, workspaces that stay and, at the end, the sampler."""
        sampler_bytes = self.sampler_bytes(engine_rank, version_rules) if self.is_last_stage else 0
        workspace_bytes = self.expert_bytes(engine_rank) if self.expert_kernels.keep_workspaces else 0
        return self.hidden_vector_bytes(engine_rank) + workspace_bytes + sampler_bytes

    def origin(self, engine_rank: EngineRank, version_rules: VLLMRules) -> str:
        """Returns a description of the tensors that are allocated at the peak."""
        layer_bytes = self.layer_bytes(engine_rank, version_rules)
        bytes_after_layers = self.bytes_after_layers(engine_rank, version_rules)
        if self.peak_bytes(engine_rank, version_rules) == self.compilation_bytes:
            return "compiling, with a second embedding table"
        if (
            self.encoder_run is not None
            and self.encoder_bytes > max(layer_bytes, bytes_after_layers) + self.bytes_of_encoded_images
        ):
            encoder_run = self.encoder_run
            return (
                f"encoder: {encoder_run.image_count:,} x {encoder_run.tokens_per_input:,} tokens of "
                f"{encoder_run.input_medium}"
            )
        if not self.is_last_stage or layer_bytes > bytes_after_layers:
            has_gathered_tokens = self.gathering_ranks > 1 and engine_rank.widest_network_sizes[2] is not None
            gathering_text = f"{self.gathering_ranks} ranks x " if has_gathered_tokens else ""
            return f"{gathering_text}{self.tokens:,} tokens (--max-num-batched-tokens)"
        return f"{self.sequence_count:,} users x {engine_rank.vocab_size:,} logits"
