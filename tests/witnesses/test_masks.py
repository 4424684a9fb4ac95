"""Causal pairs against the class: the (query, key) pairs that the masks of transformers allow, per head and layer.

A pass on a CPU with eager attention returns the weights of every head; masked pairs have weight 0. The pass is longer
than every window.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch

from llmcalc.model import ModelSpec
from llmcalc.ops import AttentionCore
from llmcalc.sources.huggingface.registry import family_of, model_types
from llmcalc.witnesses.transformers import add_channel_axis, required_inputs
from llmcalc.witnesses.transformers_class import class_config_fields, class_model_type, class_name_of
from llmcalc.workload.derived_rows import EmbeddingRows, MultipliedRows, PatchVectors
from llmcalc.workload.rows import FixedRows, SourceTokenRows
from llmcalc.workload.run_config import RunConfig
from tests.builders import WITH_CLASSES, run_config, spec_of

SEQ = 40
WITHOUT_WEIGHTS = {
    *("falcon_mamba", "fnet", "longt5", "mamba", "mamba2", "moonshine", "pegasus_x", "rwkv", "speech_to_text"),
    *("canary", "cohere_asr", "kyutai_speech_to_text", "moonshine_streaming", "speecht5", "voxtral_realtime_text"),
    *("whisper", "xlstm"),
}
"""Families whose classes have no attention, return its weights by block, or read audio."""

IDLE = {
    "blip_text_model",
    "evolla",
    "idefics",
    "kosmos_2_text_model",
    "kosmos_2_5_text_model",
    "mllama_text_model",
    "pix2struct_text_model",
    "pp_formulanet_text",
    "trocr",
}
"""Families whose classes attend to an image or a protein, which these passes do not have, or that the library does not
export.
"""

OTHERWISE = {
    "cpmant": "starts with biases so large that weights of allowed pairs are 0",
    "diffllama": "gives the difference of two maps as one",
    "moshi": "masks no token in a pass, whose cache then keeps those of the window",
    "minimax": "gives those of its linear attention too",
    "mra": "without its kernels computes no attention",
    "prophetnet": "gives those of its predict streams under another name",
    "yoso": "gives the output of its heads in place of the weights",
}


def shapes(file: str, every: bool) -> Iterator[tuple[str, dict[str, Any], ModelSpec]]:
    """Yields (its name, a config, its spec) of a file's shapes with a window, a chunk or a selection of keys, and one
    other shape; with `every`, one of every model type.
    """
    met: set[str] = set()
    for cls, some in import_module(f"tests.families.{file}").SHAPES.items():
        for i, shape in enumerate(some):
            kind = shape["model_type"]
            config = {"architectures": [cls], **shape, **IN_ORDER.get(kind, {})}
            if kind in WITHOUT_WEIGHTS | OTHERWISE.keys() | IDLE or "SequenceClassification" in cls:
                continue
            spec = spec_of(config)
            if (kind not in met if every else not met) or _narrowed(spec):
                met.add(kind)
                yield f"{cls}-{i}", config, spec


CROSSED = (SourceTokenRows, FixedRows)
"""Rows of keys that belong to another sequence."""

VECTORS = (MultipliedRows, PatchVectors)
"""Rows of learned vectors and of patches, which are another sequence than the tokens."""

IN_ORDER = {"reformer": {"attn_layers": ["local", "local"]}}
"""Model type → fields of its shapes here: the mask of tokens sorted by a hash depends on their values."""

BY_MODULE = {"blt"}
"""Families whose classes give the weights of some of their stacks alone: here those of each attention module."""


def _cores(spec: ModelSpec) -> list[tuple[AttentionCore, int, RunConfig]]:
    """Every attention op with attention weights; an indexer's scores only select keys, those of profiles are a bias."""
    places = spec.tree().walk(run_config(seq=SEQ, pairs="causal"))
    attending = (
        p for p in places if isinstance(p.node.op, AttentionCore) and not isinstance(p.node.op.keys, EmbeddingRows)
    )
    attending = (p for p in attending if not p.optional_part)
    return [(p.node.op, p.copies, p.run_config) for p in attending if not {"no_grad", "idle"} & {*p.roles}]  # type: ignore[misc]


def _narrowed(spec: ModelSpec) -> bool:
    cores = _cores(spec)
    return any(value is not None for core, _, _ in cores for value in (core.window, core.chunk, core.selected_keys))


def _crosses(core: AttentionCore) -> bool:
    """Whether the keys belong to another sequence, or the queries are vectors that read a sequence."""
    reads = core.keys is not None and isinstance(core.rows, VECTORS)
    return reads or isinstance(core.keys, (*CROSSED, *VECTORS))


def _seen(weights: Any) -> int:
    return sum(int((layer != 0).sum()) for layer in weights or () if layer is not None)


def _weights_by_module(model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[int, int]:
    """Attention weights that are not 0, without the rows of equal ones where a mask allows no key, in two groups."""
    seen = {"SelfAttention": 0, "CrossAttention": 0}
    for path, module in model.named_modules():
        ending = next((ending for ending in seen if type(module).__name__.endswith(ending)), None)
        if ending is not None and "patcher" not in path.split("."):  # it only says where patches end

            def count(_: Any, inputs: Any, output: Any, ending: str = ending) -> None:
                has_keys = (output[1] != output[1][..., :1]).any(-1, keepdim=True)
                seen[ending] += int(((output[1] != 0) & has_keys).sum())

            module.register_forward_hook(count)
    with torch.no_grad():
        model(**inputs)
    return seen["SelfAttention"], seen["CrossAttention"]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["one", "every type"])
@pytest.mark.parametrize("file", WITH_CLASSES)
def test_pairs_are_those_that_the_mask_of_the_class_lets_through(file: str, every: bool) -> None:
    for name, config, spec in shapes(file, every):
        weights, counted = _weights(config, spec), _counted(spec)
        assert weights == counted, name
        assert weights[0], name


def _counted(spec: ModelSpec) -> tuple[int, int]:
    """Causal pairs of all heads: among a stack's own tokens, and with the encoder's tokens."""
    own = crossed = 0
    for core, times, run in _cores(spec):
        pairs = core.heads * core.pairs(run) * times
        own, crossed = (own, crossed + pairs) if _crosses(core) else (own + pairs, crossed)
    return own, crossed


def _weights(config: dict[str, Any], spec: ModelSpec) -> tuple[int, int]:
    """Attention weights of the class that are not 0, in the same two groups."""
    import transformers

    class_config = transformers.AutoConfig.for_model(
        class_model_type(config["model_type"]), **class_config_fields(config)
    )
    class_config._attn_implementation, class_config._experts_implementation = "eager", "batched_mm"
    torch.manual_seed(0)
    model = getattr(transformers, class_name_of(config))(class_config).eval()
    ids = torch.randint(3, 19, (1, SEQ))  # tokens of every vocabulary, of a text or of a codebook
    inputs: dict[str, Any] = {"input_ids": ids if spec.encoder is not None else add_channel_axis(model, ids)}
    if spec.main.stem is not None:
        inputs = {spec.main.stem.input_name: torch.randn(spec.main.stem.input_shape(1, SEQ))}
    if spec.kind == "encoder-decoder":
        inputs["decoder_input_ids"] = add_channel_axis(model, ids)
    inputs |= required_inputs(model, 1, SEQ)
    if config["model_type"] in {"fsmt", "blt"}:  # with one token, FSMT's class builds no mask; BLT's has no cache
        inputs |= {"use_cache": False}
    if config["model_type"] in BY_MODULE:
        return _weights_by_module(model, inputs)
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)
    self_attention_weights = sum(
        _seen(getattr(out, name, None)) for name in ("attentions", "encoder_attentions", "decoder_attentions")
    )
    return self_attention_weights, _seen(getattr(out, "cross_attentions", None))


def test_every_family_is_here_or_says_why_not() -> None:
    here = {config["model_type"] for file in WITH_CLASSES for _, config, _ in shapes(file, True)}
    read = {kind for kind in model_types() if family_of(kind).read_model is not None and not family_of(kind).source}
    assert read - here == {*WITHOUT_WEIGHTS, *OTHERWISE, *IDLE}
