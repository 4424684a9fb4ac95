"""The llama.cpp server that Ollama starts, by version, and the layers of the model that stay on the GPUs.

`presets/engines/ollama.toml` has the rules of each version with their source files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

from pydantic import Field

from ...accelerator import Hardware
from ...errors import InputError
from ...record import Record
from ...sources.library_tags import USUAL_SCHEME
from ...sources.preset import Preset
from ...workload.setting import option
from ..engines.engine import EngineMemory, EngineVersion
from ..engines.rank import architectures
from ..engines.versions import (
    EngineRecord,
    VersionRange,
    VersionRules,
    parse_version,
    ranges_with_version,
    read_engine_record,
)
from ..ggml import changes
from ..ggml.architectures import check_architecture, converted_class
from ..ggml.encoder import has_encoder
from ..ggml.engine_memory import NoteTexts, engine_memory
from ..ggml.gguf_model import GgufModel
from ..ggml.layer_fit import FittedServer, fit_server, host_layers, largest_number
from ..ggml.server import GgmlServer
from ..ggml.settings import GIB, MAX_DEVICES, MIB, SINGLE_GPU_VENDOR
from ..ggml.versions import GgmlEngineRecord
from .record import LIBRARY_FORMAT_NOTE

BATCH_RULES = ((32768, 2048, 2 * GIB, 60), (4096, 1024, 768 * MIB, 75))
"""Rules for the batch size in the order of use: (context tokens to exceed, batch size in tokens, additional bytes for
the batch, largest percentage of memory in use without it) (server/sched.go, `automaticGenerationBatch`).
"""

DEFAULT_BATCH = 512

LEAST_FIT_TARGET = 1024 * MIB
"""Bytes that --fit of llama-server leaves free on each GPU by default (`llamaServerDefaultFitTargetMiB`)."""


UNQUANTIZED_FORMAT = "bf16"
"""Number format of weights for which nothing states a quantization scheme."""

TAG_ENCODER = "projector"
"""Name of the image encoder in a tag, which Ollama passes to llama-server (llm/llama_server.go, --mmproj)."""

NOTE_TEXTS = NoteTexts(
    unquantized_note="",
    encoder_note="the encoder of images, which comes with the tag, is counted; its compute buffer is not modelled",
    encoder_start_note="the encoder of images comes with the tag; its compute buffer is for the image at start, "
    "{side} x {side} pixels, and grows with a larger one",
)


SINGLE_REQUEST_NOTE = (
    "OLLAMA_NUM_PARALLEL={requests} counts as 1: Ollama runs one request of this architecture at a time"
)


FEWER_GPUS_NOTE = "Ollama uses {used} of {visible} GPUs: {reason}"
FITTING_REASON = "the model fits there; OLLAMA_SCHED_SPREAD=1 for all of them"
MAIN_GPU_REASON = "--main-gpu names one"


class OllamaRules(VersionRules):
    """The memory rules of a range of Ollama versions, read from `presets/engines/ollama.toml`."""

    context: int = Field(ge=0)
    parallel: int = Field(ge=1)
    flash_attn: Literal["auto", "off"]
    build: str
    runner: Literal["estimate", "llama-server"]


class DefaultContextLength(Record):
    """The default of num_ctx on GPUs whose total memory is at least `at_least_gib` GiB."""

    at_least_gib: int
    context: int


class ClassesInRange(VersionRange):
    """Model classes to which a rule applies in a range of Ollama versions."""

    classes: tuple[str, ...] = Field(min_length=1)


class OllamaEngineClasses(ClassesInRange):
    """Classes of models that Ollama's own engine runs in a range of versions, instead of llama.cpp.

    source: the file of Ollama that says so.
    """

    source: str


class FreeMemoryMargin(Record):
    """The memory that Ollama leaves free on each GPU, in MiB."""

    mib: int


class OllamaRecord(EngineRecord[OllamaRules]):
    """The contents of `presets/engines/ollama.toml`."""

    contexts: tuple[DefaultContextLength, ...] = Field(min_length=1)
    margin: FreeMemoryMargin
    own_engine_classes: tuple[OllamaEngineClasses, ...] = ()
    flash_attention_classes: tuple[ClassesInRange, ...] = ()
    single_request_classes: tuple[ClassesInRange, ...] = ()
    text_classes: tuple[str, ...] = ()


@cache
def read_record() -> OllamaRecord:
    """Returns the contents of `presets/engines/ollama.toml`."""
    return read_engine_record(OllamaRecord, "ollama")


@cache
def _llama_cpp_record() -> GgmlEngineRecord:
    return read_engine_record(GgmlEngineRecord, "llama_cpp")


def check_model(preset: Preset, engine_version: EngineVersion) -> None:
    """Raises `InputError` for a model that neither the version of Ollama nor llama.cpp has an architecture for."""
    class_name = converted_class(preset)
    class_range = next(
        (class_row for class_row in read_record().own_engine_classes if class_name in class_row.classes), None
    )
    if class_range is None:
        check_architecture(preset, _llama_cpp_record(), EngineVersion(_llama_cpp_record().newest, ""))
    elif not ranges_with_version([class_range], parse_version(engine_version.version)):
        raise InputError(
            f"Ollama {engine_version.version} has no architecture for {class_name} ({class_range.source}); expected "
            f"--engine ollama==VERSION with a version from {class_range.start_version} on and before {class_range.to}"
        )


@dataclass(frozen=True, eq=False)
class OllamaServer:
    """A model in Ollama. flags: options by the names of `flags.FLAGS`."""

    preset: Preset
    hardware: Hardware
    version: EngineVersion
    flags: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Raises `InputError` for a model that this version of Ollama does not run."""
        check_model(self.preset, self.version)

    @cached_property
    def rules(self) -> OllamaRules:
        return read_record().rules(parse_version(self.version.version))

    @property
    def visible_gpu_count(self) -> int:
        """The number of GPUs that Ollama may use; 0 on a processor."""
        if self.hardware.is_processor:
            return 0
        visible_devices = self.flags.get("CUDA_VISIBLE_DEVICES")
        return (
            1
            if visible_devices is None
            else len([device_name for device_name in str(visible_devices).split(",") if device_name.strip()])
        )

    @cached_property
    def num_ctx(self) -> int:
        """The context length per sequence in tokens, by option, environment or version; at most the trained length."""
        chosen_length = self.flags.get("num_ctx") or self.flags.get("OLLAMA_CONTEXT_LENGTH") or self.rules.context
        if not chosen_length:
            total_bytes = self.visible_gpu_count * (self.hardware.capacity_bytes - self.overhead) / GIB
            chosen_length = next(
                default_context_length.context
                for default_context_length in read_record().contexts
                if default_context_length.at_least_gib <= max(total_bytes, 0)
            )
        trained_length = self.model.trained_context
        return min(int(chosen_length), trained_length) if trained_length else int(chosen_length)

    @property
    def overhead(self) -> int:
        """The bytes that OLLAMA_GPU_OVERHEAD reserves on each GPU."""
        return int(self.flags.get("OLLAMA_GPU_OVERHEAD", 0))

    @property
    def flash_attn(self) -> str:
        """The setting of flash attention, by the environment or the default of the version and the model."""
        variable_value = self.flags.get("OLLAMA_FLASH_ATTENTION")
        if variable_value is None:
            return "auto" if self._has_class_among(read_record().flash_attention_classes) else self.rules.flash_attn
        return "on" if variable_value in ("1", "true") else "off"

    @property
    def runs_single_requests(self) -> bool:
        """Whether the version runs one request of the model at a time."""
        return self._has_class_among(read_record().single_request_classes)

    def _has_class_among(self, class_ranges: Iterable[ClassesInRange]) -> bool:
        """Whether the model's class is listed for the version."""
        listed_ranges = ranges_with_version(class_ranges, parse_version(self.version.version))
        return any(not {*self._class_names}.isdisjoint(class_range.classes) for class_range in listed_ranges)

    @cached_property
    def _class_names(self) -> tuple[str, ...]:
        return architectures(self.preset)

    @property
    def cache_type(self) -> str:
        """The number format of the KV cache; only f16 without flash attention."""
        chosen_type = str(self.flags.get("OLLAMA_KV_CACHE_TYPE", "f16"))
        return "f16" if self.flash_attn == "off" else chosen_type

    def _server_before_fit(self, **flags: Any) -> GgmlServer:
        """Returns the llama.cpp server that Ollama starts, before layers are placed. flags: flags of llama-server."""
        llama_cpp_build = EngineVersion(self.rules.build, self.rules.build)
        is_estimated = self.rules.runner == "estimate"
        margin_bytes = read_record().margin.mib * MIB if is_estimated else 0
        reserved_bytes = self.overhead + margin_bytes
        server = GgmlServer(
            self.preset, self.hardware, llama_cpp_build, flags, _llama_cpp_record(), reserved_bytes, not is_estimated
        )
        server.__dict__["model"] = self.model
        return server

    @cached_property
    def model(self) -> GgufModel:
        """The model in Ollama's files, some of whose tensors are in 16 bits (gpt-oss: ollama issue 16416)."""
        return GgufModel.from_quantize_flag(self.preset, self.scheme, is_library_file=True)

    @property
    def scheme(self) -> str | None:
        """The quantization scheme of the weights: by default the usual scheme of the tags in Ollama's library."""
        quantization_scheme: str | None = self.flags.get("quantize")
        is_unquantized = (
            quantization_scheme is None and GgufModel.from_quantize_flag(self.preset, None).scheme == UNQUANTIZED_FORMAT
        )
        return USUAL_SCHEME if is_unquantized else quantization_scheme

    def with_flags(self, **changed_flags: Any) -> OllamaServer:
        """Returns a copy of the server with changed options."""
        server = replace(self, flags={**self.flags, **changed_flags})
        server.__dict__["model"] = self.model
        return server

    def _predicted_bytes(self, sequence_count: int) -> int:
        """Returns the bytes by which Ollama judges whether one GPU has room: the file and a cache of 16 bits.

        The cache is estimated as in llm/llama_server.go, `PredictServerVRAM`: every layer counts as one of attention
        over the whole context, with the fewest heads of keys of any layer.
        """
        attention_layers = [layer for layer in self.model.layers if layer.key_width]
        head_count = max((layer.head_count for layer in attention_layers), default=0)
        if not head_count:
            return self.model.file_bytes
        key_head_count = min(
            1 if layer.latent_sizes else layer.key_width // layer.head_dim for layer in attention_layers
        )
        elements_per_token = 2 * len(self.model.layers) * key_head_count * (self.model.hidden_size // head_count)
        return self.model.file_bytes + 2 * elements_per_token * self.num_ctx * sequence_count

    def _gpu_counts_to_try(self, sequence_count: int) -> Iterable[int]:
        """Returns the numbers of GPUs that Ollama tries, in their order; the first that holds the model is used.

        Since 0.30 it decides before llama-server starts: one GPU if the predicted bytes fit beside a reserve, else all
        (server/sched.go, `selectLlamaServerPlacement` and `llamaServerDeviceReserve`; the first releases of 0.30 used
        80 % of one GPU instead, pull request 16881). Earlier versions fill as few as they can (llm/server.go,
        `assignLayers`). OLLAMA_SCHED_SPREAD has all of them used, and main_gpu one, from 0.30 on.
        """
        visible_count = self.visible_gpu_count
        if self.hardware.vendor == SINGLE_GPU_VENDOR or self.flags.get("num_gpu") == 0:
            return [visible_count]
        if self.is_one_gpu_named:
            return [min(1, visible_count)]
        if str(self.flags.get("OLLAMA_SCHED_SPREAD", "0")) in ("1", "true"):
            return [visible_count]
        if self.rules.runner == "estimate":
            return range(1, visible_count + 1)
        reserved_bytes = read_record().margin.mib * MIB + max(self.overhead, LEAST_FIT_TARGET)
        fits_on_one = self._predicted_bytes(sequence_count) <= self.hardware.capacity_bytes - reserved_bytes
        return [min(1, visible_count) if fits_on_one else visible_count]

    @property
    def is_one_gpu_named(self) -> bool:
        """Whether main_gpu names the only GPU to use."""
        return self.rules.runner == "llama-server" and "main_gpu" in self.flags

    def _llama_server_flags(self, sequence_count: int, batch_size: int, gpu_count: int) -> dict[str, Any]:
        """Returns the flags with which Ollama starts llama-server (llm/llama_server.go)."""
        gpu_layer_count = int(self.flags.get("num_gpu", -1))
        return {
            "ctx_size": self.num_ctx * sequence_count,
            "parallel": sequence_count,
            "kv_unified": False,
            "cache_type_k": self.cache_type,
            "cache_type_v": self.cache_type,
            "flash_attn": self.flash_attn,
            "batch_size": batch_size,
            "ubatch_size": batch_size,
            "n_gpu_layers": gpu_layer_count if gpu_layer_count >= 0 else "auto",
            "device": ",".join(str(i) for i in range(gpu_count)) if gpu_count else "none",
            "fit": "on" if self.rules.runner == "llama-server" else "off",
            **({"no_mmap": True} if str(self.flags.get("use_mmap", "true")) in ("0", "false") else {}),
            **({} if self.scheme is None else {"quantize": self.scheme}),
            **tag_flags(self.preset),
        }

    def _micro_batch(self, sequence_count: int, gpu_count: int) -> int:
        """Returns the tokens of a micro-batch: `num_batch`, or since 0.30 a number by context and free memory."""
        if "num_batch" in self.flags:
            return int(self.flags["num_batch"])
        if self.rules.runner == "estimate" or self.flash_attn == "off":
            return DEFAULT_BATCH
        server = self._server_before_fit(**self._llama_server_flags(sequence_count, DEFAULT_BATCH, gpu_count))
        server_placement = server.placement
        used_bytes = sum(server.model_buffers(server_placement).values()) + sum(
            server.cache_buffers(server_placement).values()
        )
        free_bytes = server.free_bytes * len(server.devices)
        for context_limit, default_batch, larger_batch, largest_percent in BATCH_RULES:
            has_free_memory = (
                used_bytes <= free_bytes * largest_percent // 100
                and used_bytes + larger_batch <= free_bytes * 80 // 100
            )
            if self.num_ctx * sequence_count > context_limit and has_free_memory:
                return default_batch
        return DEFAULT_BATCH

    @cached_property
    def fitted_server(self) -> FittedServer:
        """The llama.cpp server after its layers are placed on GPUs and host."""
        chosen_request_count = int(self.flags.get("OLLAMA_NUM_PARALLEL", 0))
        request_counts = (
            [chosen_request_count] if chosen_request_count else sorted({self.rules.parallel, 1}, reverse=True)
        )
        if self.runs_single_requests:
            request_counts = [1]
        attempts = [
            (gpu_count, request_count)
            for request_count in request_counts
            for gpu_count in self._gpu_counts_to_try(request_count)
        ]
        for gpu_count, request_count in sorted(attempts, key=lambda attempt: attempt[0]):
            fitted_server = self._fit_sequences(request_count, gpu_count)
            if not host_layers(fitted_server):
                return fitted_server
        return fitted_server

    def _fit_sequences(self, sequence_count: int, gpu_count: int) -> FittedServer:
        micro_batch = self._micro_batch(sequence_count, gpu_count)
        server = self._server_before_fit(**self._llama_server_flags(sequence_count, micro_batch, gpu_count))
        if self.rules.runner == "llama-server" or not server.devices:
            return fit_server(server)
        if not server.has_stated_gpu_layers:
            server = server.with_flags(n_gpu_layers="all")
            gpu_layer_count = changes.most_layers(server)
            server = server.with_flags(n_gpu_layers=gpu_layer_count or 0)
        return FittedServer(server, server.placement, server.buffers(server.placement))

    @property
    def defaults(self) -> dict[str, Any]:
        """Returns option name → default value, for all options of Ollama that this version has."""
        server = self.fitted_server.server
        return {
            "num_ctx": self.num_ctx,
            "OLLAMA_NUM_PARALLEL": server.slot_count,
            "OLLAMA_KV_CACHE_TYPE": "f16",
            "OLLAMA_FLASH_ATTENTION": self.rules.flash_attn,
            "num_batch": server.micro_batch_tokens,
            "num_gpu": -1,
        }


def tag_flags(preset: Preset) -> dict[str, Any]:
    """Returns llama-server's flags with which Ollama loads a model's image encoder; none for text-only classes."""
    if converted_class(preset) in read_record().text_classes:
        return {"mmproj_auto": False}
    return {"mmproj": TAG_ENCODER} if has_encoder(preset) else {}


def default_context(preset: Preset, hardware: Hardware, device_count: int) -> int:
    """Returns the default context length in tokens of the newest Ollama version on this number of GPUs.

    Raises `InputError` for a model that Ollama does not run.
    """
    visible_devices = ",".join(map(str, range(device_count)))
    version = read_record().named_version("")
    return OllamaServer(preset, hardware, version, {"CUDA_VISIBLE_DEVICES": visible_devices}).num_ctx


def memory(server: OllamaServer) -> EngineMemory:
    """Returns Ollama's memory on the GPUs and the host. Ollama starts unless a single layer does not fit."""
    fitted_server, option_values = server.fitted_server, server.flags
    fit_notes = (server.version.note, *fitted_server.notes)
    computed_memory = engine_memory(fitted_server.server, fitted_server.buffers, fit_notes, NOTE_TEXTS)
    layer_count = len(fitted_server.server.model.layers) + 1
    host_layer_count = host_layers(fitted_server)
    answer_notes = list(computed_memory.notes)
    if host_layer_count:
        answer_notes.insert(
            0,
            f"{host_layer_count} of {layer_count} layers are on the CPU, "
            f"{computed_memory.host['share']:.0%} of all bytes",
        )
    used_gpu_count = len(fitted_server.server.devices)
    if 0 < used_gpu_count < server.visible_gpu_count:
        reason = MAIN_GPU_REASON if server.is_one_gpu_named else FITTING_REASON
        fewer_gpus_note = FEWER_GPUS_NOTE.format(used=used_gpu_count, visible=server.visible_gpu_count, reason=reason)
        answer_notes.insert(0, fewer_gpus_note)
    if server.runs_single_requests and int(option_values.get("OLLAMA_NUM_PARALLEL", 1)) > 1:
        answer_notes.insert(0, SINGLE_REQUEST_NOTE.format(requests=option_values["OLLAMA_NUM_PARALLEL"]))
    if option_values.get("OLLAMA_KV_CACHE_TYPE", "f16") != server.cache_type:
        answer_notes.append("OLLAMA_KV_CACHE_TYPE needs OLLAMA_FLASH_ATTENTION=1: the cache is f16")
    assumed_options = {
        (flag_name if flag_name.isupper() else option(flag_name)): default_value
        for flag_name, default_value in server.defaults.items()
        if flag_name not in option_values and not (flag_name == "num_ctx" and "OLLAMA_CONTEXT_LENGTH" in option_values)
    }
    format_note = LIBRARY_FORMAT_NOTE if server.scheme != option_values.get("quantize") else ""
    return replace(
        computed_memory,
        max_model_len=server.num_ctx,
        has_all_layers_on_devices=not host_layer_count,
        assumed_flags=assumed_options,
        notes=tuple(answer_notes),
        format_note=format_note,
    )


def flag_changes(server: OllamaServer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields changes of Ollama's options with which the whole model is on the GPUs, the cheapest first."""
    if not host_layers(server.fitted_server):
        return
    option_changes: list[tuple[str, dict[str, Any]]] = []
    if server.fitted_server.server.slot_count > 1:
        option_changes.append(("OLLAMA_NUM_PARALLEL=1", {"OLLAMA_NUM_PARALLEL": 1}))
    if server.cache_type == "f16":
        typed_options = "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0"
        option_changes.append((typed_options, {"OLLAMA_FLASH_ATTENTION": "1", "OLLAMA_KV_CACHE_TYPE": "q8_0"}))
    fitting_context = longest_context(server)
    if fitting_context:
        option_changes.append((f"--num-ctx {fitting_context}", {"num_ctx": fitting_context}))
    gpu_count = 2 * max(server.visible_gpu_count, 1)
    devices_text = ",".join(str(i) for i in range(gpu_count))
    if gpu_count <= MAX_DEVICES and server.hardware.vendor != SINGLE_GPU_VENDOR:
        option_changes.append((f"CUDA_VISIBLE_DEVICES={devices_text}", {"CUDA_VISIBLE_DEVICES": devices_text}))
    for typed_options, changed_values in option_changes:
        changed_server = server.with_flags(**changed_values)
        if not host_layers(changed_server.fitted_server):
            yield typed_options, changed_values


def longest_context(server: OllamaServer) -> int | None:
    """Returns the largest num_ctx (a multiple of 256) with the whole model on the GPUs; None without one."""

    def fits_on_gpus(context_step_number: int) -> bool:
        return not host_layers(server.with_flags(num_ctx=256 * context_step_number).fitted_server)

    return 256 * largest_number(max(1, server.num_ctx // 256), fits_on_gpus) or None


def larger_layouts(server: OllamaServer, most_devices: int) -> Iterator[tuple[dict[str, Any], EngineMemory]]:
    """Yields (options, Ollama's memory) on 1, 2, 4 and 8 GPUs, at most `most_devices`; on a Mac on its one GPU.

    A memory `starts` if the whole model fits on them. If Ollama uses fewer of `most_devices` GPUs, that is all.
    """
    gpu_counts = [0] if "CUDA_VISIBLE_DEVICES" in server.flags else sorted({1, 2, 4, 8, min(most_devices, 8)})
    if server.hardware.vendor == SINGLE_GPU_VENDOR:
        gpu_counts = gpu_counts[:1]
    if most_devices in gpu_counts:
        server_on_all = server.with_flags(CUDA_VISIBLE_DEVICES=",".join(map(str, range(most_devices))))
        if len(server_on_all.fitted_server.server.devices) < most_devices:
            gpu_counts = [most_devices]
    for gpu_count in gpu_counts:
        if gpu_count > most_devices:
            return
        gpu_flags = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpu_count)))} if gpu_count > 1 else {}
        server_on_gpus = server.with_flags(**gpu_flags)
        server_memory = memory(server_on_gpus)
        host_layer_count = host_layers(server_on_gpus.fitted_server)
        startup_error = server_memory.startup_error
        if host_layer_count:
            startup_error = f"{read_record().messages['on_host']}: {server_memory.host['share']:.0%}"
        yield (
            gpu_flags,
            replace(
                server_memory, can_start=server_memory.can_start and not host_layer_count, startup_error=startup_error
            ),
        )


def serving_flags(preset: Preset, flags: Mapping[str, Any], user_count: int, seq: int | None) -> dict[str, Any]:
    """Returns the options for `user_count` sequences of `seq` tokens. Raises `InputError` for other lengths."""
    server_flags = dict(flags)
    if user_count > 1 and "OLLAMA_NUM_PARALLEL" not in flags:
        server_flags["OLLAMA_NUM_PARALLEL"] = user_count
    if seq is not None:
        if flags.get("num_ctx", seq) != seq:
            raise InputError(f"--seq {seq}: --num-ctx says {flags['num_ctx']}; expected one of the two")
        server_flags["num_ctx"] = seq
    return server_flags
