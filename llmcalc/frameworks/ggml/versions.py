"""Reads the TOML files of llama.cpp, ik_llama.cpp and Ollama: memory rules by version (`presets/engines/*.toml`)."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from pydantic import Field

from ...record import Record
from ..engines.versions import EngineRecord, VersionRules
from .transformer_graph import GraphRules, GraphStyle


class GgmlRules(VersionRules):
    """The rules for memory in a range of versions; `presets/engines/llama_cpp.toml` explains the fields."""

    ctx_size: int = Field(ge=0)
    parallel: int = Field(ge=1)
    kv_unified: bool = True
    one_cache: bool = False
    window_batch: Literal["batch", "micro-batch"] = "micro-batch"
    flash_attn: Literal["on", "off", "auto"] = "auto"
    n_gpu_layers: Literal["all", "zero"] = "all"
    output_counts_first: bool = False
    fits: bool = False
    cell_padding: int = 256
    cell_padding_flash: int = 256
    windowed_cache: bool = True
    latent_cache: Literal["keys", "keys and values", "expanded", "modes"] = "keys"
    outputs: Literal["tokens", "sequences"] = "tokens"
    style: GraphStyle
    mask_f16: bool = False
    store_rows: bool = False
    pad_mask: bool = True
    vector_input: bool = False
    moves_by_expert: bool = False
    fused_delta_net: bool = False
    rotates_vectors: bool = False
    encoder: Literal["none", "scores", "flash"] = "none"
    caches_indexers: bool = False
    mla_use: int = 0
    attention_max_batch: int = 0
    fused_moe: bool = False

    @property
    def graph_rules(self) -> GraphRules:
        """The version's rules for compute graphs."""
        shared_fields = [field.name for field in fields(GraphRules) if field.name in type(self).model_fields]
        return GraphRules(**{field_name: getattr(self, field_name) for field_name in shared_fields})


class DeviceContext(Record):
    """Measured GPU memory in use before llama.cpp allocates (CUDA context). logs: how many logs state it."""

    mib: int = Field(ge=0)
    logs: int = Field(ge=0)


class GgmlEngineRecord(EngineRecord[GgmlRules]):
    """The fields of llama_cpp.toml and ik_llama_cpp.toml.

    compute_logs: logs compared with our compute buffers.
    registered_classes: classes of text models that become GGUF files which the engine loads (`classes_source`).
    registered_encoders: classes of models whose encoder (--mmproj) does; empty if not read.
    registered_class_by_name: class of transformers → the registered class with the same layers, for models without a
        config.
    """

    classes_source: str
    registered_classes: tuple[str, ...] = Field(min_length=1)
    registered_encoders: tuple[str, ...] = ()
    registered_class_by_name: dict[str, str] = {}
    context: DeviceContext
    fit_margin_mib: int = Field(ge=0)
    fit_ctx: int = Field(ge=0)
    compute_logs: int = Field(ge=0)
