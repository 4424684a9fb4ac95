"""The device memory of SGLang: the KV cache gets a fraction of the memory free before loading, minus the weights.

`presets/engines/sglang.toml` has the rules of each version with their source files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from ...components.mixers.attention import Attention
from ...components.mixers.mla import MLA
from ...components.no_head import NoHead
from ...components.towers.vision import VisionTower
from ...errors import InputError
from ...parallel.layout import Layout
from ...sources.preset import Preset
from ...workload.setting import option
from ..engines.engine import EngineMemory, MemoryTerm
from ..engines.rank import (
    EngineRank,
    ReserveExceedsMemory,
    architectures,
    compressed_mixers_with_layer_counts,
    mixers_with_layer_counts,
)
from ..engines.redundant_experts import redundant_expert_bytes
from ..engines.server import EngineServer
from ..engines.versions import MeasuredCudaContext
from ..engines.weight_matrices import unused_projection_bytes
from .adapters import adapter_bytes
from .attention_rank import AttentionRank
from .compressed_pools import compressed_tokens
from .cuda_graphs import decode_graphs_mib, exchange_buffers_mib, prompt_graphs_mib
from .flags import SCHEME_BY_QUANTIZATION, graph_config_flags
from .host_experts import host_expert_notes, host_experts_bytes
from .recurrent_states import ConcurrencyLimits, StatePool, state_pool
from .speculation import (
    DEFAULT_REQUESTS_WITH_DRAFTS,
    Speculation,
    draft_layers,
    draft_vocabulary_tables,
    speculation_of,
)
from .versions import SGLangRecord, SGLangRules, sglang_record
from .weights import copied_projection_bytes, loaded_scale_bytes, unused_segment_bytes

GIB, MIB = 2**30, 2**20

REFERENCE_ENCODER_SIZES = (24, 1024)
"""Layers and width of SGLang's reference image encoder, assumed for configs without these keys."""

ENCODER_WITH_DEPTH = "visual"
"""Name of image encoders whose config has the key `depth` instead of `num_hidden_layers` (configs/qwen3_vl.py)."""

IMAGE_ENCODER_START = "vis"
"""Prefix of the names of image encoders (`vision_tower`, `visual`), which audio encoders do not share."""

NESTED_ENCODERS = frozenset(("visual", "audio_tower"))
"""Names of the encoders of models that have both in `thinker_config`, where SGLang reads no `vision_config`
(transformers, configuration_qwen3_omni_moe.py).
"""

LARGE_GRAPH_SEQUENCES = 300
"""With more sequences in the largest CUDA graph, attention replicas reserve 4.5 MiB for each instead of 3."""

FEATURE_POOL_MIB = 1024
"""MiB of the device's pool of image features with `--mm-feature-transport cuda_ipc` (SGLANG_MM_FEATURE_CACHE_MB)."""

SHORT_REQUEST_TOKENS = 8192
"""Largest number of tokens per request for which AMD's attention kernels need no additional memory."""

MAX_PREFILL_TOKENS = 16384
"""Number of tokens in a prefill pass whose prompts are not split into chunks (`--chunked-prefill-size -1`)."""

ROPE_BYTES = 4
"""Bytes per element of RoPE's cosine and sine tables, which stay in float32 (layers/rotary_embedding.py)."""


BLACKWELL_CAPABILITY = 10
"""Compute capability from which on SGLang stores the latents of sparse attention in 8 bits."""


QKV_PROJECTIONS = frozenset(("q_proj", "k_proj", "v_proj"))
"""Projections that ranks may divide inside a quantization block if values are narrower than keys (models/mimo_v2.py,
`skip_block_quant_check`).
"""

MARLIN_CAPABILITY = 12
"""Compute capability from which on Marlin computes DeepSeek-V4's experts by default (server_args.py)."""


class SGLangServer(EngineServer):
    """An SGLang server: model, accelerator, version and flags."""

    name = "sglang"
    length_flag_name = "context_length"
    layout_flag_names = "tp_size", "pp_size", "dp_size"
    default_context_length = 2048  # srt/utils/hf_transformers/common.py, `get_context_length`
    long_request_variable = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
    stage_layers_variable = "SGLANG_PP_LAYER_PARTITION"  # srt/distributed/utils.py, `get_pp_indices`
    runs_float32_in_16_bits = True  # configs/model_config.py, `_get_and_verify_dtype`
    deciding_flags_by_term = {
        "weights": (
            "dtype",
            "quantize",
            "enable_lora",
            "max_lora_rank",
            "max_loras_per_batch",
            "kt_weight_path",
            "kt_num_gpu_experts",
            "kt_gpu_experts_ratio",
        ),
        "non_torch": (),
        "kv_cache": ("mem_fraction_static", "dtype"),
    }

    @property
    def model_context_length(self) -> int | None:
        """The context length in tokens: the model's position count, times RoPE's factor unless already included.

        From python/sglang/srt/hf_transformers_utils.py, `get_context_length`.
        """
        position_count, rope_scaling = super().model_context_length, self.preset.rope_parameters or {}
        is_scaled = "original_max_position_embeddings" not in rope_scaling and rope_scaling.get("rope_type") != "llama3"
        scaling_factor = rope_scaling.get("factor", 1) if is_scaled else 1
        return (
            int(position_count * scaling_factor)
            if position_count and isinstance(scaling_factor, int | float)
            else position_count
        )

    @property
    def engine_record(self) -> SGLangRecord:
        return sglang_record()

    @cached_property
    def rules(self) -> SGLangRules:
        return self.engine_record.rules(self.version_numbers)

    def __post_init__(self) -> None:
        """Raises `InputError` for flags that contradict each other or the model."""
        if "cuda_graph_config" in self.flags:
            graph_flags = graph_config_flags(self.flags["cuda_graph_config"])
            object.__setattr__(self, "flags", {**self.flags, **graph_flags})
        super().__post_init__()
        if self.has_divided_attention and self.tp % self.dp:
            raise InputError(
                f"--dp-size {self.dp}: does not divide --tp-size {self.tp}, which --enable-dp-attention needs"
            )
        if self.flags.get("moe_dense_tp_size") and self.pp > 1:
            raise InputError("--moe-dense-tp-size: with --pp-size is not modelled; remove one of them")
        if self.flags.get("enable_dp_lm_head") and not self.flags.get("enable_dp_attention"):
            raise InputError("--enable-dp-lm-head: SGLang needs --enable-dp-attention too")
        self.check_kernels(self.rank_of_stage(0))
        for flag_field in ("enable_lora", "kt_weight_path"):
            if self.has_divided_attention and self.flags.get(flag_field):
                raise InputError(
                    f"--enable-dp-attention: with {option(flag_field)} is not modelled; remove one of them"
                )

    @property
    def cached_element_bytes(self) -> int:
        """The bytes per element of the KV cache.

        Latents of an indexer have 8 bits on Blackwell by default (python/sglang/srt/server_args.py).
        """
        is_blackwell = float(self.hardware.compute_capability or 0) >= BLACKWELL_CAPABILITY
        if (
            is_blackwell
            and self.flags.get("kv_cache_dtype", "auto") == "auto"
            and self.rank_of_stage(0).has_latent_selection
        ):
            return 1
        return super().cached_element_bytes

    @property
    def scales_latents(self) -> bool:
        """Whether 8-bit latents of sparse attention are stored with scales (`calculate_mla_kv_cache_dim`).

        Kernels of TensorRT-LLM, which Blackwell has by default, and those of AMD from 0.5.10 on read them without.
        """
        attention_backends = [self.flags.get(f"nsa_{serving_phase}_backend") for serving_phase in ("prefill", "decode")]
        if any(attention_backends):
            return "trtllm" not in attention_backends
        if self.is_amd:
            return not self.rules.raw_latents_on_amd
        return float(self.hardware.compute_capability or 0) < BLACKWELL_CAPABILITY

    @property
    def dp(self) -> int:
        """The number of data-parallel replicas, of the whole model or of attention alone."""
        return int(self.flags.get("dp_size", 1))

    @property
    def has_divided_attention(self) -> bool:
        """Whether only attention is data-parallel; SGLang ignores the flag for a single replica."""
        return bool(self.flags.get("enable_dp_attention")) and self.dp > 1

    @property
    def exchange_library(self) -> str:
        """The library that sends tokens to experts, or `none`; `--enable-deepep-moe` is `--moe-a2a-backend deepep`."""
        return "deepep" if self.flags.get("enable_deepep_moe") else str(self.flags.get("moe_a2a_backend", "none"))

    @property
    def sends_tokens(self) -> bool:
        """Whether a library such as DeepEP sends tokens to experts; every rank then has all shared experts."""
        return self.exchange_library != "none"

    @property
    def device_count(self) -> int:
        """The number of devices of all replicas."""
        return self.tp * self.pp * (1 if self.has_divided_attention else self.dp)

    @cached_property
    def layout(self) -> Layout:
        """The layout of a replica; the last stages have one layer more (srt/distributed/utils.py, `get_pp_indices`)."""
        return Layout(tp=self.tp, pp=self.pp, pp_layout=self.stage_layers(reversed(range(self.pp))))

    @property
    def whole_layout(self) -> Layout:
        """The layout of all devices, with data-parallel replicas and expert-parallel groups.

        The groups have `--ep-size` ranks; with `--enable-ep-moe`, or tokens that a library sends to experts, those of
        tensor parallelism (`server_args.py`).
        """
        has_experts_on_all_ranks = self.flags.get("enable_ep_moe") or self.sends_tokens
        expert_rank_count = self.tp if has_experts_on_all_ranks else int(self.flags.get("ep_size", 1))
        expert_tp = self.tp // expert_rank_count if expert_rank_count > 1 else None
        tp = self.tp // self.dp if self.has_divided_attention else self.tp
        return replace(self.layout, tp=tp, dp=self.dp, ep=expert_rank_count, etp=expert_tp)

    @property
    def loads_towers(self) -> bool:
        return bool(self.preset.model.towers) and not self.flags.get("language_model_only")

    @property
    def encoder_factor(self) -> float:
        """The factor of the default memory fraction for the `vision_config` (`adjust_mem_fraction_for_vlm`)."""
        if not self.has_vision_config:
            return 1.0
        encoder_layers, encoder_width = self._encoder_sizes
        relative_encoder_size = (
            encoder_layers * encoder_width**2 / (REFERENCE_ENCODER_SIZES[0] * REFERENCE_ENCODER_SIZES[1] ** 2)
        )
        return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (relative_encoder_size - 1)))

    @property
    def has_vision_config(self) -> bool:
        """Whether SGLang reads the config of an image encoder; by the encoders' names for a model without a config."""
        if self.flags.get("language_model_only"):
            return False
        if self.preset.config is not None:
            return isinstance(self._vision_config, Mapping)
        encoder_names = self.preset.model.towers.keys()
        has_images = any(encoder_name.startswith(IMAGE_ENCODER_START) for encoder_name in encoder_names)
        return has_images and not encoder_names >= NESTED_ENCODERS

    @property
    def has_encoder(self) -> bool:
        """Whether the model runs with an encoder, even an encoder that llmcalc does not count."""
        return self.loads_towers or self.has_vision_config

    @property
    def _vision_config(self) -> Any:
        """The config of the image encoder, even of an uncounted one; None without an encoder."""
        return (self.preset.config or {}).get("vision_config")

    @property
    def _encoder_sizes(self) -> tuple[int, int]:
        """The layers and the width of the image encoder, from its config or from SGLang's defaults."""
        vision_config = self._vision_config
        if isinstance(vision_config, Mapping):
            depth_and_width = tuple(
                vision_config.get(field_name, vision_config.get(f"vt_{field_name}", default_size))
                for field_name, default_size in zip(
                    ("num_hidden_layers", "hidden_size"), REFERENCE_ENCODER_SIZES, strict=True
                )
            )
            if all(isinstance(config_size, int) and 0 < config_size < 10**6 for config_size in depth_and_width):
                return depth_and_width
        for tower_name, tower in self.preset.model.towers.items():
            if isinstance(tower, VisionTower):
                counts_blocks = tower_name == ENCODER_WITH_DEPTH
                layer_count = REFERENCE_ENCODER_SIZES[0] if counts_blocks else int(tower.stack.num_hidden_layers)
                return layer_count, int(tower.hidden_size)
        return REFERENCE_ENCODER_SIZES

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        """The names of the model's classes in `architectures`."""
        return architectures(self.preset)

    @cached_property
    def speculation(self) -> Speculation:
        """The server's settings of speculative decoding."""
        return speculation_of(self.flags, self.preset, self.rules.counts_draft_memory, self.architectures)

    @property
    def max_running_requests(self) -> int | None:
        """The largest number of concurrent requests in all replicas; None without a limit."""
        default_requests = DEFAULT_REQUESTS_WITH_DRAFTS if self.speculation.verified_tokens else None
        flag_value: int | None = self.flags.get("max_running_requests", default_requests)
        return flag_value

    @property
    def draft_reserve_gib(self) -> float:
        """The GiB reserved for a draft model and its KV cache, in addition to the memory fraction."""
        draft_algorithm, memory_fraction_rule = self.flags.get("speculative_algorithm"), self.rules.fraction
        if (
            draft_algorithm is None
            or memory_fraction_rule == "by_tp"
            or (draft_algorithm, memory_fraction_rule) == ("ngram", "by_reserve")
        ):
            return 0
        if (draft_algorithm, memory_fraction_rule) == ("standalone", "by_reserve"):
            return 6
        return self.rules.draft_reserve_gib

    @property
    def is_amd(self) -> bool:
        """Whether the accelerator is from AMD."""
        return self.hardware.vendor.upper().startswith("AMD")

    @property
    def aiter_memory_factor(self) -> float:
        """The factor on the memory fraction with AMD's attention kernels, which need additional memory.

        Of latent attention they have ranks of 16 and 128 heads alone; and requests of more than 8,192 tokens count.
        """
        if not self.is_amd or self.longest_request <= SHORT_REQUEST_TOKENS:
            return 1
        head_counts = {
            mixer.num_attention_heads // self.tp
            for mixer, _ in mixers_with_layer_counts(self.preset.model)
            if isinstance(mixer, MLA)
        }
        chosen_backend = self.flags.get("attention_backend")
        if chosen_backend:
            uses_aiter = chosen_backend == "aiter"
        else:
            uses_aiter = head_counts <= {16, 128} and not self.rank_of_stage(0).has_latent_selection
        return self.rules.aiter_fraction_factor if uses_aiter else 1

    @property
    def nvidia_smi_gib(self) -> float:
        """The device's total memory in GiB, as nvidia-smi shows it."""
        return (self.hardware.usable_memory_bytes or self.hardware.memory_bytes) / GIB

    @property
    def chunked_prefill_size(self) -> int:
        """The number of prompt tokens that are prefilled in one chunk, by the flag or the device's default."""
        chunk_tokens = self.flags.get(
            "chunked_prefill_size",
            self.engine_record.defaults(self.version_numbers, self.nvidia_smi_gib).chunked_prefill_size,
        )
        return MAX_PREFILL_TOKENS if str(chunk_tokens) == "-1" else int(chunk_tokens)

    @property
    def cache_fraction(self) -> float:
        """The fraction of memory for weights and KV cache, from the flag or the default of the version and device."""
        if "mem_fraction_static" in self.flags:
            return float(self.flags["mem_fraction_static"]) * self.aiter_memory_factor
        if self.rules.fraction == "by_tp":
            return self.engine_record.memory_fraction_of_tp(self.tp)
        memory_gib = self.nvidia_smi_gib
        reserved_gib = self.reserve_gib
        if reserved_gib >= memory_gib:
            raise ReserveExceedsMemory(
                "--mem-fraction-static",
                f"--mem-fraction-static: of this layout SGLang's default reserves {reserved_gib:,.0f} GiB of "
                f"{self.hardware.title}, which has {memory_gib:,.0f}; expected a share for weights and cache (0.85)",
            )
        return round((memory_gib - reserved_gib) / memory_gib, 3) * self.encoder_factor * self.aiter_memory_factor

    @property
    def reserve_gib(self) -> float:
        """The GiB that SGLang's default memory fraction reserves besides weights and KV cache."""
        memory_gib, version_rules = self.nvidia_smi_gib, self.rules
        rank_count = self.tp * self.pp
        device_defaults = self.engine_record.defaults(self.version_numbers, memory_gib)
        if version_rules.fraction == "by_memory":
            return (
                device_defaults.reserve_gib + device_defaults.reserve_gib_per_rank * rank_count + self.draft_reserve_gib
            )
        chunk_tokens, max_running_requests = self.chunked_prefill_size, self.flags.get("max_running_requests")
        decode_graph_mib = int(self.flags.get("cuda_graph_max_bs", device_defaults.cuda_graph_max_bs[self.tp >= 4]))
        if (
            version_rules.limits_graph_sequences
            and max_running_requests is not None
            and "cuda_graph_max_bs" not in self.flags
        ):
            decode_graph_mib = min(decode_graph_mib, int(max_running_requests))
        decode_graph_mib = max(self.flags.get("cuda_graph_bs") or [decode_graph_mib])
        token_count = chunk_tokens
        if version_rules.reserves_used_graphs and self.flags.get("disaggregation_mode") == "decode":
            token_count = (max_running_requests or decode_graph_mib) * max(1, self.speculation.verified_tokens)
        reserved_gib = (
            512
            + 1.5 * max(token_count, 2048)
            + 1024 * rank_count / 8
            + decode_graphs_mib(version_rules, self.flags, decode_graph_mib)
        ) / 1024
        if self.has_divided_attention:
            reserved_gib += decode_graph_mib * self.dp * (4.5 if decode_graph_mib > LARGE_GRAPH_SEQUENCES else 3) / 1024
        prompt_graph_mib = prompt_graphs_mib(
            version_rules, self.flags, self.rank_of_stage(0), self.hardware, self.architectures, chunk_tokens, self.pp
        )
        exchange_graph_mib, exchange_mib = exchange_buffers_mib(
            version_rules, self.flags, self.exchange_library, prompt_graph_mib > 0
        )
        reserved_gib += (prompt_graph_mib + exchange_graph_mib) / 1024
        least_gib = 10.0 if memory_gib > 60 else 0.0
        return max(reserved_gib, least_gib) + exchange_mib / 1024 + self.draft_reserve_gib

    @property
    def reads_cache_scheme(self) -> bool:
        return self.rules.cache_scheme_of_checkpoint

    @property
    def quantize(self) -> str | None:
        """The quantization scheme of the weights; None for the checkpoint's scheme."""
        return self.scheme_of(
            str(self.flags.get("quantization", "none")).removesuffix("_marlin"), SCHEME_BY_QUANTIZATION
        )

    def loads_draft_modules(self, stage_number: int) -> bool:
        """Whether a pipeline stage has modules that draft tokens, and so less memory for the KV cache."""
        return self.speculation.uses_mtp and stage_number == self.pp - 1

    @cached_property
    def draft(self) -> EngineRank | None:
        """The draft model on one rank; None without speculative decoding by a draft model."""
        if self.speculation.draft_model is None:
            return None
        return EngineRank(self.speculation.draft_model, Layout(tp=self.tp), 0, None, self.dtype).shared()

    def rank_of_stage(self, stage_number: int) -> EngineRank:
        """Returns the model on the first rank of a pipeline stage."""
        loads_towers, layout = self.loads_towers and stage_number == 0, self.layout
        rank_number = layout.rank(pp=stage_number)
        if not self.has_divided_attention:
            return EngineRank(
                self.preset,
                layout,
                rank_number,
                self.quantize,
                self.dtype,
                loads_towers,
                self.loads_draft_modules(stage_number),
            ).shared()
        attention_layout = replace(layout, tp=self.tp // self.dp)
        has_draft_modules = self.loads_draft_modules(stage_number)
        return AttentionRank(
            self.preset, attention_layout, attention_layout.rank(pp=stage_number), self.quantize, self.dtype,
            loads_towers, has_draft_modules, network_layout=layout, network_rank=rank_number,
            divides_head=not self.flags.get("enable_dp_lm_head"),
        ).shared()  # fmt: skip

    @property
    def effective_defaults(self) -> dict[str, Any]:
        """Flag name → the value in effect: the user's, or the default."""
        return {
            "mem_fraction_static": round(self.cache_fraction, 4),
            "context_length": self.longest_request,
            "kv_cache_dtype": "auto",
            "chunked_prefill_size": self.chunked_prefill_size,
            "tp_size": self.tp,
        }

    @property
    def cuda_context(self) -> MeasuredCudaContext:
        """The device memory in use before SGLang loads the weights, as measured in start-up logs."""
        return self.engine_record.cuda_context(self.hardware, self.tp * self.pp)

    @property
    def bytes_outside_torch(self) -> int:
        """The bytes in use outside torch's allocator before the weights are loaded."""
        return self.logged_or_computed_bytes("non_torch", self.cuda_context.mib * MIB)

    @property
    def free_bytes_before_loading(self) -> int:
        """The bytes that are free before the weights are loaded."""
        return self.hardware.capacity_bytes - self.bytes_outside_torch

    def loaded_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the bytes in use after loading: weights, draft weights, RoPE tables and adapter slots."""
        has_expert_ranks = "ep_size" in self.flags or self.flags.get("enable_ep_moe") or self.sends_tokens
        engine_rank.check_quantization_block_division(
            self.whole_layout if has_expert_ranks else None,
            QKV_PROJECTIONS if _has_unequal_value_width(self.preset) else frozenset(),
        )
        is_scaled = {*self.architectures}.isdisjoint(self.engine_record.unscaled_tables)
        rope_table_bytes = engine_rank.rope_table_elements(is_scaled=is_scaled) * ROPE_BYTES
        adapter_slot_bytes = adapter_bytes(engine_rank, self.flags, self.element_bytes)
        host_expert_bytes = host_experts_bytes(engine_rank, self.flags)
        draft_bytes = (
            0 if self.draft is None else self.draft.weight_bytes + self.draft.rope_table_elements() * ROPE_BYTES
        )
        return (
            engine_rank.weight_bytes
            + self.replicated_bytes(engine_rank)
            + self.copied_projection_bytes(engine_rank)
            + unused_projection_bytes(engine_rank, self.engine_record.whole_projections)
            + draft_bytes
            + self.draft_vocabulary_bytes(engine_rank)
            + self.redundant_expert_bytes(engine_rank)
            - host_expert_bytes
            + rope_table_bytes
            + adapter_slot_bytes
            + unused_segment_bytes(engine_rank)
            + (loaded_scale_bytes(engine_rank) if self.rules.keeps_loader_scales and self.uses_marlin_experts else 0)
        )

    def redundant_expert_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the bytes of a rank's copies of experts (`--ep-num-redundant-experts`)."""
        copy_count = int(self.flags.get("ep_num_redundant_experts", 0))
        rank_count = self.tp if self.sends_tokens else int(self.flags.get("ep_size", 1))
        network_rank = engine_rank.network if isinstance(engine_rank, AttentionRank) else engine_rank
        return redundant_expert_bytes(network_rank, copy_count, rank_count, "--ep-num-redundant-experts")

    def copied_projection_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the bytes of the copies of MLA's up-projections; 0 for classes that free the up-projections."""
        if not {*self.architectures}.isdisjoint(self.engine_record.replaced_projections):
            return 0
        return copied_projection_bytes(engine_rank, self.element_bytes, is_nvidia=not self.is_amd)

    def draft_vocabulary_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the bytes of the draft's own embedding and head, which are freed after the KV cache is sized.

        On a stage without the model's own modules that draft: 0. Attention's ranks divide the embedding, and with
        `--enable-dp-lm-head` the head, which all ranks divide otherwise.
        """
        if self.speculation.uses_mtp and not engine_rank.includes_mtp:
            return 0
        model, attention_ranks = self.preset.model, self.whole_layout.tp
        ranks_of_table = {
            "embed_tokens": attention_ranks,
            "lm_head": attention_ranks if self.flags.get("enable_dp_lm_head") else self.tp,
        }
        table_bytes = int(model.vocab_size) * int(model.hidden_size) * self.element_bytes
        return sum(
            table_bytes // ranks_of_table[table_name]
            for table_name in draft_vocabulary_tables(self.speculation, self.preset)
        )

    @property
    def uses_marlin_experts(self) -> bool:
        """Whether Marlin computes the experts: by the flag, by default on GPUs of compute capability 12."""
        default_backend = "marlin" if float(self.hardware.compute_capability or 0) >= MARLIN_CAPABILITY else "auto"
        return str(self.flags.get("moe_runner_backend", default_backend)).lower() == "marlin"

    def replicated_bytes(self, engine_rank: EngineRank) -> int:
        """Returns the additional bytes of networks that every rank stores in full, in a model with experts.

        These are dense networks (`--moe-dense-tp-size`), and shared experts beside those that get tokens from a library
        (models/deepseek_v2.py, qwen2_moe.py, glm4_moe.py).
        """
        if engine_rank.widest_network_sizes[2] is None:
            return 0
        component_names = [
            component_name
            for component_name, is_whole in (
                ("feed_forward", self.flags.get("moe_dense_tp_size")),
                ("shared_expert", self.sends_tokens),
            )
            if is_whole
        ]
        if not component_names:
            return 0
        stage_index = engine_rank.layout.coordinates(engine_rank.rank).pp
        whole_rank = replace(engine_rank, layout=replace(self.layout, tp=1), rank=stage_index)
        whole_bytes = sum(whole_rank.weights_by_component.get(component_name, 0) for component_name in component_names)
        return whole_bytes - whole_bytes // self.tp

    @property
    def token_pool_ratios(self) -> tuple[float, float]:
        """The ratios of recurrent states to KV cache, and of window layers' tokens to full layers' tokens."""
        default_ratios = self.engine_record.ratios
        return (
            float(self.flags.get("mamba_full_memory_ratio", default_ratios.states)),
            float(self.flags.get("swa_full_tokens_ratio", default_ratios.window)),
        )

    @property
    def multimodal_bytes(self) -> int:
        """The bytes of the cache for encoder outputs, which reduces the KV cache."""
        if not self.rules.multimodal_mib or not self.has_encoder:
            return 0
        has_feature_pool = self.flags.get("mm_feature_transport", "cpu") != "cpu"
        return int(self.rules.multimodal_mib + FEATURE_POOL_MIB * has_feature_pool) * MIB

    @property
    def profile_run_origin(self) -> str:
        """Text on the bytes that encoder outputs and activations take from the KV cache's memory."""
        if self.multimodal_bytes:
            return "outputs of encoders (SGLANG_VLM_CACHE_SIZE_MB); activations take what the fraction leaves"
        return "none; activations take what the fraction leaves"

    @property
    def concurrency_limits(self) -> ConcurrencyLimits:
        """The limits on concurrent requests of a rank; of attention replicas each has an equal share."""
        replica_count, request_limit = self.dp if self.has_divided_attention else 1, self.max_running_requests
        return ConcurrencyLimits(
            None if request_limit is None else max(1, request_limit // replica_count),
            replica_count,
            self.speculation.verified_tokens,
        )

    def state_pool_that_fits(self, engine_rank: EngineRank, available_bytes: int) -> StatePool | None:
        """Returns a rank's pool of recurrent states; None for a model without recurrent states.

        available_bytes: bytes for states and KV cache together. Raises `InputError` for versions without such pools.
        """
        if not engine_rank.state_caches or compressed_mixers_with_layer_counts(engine_rank):
            return None
        if not self.rules.has_state_pools:
            raise InputError("--engine sglang: recurrent states are modelled from SGLang 0.5 on")
        return state_pool(
            engine_rank, self.rules, self.flags, available_bytes, self.token_pool_ratios[0], self.concurrency_limits
        )

    def compressed_tokens_that_fit(self, engine_rank: EngineRank, available_bytes: int) -> int:
        """Returns the number of tokens of a rank's cache with compressed attention in `available_bytes`."""
        if self.is_amd:
            raise InputError("--engine sglang: compressed attention on AMD's accelerators is not modelled")
        if str(self.flags.get("kv_cache_dtype", "auto")) not in ("auto", "fp8_e4m3"):
            raise InputError("--kv-cache-dtype: of compressed attention is not modelled; expected fp8_e4m3")
        return compressed_tokens(
            engine_rank,
            self.rules,
            self.flags,
            available_bytes,
            self.concurrency_limits,
            self.longest_request,
            self.chunked_prefill_size,
        )

    def cache_tokens_that_fit(self, engine_rank: EngineRank, available_bytes: int) -> int:
        """Returns the number of tokens of a rank's KV cache in `available_bytes`. Raises `InputError` if none fit."""
        if compressed_mixers_with_layer_counts(engine_rank):
            return self.compressed_tokens_that_fit(engine_rank, available_bytes)
        token_caches = replace(engine_rank, includes_mtp=False).caches_of_all_layers
        classes_with_pools = self.engine_record.classes_with_window_pools(self.version_numbers)
        has_separate_pools = not (
            self.flags.get("disable_hybrid_swa_memory") or classes_with_pools.isdisjoint(self.architectures)
        )
        _, window_ratio = self.token_pool_ratios
        if not token_caches:
            raise engine_rank.no_cache_error("sglang")
        has_full_attention = any(cache.window is None for cache in token_caches)
        full_layer_count = max((cache.layer_count for cache in token_caches if cache.window is None), default=0)
        has_separate_draft_cache = self.speculation.drafts_blocks and self.rules.sizes_block_drafts
        draft_layer_count = (
            draft_layers(self.speculation, self.preset) if full_layer_count and not has_separate_draft_cache else 0
        )
        token_bytes: Fraction | int = sum(
            engine_rank.cache_bytes_per_token(cache, Fraction(self.cached_element_bytes), self.scales_latents)
            * (
                cache.layer_count * Fraction(window_ratio)
                if has_separate_pools and has_full_attention and cache.window is not None
                else cache.layer_count + (draft_layer_count if cache.window is None else 0)
            )
            for cache in token_caches
        )
        if has_separate_draft_cache and self.draft is not None:
            token_bytes += sum(
                self.draft.cache_bytes_per_token(cache, Fraction(self.cached_element_bytes)) * cache.layer_count
                for cache in self.draft.token_caches
            )
        return max(0, int(available_bytes // token_bytes))


def _has_unequal_value_width(preset: Preset) -> bool:
    """Whether an attention layer other than latent attention has values and keys of different widths."""
    return any(
        isinstance(mixer, Attention) and mixer.v_head_dim not in (None, mixer.head_dim)
        for mixer, _ in mixers_with_layer_counts(preset.model)
    )


def memory(server: SGLangServer) -> EngineMemory:
    """Returns the memory of SGLang on its devices. Raises `InputError` for flags that contradict the model."""
    version_rules, memory_fraction, flag_values = server.rules, server.cache_fraction, server.flags
    budget_bytes = int(server.free_bytes_before_loading * memory_fraction)
    page_tokens = int(flag_values.get("page_size", 1))
    stage_memories = []
    for stage_number in range(server.pp):
        engine_rank = server.rank_of_stage(stage_number)
        weight_bytes = server.logged_or_computed_bytes("weights", server.loaded_bytes(engine_rank))
        cache_bytes = server.logged_or_computed_bytes("kv_cache", budget_bytes - weight_bytes - server.multimodal_bytes)
        slot_pool = server.state_pool_that_fits(engine_rank, cache_bytes)
        cache_tokens = server.cache_tokens_that_fit(
            engine_rank, cache_bytes if slot_pool is None else slot_pool.remaining_bytes
        )
        has_request_slots = slot_pool is None or slot_pool.max_running_requests > 0
        stage_memories.append(
            (cache_tokens if has_request_slots else 0, cache_bytes, weight_bytes, engine_rank, slot_pool)
        )
    cache_tokens, cache_bytes, weight_bytes, engine_rank, slot_pool = min(
        stage_memories, key=lambda stage_memory: stage_memory[0]
    )
    cache_tokens = min(cache_tokens, int(flag_values.get("max_total_tokens", 10**15))) // page_tokens * page_tokens
    memory_terms = (
        MemoryTerm(
            "budget",
            budget_bytes,
            "estimate",
            version_rules.source_location,
            f"{round(memory_fraction, 4)} × free before loading (--mem-fraction-static)",
        ),
        MemoryTerm(
            "weights", weight_bytes, engine_rank.weights_status, "tensors of the rank", engine_rank.weights_origin
        ),
        MemoryTerm(
            "profile_run", server.multimodal_bytes, "source", version_rules.source_location, server.profile_run_origin
        ),
        MemoryTerm(
            "non_torch",
            max(0, server.bytes_outside_torch),
            "estimate",
            server.cuda_context.source,
            "outside the budget",
        ),
        MemoryTerm(
            "cuda_graphs", 0, "source", version_rules.source_location, "outside the budget; in what the fraction leaves"
        ),
        MemoryTerm(
            "kv_cache", max(cache_bytes, 0), "estimate", version_rules.source_location, f"{cache_tokens:,} tokens"
        ),
    )
    request_length = server.longest_request
    startup_error = ""
    if cache_tokens == 0:
        startup_error = server.engine_record.messages[
            "no_cache" if slot_pool is None or slot_pool.max_running_requests else "no_states"
        ]
    max_concurrency = cache_tokens / request_length
    return EngineMemory(
        terms=server.with_logged_sizes(memory_terms),
        kv_tokens=cache_tokens,
        block_count=cache_tokens // page_tokens,
        max_concurrency=max_concurrency if slot_pool is None else min(max_concurrency, slot_pool.max_running_requests),
        requests_with_states=None if slot_pool is None else slot_pool.max_running_requests,
        divides_request_limit=server.has_divided_attention,
        can_start=not startup_error,
        startup_error=startup_error,
        max_model_len=request_length,
        devices=server.device_count,
        block_size=page_tokens,
        assumed_flags=server.assumed_flags,
        settings={**server.settings, "max_running_requests": server.max_running_requests},
        layout=server.whole_layout,
        notes=tuple(
            filter(
                None,
                (
                    server.version.note,
                    _cache_note(cache_tokens, request_length, bool(startup_error)),
                    _states_note(slot_pool, max_concurrency),
                    *_server_notes(server),
                ),
            )
        ),
    )


def _server_notes(server: SGLangServer) -> list[str]:
    """Returns notes on a missing class, on draft models, and on data-parallel attention with a KV cache per replica."""
    class_note = server.engine_record.missing_class_note(architectures(server.preset), server.version)
    server_notes = [
        *filter(None, [class_note, server.long_request_note]),
        *host_expert_notes(server.rank_of_stage(0), server.flags),
    ]
    model = server.preset.model
    if server.flags.get("is_embedding") and isinstance(model.head, NoHead) and not model.tie_word_embeddings:
        head_gib = model.vocab_size * model.hidden_size * server.element_bytes / 2**30 / server.tp
        server_notes.append(
            f"weights: a class of SGLang that generates allocates {head_gib:.2f} GiB more for its output head, which "
            "this checkpoint does not have (models/qwen3.py)"
        )
    if "speculative_algorithm" in server.flags and not server.rules.counts_draft_memory:
        server_notes.append(
            "the model that drafts tokens, and its cache, are outside the budget; they take what the fraction leaves"
        )
    draft_table_bytes = server.draft_vocabulary_bytes(server.rank_of_stage(server.pp - 1))
    if draft_table_bytes:
        server_notes.append(
            f"weights: {draft_table_bytes / 2**30:.2f} GiB are an embedding and a head of the draft's own, which are "
            "released for the target's after the cache is sized (sglang issue 36452)"
        )
    if server.sends_tokens and model.has_experts:
        server_notes.append(
            "buffers of the library that sends tokens to experts are allocated with the first batch, and take what the "
            "fraction leaves"
        )
    if server.has_divided_attention:
        server_notes.append(f"each of the {server.dp} replicas of attention has that many tokens")
    return server_notes


def _states_note(slot_pool: StatePool | None, max_concurrency: float) -> str:
    """Returns a note if recurrent states limit the concurrent requests; otherwise an empty text."""
    if slot_pool is None or slot_pool.max_running_requests >= max_concurrency:
        return ""
    return (
        f"{slot_pool.slot_count:,} slots of recurrent states are enough for {slot_pool.max_running_requests:,} "
        "requests at once (--max-mamba-cache-size, --mamba-full-memory-ratio)"
    )


def _cache_note(cache_tokens: int, max_tokens: int, is_startup_error: bool) -> str:
    """Returns a note if the KV cache is too small for one request; otherwise an empty text."""
    if is_startup_error or cache_tokens >= max_tokens:
        return ""
    return (
        f"requests of more than {cache_tokens:,} tokens are refused: the cache holds fewer than --context-length "
        f"{max_tokens:,}"
    )
