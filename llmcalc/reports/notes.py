"""Notes and phrases that several reports share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import units
from ..accelerator import Hardware
from ..costs.context_length import too_long_note
from ..flow.tree import Node
from ..model import ModelSpec
from ..ops.base import SKIPPED_PARAM_EFFECTS
from ..sources.library_tags import USUAL_SCHEME
from ..sources.preset import Preset
from ..sources.presets import (
    LIBRARY_ENGINE,
    checkpoint_of_tag,
    is_library_tag,
    larger_file_gigabytes,
    library_scheme,
    names_gguf_file,
)
from ..sources.target_names import normalized
from ..studies.step_size import LARGEST_STEP_TOKENS
from ..workload.workload import Workload

MULTIPLY_ADD = "1 multiply-add = 2 FLOPs"
PRODUCTS_NOTE = (
    f"{MULTIPLY_ADD}; matrix multiplications only, as in torch.utils.flop_counter: embedding lookups, norms, softmax "
    "and activations are not counted"
)
FULL_PAIRS_NOTE = "full pairs: every query against every key (no causal-mask saving)"
CAUSAL_PAIRS_NOTE = "causal pairs: only the pairs that the attention mask allows (causal, sliding-window, chunked)"
PAIRS_NOTES = {"full": FULL_PAIRS_NOTE, "causal": CAUSAL_PAIRS_NOTE}

MLA_NOTES = {
    "expanded": "MLA expanded: kv_b_proj makes keys and values of each head from the latents",
    "absorbed": "MLA absorbed: kv_b_proj is applied to queries and to outputs, and each head attends to the latents",
}
"""Form of latent attention → the operations that it runs (DeepSeek-V2, arXiv:2405.04434, §2.1.2)."""
ONE_OUTPUT_NOTE = "decode: a convolution computes the new token's output alone, from the inputs that its state keeps"
ONE_STEP_NOTE = "decode: a recurrence takes one step from the state that it keeps"
CHOSEN_KEYS_NOTE = (
    "decode: attention reads the chosen keys alone; a pass over several tokens computes all scores and masks"
)

_BINARY_UNITS = {"KiB": "2^10", "MiB": "2^20", "GiB": "2^30", "TiB": "2^40"}


def binary_unit_note(unit_scale: units.UnitScale) -> str:
    """Returns the meaning of a binary unit as a note: `1 GiB = 2^30 bytes`; empty for a decimal unit."""
    return f"1 {unit_scale.name} = {_BINARY_UNITS[unit_scale.name]} bytes" if unit_scale.name in _BINARY_UNITS else ""


def flops_per_token_note(seq: int) -> str:
    """Returns the conventions of FLOPs per token of a forward pass."""
    return (
        f"FLOPs per token: matrix multiplications of a forward pass, {MULTIPLY_ADD}, full pairs, sequences of {seq:,} "
        "tokens, logits at every position"
    )


def cache_per_token_note(dtype: str) -> str:
    """Returns the conventions of the cache's bytes per token."""
    return f"KV cache per token: summed over all layers, before any sliding window fills, in {units.short_dtype(dtype)}"


def relative_error_text(relative_difference: float, reference_text: str) -> str:
    """Returns a relative error as text: `−6.7 % against the exact count` or `equal to the exact count`."""
    if relative_difference == 0:
        return f"equal to {reference_text}"
    return f"{units.signed_percent(relative_difference)} against {reference_text}"


def device_phrase(device_count: int, device_title: str) -> str:
    """Returns a number of accelerators as text, such as `8 × H100 SXM`."""
    return f"{device_count:,} × {device_title}"


def counted_noun(noun_count: int, noun: str) -> str:
    """Returns a number with a noun as text: `1 token` or `2,048 tokens`."""
    return f"{noun_count:,} {noun}" + ("" if noun_count == 1 else "s")


def workload_text(spec: ModelSpec, workload: Workload) -> str:
    """Returns a workload's tokens as text: `2,048 tokens`, `16 × 1 tokens after 8,192`."""
    sequence_count = workload.batch
    new_tokens = (
        counted_noun(workload.seq, "token") if sequence_count == 1 else f"{sequence_count:,} × {workload.seq:,} tokens"
    )
    context_text = f" after {workload.context:,}" if workload.context else ""
    return (
        new_tokens
        + context_text
        + (
            f", {workload.source if spec.source_tokens is None else spec.source_tokens:,} in the encoder"
            if spec.kind == "encoder-decoder"
            else ""
        )
    )


def too_long_notes(spec: ModelSpec, workload: Workload) -> list[str]:
    """Returns a note if a sequence has more tokens than the model's context length.

    A decoding pass is described by the tokens that it reads from the cache.
    """
    longest_length = workload.context if workload.phase == "decode" else workload.context + workload.seq
    if spec.kind == "encoder-decoder":
        longest_length = max(longest_length, workload.source)
    length_note = too_long_note(spec, longest_length)
    return [length_note] if length_note else []


def large_step_notes(sequence_count: int, seq: int) -> list[str]:
    """Returns a note if a training step has more tokens than any published one, because it may be a typing error.

    sequence_count: those of a step of all devices. seq: tokens of each.
    """
    if sequence_count * seq <= LARGEST_STEP_TOKENS:
        return []
    count_text, token_text = units.count(sequence_count), units.count(sequence_count * seq)
    return [
        f"a step of {count_text} sequences has {token_text} tokens, more than the 128M of the largest published one; "
        f"--global-batch counts sequences: {max(1, sequence_count // seq)} for {count_text} tokens"
    ]


def gguf_tag_notes(preset: Preset, scheme_name: str | None) -> list[str]:
    """Returns notes on the format that a GGUF file's name states or has by default, and on its default context.

    scheme_name: value of `--quantize`; None for the published weights.
    """
    if not names_gguf_file(preset.target):
        return []
    from ..frameworks.engines.registry import engine

    library_scheme, scheme_remark = engine(LIBRARY_ENGINE).usual_scheme or ("", "")
    tagged_checkpoint = checkpoint_of_tag(preset.target)
    if tagged_checkpoint is not None:
        library_scheme, scheme_remark = tagged_checkpoint[1], tagged_format_note(tagged_checkpoint[1], preset.target)
    if scheme_name != library_scheme:
        return [*preset.run_notes]
    return [scheme_remark, *larger_file_notes(preset.target), *preset.run_notes]


def larger_file_notes(tag: str) -> list[str]:
    """Returns a note on the size of a tag's files, if they have more bits than are counted; empty for other tags."""
    gigabytes = larger_file_gigabytes(tag)
    if gigabytes is None:
        return []
    return [
        f"Ollama's file of this tag has {gigabytes:g} GB, with tensors in more bits than {USUAL_SCHEME} has; the "
        "buffers of llama.cpp and Ollama are counted with its size, other figures without it"
    ]


def tagged_format_note(scheme_name: str, tag_name: str) -> str:
    """Returns a note on the weight format in a GGUF file's name: `weights in q8_0, as the tag says`.

    tag_name: a tag of Ollama's library, or a repository of GGUF files, whose first file is q4_k_m
    where it names no type.
    """
    format_text = "16 bits" if scheme_name == "none" else scheme_name
    if scheme_name == library_scheme(tag_name) and normalized(scheme_name) not in normalized(tag_name):
        return f"weights in {format_text}, as this tag has in Ollama's library (see `ollama show`)"
    origin_text = "which llama.cpp and Ollama take of a repository where no type is named"
    tag_name = tag_name.partition("?")[0]
    if (
        scheme_name == "none" or ":" in tag_name or normalized(scheme_name) in normalized(tag_name)
    ):  # 16 bits are no default
        origin_text = f"as the {'tag' if ':' in tag_name else 'name'} says"
    return f"weights in {format_text}, {origin_text}"


def unread_format_notes(preset: Preset) -> list[str]:
    """Returns a note if a config describes its stored weights in an unsupported way, which `memory` refuses."""
    from ..costs.quantization.config import UnsupportedScheme, scheme_of_config

    try:
        scheme_of_config(preset.config)
    except UnsupportedScheme as error:
        return [f"the format of the weights is not read ({error.reason.partition(';')[0]}): counted as without it"]
    return []


def published_tag_notes(preset: Preset, software_title: str, command: str = "") -> list[str]:
    """Returns a note if the question names a GGUF file for software that cannot read such files.

    software_title: the software, which loads the published weights.
    command: the command, such as `llmcalc time`, that takes engines of such files; default the question's own.
    """
    if preset.quantization_config is not None or not names_gguf_file(preset.target):
        return []
    command_text = f"{command} " if command else ""
    if not is_library_tag(preset.target):
        return [
            f"weights as published: GGUF files are not modelled in {software_title} "
            f"({command_text}--engine llama.cpp reads them)"
        ]
    return [
        f"weights as published: {software_title} reads no tag of Ollama's library "
        f"({command_text}--engine {LIBRARY_ENGINE} does)"
    ]


def float16_notes(hardware: Hardware, dtype: str = "bf16") -> list[str]:
    """Returns a note on products that are timed in float16 in place of bfloat16. dtype: the format of the products."""
    if dtype != "bf16" or not hardware.has_only_float16_peak:
        return []
    return [f"products in 16 bits are in fp16: no peak of bf16 is known for {hardware.title}"]


def warnings_of_notes(preset: Preset, notes: Sequence[str]) -> list[str]:
    """Returns notes as warnings, each preceded by the model's name."""
    return [f"{preset.name}: {note}" for note in notes]


def identity_experts_note(node_tree: Node) -> str:
    """Returns a note about tokens routed to identity experts; empty for a model without identity experts."""
    ops = (node_position.node.op for node_position in node_tree.walk())
    identity_ops: Any = dict.fromkeys(op for op in ops if op is not None and op.effects >= SKIPPED_PARAM_EFFECTS)
    expert_counts_text = ", ".join(
        f"{identity_op.expert_layers[0].top_k} of {identity_op.expert_layers[0].num_experts:,} beside "
        f"{identity_op.identity_count:,}"
        for identity_op in identity_ops
    )
    return (
        f"upper bound: every token is counted with real experts ({expert_counts_text} identity experts, which hold and "
        "compute nothing)"
        if identity_ops
        else ""
    )


def aliases_note(aliases: Sequence[str]) -> str:
    """Returns a note on an accelerator's other names: `also called: h100, h100-80gb`; empty without other names."""
    return f"also called: {', '.join(aliases)}" if aliases else ""
