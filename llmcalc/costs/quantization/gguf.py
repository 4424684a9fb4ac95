"""llama.cpp's mixes: which ggml type each tensor of a `.gguf` file gets, and how many bytes that is.

Rules: llama.cpp, src/llama-quant.cpp (tensor_allows_quantization, llama_tensor_get_type_impl, use_more_bits,
tensor_type_fallback) as of 2026-09. Blocks: ggml-common.h. What is not quantised has the type that the converter wrote
(conversion/base.py, prepare_tensors): F32 for 1-D tensors, biases, norms, routers, convolutions and tables of
positions; 16 bits for the few maps that the quantiser leaves alone. Of MLA the file holds kv_b_proj as two tensors, the
keys' one turned.

q, k and v are three tensors, or, where the checkpoint holds them in one, `attn_qkv`. Since #19770 (2026-03) that one is
typed as `attn_v`; before, it was Q5_K in Q4_K_M, Q6_K in Q5_K_M, Q4_K in Q3_K_M and Q3_K_L, of the mix's own type in
the rest. Not taken: the exceptions for Falcon, layers of prediction modules that some converters count among the
model's (they move the eighths of the depth).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...algebra import Number, is_zero
from ...errors import InputError
from ...model import ModelSpec
from ...ops import AttentionCore
from ...optional import OPTIONAL_PARTS
from .base import Parts, Scheme, Site, plain, sites
from .blocks import BLOCKS

MIXES = {
    "Q4_0": "Q4_0",
    "Q4_1": "Q4_1",
    "Q5_0": "Q5_0",
    "Q5_1": "Q5_1",
    "Q8_0": "Q8_0",
    "Q2_K": "Q2_K",
    "Q3_K_S": "Q3_K",
    "Q3_K_M": "Q3_K",
    "Q3_K_L": "Q3_K",
    "Q4_K_S": "Q4_K",
    "Q4_K_M": "Q4_K",
    "Q5_K_S": "Q5_K",
    "Q5_K_M": "Q5_K",
    "Q6_K": "Q6_K",
    "IQ4_NL": "IQ4_NL",
    "IQ4_XS": "IQ4_XS",
    "MXFP4_MOE": "MXFP4",
}
"""Mix → the type of most tensors in it."""

FALLBACK = {"IQ4_XS": "IQ4_NL", "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""Type → that of a tensor whose rows are no whole blocks of it."""

MORE_FOR_EIGHT_EXPERTS = ("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS")


@dataclass(frozen=True)
class GGUFMix(Scheme):
    """mix: as llama-quantize names it. imatrix: whether it was given an importance matrix, which changes the types of
    some tensors.

    fused: whether the file holds q, k and v of a layer in one tensor.
    """

    mix: str = "Q4_K_M"
    imatrix: bool = False
    fused: bool = False

    def store(self, spec: ModelSpec, found: list[Site], dtype: str) -> Iterator[tuple[Site, Parts]]:
        model = self._rules(spec, found)
        for site in found:
            yield site, model.parts(site)

    def types(self, spec: ModelSpec) -> dict[str, int]:
        """How many tensors have each type, as llama.cpp lists them when it loads a file (F32 ones:
        those of the parameters).
        """
        counts: dict[str, int] = {}
        found = list(sites(spec.tree()))
        model = self._rules(spec, found)
        for site in found:
            if model.category(site) == "attn_qkv" and site.name != "q_proj" and site.tensor.role == "matrix":
                continue  # one tensor with q's
            for kind in model.types(site):
                counts[kind] = counts.get(kind, 0) + 1
        return counts

    def _rules(self, spec: ModelSpec, found: list[Site]) -> _Model:
        """Raises `InputError` for a model that they are not for."""
        if spec.kind == "encoder-decoder":
            raise InputError(
                f"--quantize {self.label}: llama.cpp's mixes are counted for models of one stack; expected a "
                "decoder or an encoder"
            )
        more = next((site.optional for site in found if site.optional), "")
        if more:
            raise InputError(
                f"--quantize {self.label}: its rules are for the model's own layers; expected no "
                f"{OPTIONAL_PARTS[more].option}"
            )
        if not all(isinstance(axis, int) for site in found for axis in (*site.tensor.shape, site.times)):
            raise InputError(
                f"--quantize {self.label}: its rules branch on sizes; expected whole numbers, no arrays and no symbols"
            )
        return _Model(self, spec, found)

    def notes(self) -> list[str]:
        with_matrix = ", with an importance matrix" if self.imatrix else ""
        texts = [
            f"{self.label} ({self.source}): each tensor in the type that llama-quantize {self.mix} gives "
            f"it{with_matrix}"
        ]
        texts.append(
            "norms, biases, routers and tables of positions in F32; metadata and padding of the file are not counted"
        )
        if self.fused:
            texts.append("q, k and v as one tensor (attn_qkv), typed as llama.cpp does since March 2026")
        else:
            texts.append(
                "q, k and v as three tensors; for files that hold them in one (GPT-2, Phi-3, Bloom, …): "
                f"--quantize {self.label}-qkv"
            )
        return [*texts, *self.remarks]

    def unconverted_dtype(self, dtype: str) -> str:
        return "float32"


class _Model:
    """What the rules look at: depth, experts, grouped queries, and how many tensors of a kind came before."""

    def __init__(self, mix: GGUFMix, spec: ModelSpec, found: list[Site]) -> None:
        self.mix, self.layers = mix, spec.main.num_hidden_layers
        ordered = sorted(found, key=lambda site: -1 if site.layer is None else site.layer)  # as a file's tensors are
        self.values = _numbered(_module(site) for site in ordered if self.category(site) in ("attn_v", "attn_qkv"))
        self.downs = _numbered(site.path for site in ordered if _category(site) == "ffn_down")
        self.experts = next(
            (site.tensor.shape[0] for site in found if site.kind == "experts" and len(site.tensor.shape) == 3), 0
        )
        self.tied = not any(_category(site) == "output" for site in found)
        self.gqa = _grouped(found)

    def category(self, site: Site) -> str:
        """The kind of tensor that the rules know it as; empty for one that stays F32."""
        category = _category(site)
        if site.name in ("q_proj", "k_proj", "v_proj") and category:
            beside = {child.name for child in site.parent.children}
            fused = site.kind == "attention" and self.mix.fused and {"q_proj", "k_proj", "v_proj"} <= beside
            return "attn_qkv" if fused or _gated_delta(site) else category
        return category

    def parts(self, site: Site) -> Parts:
        """Bytes of one tensor, or of the two that it is held as."""
        total = Parts()
        for kind, (rows, columns) in zip(self.types(site), _held_as(site), strict=True):
            total += _stored(rows * columns, kind)
        return total

    def types(self, site: Site) -> list[str]:
        """The type of each tensor that one is held as."""
        category = self.category(site)
        if category in ("", "kept"):
            return ["F16" if category else "F32"] * len(_held_as(site))
        wanted = self._type(category, site)
        return [self._fitting(wanted, columns, site) for _, columns in _held_as(site)]

    def _type(self, category: str, site: Site) -> str:
        """llama_tensor_get_type: the mix's type for one tensor."""
        mix, default = self.mix.mix, MIXES[self.mix.mix]
        if category == "output" or (category == "token_embd" and self.tied):
            if mix == "MXFP4_MOE" or site.tensor.shape[-1] % BLOCKS[default][0]:
                return "Q8_0"
            return default if default == "Q8_0" else "Q6_K"
        if mix == "MXFP4_MOE":
            return "MXFP4" if len(site.tensor.shape) == 3 or site.name == "kv_b_proj" else "Q8_0"
        if category in ("attn_v", "attn_qkv"):
            return self._values(mix, default, self.values[_module(site)])
        if category == "attn_k":
            return "Q8_0" if self.experts == 8 else default
        if category == "ffn_down":
            return self._down(mix, default, site)
        if category == "attn_output":
            if self.experts == 8:
                return "Q5_K" if mix in MORE_FOR_EIGHT_EXPERTS else default
            return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(mix, default)
        return default

    def _values(self, mix: str, default: str, i: int) -> str:
        """i: how many layers with such a tensor came before."""
        kind, n = default, len(self.values)
        if mix == "Q2_K":
            kind = "Q4_K" if self.gqa >= 4 else "Q3_K"
        elif mix == "Q3_K_M":
            kind = "Q5_K" if i < 2 else "Q4_K"
        elif mix == "Q3_K_L" or (mix in ("IQ4_NL", "IQ4_XS") and self.gqa >= 4) or (mix == "Q4_K_S" and i < 4):
            kind = "Q5_K"
        elif mix in ("Q4_K_M", "Q5_K_M") and _more_bits(i, n):
            kind = "Q6_K"
        if self.layers == 80 and self.gqa > 1 and kind in ("Q3_K", "Q4_K"):  # what llama.cpp knows as 70B
            kind = "Q5_K"
        return "Q8_0" if self.experts == 8 else kind

    def _down(self, mix: str, default: str, site: Site) -> str:
        n = self.layers
        i = site.layer if self.experts > 1 and site.layer is not None else self.downs[site.path]
        if mix == "Q2_K":
            return "Q3_K"
        if mix == "Q3_K_M":
            return "Q5_K" if i < n // 16 else "Q4_K"
        if mix == "Q3_K_L":
            return "Q5_K"
        if mix in ("Q4_K_M", "Q5_K_M"):
            return "Q6_K" if _more_bits(i, n) else default
        first = i < n // 8
        if first and (mix == "Q4_K_S" or (mix in ("IQ4_NL", "IQ4_XS") and not self.mix.imatrix)):
            return "Q5_K"
        if first and self.mix.imatrix and mix in ("Q4_0", "Q5_0"):
            return {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}[mix]
        return default

    def _fitting(self, kind: str, columns: int, site: Site) -> str:
        """tensor_type_fallback: the type, or another one where rows of `columns` are no whole blocks of it.

        Raises `InputError` where llama-quantize has none; files in Q8_0 are the converter's, which falls back to F16.
        """
        if columns % BLOCKS[kind][0] == 0:
            return kind
        other = FALLBACK.get(kind)
        if other is None:
            if self.mix.mix == "Q8_0":
                return "F16"
            raise InputError(
                f"--quantize {self.mix.label}: {site.path}: rows of {columns:,} are no multiple of {kind}'s "
                f"{BLOCKS[kind][0]}, and llama-quantize has "
                "no other type for it; expected another scheme"
            )
        return other if columns % BLOCKS[other][0] == 0 else "F16"


def _numbered(names: Iterable[str]) -> dict[str, int]:
    """Each name once → how many others came before it."""
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def _module(site: Site) -> str:
    """The path of what its map stands in."""
    return site.path.rpartition(".")[0]


def _more_bits(i: int, n: int) -> bool:
    """The first and last eighth of the layers, and every third of those between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


CATEGORIES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}


def _category(site: Site) -> str:
    """The kind of tensor that the rules know it as;
    empty for one that stays F32, `kept` for one that stays in the converter's 16 bits.
    """
    kind, name = site.kind, site.name
    if site.path in ("embed_tokens", "per_layer_embedding.embed"):
        return "token_embd"
    if site.tensor.role != "matrix" or kind == "router" or name in ("shared_expert_gate", "coefficients"):
        return ""
    beside = {child.name for child in site.parent.children}
    if (
        kind == "streams"
        or site.path == "per_layer_embedding.projection"
        or {"left", "right"} <= beside
        or site.tensor.shape[0] == 1
    ):
        return "kept"  # altup, per_layer_model_proj, laurel; one row is one dimension
    if ".indexer." in site.path:
        return (
            "other" if "weights_proj" in beside else "kept"
        )  # blocks are chosen by maps too small to quantise (MiniMax)
    if kind == "lm_head" and name in ("lm_head", "decoder"):
        return "output"
    if kind in ("feed_forward", "experts", "shared_expert"):
        return "ffn_down" if name == "down_proj" else "other"
    if kind == "attention" or (
        kind == "linear_attention" and {"q_proj", "v_proj", "b_proj"} <= beside and not _gated_delta(site)
    ):  # Kimi's
        return CATEGORIES.get(name, "other")
    return "other"


def _gated_delta(site: Site) -> bool:
    """A gated DeltaNet's: of its maps q, k and v are one tensor, `attn_qkv`, in every file."""
    return site.kind == "linear_attention" and {"a_proj", "b_proj", "v_proj"} <= {
        child.name for child in site.parent.children
    }


def _grouped(found: list[Site]) -> Number:
    """Query heads a key-value head in the first layer (n_gqa): 0 where that has none, 1 in a model without any.

    A converter writes one number for all layers of a model with gated DeltaNets, and one for each layer of other
    hybrids.
    """
    with_keys = [
        site for site in found if site.name == "k_proj" and site.kind == "attention" and ".indexer." not in site.path
    ]
    if not with_keys:
        return 1
    site = min(with_keys, key=lambda one: -1 if one.layer is None else one.layer)
    core = next((child.op for child in site.parent.children if isinstance(child.op, AttentionCore)), None)
    if core is None or (site.layer and not any(_gated_delta(one) for one in found if one.layer == 0)):
        return 1 if core is None else 0
    return core.heads * core.qk_dim // site.tensor.shape[0]


def _held_as(site: Site) -> list[tuple[Number, Number]]:
    """(rows, columns) of the tensors that one is held as."""
    shape = site.tensor.shape
    core = next((child for child in site.parent.children if isinstance(child.op, AttentionCore)), None)
    if site.name == "kv_b_proj" and core is not None and "absorbed" in core.forms:
        expanded, absorbed = core.op, core.forms["absorbed"]
        assert isinstance(expanded, AttentionCore)
        assert isinstance(absorbed, AttentionCore)
        latent, rope = absorbed.v_dim, absorbed.qk_dim - absorbed.v_dim
        nope = expanded.qk_dim - rope
        return [(expanded.heads * latent, nope), (expanded.heads * expanded.v_dim, latent)]
    rows: Number = 1
    for axis in shape[:-1]:
        rows = rows * axis
    return [(rows, shape[-1])]


PLAIN = {"F32": "float32", "F16": "float16"}


def _stored(elements: int, kind: str) -> Parts:
    """Bytes of so many elements in whole blocks."""
    if kind in PLAIN:
        return plain(elements, PLAIN[kind])
    block, codes, scales, minima = BLOCKS[kind]
    count = elements // block
    return Parts(*(n if is_zero(n) else n * count for n in (codes, scales, minima)))
