"""One server of a serving engine: the model, the accelerator, and flags that all engines have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self

from ...accelerator import Hardware
from ...components.mixers.shared_entries import SharedCompressedKVAttention
from ...errors import InputError, short_repr
from ...frozen import frozen
from ...sources.preset import Preset
from ...units import DTYPE_BITS
from ...workload.setting import option
from .context_length import has_unknown_context_length, stated_context_length
from .engine import EngineVersion, MemoryTerm
from .flags import AUTO_WORDS
from .logged_sizes import RECEIPT_FIELD, LoggedSizes
from .rank import EngineRank, MissingKernels
from .registry import engine
from .rope_override import preset_with_overridden_rope
from .versions import VersionNumbers, parse_version

DTYPE_WORDS = {"half": "float16", "float": "float32"}
"""Alternative value of `--dtype` → the number format."""


@frozen(eq=False)
class EngineServer:
    """A server that runs a model. flags: values by field name; `quantize` is llmcalc's own quantization scheme.

    name: the word of `--engine`. length_flag_name: the name of the flag of the longest request.
    layout_flag_names: the names of the flags of the layout's sizes, each 1 by default: of tensor parallelism, of
        stages, and others.
    deciding_flags_by_term: term → the flags that decide it beside the layout; all have to be those of the log in a
        receipt.
    default_context_length: tokens of the longest request of a model that states no context length; None if it is
        needed.
    long_request_variable: the environment variable with which requests may be longer than the model's context; empty
        if they may be without one.
    stage_layers_variable: the environment variable with the layers of each pipeline stage; empty without one.
    runs_float32_in_16_bits: whether a model that was published in float32 runs in half precision by default.
    """

    name: ClassVar[str]
    length_flag_name: ClassVar[str]
    layout_flag_names: ClassVar[tuple[str, ...]]
    deciding_flags_by_term: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    default_context_length: ClassVar[int | None] = None
    long_request_variable: ClassVar[str] = ""
    stage_layers_variable: ClassVar[str] = ""
    runs_float32_in_16_bits: ClassVar[bool] = False

    preset: Preset
    hardware: Hardware
    version: EngineVersion
    flags: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Applies overrides of RoPE scaling. Raises `InputError` for models and attention that are not modelled."""
        object.__setattr__(self, "preset", preset_with_overridden_rope(self.preset, self.flags))
        if self.preset.model.kind != "decoder":
            raise InputError(
                f"--engine {self.name}: the model has an encoder, which is not modelled; expected a decoder"
            )
        layers = [
            layer_spec for _, stack in self.preset.model.stacks() for layer_spec in stack.layers_by_kind().values()
        ]
        if any(isinstance(layer_spec.attention, SharedCompressedKVAttention) for layer_spec in layers):
            raise InputError(
                f"--engine {self.name}: the cache of entries that layers share (DeepSeek-V4.1) is not modelled; "
                "expected another model, or kv without an engine"
            )

    def check_kernels(self, engine_rank: EngineRank) -> None:
        """Raises `MissingKernels` if this version has no kernels for weights, cache or attention on the accelerator.

        Of accelerators other than NVIDIA's nothing is known. engine_rank: the model on a rank. Raises `InputError` for
        quantized weights in float32, which engines refuse (`get_supported_act_dtypes` of vLLM and SGLang).
        """
        if self.dtype == "float32" and engine_rank.weight_kernels:
            raise InputError(
                "--dtype float32: quantized weights are multiplied in 16 bits; expected float16 or bfloat16"
            )
        compute_capability = self.hardware.compute_capability
        if compute_capability is None:
            return
        serving_engine = engine(self.name)
        missing_kernels = serving_engine.rules().missing_kernels(float(compute_capability), self.version_numbers)
        used_kernels = self.used_kernels(engine_rank) if missing_kernels else frozenset()
        for missing_capability in missing_kernels:
            if missing_capability.kernels in used_kernels:
                accelerator_name = self.hardware.name or self.hardware.title
                raise MissingKernels(
                    f"--hardware {accelerator_name}: {serving_engine.title} {self.version.version} runs "
                    f"{missing_capability.kernel_purpose} from compute "
                    f"capability {missing_capability.capability} on ({missing_capability.source}), and it has "
                    f"{compute_capability}; expected another accelerator{missing_capability.remedy}"
                )

    def used_kernels(self, engine_rank: EngineRank) -> frozenset[str]:
        """Returns the names of kernels that the server needs, as in `MinimumCapability.kernels`."""
        used_kernels = set(engine_rank.weight_kernels)
        if self.cached_element_bytes == 1:
            used_kernels.add("fp8 latents" if engine_rank.up_projection_elements else "fp8 cache")
        if engine_rank.has_latent_selection:
            used_kernels.add("sparse attention")
        return frozenset(used_kernels)

    def with_flags(self, **changed_flags: Any) -> Self:
        """Returns a copy of the server with changed flags."""
        return replace(self, flags={**self.flags, **changed_flags})

    @property
    def version_numbers(self) -> VersionNumbers:
        """The engine's version as a tuple of numbers, such as (0, 9, 2)."""
        return parse_version(self.version.version)

    @property
    def published_dtype(self) -> str:
        """The default number format of activations: the published format, or bf16 if that has under 16 bits."""
        return self.preset.dtype if DTYPE_BITS[self.preset.dtype] >= 16 else "bfloat16"

    @property
    def dtype(self) -> str | None:
        """The number format of weights and activations that a flag sets; None for the published format."""
        dtype_name = self.flags.get("dtype", "auto")
        if dtype_name == "auto" and self.runs_float32_in_16_bits and self.published_dtype == "float32":
            return "bfloat16"
        dtype = DTYPE_WORDS.get(dtype_name, dtype_name)
        return None if dtype in ("auto", self.published_dtype) else dtype

    @property
    def tp(self) -> int:
        """The number of tensor-parallel ranks of the server."""
        return int(self.flags.get(self.layout_flag_names[0], 1))

    @property
    def pp(self) -> int:
        """The number of pipeline stages of the server."""
        return int(self.flags.get(self.layout_flag_names[1], 1))

    @property
    def device_count(self) -> int:
        """The number of devices of the server, including those of data-parallel replicas."""
        return self.tp * self.pp

    def stage_layers(self, stage_order: Iterable[int]) -> tuple[int, ...] | None:
        """Returns the number of layers of each pipeline stage; None if stages have equal numbers.

        stage_order: the stages in the order in which they get one of the layers that an equal division leaves.
        Raises `InputError` for more stages than layers.
        """
        layer_count = self.preset.model.layer_count
        if layer_count < self.pp:
            raise InputError(
                f"{engine(self.name).spelling(self.layout_flag_names[1])} {self.pp}: the model has {layer_count} layers"
            )
        stages_text = self.flags.get(self.stage_layers_variable)
        if stages_text is not None:
            return self._stated_stage_layers(str(stages_text), layer_count)
        layers_per_stage = [layer_count // self.pp] * self.pp
        for stage_number in list(stage_order)[: layer_count % self.pp]:
            layers_per_stage[stage_number] += 1
        return None if len(set(layers_per_stage)) == 1 else tuple(layers_per_stage)

    def _stated_stage_layers(self, stages_text: str, layer_count: int) -> tuple[int, ...] | None:
        """Returns the layers per stage that an environment variable states. Raises `InputError` for a wrong sum."""
        stated_layers = [
            int(number_text) for number_text in stages_text.split(",") if re.fullmatch(r" *[0-9]{1,5} *", number_text)
        ]
        if len(stated_layers) != stages_text.count(",") + 1 or 0 in stated_layers:
            raise InputError(
                f"{self.stage_layers_variable}={short_repr(stages_text)}: expected the layers of each stage, such as "
                "16,32"
            )
        if len(stated_layers) != self.pp or sum(stated_layers) != layer_count:
            raise InputError(
                f"{self.stage_layers_variable}={stages_text}: {len(stated_layers)} stages of {sum(stated_layers)} "
                "layers; "
                f"{engine(self.name).spelling(self.layout_flag_names[1])} {self.pp} and {layer_count} layers of the "
                "model are to be divided"
            )
        return None if len(set(stated_layers)) == 1 else tuple(stated_layers)

    @property
    def element_bytes(self) -> int:
        """The bytes of one activation element."""
        return 4 if self.dtype == "float32" else 2

    @property
    def reads_cache_scheme(self) -> bool:
        """Whether the KV cache by default has the number format in the checkpoint's `kv_cache_scheme`."""
        return True

    @property
    def cached_element_bytes(self) -> int:
        """The bytes per element of the KV cache, by the flag or by the checkpoint's `kv_cache_scheme`."""
        cache_format = str(self.flags.get("kv_cache_dtype", AUTO_WORDS[0]))
        if cache_format not in AUTO_WORDS:
            return 1 if cache_format.startswith("fp8") else 2
        stored_scheme = self.preset.storage_table
        is_fp8 = stored_scheme is not None and (
            stored_scheme.get("kv_cache_scheme") or stored_scheme.get("kv_cache_quant_algo")
        )
        return 1 if is_fp8 and self.reads_cache_scheme else self.element_bytes

    def scheme_of(self, quantization_method: str, schemes_by_method: Mapping[str, str]) -> str | None:
        """Returns the quantization scheme for `--quantization`; None for the checkpoint's own scheme.

        quantization_method: the flag's value. schemes_by_method: value → scheme of a checkpoint that states none.
        Raises `InputError` for a scheme that only the checkpoint knows.
        """
        if self.flags.get("quantize"):
            return str(self.flags["quantize"])
        if quantization_method == "none" or self.preset.has_quantized_weights:
            return None
        if quantization_method not in schemes_by_method:
            raise InputError(
                f"--quantization {quantization_method}: the checkpoint does not say its scheme; "
                "expected --quantize SCHEME too"
            )
        return schemes_by_method[quantization_method]

    @property
    def longest_request(self) -> int:
        """The largest number of tokens in a request. Raises `InputError` if neither a flag nor the model states it."""
        flag_value = self.flags.get(self.length_flag_name, AUTO_WORDS[0])
        request_length = (
            self.model_context_length or self.default_context_length if flag_value in AUTO_WORDS else flag_value
        )
        if not request_length:
            raise InputError(f"{option(self.length_flag_name)}: missing; the model does not state its context length")
        return int(request_length)

    @property
    def model_context_length(self) -> int | None:
        """The model's context length in tokens, which limits requests by default; None if the model states none."""
        return stated_context_length(self.preset)

    @property
    def accepted_request_limit(self) -> int | None:
        """The largest request limit, in tokens, that the engine accepts for the model; None if not known."""
        return None if has_unknown_context_length(self.preset) else self.model_context_length

    @property
    def missing_environment_variable(self) -> str:
        """The environment variable without which the engine rejects so long requests; empty if none is needed."""
        allows_long_requests = self.flags.get(self.long_request_variable) in (1, "1", "true")
        exceeds_known_length = (
            self.accepted_request_limit is not None and self.longest_request > self.accepted_request_limit
        )
        return self.long_request_variable if exceeds_known_length and not allows_long_requests else ""

    @property
    def long_request_note(self) -> str:
        """A note that the engine rejects requests of the flag's length; empty if such requests are accepted."""
        if not self.missing_environment_variable:
            return ""
        return (
            f"{option(self.length_flag_name)} {self.longest_request:,} is more than the model's "
            f"{self.accepted_request_limit:,} tokens, which the engine refuses without "
            f"{self.missing_environment_variable}=1; counted with it"
        )

    @property
    def effective_defaults(self) -> dict[str, Any]:
        """The values in effect of flags that have defaults, by field name: the user's value or the default."""
        raise NotImplementedError

    @property
    def assumed_flags(self) -> dict[str, Any]:
        """The default values of flags that the user did not type, by the flag's spelling."""
        serving_engine = engine(self.name)
        return {
            serving_engine.spelling(flag_name): default_value
            for flag_name, default_value in self.effective_defaults.items()
            if flag_name not in self.flags
        }

    @property
    def settings(self) -> dict[str, Any]:
        """The values in effect for all flags, by field name, including parallel sizes but not the log's sizes."""
        effective_values = {**dict.fromkeys(self.layout_flag_names, 1), **self.effective_defaults, **self.flags}
        return {
            flag_field: flag_value for flag_field, flag_value in effective_values.items() if flag_field != RECEIPT_FIELD
        }

    @cached_property
    def logged_bytes_by_term(self) -> dict[str, int]:
        """The bytes that the log states for each memory term, if the log is of a server with these flags."""
        logged_sizes: LoggedSizes | None = self.flags.get(RECEIPT_FIELD)
        if logged_sizes is None:
            return {}
        return {
            term_name: logged_bytes
            for term_name, logged_bytes in logged_sizes.bytes_by_term.items()
            if term_name in self.deciding_flags_by_term
            and not logged_sizes.differing_flag_names(
                (*self.layout_flag_names, *self.deciding_flags_by_term[term_name]), self.settings
            )
        }

    def logged_or_computed_bytes(self, term_name: str, computed_bytes: int) -> int:
        """Returns the bytes of a memory term from the log; `computed_bytes` if the log does not state the term."""
        return self.logged_bytes_by_term.get(term_name, computed_bytes)

    def with_logged_sizes(self, memory_terms: tuple[MemoryTerm, ...]) -> tuple[MemoryTerm, ...]:
        """Returns the memory terms, in which sizes from the log replace computed sizes."""
        if not self.logged_bytes_by_term:
            return memory_terms
        log_name = self.flags[RECEIPT_FIELD].log_file
        return tuple(
            memory_term._replace(status="measured", source=log_name, origin=_measured_origin(memory_term, log_name))
            if memory_term.name in self.logged_bytes_by_term
            else memory_term
            for memory_term in memory_terms
        )


def _measured_origin(memory_term: MemoryTerm, log_file: str) -> str:
    """Returns the source of a logged size as text: the log, and whether the size is outside the memory budget."""
    outside_prefix = "outside the budget, " if memory_term.origin.startswith("outside") else ""
    return f"{outside_prefix}measured in {log_file}"
