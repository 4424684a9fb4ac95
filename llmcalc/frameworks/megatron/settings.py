"""The settings of a Megatron-LM run: arguments, and sizes derived from the arguments.

What `validate_args` of megatron/training/arguments.py derives from other arguments (commit d98e8a64, 2026-08-22) is a
property here.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

from ...errors import InputError, short_repr
from ...frozen import frozen
from ...parallel.layout import (
    ContextExchange,
    ImpossibleLayout,
    Layout,
    Zero,
    check_divided_heads,
    stage_sizes_between_ends,
    stage_sizes_with_counted_ends,
)
from .arguments import MegatronArguments, flag_of_field


@frozen
class MegatronSettings(MegatronArguments):
    """Megatron-LM's arguments of a run, and sizes derived from the arguments."""

    @property
    def tp(self) -> int:
        """Size of the tensor-parallel group."""
        return self.tensor_model_parallel_size

    @property
    def pp(self) -> int:
        """Number of pipeline ranks."""
        return self.pipeline_model_parallel_size

    @property
    def cp(self) -> int:
        """Size of the context-parallel group: ranks that share a sequence."""
        return self.context_parallel_size

    @property
    def dp(self) -> int:
        """Number of data-parallel replicas."""
        return max(1, self.world_size // (self.tp * self.pp * self.cp))

    @property
    def uses_sequence_parallelism(self) -> bool:
        """Whether sequence parallelism runs, which requires tensor parallelism."""
        return self.sequence_parallel and self.tp > 1

    @property
    def layer_count(self) -> int:
        """The number of decoder layers, or for an encoder-decoder of encoder layers; 0 if not stated."""
        if self.hybrid_layer_pattern is not None:
            return sum(map(len, self.pattern_segments))
        return self.num_layers or self.encoder_num_layers or 0

    @property
    def decoder_layer_count(self) -> int:
        """Number of decoder layers of an encoder-decoder."""
        return self.decoder_num_layers or self.layer_count

    @property
    def pattern_segments(self) -> list[str]:
        """Segments of the hybrid layer pattern, one per pipeline stage, without multi-token prediction."""
        return (self.hybrid_layer_pattern or "").split("/")[0].split("|")

    @property
    def mtp_layer_count(self) -> int:
        """Number of multi-token-prediction layers, which a hybrid pattern lists after slashes."""
        if self.hybrid_layer_pattern is not None and "/" in self.hybrid_layer_pattern:
            return self.hybrid_layer_pattern.count("/")
        return self.mtp_num_layers or 0

    @property
    def has_latent_attention(self) -> bool:
        """Whether attention is multi-head latent (MLA), which a hybrid pattern marks with a plus sign or a D."""
        return self.multi_latent_attention or bool(set(self.hybrid_layer_pattern or "") & {"+", "D"})

    @property
    def sequence_length(self) -> int:
        """The tokens per sequence; in an encoder-decoder, of the encoder's sequence."""
        return self.seq_length or self.encoder_seq_length or 0

    @property
    def ffn_width(self) -> int:
        """The width of a dense feed-forward network, by default 4 (SwiGLU: 8/3) times the hidden size."""
        if self.ffn_hidden_size is not None:
            return self.ffn_hidden_size
        hidden_size = self.hidden_size or 0
        return int((4 * hidden_size * 2 / 3) / 64) * 64 if self.swiglu else 4 * hidden_size

    @property
    def expert_ffn_width(self) -> int:
        """Width of an expert's feed-forward network."""
        return self.moe_ffn_hidden_size or self.ffn_width

    @property
    def has_gate(self) -> bool:
        """Whether feed-forward networks have a gate."""
        return self.swiglu or self.quick_geglu

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        return self.kv_channels or (self.hidden_size or 0) // (self.num_attention_heads or 1)

    @property
    def query_group_count(self) -> int:
        """Number of key/value heads."""
        return self.num_query_groups if self.group_query_attention else self.num_attention_heads or 0

    @property
    def mamba_inner_width(self) -> int:
        """Inner width of a Mamba layer."""
        if self.mamba_num_heads is not None:
            return self.mamba_num_heads * self.mamba_head_dim
        return 2 * (self.hidden_size or 0)

    @property
    def position_type(self) -> str:
        """The type of position embedding, such as `rope` or `learned_absolute`."""
        if self.use_rotary_position_embeddings:
            return "rope"
        return "none" if self.no_position_embedding else self.position_embedding_type

    @property
    def has_experts_by_layer(self) -> tuple[bool, ...]:
        """One flag per layer: whether the layer has experts; with a frequency N, the first of every N layers has."""
        if self.num_experts is None:
            return (False,) * self.layer_count
        layer_frequency = self.moe_layer_freq
        if isinstance(layer_frequency, int):
            return tuple(i % max(1, layer_frequency) == 0 for i in range(self.layer_count))
        return tuple(map(bool, layer_frequency))

    @property
    def has_delta_rule_by_layer(self) -> tuple[bool, ...]:
        """One flag per layer: whether the layer is a Gated DeltaNet; with a frequency N, every N-th layer is not.

        Source: experimental_attention_variant_module_specs.py, `get_linear_attention_pattern`.
        """
        if self.experimental_attention_variant not in GATED_DELTA_NET_NAMES:
            return (False,) * self.layer_count
        layer_frequency = self.linear_attention_freq
        if layer_frequency is None:
            raise InputError("--linear-attention-freq: missing; gated DeltaNet needs it")
        if isinstance(layer_frequency, int):
            return tuple((i + 1) % max(1, layer_frequency) != 0 for i in range(self.layer_count))
        return tuple(map(bool, layer_frequency))

    @property
    def microbatches(self) -> int:
        """The number of micro-batches per step in each pipeline."""
        sequences_at_once = (self.micro_batch_size or 1) * self.dp
        return max(1, (self.batch_size or sequences_at_once) // sequences_at_once)

    @property
    def batch_size(self) -> int | None:
        """The number of sequences of the first step, which a ramp-up or a batch schedule may set.

        Source: megatron/core/num_microbatches_calculator.py, `_parse_schedule`.
        """
        if self.step_batch_size_schedule is None:
            return self.global_batch_size
        batch_by_token_count = dict(_parse_batch_schedule(self.step_batch_size_schedule))
        if 0 not in batch_by_token_count or self.global_batch_size is not None:
            raise InputError(
                f"--step-batch-size-schedule {short_repr(self.step_batch_size_schedule)}: expected a batch from 0 on, "
                "such as 0:384 200B:768, and no --global-batch-size"
            )
        return batch_by_token_count[0]

    @property
    def scales_logits(self) -> bool:
        """Whether logits are multiplied by a factor: with μP, unless the hidden size equals the base model's.

        Source: transformer_config.py, `__post_init__`.
        """
        base_hidden_size = self.mup_base_hidden_size or self.hidden_size
        return self.use_mup and (self.mup_output_mult != 1.0 or base_hidden_size != self.hidden_size)

    @property
    def has_auxiliary_loss(self) -> bool:
        """Whether the router has an auxiliary load-balancing loss with a coefficient.

        Source: transformer/moe/router.py, `is_aux_loss_enabled`.
        """
        types_and_factors = zip(self.moe_router_load_balancing_type, self.moe_aux_loss_coeff, strict=False)
        return any(loss_type.endswith("aux_loss") and loss_factor > 0 for loss_type, loss_factor in types_and_factors)

    @property
    def tokenizer_kind(self) -> str:
        """The tokenizer's type, by argument or by the script's default (`args_defaults`)."""
        default_type = "BertWordPieceLowerCase" if self.kind in ("bert", "t5") else "GPT2BPETokenizer"
        return self.tokenizer_type or default_type

    @property
    def vocabulary_size(self) -> int | None:
        """The tokenizer's vocabulary size before padding; None if only the tokenizer's files state the size.

        A null tokenizer added a token for the end of a document until 2026-04-22 (commit c9dfe34798).
        """
        tokenizer_type, vocab_size = self.tokenizer_kind, self.vocab_size
        if tokenizer_type in ("NullTokenizer", "NullMultimodalTokenizer"):
            has_end_token = self.date is not None and self.date < NULL_TOKENIZER_COUNTS_EOD_SINCE
            if vocab_size is None:
                return None
            return vocab_size + (1 if has_end_token or tokenizer_type != "NullTokenizer" else 0)
        if tokenizer_type == "TikTokenizer":
            return vocab_size or TIKTOKEN_VOCABULARY_SIZE
        if tokenizer_type in BERT_VOCABULARY_BY_TOKENIZER:
            return BERT_VOCABULARY_BY_TOKENIZER[tokenizer_type] + self.vocab_extra_ids
        if tokenizer_type == "GPT2BPETokenizer":
            return GPT2_VOCABULARY_SIZE
        if tokenizer_type == "Llama2Tokenizer" and vocab_size is None:
            return LLAMA2_VOCABULARY_SIZE
        if tokenizer_type in SENTENCEPIECE_TOKENIZERS and vocab_size is None:
            return self._vocabulary_size_in_name()
        return vocab_size

    def _vocabulary_size_in_name(self) -> int | None:
        """The vocabulary size in thousands, from a SentencePiece model's name (`…_256k.model`)."""
        size_match = re.search(r"[_.-](\d{2,3})k\.(?:model|vocab)", (self.tokenizer_model or "")[-200:])
        return None if size_match is None else int(size_match[1]) * 1000

    @property
    def padded_vocabulary_size(self) -> int | None:
        """The rows of the embedding: the vocabulary, padded to a multiple of `--make-vocab-size-divisible-by` · tp."""
        if self.padded_vocab_size is not None:
            return self.padded_vocab_size
        if self.vocabulary_size is None or self.no_pad_vocab_size:
            return self.vocabulary_size
        size_multiple = max(1, self.make_vocab_size_divisible_by * self.tp)
        return -(-self.vocabulary_size // size_multiple) * size_multiple

    @property
    def adam_keeps_main_weights(self) -> bool:
        """Whether Transformer Engine's Adam keeps the main weights, in place of Megatron-Core.

        Source: core/optimizer/optimizer_config.py, `use_precision_aware_optimizer_no_fp8_or_ds_fp8`: with a recipe of 8
        bits other than delayed scaling Megatron-Core keeps main weights in float32 itself.
        """
        return self.use_precision_aware_optimizer and (
            self.main_params_dtype != "fp32" or self.fp8_recipe == "delayed" or self.optimizer_cpu_offload
        )

    @property
    def reduces_in_fp32(self) -> bool:
        """Whether gradients are accumulated in fp32, the default with bf16 weights."""
        if self.bf16:
            return not self.grad_reduce_in_bf16 and self.main_grads_dtype == "fp32"
        return self.accumulate_allreduce_grads_in_fp32 or not self.fp16

    @property
    def recompute_mode(self) -> Literal["none", "full", "selective"]:
        """The recomputation mode of the backward pass."""
        if self.recompute_activations:
            return "selective"
        return self.recompute_granularity or "none"

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        """The modules that selective recomputation recomputes: by default the attention core."""
        if self.recompute_mode != "selective":
            return ()
        return self.recompute_modules or ("core_attn",)

    # The layout

    @cached_property
    def layers_per_stage(self) -> tuple[int, ...] | None:
        """The number of layers per stage in pipeline order; None if all stages have the same number.

        Source: megatron/core/transformer/transformer_block.py, `get_num_layers_to_build`; the words of a layout are
        those of pipeline_parallel_layer_layout.py, and hybrid patterns have a bar at the end of a stage.
        """
        if self.pipeline_model_parallel_layout is not None:
            return tuple(
                stage_letters.count("t")
                for stage_letters in expand_pipeline_layout(self.pipeline_model_parallel_layout).split("|")
            )
        if self.hybrid_layer_pattern is not None and len(self.pattern_segments) > 1:
            return tuple(map(len, self.pattern_segments))
        if (self.decoder_first_pipeline_num_layers, self.decoder_last_pipeline_num_layers) != (None, None):
            return stage_sizes_between_ends(
                self.layer_count,
                self.pp,
                self.chunk_count,
                self.decoder_first_pipeline_num_layers,
                self.decoder_last_pipeline_num_layers,
                "--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers",
            )
        if self.account_for_embedding_in_pipeline_split or self.account_for_loss_in_pipeline_split:
            return self._stage_layers_with_embedding_and_loss()
        return None

    def _stage_layers_with_embedding_and_loss(self) -> tuple[int, ...]:
        """Returns the layers per stage where embedding or loss take the place of a layer. Raises `InputError`."""
        return stage_sizes_with_counted_ends(
            self.layer_count,
            self.pp * self.chunk_count,
            self.account_for_embedding_in_pipeline_split,
            self.account_for_loss_in_pipeline_split,
            "--account-for-embedding-in-pipeline-split, --account-for-loss-in-pipeline-split",
        )

    @cached_property
    def chunk_count(self) -> int:
        """Number of layer chunks (virtual stages) of each pipeline rank."""
        if self.pipeline_model_parallel_layout is not None:
            return self._stages_per_rank(len(expand_pipeline_layout(self.pipeline_model_parallel_layout).split("|")))
        if self.hybrid_layer_pattern is not None:
            return 1 if len(self.pattern_segments) == 1 else self._stages_per_rank(len(self.pattern_segments))
        if self.pp == 1:
            return 1
        if self.num_virtual_stages_per_pipeline_rank is not None:
            return max(1, self.num_virtual_stages_per_pipeline_rank)
        layers_per_stage = self.num_layers_per_virtual_pipeline_stage
        if layers_per_stage is None:
            return 1
        layer_count = self.layer_count
        layer_count += self.account_for_embedding_in_pipeline_split + self.account_for_loss_in_pipeline_split
        if layers_per_stage < 1 or layer_count % (self.pp * layers_per_stage):
            raise InputError(
                f"--num-layers-per-virtual-pipeline-stage: {layers_per_stage} layers on each of {self.pp} ranks do "
                f"not divide {layer_count} layers; expected a divisor"
            )
        return layer_count // (self.pp * layers_per_stage)

    def _stages_per_rank(self, stage_count: int) -> int:
        if stage_count % self.pp:
            raise InputError(
                f"--pipeline-model-parallel-size: {self.pp} ranks cannot share {stage_count} stages; expected a divisor"
            )
        return stage_count // self.pp

    def layout(self) -> Layout:
        """The parallel layout of the run. Raises `InputError` for an impossible layout."""
        self._check_world_size()
        context_parallel_exchange = CP_EXCHANGE_BY_COMM_TYPE.get(self.cp_comm_type[0] if self.cp_comm_type else "p2p")
        if context_parallel_exchange is None or len(set(self.cp_comm_type)) > 1:
            raise InputError(
                f"--cp-comm-type {' '.join(self.cp_comm_type)[:60]}: not supported; expected one of "
                f"{', '.join(CP_EXCHANGE_BY_COMM_TYPE)} for all layers"
            )
        zero_stage: Zero = 1 if self.use_distributed_optimizer else 0
        if self.use_torch_fsdp2:
            zero_stage = 3
        elif self.use_megatron_fsdp:
            zero_stage = ZERO_STAGE_BY_STRATEGY.get(self.data_parallel_sharding_strategy, 3)
        return Layout(
            tp=self.tp,
            pp=self.pp,
            cp=self.cp,
            dp=self.dp,
            ep=self.expert_model_parallel_size,
            etp=self.expert_tensor_parallel_size,
            vpp=self.chunk_count,
            sequence_parallel=self.uses_sequence_parallelism,
            cp_comm=context_parallel_exchange,
            zero=zero_stage,
            hsdp_replicas=self.num_distributed_optimizer_instances,
            reshard=not self.torch_fsdp2_no_reshard_after_forward,
            schedule="interleaved" if self.chunk_count > 1 else "1f1b",
            pp_layout=self.layers_per_stage,
        )

    def _check_world_size(self) -> None:
        """Raises `InputError` for a parallel size below 1, and for a number of devices that the sizes do not divide."""
        size_names = (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
            "num_distributed_optimizer_instances",
            "world_size",
        )
        for size_name in size_names:
            if getattr(self, size_name) < 1:
                raise InputError(
                    f"{flag_of_field(size_name)}: {getattr(self, size_name)}; expected a positive whole number"
                )
        replica_devices = self.tp * self.pp * self.cp
        if self.world_size % replica_devices:
            raise InputError(
                f"--devices: {self.world_size} is not a multiple of tensor · pipeline · context parallel sizes, "
                f"{self.tp} · {self.pp} · {self.cp} = {replica_devices}; expected a multiple"
            )

    def check(self) -> None:
        """Raises `InputError`, which names the argument, for values that Megatron-LM or the model rejects."""
        self._check_sizes()
        self._check_world_size()
        self._check_batch()
        self._check_experts()
        self._check_sequence_length()
        self._check_context_parallelism()
        if self.fp16 and self.bf16:
            raise InputError("--fp16, --bf16: both are given; expected one")
        if self.optimizer_cpu_offload and not (self.use_precision_aware_optimizer and self.use_distributed_optimizer):
            raise InputError(
                "--optimizer-cpu-offload: Megatron-LM needs --use-precision-aware-optimizer and "
                "--use-distributed-optimizer with it; expected both"
            )
        overlaps_messages = self.layout().vpp > 1 and not self.no_overlap_p2p_communication
        if self.overlap_p2p_communication_warmup_flush and not overlaps_messages:
            raise InputError(
                "--overlap-p2p-communication-warmup-flush: Megatron-LM needs an interleaved schedule that overlaps its "
                "messages; expected virtual stages, and no --no-overlap-p2p-communication"
            )
        if self.kind == "t5" and self.decoder_seq_length is None:
            raise InputError("--decoder-seq-length: missing; T5 needs it")
        self.layout()

    def _check_sizes(self) -> None:
        """Raises `InputError` for missing sizes, sizes below 1, and heads that do not divide the hidden size."""
        for argument_name in ("hidden_size", "num_attention_heads", "micro_batch_size"):
            self._require_positive(argument_name, getattr(self, argument_name))
        self._require_positive("num_layers", self.layer_count or None)
        self._require_positive("seq_length", self.sequence_length or None)
        for argument_name in SIZE_FIELDS:
            if getattr(self, argument_name) is not None:
                self._require_positive(argument_name, getattr(self, argument_name))
        assert self.hidden_size is not None
        assert self.num_attention_heads is not None
        if self.kv_channels is None and self.hidden_size % self.num_attention_heads:
            self._reject_value(
                "num_attention_heads", f"a divisor of --hidden-size {self.hidden_size}, or --kv-channels"
            )
        if self.num_attention_heads % self.query_group_count:
            self._reject_value("num_query_groups", f"a divisor of --num-attention-heads {self.num_attention_heads}")

    def _check_batch(self) -> None:
        """Raises `InputError` for a batch that replicas and micro-batches do not divide evenly."""
        sequences_at_once = (self.micro_batch_size or 1) * self.dp
        if self.batch_size is not None and self.batch_size % sequences_at_once:
            argument_name = "global_batch_size" if self.step_batch_size_schedule is None else "step_batch_size_schedule"
            self._reject_value(
                argument_name, f"a multiple of micro-batch size · data-parallel size = {sequences_at_once}"
            )

    def _check_experts(self) -> None:
        """Raises `InputError` for experts that ranks cannot divide or train, or a layer pattern of wrong length."""
        if self.num_experts is not None:
            if self.tp > 1 and not self.sequence_parallel:
                raise InputError(
                    "sequence parallelism is off; Megatron-Core trains no mixture of experts with tensor parallelism "
                    f"of {self.tp} without it (megatron/core/transformer/moe/moe_layer.py); expected it on, or no "
                    "tensor parallelism"
                )
            if self.num_experts % self.expert_model_parallel_size:
                self._reject_value(
                    "num_experts", f"a multiple of {self.expert_model_parallel_size}, the expert-parallel size"
                )
            if self.moe_router_topk > self.num_experts:
                self._reject_value("moe_router_topk", f"at most --num-experts {self.num_experts}")
            group_count, selected_group_count = self.moe_router_num_groups or 1, self.moe_router_group_topk or 1
            if self.num_experts % group_count:
                self._reject_value("moe_router_num_groups", f"a divisor of --num-experts {self.num_experts}")
            if not group_count >= selected_group_count >= self.moe_router_topk * group_count / self.num_experts:
                smallest_group_count = -(-self.moe_router_topk * group_count // self.num_experts)
                self._reject_value(
                    "moe_router_group_topk",
                    f"{smallest_group_count} to {group_count} of --moe-router-num-groups {group_count}",
                )
            if len(self.has_experts_by_layer) != self.layer_count and self.hybrid_layer_pattern is None:
                raise InputError(
                    f"--moe-layer-freq: a pattern of {len(self.has_experts_by_layer)} layers; "
                    f"expected one of {self.layer_count}"
                )
        if len(self.has_delta_rule_by_layer) != self.layer_count:
            raise InputError(
                f"--linear-attention-freq: a pattern of {len(self.has_delta_rule_by_layer)} layers; "
                f"expected one of {self.layer_count}"
            )

    def _check_sequence_length(self) -> None:
        """Raises `InputError` for a sequence longer than the position table, or with a length not divisible by tp."""
        longest_sequence = max(self.sequence_length, self.decoder_seq_length or 0)
        if self.max_position_embeddings is not None and self.max_position_embeddings < longest_sequence:
            self._reject_value("max_position_embeddings", f"at least {longest_sequence}, the longest sequence")
        for token_count in (
            (self.sequence_length, self.decoder_seq_length or 0) if self.uses_sequence_parallelism else ()
        ):
            if token_count // self.cp % self.tp:  # mappings.py, `_split_along_first_dim`
                raise ImpossibleLayout(
                    f"--sequence-parallel: --tp {self.tp} does not divide {token_count // self.cp} tokens; "
                    "expected a multiple"
                )

    def _check_context_parallelism(self) -> None:
        """Raises `InputError` for sizes that context-parallel ranks do not divide."""
        sequence_part_count = 2 * self.cp  # core/utils.py, `get_batch_on_this_cp_rank`
        for argument_name, token_count in (
            ("seq_length", self.sequence_length),
            ("decoder_seq_length", self.decoder_seq_length or 0),
        ):
            if self.cp > 1 and token_count % sequence_part_count:
                self._reject_value(argument_name, f"a multiple of 2 · context-parallel size = {sequence_part_count}")
        heads = (
            self.num_attention_heads or 1,
            self.num_attention_heads if self.has_latent_attention else self.query_group_count,
        )
        if "a2a" in self.cp_comm_type[:1]:
            head_counts = [head_count or 1 for head_count in heads]
            check_divided_heads(head_counts, self.tp, self.cp, ("--cp-comm-type", "--context-parallel-size"))

    def _require_positive(self, argument_name: str, argument_value: Any) -> None:
        if argument_value is None:
            raise InputError(f"{flag_of_field(argument_name)}: missing; Megatron-LM needs it")
        if argument_value < 1:
            raise InputError(
                f"{flag_of_field(argument_name)}: {short_repr(argument_value)}; expected a positive whole number"
            )

    def _reject_value(self, argument_name: str, expected_value: str) -> None:
        raise InputError(
            f"{flag_of_field(argument_name)}: {short_repr(getattr(self, argument_name))}; expected {expected_value}"
        )


def _parse_batch_schedule(schedule_text: str) -> Iterator[tuple[int, int]]:
    """Yields (tokens, batch size after these tokens) of a batch schedule, `0:384 200B:768`. Raises `InputError`."""
    for schedule_entry in schedule_text.split():
        entry_match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([KMBT]?):(\d{1,9})", schedule_entry, re.IGNORECASE)
        if entry_match is None or not int(entry_match[3]):
            raise InputError(
                f"--step-batch-size-schedule {short_repr(schedule_text)}: not understood; expected 0:384 200B:768"
            )
        yield int(float(entry_match[1]) * TOKEN_SUFFIX_FACTORS[entry_match[2].upper()]), int(entry_match[3])


TOKEN_SUFFIX_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
"""Suffix of a number of tokens → factor by which the number is multiplied."""

LONGEST_PIPELINE_LAYOUT = 100_000
"""Largest number of characters in a pipeline layout with expanded repeats."""


def expand_pipeline_layout(layout_text: str, argument_name: str = "--pipeline-model-parallel-layout") -> str:
    """Returns a pipeline layout with its repeats expanded: `Et|(tt|)*2,L` → `Et|tt|tt|L`. Raises `InputError`.

    E is the embedding, t a layer, m a layer of multi-token prediction, L the loss; a bar ends a stage.
    argument_name: the argument that states it.
    """
    typed_argument = f"{argument_name} {short_repr(layout_text)}"
    expanded_layout = layout_text.replace(",", "").replace(" ", "")
    for group_regex in (r"\(([^()]+)\)\*(\d{1,6})", r"(.)\*(\d{1,6})"):
        if (
            sum(len(match[1]) * int(match[2]) for match in re.finditer(group_regex, expanded_layout))
            > LONGEST_PIPELINE_LAYOUT
        ):
            raise InputError(f"{typed_argument}: too long; expected at most {LONGEST_PIPELINE_LAYOUT:,} layers")
        expanded_layout = re.sub(group_regex, lambda match: match[1] * int(match[2]), expanded_layout)
    if len(expanded_layout) > LONGEST_PIPELINE_LAYOUT or set(expanded_layout) - set("EtmL|"):
        raise InputError(
            f"{typed_argument}: not understood; expected letters E, t, m, L, bars and repeats, such as Et|(tt|)*2L"
        )
    return expanded_layout


SIZE_FIELDS = (
    "ffn_hidden_size",
    "kv_channels",
    "num_query_groups",
    "global_batch_size",
    "num_experts",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
    "mamba_state_dim",
    "mamba_head_dim",
    "mamba_num_groups",
    "mamba_num_heads",
    "max_position_embeddings",
    "decoder_seq_length",
    "encoder_num_layers",
    "decoder_num_layers",
    "make_vocab_size_divisible_by",
    "moe_router_topk",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "dsa_indexer_n_heads",
    "dsa_indexer_head_dim",
    "dsa_indexer_topk",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
"""Optional fields whose values are positive sizes."""

GPT2_VOCABULARY_SIZE = 50257
"""Vocabulary size of GPT-2's tokenizer."""

LLAMA2_VOCABULARY_SIZE = 32000
"""Vocabulary size of Llama 2's tokenizer."""

TIKTOKEN_VOCABULARY_SIZE = 2**17
"""Default vocabulary size of a tiktoken tokenizer (tiktoken_tokenizer.py, `DEFAULT_TIKTOKEN_MAX_VOCAB`)."""

BERT_VOCABULARY_BY_TOKENIZER = {"BertWordPieceLowerCase": 30522 + 2, "BertWordPieceCase": 28996 + 2}
"""Tokenizer of BERT → vocabulary size, with two added tokens for the beginning and the end of a text."""

SENTENCEPIECE_TOKENIZERS = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")

NULL_TOKENIZER_COUNTS_EOD_SINCE = datetime.date(2026, 4, 22)
"""Date since which the vocabulary of a null tokenizer includes the end-of-document token."""

CP_EXCHANGE_BY_COMM_TYPE: dict[str, ContextExchange] = {
    "a2a+p2p": "p2p",
    "p2p": "p2p",
    "a2a": "a2a",
    "all_gather": "allgather",
    "allgather": "allgather",
}
"""Megatron's exchange of keys and values → the layout's exchange. Exchange of heads inside a ring counts as a ring."""

ZERO_STAGE_BY_STRATEGY: dict[str, Zero] = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""Value of `data_parallel_sharding_strategy` → the ZeRO stage."""

GATED_DELTA_NET_NAMES = ("gdn", "gated_delta_net")
"""Values of `experimental_attention_variant` for Gated DeltaNet; the second is of older versions."""
