"""The settings of a llama.cpp server, from its flags and from defaults that depend on version and model.

`presets/engines/llama_cpp.toml` and `ik_llama_cpp.toml` have the rules of each version with their source files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from ...accelerator import Hardware
from ...algebra import round_up
from ...errors import InputError
from ...frozen import frozen
from ...sources.presets import is_library_tag
from ..engines.server import EngineServer
from .encoder import encoder_bytes
from .gguf_model import GgufModel
from .speculation import MTP_DRAFT_TYPE, draft_model_of, draft_scheme, drafted_tokens, drafting_types, modules_scheme
from .versions import GgmlEngineRecord, GgmlRules

GIB, MIB = 2**30, 2**20

MAX_DEVICES = 16
"""Largest number of GPUs of a server: GGML_CUDA_MAX_DEVICES of ggml-cuda.h."""

SINGLE_GPU_VENDOR = "Apple"
"""The vendor whose machines have a single GPU, over which no layers can be split."""

DEVICE_NAMES = {"NVIDIA": "CUDA", "AMD": "ROCm", "APPLE": "MTL", "INTEL": "SYCL"}
"""Vendor → llama.cpp's name for the vendor's devices."""

VULKAN_DEVICE = "Vulkan"
"""llama.cpp's name for devices of any vendor that run through Vulkan."""


@frozen(eq=False)
class GgmlSettings(EngineServer):
    """The settings of a llama.cpp server for a model; values come from the flags or from defaults.

    engine_record: what is known of its versions. reserved_bytes: bytes of each GPU that it leaves unused.
    counts_encoder_graph: whether the encoder of images runs as in llama-server (not in Ollama before 0.30).
    """

    name: ClassVar[str] = "llama.cpp"
    length_flag_name: ClassVar[str] = "ctx_size"
    layout_flag_names: ClassVar[tuple[str, ...]] = ()

    engine_record: GgmlEngineRecord
    reserved_bytes: int = 0
    counts_encoder_graph: bool = True

    def __post_init__(self) -> None:
        """Raises `InputError` for flags that contradict each other or the model."""
        super().__post_init__()
        if self.drafted_tokens and self.rules.outputs == "tokens":
            flag = "--model-draft" if self.flags.get("model_draft") else "--spec-type"
            first_version = next(
                (
                    version_rules.start_version
                    for version_rules in self.engine_record.versions
                    if version_rules.outputs == "sequences"
                ),
                "",
            )
            raise InputError(f"{flag}: speculative decoding is modelled from build {first_version} on; remove the flag")
        if self.is_drafting_with_mtp and not self.model.mtp_modules:
            raise InputError(
                f"--spec-type {MTP_DRAFT_TYPE}: the model has no modules of multi-token prediction; remove it"
            )
        if self.value_type != "f16" and self.value_type not in ("f32", "bf16") and not self.uses_flash_attention:
            raise InputError(
                f"--cache-type-v {self.value_type}: needs flash attention; expected --flash-attn on, or another type"
            )

    @cached_property
    def rules(self) -> GgmlRules:
        return self.engine_record.rules(self.version_numbers)

    @cached_property
    def model(self) -> GgufModel:
        is_in_library = is_library_tag(self.preset.target)
        return GgufModel.from_quantize_flag(self.preset, self.flags.get("quantize"), is_library_file=is_in_library)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The names of the GPUs: those of --device, one per share of --tensor-split, else one GPU if there is any."""
        if self.hardware.is_processor:
            return ()
        vendor_name = self.hardware.vendor.split(" ")[0].upper()
        backend_name = DEVICE_NAMES.get(vendor_name, "CUDA")
        device_list = self.flags.get("device")
        if device_list is not None:
            device_names = [device_name.strip() for device_name in str(device_list).split(",")]
            if device_names == ["none"]:
                return ()
            if device_names[0].startswith(VULKAN_DEVICE):
                backend_name = VULKAN_DEVICE
            device_count = len(device_names)
        else:
            device_count = len(self.tensor_split_shares) or 1
        if device_count > 1 and self.hardware.vendor == SINGLE_GPU_VENDOR:
            raise InputError(f"--device: {device_count} devices; a Mac has one GPU, and several are not joined")
        if device_count > MAX_DEVICES:
            raise InputError(f"--device: {device_count} devices; expected at most {MAX_DEVICES}, as many as ggml has")
        if self.flags.get("split_mode") == "none":
            device_count = 1
        return tuple(f"{backend_name}{i}" for i in range(device_count))

    @property
    def tensor_split_shares(self) -> tuple[float, ...]:
        """The GPUs' shares of the layers that --tensor-split states."""
        share_list = self.flags.get("tensor_split")
        if share_list is None:
            return ()
        try:
            parsed_shares = tuple(float(share_text[:20]) for share_text in str(share_list).replace("/", ",").split(","))
        except ValueError:
            parsed_shares = ()
        if not parsed_shares or not all(0 <= share <= 10**9 for share in parsed_shares) or not sum(parsed_shares):
            raise InputError("--tensor-split: expected shares with commas, such as 3,1")
        return parsed_shares

    @property
    def layer_shares(self) -> tuple[float, ...]:
        """Each GPU's share of the layers; equal by default, because equal GPUs have equal free memory."""
        shares_by_device = self.tensor_split_shares or (1.0,) * len(self.devices)
        if len(shares_by_device) > max(len(self.devices), 1):
            raise InputError(f"--tensor-split: {len(shares_by_device)} shares for {len(self.devices)} devices")
        return (*shares_by_device, *(0.0,) * (len(self.devices) - len(shares_by_device)))

    @property
    def slot_count(self) -> int:
        """The number of slots (--parallel), each of which runs one sequence at a time."""
        stated_sequences = int(self.flags.get("parallel", -1))
        return stated_sequences if stated_sequences > 0 else self.rules.parallel

    @property
    def has_unified_cache(self) -> bool:
        """Whether all sequences share one cache (--kv-unified); default with automatic --parallel."""
        if self.rules.one_cache:
            return True
        if "kv_unified" in self.flags:
            return bool(self.flags["kv_unified"])
        is_automatic = int(self.flags.get("parallel", -1)) < 1
        return self.slot_count == 1 or (self.rules.kv_unified and is_automatic)

    @property
    def stream_count(self) -> int:
        return 1 if self.has_unified_cache else self.slot_count

    @property
    def has_automatic_context(self) -> bool:
        """Whether no flag sets the context length, so that it is the model's, which --fit may reduce."""
        return not self.flags.get("ctx_size", self.rules.ctx_size) and "kv_unified_per_slot" not in self.flags

    @property
    def context_tokens(self) -> int:
        """The number of tokens in the cache before padding (-c). Raises `InputError` if flags and model state none."""
        chosen_context = int(self.flags.get("ctx_size", self.rules.ctx_size))
        if chosen_context:
            return chosen_context
        if "kv_unified_per_slot" in self.flags:
            return int(self.flags["kv_unified_per_slot"]) * self.slot_count
        if not self.model.trained_context:
            raise InputError("--ctx-size: missing; the model does not state its context length")
        return self.model.trained_context * (self.stream_count if self.is_fit_enabled else 1)

    @property
    def sequence_cells(self) -> int:
        """The number of cache cells (one per token) for one stream of sequences, with padding."""
        cell_padding = self.rules.cell_padding_flash if self.uses_flash_attention else self.rules.cell_padding
        return int(round_up(round_up(self.context_tokens, cell_padding) // self.stream_count, cell_padding))

    @property
    def cache_cells(self) -> int:
        """The number of cache cells (one per token) for all streams of sequences, with padding."""
        return self.sequence_cells * self.stream_count

    @property
    def batch_tokens(self) -> int:
        """The number of tokens of a batch (-b), at most the context."""
        return min(int(self.flags.get("batch_size", 2048)), self.cache_cells)

    @property
    def micro_batch_tokens(self) -> int:
        """The number of tokens of a micro-batch (-ub), at most -b and the context."""
        return min(int(self.flags.get("ubatch_size", 512)), self.batch_tokens)

    @property
    def uses_flash_attention(self) -> bool:
        """Whether flash attention runs as one operation; `auto` turns it on, on GPUs and on the host."""
        return str(self.flags.get("flash_attn", self.rules.flash_attn)) in ("on", "auto", "1", "true")

    @property
    def key_type(self) -> str:
        return str(self.flags.get("cache_type_k", "f16"))

    @property
    def value_type(self) -> str:
        return str(self.flags.get("cache_type_v", "f16"))

    @property
    def latent_mode(self) -> int:
        """What MLA's cache holds (-mla): 0 expanded keys and values, 1 latents and a transposed copy, 2, 3 latents."""
        if self.rules.latent_cache == "modes":
            return int(self.flags.get("mla_use", self.rules.mla_use))
        return 0 if self.rules.latent_cache == "expanded" else 3

    @property
    def is_memory_mapped(self) -> bool:
        """Whether tensors on the host are memory-mapped from the file (--no-mmap, --load-mode)."""
        load_mode = self.flags.get("load_mode", "auto")
        return not self.flags.get("no_mmap") and load_mode in ("auto", "mmap", "mmap+mlock")

    @property
    def is_memory_locked(self) -> bool:
        """Whether memory-mapped tensors are locked in memory (--mlock, --load-mode)."""
        return bool(self.flags.get("mlock")) or "mlock" in str(self.flags.get("load_mode", ""))

    @cached_property
    def encoder_bytes(self) -> int:
        """The bytes of the image encoder's tensors (--mmproj)."""
        return encoder_bytes(self.flags, self.preset)

    @cached_property
    def drafted_tokens(self) -> int:
        """The largest number of tokens that are drafted at once in a slot."""
        return drafted_tokens(self.flags)

    @property
    def is_drafting_with_mtp(self) -> bool:
        """Whether the model's multi-token-prediction modules draft tokens."""
        return MTP_DRAFT_TYPE in drafting_types(self.flags)

    @cached_property
    def draft_model(self) -> GgufModel | None:
        """The draft model; None without a draft model."""
        preset = draft_model_of(self.flags, self.preset)
        return None if preset is None else GgufModel.from_quantize_flag(preset, draft_scheme(self.flags))

    @cached_property
    def modules_file(self) -> GgufModel | None:
        """The model in the format of a separate file of MTP modules; None without such a file."""
        scheme = modules_scheme(self.flags, self.preset)
        return None if scheme is None else GgufModel.from_quantize_flag(self.preset, scheme)

    @property
    def has_exact_modules_file(self) -> bool:
        """Whether the number format of MTP modules is known: no separate file, or q8_0, f16 or bf16."""
        return self.modules_file is None or self.modules_file.quantize in ("q8_0", "f16", "bf16")

    @property
    def is_cache_on_layer_device(self) -> bool:
        """Whether a layer's cache is on the layer's device; with --no-kv-offload it is on the host."""
        return not self.flags.get("no_kv_offload", False)

    @property
    def effective_defaults(self) -> dict[str, Any]:
        """The values in effect of flags that have defaults, by field name: the user's value or the default."""
        return {
            "ctx_size": self.context_tokens,
            "n_gpu_layers": "auto" if self.rules.fits else self.layers_on_gpus,
            "ubatch_size": self.micro_batch_tokens,
            "batch_size": 2048,
            "parallel": self.slot_count,
            "flash_attn": self.rules.flash_attn,
            "cache_type_k": "f16",
            "cache_type_v": "f16",
        } | ({} if not self.rules.fits else {"fit": "on"})

    @property
    def longest_request(self) -> int:
        """The largest number of tokens in the sequence of one slot."""
        return self.sequence_cells // (self.slot_count if self.rules.one_cache else 1)

    def window_cells(self, window_size: int | None) -> int:
        """Returns the cache cells per stream for a sliding-window layer; early versions cache the whole context."""
        full_cells = self.sequence_cells
        if window_size is None or not self.rules.windowed_cache or self.flags.get("swa_full"):
            return full_cells
        batch_tokens = self.batch_tokens if self.rules.window_batch == "batch" else self.micro_batch_tokens
        needed_cells = window_size * (self.slot_count if self.has_unified_cache else 1) + batch_tokens
        cell_padding = self.rules.cell_padding_flash if self.uses_flash_attention else self.rules.cell_padding
        return int(min(full_cells, round_up(needed_cells, cell_padding)))

    @property
    def has_stated_gpu_layers(self) -> bool:
        """Whether a flag of the user states the number of layers on GPUs."""
        return str(self.flags.get("n_gpu_layers", "auto")) not in ("auto", "-1")

    @property
    def layers_on_gpus(self) -> int:
        """The number of layers on GPUs; the output counts as a layer."""
        flag_text = str(self.flags.get("n_gpu_layers", "auto"))
        layer_count = len(self.model.layers) + 1
        if flag_text == "auto" or (flag_text == "-1" and self.rules.n_gpu_layers == "all"):
            return layer_count if self.rules.n_gpu_layers == "all" else 0
        return layer_count if flag_text == "all" or int(flag_text) < 0 else min(int(flag_text), layer_count)

    @property
    def cuda_context_bytes(self) -> int:
        """The bytes in use on a GPU before llama.cpp allocates; 0 on Metal, which reports its whole limit as free.

        Source: `ggml_metal_device_get_memory`; logs of Macs list as much free as in total.
        """
        has_no_context = self.hardware.vendor == "Apple" or self.hardware.is_processor
        return 0 if has_no_context else self.engine_record.context.mib * MIB

    @property
    def free_bytes(self) -> int:
        """The free bytes of a GPU when the server starts."""
        return max(0, self.hardware.capacity_bytes - self.cuda_context_bytes - self.reserved_bytes)

    @property
    def is_fit_enabled(self) -> bool:
        """Whether the server fits flags that are not set to the free memory (--fit)."""
        flag_text = self.flags.get("fit")
        return self.rules.fits if flag_text is None else str(flag_text) in ("on", "true", "True")


def refuse_gpu_flags(hardware: Hardware, flags: Mapping[str, Any]) -> None:
    """Raises `InputError` for flags that place layers on GPUs if the accelerator is a processor."""
    if not hardware.is_processor:
        return
    values_without_gpu = {"n_gpu_layers": ("auto", "-1", "0"), "device": ("none", "0"), "tensor_split": ()}
    for flag_name, allowed_values in values_without_gpu.items():
        flag_value = str(flags.get(flag_name))
        if flag_name in flags and flag_value not in allowed_values:
            typed_flag = f"--{flag_name.replace('_', '-')} {flag_value[:40]}"
            if flag_value.replace(",", "").isdecimal() and flag_name == "device":  # the numbers of `--devices`
                typed_flag = f"--devices {flag_value.count(',') + 1}"
            raise InputError(f"{typed_flag}: {hardware.title} is a processor, without GPUs that take layers; remove it")
