"""The memory of classes of `transformers` beside llmcalc's, with what the difference consists of.

`FAMILIES` has a preset of each family, at its real width with few layers, and the differences between what its class
saves for the backward pass and what llmcalc counts for the same kernels: each a formula in the batch b and the tokens t.
`tests/data/class_memory.json` has what was measured; `python -m tests.verify.class_memory [PRESET…]` measures again and
rewrites it, and `--differences PRESET` prints which tensors only one side saves.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from llmcalc.formulas.kept import Pass, kept_blocks
from llmcalc.kernels.choices import Choices
from llmcalc.sources.target import load
from llmcalc.sources.to_hf import to_config
from llmcalc.verify import storages
from llmcalc.verify.class_memory import AllReal, class_to_train, held_by
from llmcalc.verify.storages import Held
from tests.builders import json_lines, spec_of
from tests.kernels.models import without_values

RECORD = Path(__file__).parents[1] / "data" / "class_memory.json"
CASES = Path(__file__).parents[1] / "data" / "cases"
BATCH = 2


@dataclass(frozen=True)
class Difference:
    """What a class saves beyond llmcalc, or less. what: why. bytes: (b, t) → how much."""

    what: str
    bytes: Callable[[int, int], int]


@dataclass(frozen=True)
class Family:
    """A preset of a family, and how its class differs.

    layers: of each stack, as many as the preset's kinds of layers need. differences: all of them, to the byte.
    reason: for a class that computes something in another way altogether, in which; empty for all others.
    seq: tokens of a sequence.
    """

    layers: int
    differences: tuple[Difference, ...] = ()
    reason: str = ""
    seq: int = 512
    changes: Mapping[str, Any] = field(default_factory=dict)


# --- differences, in bytes: b sequences of t tokens --------------------------------------------------------------------


def mask(cores: int, tokens: int | None = None) -> Difference:
    """cores: attention layers with a mask. tokens: of a sequence of another length."""
    return Difference("masked_fill saves a Boolean mask; the class adds a float one", lambda b, t: -cores * (tokens or t) ** 2)


def rope(size: int, kinds: int = 1) -> Difference:
    """size: rotated numbers of a head, of each of which cos and sin are 2 bytes per token; the reference has them once
    per pair. kinds: tables.
    """
    return Difference("cos and sin of every pair twice", lambda b, t: kinds * 2 * 2 * t * (size // 2))


def rope_in_float32(size: int) -> Difference:
    """As `rope`, in 4 bytes instead of 2."""
    return Difference("cos and sin twice, in float32", lambda b, t: 2 * t * (4 * size - 2 * (size // 2)))


def rope_repeated(copies: int, size: int) -> Difference:
    """copies: of cos and of sin, for queries and for keys, that all layers make."""
    return Difference("each layer repeats cos and sin", lambda b, t: 2 * t * (copies * size - 2 * (size // 2)))


def low_softmax(cores: int, heads: int, queries: int | None = None, keys: int | None = None) -> Difference:
    """The probabilities in 4 bytes, which the reference keeps beside those in 2."""
    return Difference("softmax in bfloat16", lambda b, t: -cores * 4 * b * heads * (queries or t) * (keys or t))


def gelu(networks: int, width: int) -> Difference:
    """Step by step it keeps 4 tensors beside its result; as one kernel its input alone."""
    return Difference("GELU step by step", lambda b, t: networks * 3 * 2 * b * t * width)


def late_weight(norms: int, width: int, rows: int = 1) -> Difference:
    """x / rms and its product with the weight, 4 bytes each, instead of x / rms in 4 and in 2.

    rows: of each token, for norms of heads.
    """
    return Difference("norms multiply by their weight in float32", lambda b, t: norms * 2 * b * t * rows * width)


def one_plus_weight(norms: int, width: int) -> Difference:
    return Difference("norms keep 1 + weight", lambda b, t: norms * 4 * width)


def positions(count: int) -> Difference:
    """count: of all tokens, in place of those of one sequence."""
    return Difference("positions of every sequence", lambda b, t: count * 8 * (b - 1) * t)


def no_positions(count: int = 1, tokens: int | None = None) -> Difference:
    return Difference("positions are a buffer", lambda b, t: -count * 8 * (tokens or t))


def unsorted(layers: int, top_k: int, width: int) -> Difference:
    """The reference adds the rows of experts to their tokens, and torch's index_add saves them; an index saves its
    numbers, of 8 bytes.
    """
    return Difference("experts' rows are put back by an index", lambda b, t: layers * b * t * top_k * (8 - 2 * width))


def routed(what: str, layers: int, top_k: int, chosen: int, token: int = 0) -> Difference:
    """chosen: bytes for each expert of a token. token: bytes for each token."""
    return Difference(what, lambda b, t: layers * b * t * (top_k * chosen + token))


def float32_weights(layers: int, top_k: int) -> Difference:
    return routed("experts' weights stay in float32", layers, top_k, 2)


def float32_router(layers: int, experts: int, width: int) -> Difference:
    """Its input and its weight, copied."""
    return Difference("router in float32", lambda b, t: layers * 4 * (b * t + experts) * width)


def constant(what: str, bytes: int) -> Difference:
    return Difference(what, lambda b, t: bytes)


def per_row(what: str, bytes: int) -> Difference:
    return Difference(what, lambda b, t: bytes * b * t)


FALLBACK = "its scan step by step, as without the packages of the published kernels; llmcalc counts these kernels"
"""Why the classes of recurrent models save several times the bytes."""

FAMILIES: dict[str, Family] = {
    # Llama and kin
    "llama-3.1-8b": Family(2, (mask(2), rope(128))),
    "ministral-8b-2410": Family(2, (mask(2), rope(128))),
    "qwen2.5-7b": Family(2, (mask(2), rope(128))),
    "qwen3-0.6b": Family(2, (mask(2), rope(128))),
    "phi-4": Family(2, (mask(2), rope(128))),
    "granite-3.0-8b": Family(2, (mask(2), rope(128))),
    "hunyuan-7b": Family(2, (mask(2), rope(128))),
    "bitnet-b1.58-2b": Family(2, (mask(2), rope(128))),
    "exaone-4.0-1.2b": Family(2, (mask(2), rope(64))),
    "smollm3-3b": Family(4, (mask(4), rope(128))),
    "apertus-70b": Family(2, (mask(2), rope(128), constant("xIELU's numbers in bfloat16", -4))),
    "minicpm3-4b": Family(2, (mask(2), rope(32), constant("the scale of the embedding", 2))),
    "glm-4-32b-0414": Family(2, (mask(2), rope_repeated(4, 64))),
    "olmo-1b": Family(2, (mask(2), rope_in_float32(128), per_row("norms keep the mean", 5 * 4))),
    "olmo-2-7b": Family(2, (mask(2), rope_in_float32(128), late_weight(9, 4096))),
    "olmo-3-32b": Family(4, (mask(4), rope_in_float32(128), late_weight(13, 5120), late_weight(4, 128, 8))),
    "command-r-v01": Family(2, (mask(2), rope(128), per_row("norms in float32", 3 * 6 * 8192), constant("norms' weight in float32", 3 * 4 * 8192))),
    "command-a-03-2025": Family(4, (mask(4), rope(128), per_row("norms in float32", 5 * 6 * 12288), constant("norms' weight in float32", 5 * 4 * 12288))),
    "gemma-2b": Family(2, (mask(2), rope(256), late_weight(5, 2048), one_plus_weight(5, 2048))),
    "gemma-2-9b": Family(2, (mask(2), rope(256), late_weight(9, 3584), one_plus_weight(9, 3584), per_row("caps its logits", 2 * 256000))),
    "gemma3-1b": Family(6, (mask(6), rope(256, 2), late_weight(25, 1152), late_weight(6, 256, 4), late_weight(6, 256), one_plus_weight(25, 1152), one_plus_weight(12, 256))),
    # GPT and kin
    "gpt2-medium": Family(2, (mask(2), low_softmax(2, 16), gelu(2, 4096))),
    "gpt1": Family(2, (mask(2), low_softmax(2, 12), gelu(2, 3072), no_positions())),
    "gpt-neo-125m": Family(2, (mask(2), gelu(2, 3072), per_row("queries and keys in float32", 2 * 2 * 2 * 768))),
    "gpt-j-6b": Family(2, (mask(2), rope_repeated(8, 64), gelu(2, 16384), per_row("queries and keys in float32", 2 * 2 * 2 * 4096))),
    "pythia-160m": Family(2, (mask(2), rope(16))),
    "opt-6.7b": Family(2, (mask(2), positions(1))),
    "xglm-564m": Family(2, (mask(2), low_softmax(2, 16))),
    "bloom-560m": Family(2, (mask(2),)),
    "mpt-7b": Family(2),
    "falcon-7b": Family(2, (mask(2), rope(64), low_softmax(2, 71), constant("indices −1 and −2", 2 * 2 * 8))),
    "starcoder-15b": Family(2, (mask(2),)),
    "starcoder2-15b": Family(2, (mask(2), rope(128))),
    "stablelm-2-1.6b": Family(2, (mask(2), rope(16))),
    "phi-2": Family(2, (mask(2), rope(32), gelu(2, 10240))),
    "nemotron-mini-4b": Family(2, (mask(2), rope(64), constant("norms keep 1 + weight", 5 * 2 * 3072))),
    # encoders, and models of both stacks
    "bert-base-uncased": Family(2, (mask(2), low_softmax(2, 12), no_positions())),
    "roberta-base": Family(2, (mask(2), low_softmax(2, 12), positions(2))),
    "electra-small": Family(2, (mask(2), low_softmax(2, 4), no_positions())),
    "albert-base-v2": Family(2, (mask(2), low_softmax(2, 12), gelu(2, 3072), gelu(1, 128), no_positions())),
    "deberta-v3-base": Family(2, (mask(2), low_softmax(2, 12))),
    "modernbert-base": Family(3, (mask(3), rope(64))),
    "eurobert-210m": Family(2, (mask(2), rope(64))),
    "nomic-embed-text-v1": Family(2, (mask(2), low_softmax(2, 12), rope(64), positions(1))),
    "t5-11b": Family(2, (mask(4), low_softmax(6, 128), per_row("norms keep their input in bfloat16, too", 12 * 2 * 1024))),
    "bart-base": Family(2, (mask(4), low_softmax(6, 12), positions(1), no_positions())),
    "m2m100-1.2b": Family(2, (mask(4), low_softmax(6, 16))),
    "pegasus-large": Family(2, (mask(4), low_softmax(6, 16), no_positions(2))),
    "whisper-large-v3": Family(
        2,
        (
            mask(2),
            mask(2, 1500),
            low_softmax(2, 20),
            low_softmax(2, 20, 1500, 1500),
            low_softmax(2, 20, None, 1500),
            positions(1),
            no_positions(1, 1500),
        ),
    ),
    # mixtures of experts
    "mixtral-8x7b": Family(2, (mask(2), rope(128), unsorted(2, 2, 4096), float32_weights(2, 2))),
    "qwen3-30b-a3b": Family(2, (mask(2), rope(128), unsorted(2, 8, 2048))),
    "qwen1.5-moe-a2.7b": Family(2, (mask(2), rope(128), unsorted(2, 4, 2048), routed("weights of experts that are not divided by their sum", 2, 4, -4, -4))),
    "olmoe-1b-7b": Family(2, (mask(2), rope(128), unsorted(2, 8, 2048), routed("weights of experts that are not divided by their sum", 2, 8, -4, -4))),
    "minimax-m2.5": Family(2, (mask(2), rope(64), unsorted(2, 8, 3072), float32_weights(2, 8))),
    "granite-3.0-1b-a400m": Family(2, (mask(2), rope(64), unsorted(2, 8, 1024))),
    "deepseek-v2-lite": Family(2, (mask(2), unsorted(1, 6, 2048), float32_router(1, 64, 2048))),
    "deepseek-v3": Family(4, (mask(4), rope(64), unsorted(1, 8, 7168), float32_weights(1, 8), float32_router(1, 256, 7168))),
    "glm-4.5-air": Family(2, (mask(2), rope(64), unsorted(1, 8, 4096), float32_weights(1, 8), float32_router(1, 128, 4096))),
    "dots.llm1": Family(2, (mask(2), rope(128), unsorted(1, 6, 4096), float32_weights(1, 6), float32_router(1, 128, 4096))),
    "glm-5.2": Family(4, (mask(4), rope(64), unsorted(1, 8, 6144), float32_weights(1, 8), float32_router(1, 256, 6144))),
    "trinity-large": Family(8, (mask(8), rope(128), unsorted(2, 4, 3072), float32_weights(2, 4), late_weight(33, 3072))),
    "gpt-oss-120b": Family(2, (mask(2), unsorted(2, 4, 2880), late_weight(5, 2880))),
    # convolutions and recurrent layers
    "lfm2-1.2b": Family(6, (mask(2), rope(64), Difference("convolutions are padded on both sides", lambda b, t: 4 * 2 * b * 2048 * 2))),
    "mamba-130m": Family(2, reason=FALLBACK, seq=64),
    "mamba2-2.7b": Family(2, reason=FALLBACK),
    "falcon-h1-0.5b": Family(2, reason=FALLBACK),
    "granite-4.0-h-micro": Family(6, reason=FALLBACK),
    "nemotron-h-8b": Family(10, reason=FALLBACK),
    "bamba-9b": Family(10, reason=FALLBACK),
    "zamba2-7b": Family(8, reason=FALLBACK),
    "qwen3-next-80b-a3b": Family(4, reason=FALLBACK),
    "rwkv-4-169m": Family(2, reason=FALLBACK, seq=64),
    "recurrentgemma-2b": Family(3, reason=FALLBACK, seq=64),
}
"""Published config or preset → how its class differs."""


# --- measuring --------------------------------------------------------------------------------------------------------


LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")
"""The names that configs give to their numbers of layers."""


def config_of(name: str) -> dict[str, Any]:
    """A published config with few layers; that of a preset's text model where `tests/data/cases` has none."""
    family, path = FAMILIES[name], CASES / name / "config.json"
    if not path.exists():
        model = load(name).model
        stacks = [stack for stack in ("encoder", "decoder") if getattr(model, stack) is not None]
        changes = tuple(f"{stack}.num_hidden_layers={family.layers}" for stack in stacks)
        return {**to_config(load(name, changes).model), **family.changes}
    config = json.loads(path.read_text())
    whole = next(config[field] for field in LAYERS if field in config)
    for field, value in config.items():
        if field in LAYERS:
            config[field] = family.layers
        elif isinstance(value, list | str) and len(value) == whole:
            config[field] = value[: family.layers]
    return {**config, **family.changes}


def norm_of(model: torch.nn.Module) -> str:
    """The kernels of llmcalc that run a class's norms: `fused` if they are torch's LayerNorm."""
    norms = [module for module in model.modules() if "norm" in type(module).__name__.lower()]
    return "fused" if all(isinstance(module, torch.nn.LayerNorm) for module in norms) else "eager"


def measured(name: str, batch: int = BATCH, seq: int | None = None) -> tuple[str, Choices, Held, Held]:
    """The class, the kernels of llmcalc that are compared with it, its bytes and those of llmcalc."""
    seq = FAMILIES[name].seq if seq is None else seq
    config = config_of(name)
    spec, model = spec_of(config), class_to_train(config)
    choices = Choices(norm="fused" if norm_of(model) == "fused" else "eager")
    return type(model).__name__, choices, held_by(spec, model, batch, seq), without_values(spec, batch, seq, choices=choices)


def explained(name: str, batch: int = BATCH, seq: int | None = None) -> dict[str, int]:
    """Difference → its bytes."""
    family = FAMILIES[name]
    sizes: Counter[str] = Counter()
    for difference in family.differences:
        sizes[difference.what] += difference.bytes(batch, family.seq if seq is None else seq)
    return dict(sizes)


# --- which tensors ----------------------------------------------------------------------------------------------------


class Named(AllReal):
    """Notes in which module and by which operation every storage was made."""

    made: dict[int, str] = {}
    modules: list[str] = []

    def _follow(self, tensor: torch.Tensor, func: Any) -> None:
        key = tensor.untyped_storage()._cdata
        if key not in self.seen:
            module = re.sub(r"\.\d+(?=\.|$)", "", self.modules[-1]) if self.modules else ""
            self.made[key] = f"{module} {func} {list(tensor.shape)} {tensor.dtype}"
        super()._follow(tensor, func)


def saved_by_class(config: dict[str, Any], batch: int, seq: int) -> list[tuple[int, str]]:
    """(bytes, origin) of everything that a class saves."""
    model, found = class_to_train(config), list[tuple[int, str]]()
    Named.made, Named.modules = {}, []
    for path, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, path=path: Named.modules.append(path))
        module.register_forward_hook(lambda *_: Named.modules.__delitem__(-1))

    def saved(out: torch.Tensor, known: set[Any], device: str) -> int:
        kept = {t.untyped_storage()._cdata: t for t in storages.saved_tensors(out) if t.device.type == device}
        found.extend((t.untyped_storage().nbytes(), Named.made.get(key, "")) for key, t in kept.items() if key not in known)
        return 0

    with patch.object(storages, "saved_bytes", saved):
        held_by(spec_of(config), model, batch, seq, Named)
    return found


def differences(name: str) -> Iterator[str]:
    """Lines that name the tensors that only one side saves."""
    config, seq = config_of(name), FAMILIES[name].seq
    _, choices, theirs, ours = measured(name)
    yield f"{name}: class {theirs.saved:,}, llmcalc {ours.saved:,}, difference {theirs.saved - ours.saved:,}"
    yield f"named: {explained(name)}, left {theirs.saved - ours.saved - sum(explained(name).values()):,}"
    blocks = kept_blocks(spec_of(config), Pass(BATCH, seq, choices=choices))
    sides = {
        "class": saved_by_class(config, BATCH, seq),
        "llmcalc": [(block.bytes, ".".join(name for name, _ in block.made.path)) for block in blocks],
    }
    counts = {side: Counter(size for size, _ in found) for side, found in sides.items()}
    for side, other in (("class", "llmcalc"), ("llmcalc", "class")):
        for size, more in sorted((counts[side] - counts[other]).items()):
            origins = {each: Counter(where for n, where in sides[each] if n == size) for each in (side, other)}
            yield f"{side}: {more} more of {size:,} bytes"
            yield from (f"    {each}: {n} × {where}" for each in origins for where, n in origins[each].items())


# --- the record -------------------------------------------------------------------------------------------------------


def recorded() -> dict[str, dict[str, Any]]:
    """Preset → its class, the kernels compared, [class, llmcalc] for each quantity, and the differences in bytes."""
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    return found


def record(name: str) -> dict[str, Any]:
    """What is recorded of a family. Raises `AssertionError` if its differences do not add up."""
    family = FAMILIES[name]
    cls, choices, theirs, ours = measured(name)
    named = explained(name)
    assert family.reason or theirs.saved - ours.saved == sum(named.values()), (name, theirs, ours, named)
    both = {field: [getattr(theirs, field), getattr(ours, field)] for field in Held._fields}
    return {"class": cls, "norm": choices.norm, "layers": family.layers, "batch": BATCH, "seq": family.seq, **both, "differences": named}


def main() -> None:
    if sys.argv[1:2] == ["--differences"]:
        for name in sys.argv[2:]:
            print("\n".join(differences(name)))
        return
    known = recorded() if RECORD.exists() else {}
    for name in sys.argv[1:] or FAMILIES:
        known[name] = record(name)
    RECORD.write_text(json_lines({name: known[name] for name in FAMILIES if name in known}) + "\n")


if __name__ == "__main__":
    main()
