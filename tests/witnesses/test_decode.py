"""FLOPs of one decoded token against the class, for every family that decodes: one pass fills the cache, and the next
reads it with a single token.

The counts follow the conventions for decoding in the README. If a class runs more than that, `MORE` states the extra
work, the reason and the families. The count with it equals the class's, and without it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from inspect import signature
from math import prod
from typing import Any

import pytest

from llmcalc.algebra import Number
from llmcalc.costs.flops import forward_flops_of
from llmcalc.flow.tree import CountedOp
from llmcalc.model import ModelSpec
from llmcalc.ops import (
    AttentionCore,
    BlockAttentionCore,
    Conv1d,
    Elementwise,
    EntryAttentionCore,
    Linear,
    Op,
    PooledAttentionCore,
)
from llmcalc.sources.huggingface.description import text_model_of
from llmcalc.sources.huggingface.registry import TYPES_BY_FILE
from llmcalc.witnesses.deviations import total_cost_in_class
from llmcalc.witnesses.module_measurements import count_flops
from llmcalc.witnesses.transformers import (
    CACHE_NAMES,
    add_channel_axis,
    build_class_model,
    cache_argument,
    meta_device_quirks,
    required_inputs,
)
from llmcalc.witnesses.transformers_class import family_of_class
from llmcalc.workload.execution import LatentForm
from llmcalc.workload.rows_with_past import RowsWithPast
from tests.builders import WITH_CLASSES, run_config, spec_of

BATCH, CONTEXT = 2, 40


def _one_more_output(op: Op) -> Op:
    return replace(op, overlap_outputs=op.overlap_outputs + 1) if isinstance(op, Conv1d) else op


def _no_product(op: Op) -> Op:
    return Elementwise() if isinstance(op, Conv1d) else op


def _every_key(op: Op) -> Op:
    if isinstance(op, EntryAttentionCore):
        return replace(op, chosen_entries=None)
    if isinstance(op, BlockAttentionCore):
        return replace(op, blocks=CONTEXT)
    if isinstance(op, PooledAttentionCore):
        return replace(op, selected_keys=op.pool_size * CONTEXT)
    if isinstance(op, AttentionCore):
        return replace(op, selected_keys=None)
    if isinstance(op, Linear) and isinstance(op.rows, RowsWithPast):
        return replace(op, rows=replace(op.rows, selected_keys=None, pool_size=None))
    return op


def _no_window(op: Op) -> Op:
    return replace(op, window=None) if isinstance(op, AttentionCore) else op


@dataclass(frozen=True)
class More:
    """Work of classes that the count does not include.

    families: model types.
    follow: returns an op as the classes run it.
    mla: the form of latent attention that they run.
    times: the number of times that they process each token.
    extra: FLOPs beyond those of the ops.
    """

    why: str
    families: str
    follow: Callable[[Op], Op] = lambda op: op
    mla: LatentForm = "auto"
    times: int = 1
    extra: Callable[[ModelSpec], int] = lambda spec: 0


def _source_projection(spec: ModelSpec) -> int:
    assert spec.encoder is not None
    width = spec.encoder.hidden_size or spec.hidden_size
    return 2 * BATCH * CONTEXT * width * (spec.encoder.output_size or 0)


MORE: Mapping[str, More] = {
    "latents": More(
        "for each token the class makes keys and values of every cached latent again; decoding is counted absorbed",
        "axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 dots3_note_text glm4_moe_lite glm5_next_text "
        "glm_moe_dsa hy_v4 kimi_k2 kimi_linear longcat_flash minicpm3 mistral4 mistral_large4_text youtu",
        mla="expanded",
    ),
    "convolutions": More(
        "without its kernel the class runs a convolution over the new input and all that its state keeps, which is one "
        "more than the kernel's width, and drops the first of two outputs",
        "bailing_hybrid bamba falcon_h1 falcon_mamba glm5_next_text granitemoehybrid inkling2_text inkling_text jamba "
        "kimi_linear lfm2 lfm2_moe lfm3 mamba mamba2 nemotron_h olmo_hybrid qwen3_5_moe_text qwen3_5_text qwen3_next "
        "qwen4_exp_text zamba zamba2",
        _one_more_output,
    ),
    "convolution by hand": More(
        "the class multiplies and sums the inputs of one token's convolution element by element",
        "recurrent_gemma",
        _no_product,
    ),
    "chosen keys": More(
        "eager attention computes the scores of all keys and masks those that are not chosen; decoding is counted over "
        "the chosen ones",
        "axk2 deepseek_v32 deepseek_v4 dots3_note_text glm5_next_text glm_moe_dsa hy_v4 minimax_m3_vl_text "
        "mistral_large4_text qwen4_exp_text",
        _every_key,
    ),
    "windows": More("its local layers keep and read every token", "gpt_neo", _no_window),
    "sequences": More(
        "the class adds the state of every sequence to each of them, so that a batch of two is run as four",
        "rwkv",
        times=BATCH,
    ),
    "source": More(
        "for each token the class projects the encoder's output to the decoder's width again, whose keys and values "
        "are cached",
        "cohere_asr moonshine_streaming",
        extra=_source_projection,
    ),
}
WITHOUT_CACHE = {"openai-gpt": "its class keeps no cache"}
EXCEPTIONS = frozenset({*WITHOUT_CACHE, *(kind for one in MORE.values() for kind in one.families.split())})
TAKES_ALL_IDS = frozenset({"cpmant"})
"""Model types whose class takes the ids of the cached tokens again, and computes the new ones."""
READS_VALUES = frozenset({"granite4_vision_text", "granite_docling_text"})
"""Model types whose class reads values of tensors where it puts images in, which meta has not."""
ENCODERS = {
    *(
        "albert",
        "camembert",
        "convbert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "dpr",
        "electra",
        "neomme",
        "esm",
        "esmc",
        "siglip_text_model",
        "siglip2_text_model",
        "eurobert",
        "flaubert",
    ),
    *(
        "fnet",
        "funnel",
        "gte",
        "ibert",
        "jina_embeddings_v3",
        "layoutlm",
        "layoutlmv3",
        "longformer",
        "luke",
        "mobilebert",
        "modernbert",
        "mpnet",
        "mra",
    ),
    *("nomic_bert", "nystromformer", "openai_privacy_filter", "perceiver", "squeezebert", "tapas", "ultrabert", "xlm"),
    *("embedding_gemma2_text", "xlm-roberta", "xlnet", "yoso"),
    *("wav2vec2", "hubert", "unispeech", "unispeech-sat", "data2vec-audio"),
}
"""Families of encoder-only models or classifiers, which do not decode."""
LIMITS = ("window", "chunk", "selected", "limit", "chosen", "keys")
"""Fields of ops that limit the tokens read."""


def _kinds(spec: ModelSpec) -> set[Any]:
    """The ops of a model by type and limits."""
    ops = [op for p in spec.tree().walk() if p.node.op is not None for op in (p.node.op, *p.node.ops_by_form.values())]
    return {(type(op), *(limit for limit in LIMITS if getattr(op, limit, None) is not None)) for op in ops}


@cache
def decoders(file: str) -> tuple[tuple[str, dict[str, Any], ModelSpec], ...]:
    """Returns (its name, a config, its spec) of every shape of a file that decodes."""
    found = []
    for cls, some in import_module(f"tests.families.{file}").SHAPES.items():
        for i, shape in enumerate(some):
            config = {"architectures": [cls], **shape}
            spec = spec_of(config)
            if spec.kind != "encoder" and spec.head.type != "classification":
                found.append((f"{cls}-{shape['model_type']}-{i}", config, spec))
    return tuple(found)


@cache
def shapes(file: str, whole: bool = True) -> tuple[tuple[str, dict[str, Any], ModelSpec], ...]:
    """Returns the first decoding shape of each family with an exception, and every shape with a kind of op that no
    earlier shape of any file has.

    whole: the first shape of each family, and every shape with a kind of op that no earlier shape of the file has.
    """
    families: set[str] = set()
    known: set[Any] = set() if whole else kinds_before(file)
    chosen = []
    for name, config, spec in decoders(file):
        kinds = _kinds(spec)
        family = config["model_type"]
        is_first = family not in families and (whole or family in EXCEPTIONS)
        if is_first or not kinds <= known:
            chosen.append((name, config, spec))
        families.add(family)
        known |= kinds
    return tuple(chosen)


def kinds_before(file: str) -> set[Any]:
    """Returns the kinds of ops of the files before this one."""
    earlier = WITH_CLASSES[: WITH_CLASSES.index(file)]
    return {kind for other in earlier for kind in file_kinds(other)}


@cache
def file_kinds(file: str) -> frozenset[Any]:
    return frozenset(kind for _, _, spec in decoders(file) for kind in _kinds(spec))


FILES_WITH_SHAPES = [(file, False) for file in WITH_CLASSES if shapes(file, False)]
EVERY_FILE = [(file, True) for file in WITH_CLASSES]


@pytest.mark.parametrize(
    ("file", "whole"),
    [
        *(pytest.param(*case, id=f"{case[0]}-every op") for case in FILES_WITH_SHAPES),
        *(pytest.param(*case, id=f"{case[0]}-every family", marks=pytest.mark.exhaustive) for case in EVERY_FILE),
    ],
)
def test_a_decoded_token_costs_what_its_class_does(file: str, whole: bool) -> None:
    """The count with all entries of its family equals the class's, and each entry changes the count of some shape."""
    listed, needed = set(), set()
    for name, config, spec in shapes(file, whole):
        family = config["model_type"]
        if family in READS_VALUES:
            continue
        if family in WITHOUT_CACHE:
            assert not {*CACHE_NAMES} & {*signature(build_class_model(config).forward).parameters}
            continue
        more = {key for key, one in MORE.items() if family in one.families.split()}
        counted = _counted(config, spec, more)
        assert _measured(config, spec) == counted, name
        listed |= {(key, family) for key in more}
        needed |= {(key, family) for key in more if _counted(config, spec, more - {key}) != counted}
    assert needed == listed


def _counted(config: dict[str, Any], spec: ModelSpec, more: set[str]) -> Any:
    """FLOPs of one token after others, with the extra work of the class."""
    found = [MORE[key] for key in more]

    def cost(use: CountedOp) -> Number:
        op = use.op
        for one in found:
            op = one.follow(op)
        return forward_flops_of(replace(use, op=op))

    form: LatentForm = next((one.mla for one in found if one.mla != "auto"), "auto")
    run = run_config(batch=BATCH, seq=1, context=CONTEXT, source=CONTEXT, phase="decode", mla=form)
    counted = prod(one.times for one in found) * total_cost_in_class(
        text_model_of(config)[2], "forward_flops", cost, spec, run
    )
    return counted + sum(one.extra(spec) for one in found)


def _measured(config: dict[str, Any], spec: ModelSpec) -> int:
    """FLOPs of one token after others, measured on the class."""
    import torch
    from transformers import DynamicCache

    model: Any = build_class_model(config)
    device = next(model.parameters()).device
    ids = add_channel_axis(model, torch.randint(3, spec.vocab_size - 1, (BATCH, CONTEXT)).to(device))
    name = "input_ids"
    inputs: dict[str, Any] = {"use_cache": True}
    makes_mask = type(model).__name__.endswith(
        meta_device_quirks(config).mask_making_classes
    )  # then it reads values of the ids
    if spec.encoder is not None:
        stem, masks = spec.encoder.stem, {}
        if makes_mask:
            masks = {"attention_mask": torch.zeros(BATCH, 1, 1, 1, dtype=torch.bfloat16, device=device)}
            inputs |= masks | {f"decoder_{key}": mask for key, mask in masks.items()}
        masks |= required_inputs(model, BATCH, CONTEXT)
        source = (
            ids if stem is None else torch.empty(stem.input_shape(BATCH, CONTEXT), dtype=torch.bfloat16, device=device)
        )
        encoder = model.get_encoder()
        first = next(iter(signature(encoder.forward).parameters))  # Pop2Piano's features take the place of embeddings
        sources = {"inputs_embeds" if stem is not None and first == "input_ids" else first: source}
        name, inputs["encoder_outputs"] = "decoder_input_ids", encoder(**sources, **masks)
    empty = {cache_argument(model): DynamicCache(config=model.config)} if makes_mask and spec.encoder is None else {}
    more = [{} if spec.encoder is not None else required_inputs(model, BATCH, seq) for seq in (CONTEXT, 1)]
    out = model(**{name: ids}, **inputs, **empty, **more[0])
    word = next((word for word in CACHE_NAMES if word in out), "")
    kept = {word: out[word]} if word else {}
    if not kept:  # the class fills a given cache, and creates none
        kept = {cache_argument(model): DynamicCache(config=model.config)}
        model(**{name: ids}, **inputs, **kept)
    next_ids = torch.cat([ids, ids[:, :1]], 1) if config["model_type"] in TAKES_ALL_IDS else ids[:, :1]
    measured, _ = count_flops(model, lambda: model(**{name: next_ids}, **inputs, **kept, **more[1]))
    return measured[""]


def test_every_family_that_decodes_is_here() -> None:
    """A wrapper with vision or audio decodes with the text model of another family, which is included."""
    here = {config["model_type"] for file in WITH_CLASSES for _, config, _ in shapes(file)}
    for kind in (kind for file in WITH_CLASSES for kind in TYPES_BY_FILE[file]):
        text: str | None = kind
        while text is not None and text not in here | ENCODERS:
            family = family_of_class(text)
            assert family is not None
            text = family.text_type
        assert text is not None, kind
    assert {kind for one in MORE.values() for kind in one.families.split()} | {*WITHOUT_CACHE} <= here
    assert not here & ENCODERS
