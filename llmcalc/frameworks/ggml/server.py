"""A server of llama.cpp or of its fork: its flags with their defaults, and its buffers on each device and the host.

`presets/engines/llama_cpp.toml` and `ik_llama_cpp.toml` have the rules of each version with their source files.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from ...errors import InputError
from ...sources.checkpoints.gguf import TYPES
from ..engines.engine import EngineMemory, Term
from ..engines.server import EngineServer
from .compute_graph import HOST, buffer_sizes
from .encoder import encoder_bytes, encoder_device
from .layer_runs import laid_out_layers
from .model import GgufModel, GgufTensor, LayerShape
from .placement import EXPERTS, Layers, Override, Placement, read_overrides
from .speculation import MODULES, draft_flags, draft_of, drafted_tokens, types_of
from .transformer_graph import GraphSettings, model_graph
from .versions import GgmlRecord, GgmlRules

GIB, MIB = 2**30, 2**20

MOST_DEVICES = 64

DEVICE_NAMES = {"NVIDIA": "CUDA", "AMD": "ROCm", "APPLE": "MTL", "INTEL": "SYCL"}
"""Vendor → the name of llama.cpp's devices of it."""

MORE_TYPES = {"q6_0": (32, 26), "q8_kv": (32, 34)}
"""Types of caches that only ik_llama.cpp has: elements and bytes of a block."""


def cache_bytes(type_name: str, elements: int) -> int:
    """Bytes of cached elements of a ggml type."""
    sizes = {name.lower(): (block, nbytes) for name, block, nbytes in TYPES.values()} | MORE_TYPES
    block, nbytes = sizes[type_name]
    return -(-elements // block) * nbytes


class Buffers(NamedTuple):
    """Bytes of each device, with the host, by name: of tensors, of caches, and of graphs."""

    model: Mapping[str, int]
    cache: Mapping[str, int]
    compute: Mapping[str, int]

    def total(self, device: str) -> int:
        """All bytes of a device."""
        return sum(by_device.get(device, 0) for by_device in self)

    def with_draft(self, draft: Buffers) -> Buffers:
        """These buffers with those of a draft model."""
        pairs = zip(self, draft, strict=True)
        return Buffers(*({name: a.get(name, 0) + b.get(name, 0) for name in {**a, **b}} for a, b in pairs))


@dataclass(frozen=True, eq=False)
class GgmlServer(EngineServer):
    """A server. record: what is known of its versions. reserved_bytes: bytes of each GPU that it leaves unused."""

    name: ClassVar[str] = "llama.cpp"
    length_field: ClassVar[str] = "ctx_size"
    layout_fields: ClassVar[tuple[str, ...]] = ()

    record: GgmlRecord
    reserved_bytes: int = 0

    def __post_init__(self) -> None:
        """Raises `InputError` for flags that contradict each other or the model."""
        super().__post_init__()
        if self.drafted_tokens and self.rules.outputs == "tokens":
            flag = "--model-draft" if self.flags.get("model_draft") else "--spec-type"
            first = next((rules.start for rules in self.record.versions if rules.outputs == "sequences"), "")
            raise InputError(f"{flag}: speculative decoding is modelled from build {first} on; remove the flag")
        if self.drafts_by_modules and not self.model.modules:
            raise InputError(f"--spec-type {MODULES}: the model has no modules of multi-token prediction; remove it")
        if self.value_type != "f16" and self.value_type not in ("f32", "bf16") and not self.flash:
            raise InputError(
                f"--cache-type-v {self.value_type}: needs flash attention; expected --flash-attn on, or another type"
            )

    @cached_property
    def rules(self) -> GgmlRules:
        return self.record.rules(self.numbers)

    @cached_property
    def model(self) -> GgufModel:
        return GgufModel(self.preset, self.flags.get("quantize"))

    # -- settings --------------------------------------------------------------------------------------------------

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The names of the GPUs: those of --device, or as many as --tensor-split has shares, or one."""
        vendor = self.hardware.vendor.split(" ")[0].upper()
        word = DEVICE_NAMES.get(vendor, "CUDA")
        listed = self.flags.get("device")
        if listed is not None:
            names = [part.strip() for part in str(listed).split(",")]
            if names == ["none"]:
                return ()
            number = len(names)
        else:
            number = len(self.split_shares) or 1
        if number > MOST_DEVICES:
            raise InputError(f"--device: {number} devices; expected at most {MOST_DEVICES}")
        if self.flags.get("split_mode") == "none":
            number = 1
        return tuple(f"{word}{i}" for i in range(number))

    @property
    def split_shares(self) -> tuple[float, ...]:
        """The shares of --tensor-split."""
        text = self.flags.get("tensor_split")
        if text is None:
            return ()
        try:
            shares = tuple(float(part[:20]) for part in str(text).replace("/", ",").split(","))
        except ValueError:
            shares = ()
        if not shares or not all(0 <= share <= 10**9 for share in shares) or not sum(shares):
            raise InputError("--tensor-split: expected shares with commas, such as 3,1")
        return shares

    @property
    def split(self) -> tuple[float, ...]:
        """The share of each device; default equal shares, as all have the same free memory."""
        shares = self.split_shares or (1.0,) * len(self.devices)
        if len(shares) > max(len(self.devices), 1):
            raise InputError(f"--tensor-split: {len(shares)} shares for {len(self.devices)} devices")
        return (*shares, *(0.0,) * (len(self.devices) - len(shares)))

    @property
    def sequences(self) -> int:
        """The slots of the server (--parallel)."""
        number = int(self.flags.get("parallel", -1))
        return number if number > 0 else self.rules.parallel

    @property
    def is_unified(self) -> bool:
        """Whether all sequences share one cache: where it is said, or by default of an automatic --parallel."""
        if "kv_unified" in self.flags:
            return bool(self.flags["kv_unified"])
        is_automatic = int(self.flags.get("parallel", -1)) < 1
        return self.sequences == 1 or (self.rules.kv_unified and is_automatic)

    @property
    def streams(self) -> int:
        return 1 if self.is_unified else self.sequences

    @property
    def has_automatic_context(self) -> bool:
        """Whether the context is that of the model, which --fit may reduce."""
        return not self.flags.get("ctx_size", self.rules.ctx_size) and "kv_unified_per_slot" not in self.flags

    @property
    def context(self) -> int:
        """The tokens of the cache before padding (-c). Raises `InputError` where nothing says it."""
        number = int(self.flags.get("ctx_size", self.rules.ctx_size))
        if number:
            return number
        if "kv_unified_per_slot" in self.flags:
            return int(self.flags["kv_unified_per_slot"]) * self.sequences
        if not self.model.trained_context:
            raise InputError("--ctx-size: missing; the model does not state its context length")
        return self.model.trained_context * (self.streams if self.fits else 1)

    @property
    def sequence_cells(self) -> int:
        """Cells of one stream of the cache, padded."""
        padding = self.rules.cell_padding_flash if self.flash else self.rules.cell_padding
        return _padded(_padded(self.context, padding) // self.streams, padding)

    @property
    def cells(self) -> int:
        """Cells of all streams."""
        return self.sequence_cells * self.streams

    @property
    def micro_batch(self) -> int:
        """Tokens of a micro-batch (-ub), no more than -b and the context."""
        batch = min(int(self.flags.get("batch_size", 2048)), self.cells)
        return min(int(self.flags.get("ubatch_size", 512)), batch)

    @property
    def flash(self) -> bool:
        """Whether attention is one operation. `auto` is on: GPUs and hosts support it."""
        return str(self.flags.get("flash_attn", self.rules.flash_attn)) in ("on", "auto", "1", "true")

    @property
    def key_type(self) -> str:
        return str(self.flags.get("cache_type_k", "f16"))

    @property
    def value_type(self) -> str:
        return str(self.flags.get("cache_type_v", "f16"))

    @property
    def latent_mode(self) -> int:
        """How latents are cached: 0 expanded, 1 with their transpose, 2 and 3 alone (ik's -mla; 3 without it)."""
        if self.rules.latent_cache == "modes":
            return int(self.flags.get("mla_use", self.rules.mla_use))
        return 0 if self.rules.latent_cache == "expanded" else 3

    @property
    def maps_file(self) -> bool:
        """Whether the host's tensors are mapped from the file (--no-mmap, --load-mode)."""
        mode = self.flags.get("load_mode", "auto")
        return not self.flags.get("no_mmap") and mode in ("auto", "mmap", "mmap+mlock")

    @property
    def locks_memory(self) -> bool:
        """Whether the system may not drop pages of mapped tensors (--mlock, --load-mode)."""
        return bool(self.flags.get("mlock")) or "mlock" in str(self.flags.get("load_mode", ""))

    @cached_property
    def encoder_bytes(self) -> int:
        """Bytes of the tensors of the encoder of images (--mmproj)."""
        return encoder_bytes(self.flags, self.preset)

    @cached_property
    def drafted_tokens(self) -> int:
        """The most tokens that are drafted for a slot."""
        return drafted_tokens(self.flags)

    @property
    def drafts_by_modules(self) -> bool:
        """Whether the model's modules of multi-token prediction draft tokens."""
        return MODULES in types_of(self.flags)

    @cached_property
    def draft_model(self) -> GgufModel | None:
        """The draft model; None without one."""
        preset = draft_of(self.flags, self.preset)
        return None if preset is None else GgufModel(preset)

    @cached_property
    def draft(self) -> GgmlServer | None:
        """The draft model, as a server with the same context; None without one."""
        if self.draft_model is None:
            return None
        flags = draft_flags(self.flags, self.context, self.sequences, self.is_unified)
        server = replace(self, preset=self.draft_model.preset, flags=flags)
        server.__dict__["model"] = self.draft_model
        return server

    @property
    def keeps_cache(self) -> bool:
        """Whether a layer's cache is where the layer is (--no-kv-offload: on the host)."""
        return not self.flags.get("no_kv_offload", False)

    @property
    def defaults(self) -> dict[str, Any]:
        """The name of a flag → its value in effect: the given one, or the default."""
        return {
            "ctx_size": self.context,
            "n_gpu_layers": "auto" if self.rules.fits else self.layers_on_gpus,
            "ubatch_size": self.micro_batch,
            "batch_size": 2048,
            "parallel": self.sequences,
            "flash_attn": self.rules.flash_attn,
            "cache_type_k": "f16",
            "cache_type_v": "f16",
        } | ({} if not self.rules.fits else {"fit": "on"})

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request of a slot."""
        return self.sequence_cells

    def window_cells(self, window: int | None) -> int:
        """Cells of one stream for layers with a window; all where the version has no cache of windows."""
        full = self.sequence_cells
        if window is None or not self.rules.windowed_cache or self.flags.get("swa_full"):
            return full
        needed = window * (self.sequences if self.is_unified else 1) + self.micro_batch
        padding = self.rules.cell_padding_flash if self.flash else self.rules.cell_padding
        return min(full, _padded(needed, padding))

    # -- placement -------------------------------------------------------------------------------------------------

    @property
    def asks_for_layers(self) -> bool:
        """Whether the user says how many layers are on GPUs."""
        return str(self.flags.get("n_gpu_layers", "auto")) not in ("auto", "-1")

    @property
    def layers_on_gpus(self) -> int:
        """Layers on GPUs, with the output as one more."""
        word = str(self.flags.get("n_gpu_layers", "auto"))
        everything = len(self.model.layers) + 1
        if word == "auto" or (word == "-1" and self.rules.n_gpu_layers == "all"):
            return everything if self.rules.n_gpu_layers == "all" else 0
        return everything if word == "all" or int(word) < 0 else min(int(word), everything)

    @cached_property
    def overrides(self) -> tuple[Override, ...]:
        """The patterns of --override-tensor."""
        text = self.flags.get("override_tensor")
        return () if text is None else read_overrides(str(text), self.devices)

    @cached_property
    def placement(self) -> Placement:
        """Where tensors go as the flags say, before --fit."""
        layers = Layers(
            len(self.model.layers), self.devices, self.layers_on_gpus, self.split, self.rules.output_counts_first
        )
        everything = len(self.model.layers)
        number = everything if self.flags.get("cpu_moe") else int(self.flags.get("n_cpu_moe", 0))
        dense = int(self.flags.get("n_cpu_ffn", 0))
        return Placement(
            layers,
            self.overrides,
            host_experts=frozenset(range(min(number, everything))),
            host_networks=frozenset(range(min(dense, everything))),
        )

    # -- memory ----------------------------------------------------------------------------------------------------

    def model_buffers(self, placement: Placement) -> dict[str, int]:
        """Bytes of the tensors on each device, with those of an encoder of images."""
        sizes: dict[str, int] = {HOST: 0, **dict.fromkeys(self.devices, 0)}
        for tensor in self.model.tensors:
            sizes[placement.device(tensor)] += tensor.nbytes
        sizes[encoder_device(self.flags, self.devices)] += self.encoder_bytes
        return sizes

    def layer_cache(self, layer: LayerShape) -> tuple[int, int]:
        """Bytes of the keys and of the values of a layer, over all streams. A state has no values."""
        if layer.latent is not None:
            return self._latent_cache(layer)
        cells = self.window_cells(layer.window) * self.streams
        keys = cells * cache_bytes(self.key_type, layer.key_width) if layer.key_width else 0
        values = cells * cache_bytes(self.value_type, layer.value_width) if layer.value_width else 0
        states = layer.state_elements * self.sequences * (1 + (self.drafted_tokens if self.drafts_by_modules else 0))
        return keys + 4 * states, values

    def _latent_cache(self, layer: LayerShape) -> tuple[int, int]:
        assert layer.latent is not None
        cells, (rank, rope, nope, value, _) = self.cells, layer.latent
        if self.latent_mode == 0:
            keys = cells * cache_bytes(self.key_type, layer.heads * (nope + rope))
            return keys, cells * cache_bytes(self.value_type, layer.heads * value)
        is_alone = self.rules.latent_cache != "modes" or self.flash or self.latent_mode == 1
        keys = cells * cache_bytes(self.key_type if is_alone else self.value_type, rank + rope)
        has_values = self.rules.latent_cache == "keys and values" or (
            self.rules.latent_cache == "modes" and self.latent_mode == 1 and not self.flash
        )
        return keys, cells * cache_bytes(self.value_type, rank) if has_values else 0

    def cache_buffers(self, placement: Placement) -> dict[str, int]:
        """Bytes of the caches on each device: where their layers are."""
        sizes: dict[str, int] = {}
        for i, layer in enumerate(self.model.layers):
            device = placement.layers.device(i) if self.keeps_cache else HOST
            sizes[device] = sizes.get(device, 0) + sum(self.layer_cache(layer))
        return sizes

    def compute_buffers(self, placement: Placement) -> dict[str, int]:
        """Bytes of the graph of one micro-batch on each device."""
        return self.graph_buffers(placement, dict(enumerate(self.model.layers)))

    def graph_buffers(
        self, placement: Placement, layers: Mapping[int, LayerShape], more: Iterable[GgufTensor] = ()
    ) -> dict[str, int]:
        """Bytes of the graph of some layers and the output on each device. more: tensors beside the model's."""
        places = {tensor.name: (tensor.nbytes, placement.device(tensor)) for tensor in (*self.model.tensors, *more)}
        rules, number = self.rules, len(self.model.layers)
        rows = self.sequences * (1 + self.drafted_tokens)
        outputs = self.micro_batch if rules.outputs == "tokens" else min(self.micro_batch, rows)
        windows = {layer.window for layer in layers.values()}
        settings = GraphSettings(
            tokens=self.micro_batch,
            outputs=outputs,
            cells={window: self.window_cells(window) for window in windows},
            flash=self.flash,
            layer_cache=self.layer_cache,
            key_type_bytes=cache_bytes(self.key_type, 256),
            streams=self.streams,
            mla=self.latent_mode,
            attention_batch_mib=int(self.flags.get("attention_max_batch", rules.attention_max_batch)),
            fused_experts=bool(self.flags.get("fused_moe", rules.fused_moe)),
            has_gpus=bool(self.devices),
            keeps_attention=self.keeps_cache,
            full_offload=self.layers_on_gpus > number,
            moves_weights=not self.flags.get("no_op_offload") and not self.flags.get("run_time_repack"),
        )
        moved_tokens = settings.tokens if settings.moves_weights and self.devices else 0
        keys = self._layer_keys(placement, places, moved_tokens, layers)
        laid_out = [list(layers)[i] for i in laid_out_layers(keys)]
        graph = model_graph(
            rules.graph,
            settings,
            self.model.hidden_size,
            self.model.vocab_size,
            {i: layers[i] for i in laid_out},
            max(layers) + 1,
            placement.layers.device,
            places.get,
        )
        pipeline = (
            len(self.devices) > 1
            and self.layers_on_gpus > number
            and self.flags.get("split_mode", "layer") == "layer"
            and self.keeps_cache
            and not placement.has_overrides
        )
        return buffer_sizes(graph, self.devices, pipeline)

    def _layer_keys(
        self,
        placement: Placement,
        places: Mapping[str, tuple[int, str]],
        moved_tokens: int,
        layers: Mapping[int, LayerShape],
    ) -> list[Hashable]:
        """A key of each layer, equal for layers with equal graphs.

        The bytes of a weight are part of it only where an operation may copy the weight to another device.
        moved_tokens: tokens of a micro-batch, 0 where no operation moves to a GPU.
        """
        rules = self.rules.graph
        of_layer: dict[int, list[GgufTensor]] = {}
        for tensor in self.model.tensors:
            if tensor.layer is not None:
                of_layer.setdefault(tensor.layer, []).append(tensor)
        keys: list[Hashable] = []
        for i, layer in layers.items():
            tensors = of_layer.get(i, ())
            expert_homes = {places[tensor.name][1] for tensor in tensors if EXPERTS.match(tensor.name)}
            weights = []
            for tensor in tensors:
                nbytes, home = places[tensor.name]
                if EXPERTS.match(tensor.name):
                    is_copied = len(expert_homes) > 1 or (home == HOST and rules.moves_experts(moved_tokens, layer))
                else:
                    is_copied = home == HOST and rules.moves(moved_tokens)
                weights.append((tensor.name.partition(f"blk.{i}.")[2], home, nbytes if is_copied else 0))
            keys.append((id(layer), placement.layers.device(i), tuple(weights)))
        return keys

    def buffers(self, placement: Placement) -> Buffers:
        """All buffers of each device."""
        buffers = Buffers(self.model_buffers(placement), self.cache_buffers(placement), self.compute_buffers(placement))
        if self.drafts_by_modules:
            buffers = buffers.with_draft(self.module_buffers(placement))
        if self.draft is None:
            return buffers
        return buffers.with_draft(self.draft.buffers(self.draft.placement))

    @property
    def file_bytes(self) -> int:
        """Bytes of the tensors in all files: of the model, of what drafts tokens, and of an encoder of images."""
        size = self.model.file_bytes + self.encoder_bytes
        if self.drafts_by_modules and self.model.file is None:
            size += sum(tensor.nbytes for tensor in self.model.module_tensors)
        return size + (0 if self.draft is None else self.draft.model.file_bytes)

    def module_buffers(self, placement: Placement) -> Buffers:
        """The buffers of the modules of multi-token prediction, which are layers after the last one.

        They have a cache of the draft's types and a graph that returns the logits of one token of each slot.
        """
        number, modules = len(self.model.layers), self.model.modules
        types = {f"cache_type_{name}": self.flags.get(f"cache_type_{name}_draft", "f16") for name in "kv"}
        drafting = self.with_flags(**types, spec_type="none")
        tensors: dict[str, int] = {}
        for tensor in self.model.module_tensors:
            device = placement.device(tensor)
            tensors[device] = tensors.get(device, 0) + tensor.nbytes
        home = placement.layers.device(number) if self.keeps_cache else HOST
        cache = {home: sum(sum(drafting.layer_cache(module)) for module in modules)}
        layers = {number + i: module for i, module in enumerate(modules)}
        return Buffers(tensors, cache, drafting.graph_buffers(placement, layers, self.model.module_tensors))

    @property
    def free(self) -> int:
        """Bytes of a GPU that are free when the server starts."""
        return max(0, self.hardware.capacity_bytes - self.record.context.mib * MIB - self.reserved_bytes)

    @property
    def fits(self) -> bool:
        """Whether the server reduces what does not fit (--fit)."""
        word = self.flags.get("fit")
        return self.rules.fits if word is None else str(word) in ("on", "true", "True")

    def with_flags(self, **changed: Any) -> GgmlServer:
        """The same server with other flags. The model is read once."""
        return self.sharing(replace(self, flags={**self.flags, **changed}))

    def sharing(self, other: GgmlServer) -> GgmlServer:
        """Another server of the same model, which it shares."""
        other.__dict__["model"] = self.model
        other.__dict__["draft_model"] = self.draft_model
        other.__dict__["encoder_bytes"] = self.encoder_bytes
        if (self.flags.get("override_tensor"), self.devices) == (other.flags.get("override_tensor"), other.devices):
            other.__dict__["overrides"] = self.overrides
        return other


def _padded(number: int, padding: int) -> int:
    return -(-number // padding) * padding


def engine_memory(
    server: GgmlServer, placement: Placement, buffers: Buffers, notes: Iterable[str] = ()
) -> EngineMemory:
    """Returns what a server does with the memory of its devices and of the host."""
    rules, record, model = server.rules, server.record, server.model
    terms = []
    devices = (*server.devices, HOST)
    placed = "tensors of the file" if model.file is not None else "tensors, as llama-quantize chooses their types"
    for device in devices:
        terms.append(
            Term("model_buffer", buffers.model.get(device, 0), "source", placed, _model_origin(server, device), device)
        )
    for device in devices:
        size = buffers.cache.get(device, 0)
        if size or device != HOST:
            terms.append(Term("kv_buffer", size, "source", rules.place, _cache_origin(server), device))
    for device in devices:
        source = f"{record.compute_logs} logs compared"
        origin = f"graph of {server.micro_batch:,} tokens"
        terms.append(Term("compute_buffer", buffers.compute.get(device, 0), "estimate", source, origin, device))
    message = _message(server, buffers)
    everything = sum(buffers.total(device) for device in devices)
    length = server.longest_request
    return EngineMemory(
        terms=tuple(terms),
        kv_tokens=server.cells,
        blocks=server.cells,
        max_concurrency=float(server.streams) if server.streams > 1 else server.cells / length,
        starts=not message,
        message=message,
        max_model_len=length,
        devices=max(1, len(server.devices)),
        block_size=1,
        assumed=server.assumed,
        settings=server.settings,
        notes=tuple(filter(None, (server.version.note, *notes, *_notes(server)))),
        host={
            "ram_bytes": buffers.total(HOST),
            "disk_bytes": server.file_bytes,
            "mmap": server.maps_file,
            "share": round(buffers.total(HOST) / everything, 4) if everything else 0.0,
        },
    )


def _model_origin(server: GgmlServer, device: str) -> str:
    scheme = server.model.scheme + (f", with {server.draft.preset.name} that drafts" if server.draft else "")
    scheme += ", with modules that draft" if server.drafts_by_modules else ""
    if server.encoder_bytes and device == encoder_device(server.flags, server.devices):
        scheme += "; with the encoder of images"
    return f"{scheme}; with token embeddings" if device == HOST else scheme


def _cache_origin(server: GgmlServer) -> str:
    types = server.key_type if server.key_type == server.value_type else f"{server.key_type}, {server.value_type}"
    return f"{server.cells:,} cells of {types}"


def _message(server: GgmlServer, buffers: Buffers) -> str:
    """The message of the first GPU that is too small; empty where all buffers fit."""
    for device in server.devices:
        needed = buffers.total(device)
        if needed > server.free:
            text = server.record.messages["no_memory"]
            return f"{text}: {device} needs {needed / GIB:.2f} GiB and has {server.free / GIB:.2f} GiB free"
    return ""


def _notes(server: GgmlServer) -> list[str]:
    notes = []
    if server.model.file is None and server.model.scheme == "bf16":
        notes.append("no --quantize: the weights are counted in bf16; a GGUF file as TARGET has its own types")
    if server.encoder_bytes:
        notes.append("the compute buffer of the encoder of images (--mmproj) is not modelled; it takes more")
    elif server.preset.model.towers:
        notes.append("the encoder of images (--mmproj) is a file of its own and is not counted")
    if server.maps_file and not server.locks_memory:
        notes.append("the host's model buffer is mapped from the file (mmap): the system may drop its pages")
    return notes
