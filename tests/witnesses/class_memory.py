"""The memory of classes of `transformers` beside llmcalc's, and what the difference consists of.

A class is other people's code: what it saves for the backward pass differs from what the reference saves, which
`llmcalc memory --attn-implementation eager` counts. `FAMILIES` has a published config of each family, at its real width
with few layers, and all differences: each is a formula in the sequences b and their tokens t, and together they are the
difference to the byte. b is at least 2, because torch copies less of a batch of one.

`tests/data/class_memory.json` has what was measured. `python -m tests.witnesses.class_memory [NAME…]` measures again
and rewrites it; with `--differences NAME…` it prints which tensors only one side saves, and who makes them.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.sources.huggingface.registry import family_of
from llmcalc.sources.target import load
from llmcalc.sources.to_hf import to_config
from llmcalc.symbolic.saved_bytes import RecordedPass, saved_blocks
from tests.builders import json_lines, spec_of
from tests.simulator import witness
from tests.simulator.models import without_values
from tests.simulator.witness import Held
from tests.witnesses.class_step import AllReal, class_to_train, held_by

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
    """A published config with few layers, and how its class differs.

    layers: of each stack, enough for its kinds of layers. differences: all of them, to the byte.
    reason: for a class that computes something in another way altogether, in which; empty (default) for all others.
    seq: tokens of a sequence; fewer for classes that loop over them.
    """

    layers: int
    differences: tuple[Difference, ...] = ()
    reason: str = ""
    seq: int = 512


# --- differences, in bytes: b sequences of t tokens -------------------------------------------------------------------


def mask(cores: int, tokens: int | None = None) -> Difference:
    """Each attention layer's masked_fill saves one byte per pair of tokens; the class adds a mask, which saves nothing.

    cores: attention layers with a mask. tokens: of a sequence; None for t.
    """
    return Difference("no Boolean mask", lambda b, t: -cores * (tokens or t) ** 2)


def rope_in_float32(size: int, kinds: int = 1) -> Difference:
    """cos and sin of 4 bytes instead of 2 for each rotated number of a head.

    size: the rotated numbers. kinds: tables of the class, where the reference has one.
    """
    return Difference("cos and sin in float32", lambda b, t: 2 * t * size * (kinds * 4 - 2))


def rope_repeated(copies: int, size: int) -> Difference:
    """Layers make cos and sin for every number anew. copies: the tables that all layers together make."""
    return Difference("cos and sin anew in every layer", lambda b, t: 2 * t * (copies - 2) * size)


def low_softmax(cores: int, heads: int, queries: int | None = None, keys: int | None = None) -> Difference:
    """The reference keeps its probabilities in 4 bytes, beside those in 2, which dropout of the class keeps too.

    cores: attention layers. queries, keys: of a sequence; None for t.
    """
    return Difference("softmax in bfloat16", lambda b, t: -cores * 4 * b * heads * (queries or t) * (keys or t))


def positions(count: int) -> Difference:
    """The positions (or segments) of all tokens, 8 bytes each, instead of those of one sequence. count: tables."""
    return Difference("positions of every sequence", lambda b, t: count * 8 * (b - 1) * t)


def no_positions(count: int = 1, what: str = "positions are a buffer") -> Difference:
    """count: tables."""
    return Difference(what, lambda b, t: -count * 8 * t)


def unsorted(layers: int, top_k: int, width: int, element_bytes: int = 2) -> Difference:
    """An index puts the rows of experts back into the order of tokens, and saves its numbers of 8 bytes; the reference
    adds them to their tokens, and torch's index_add saves the rows. element_bytes: of a weighted row, 4 in float32.
    """
    return Difference(
        "experts' rows are not kept to put them back", lambda b, t: layers * b * t * top_k * (8 - element_bytes * width)
    )


def routed(what: str, layers: int, top_k: int, chosen: int, token: int = 0) -> Difference:
    """layers: those with experts. chosen: bytes for each expert of a token. token: bytes for each token."""
    return Difference(what, lambda b, t: layers * b * t * (top_k * chosen + token))


def undivided(layers: int, top_k: int) -> Difference:
    """Neither the scores of the chosen experts nor their sum is kept."""
    return routed("experts' weights are not divided by their sum", layers, top_k, -4, -4)


def scores_of_chosen(layers: int, experts: int) -> Difference:
    """The reference's scores of all experts, in 4 bytes, and the sum of the chosen ones."""
    return routed("router scores only chosen experts", layers, 0, 0, -4 * (experts + 1))


def constant(what: str, bytes: int) -> Difference:
    """The same for any number of tokens."""
    return Difference(what, lambda b, t: bytes)


def per_token(what: str, bytes: int) -> Difference:
    """Bytes for each token."""
    return Difference(what, lambda b, t: bytes * b * t)


FALLBACK = "its scan in single steps, as without the packages of kernels; llmcalc counts the kernels"
"""How classes of recurrent models run on meta."""

EVERY_SEQUENCE = "no Boolean mask of every sequence"

FAMILIES: dict[str, Family] = {
    # Llama and kin
    "llama-3.1-8b": Family(2, (mask(2),)),
    "ministral-8b-2410": Family(2, (mask(2),)),
    "qwen2.5-7b": Family(2, (mask(2),)),
    "qwen3-0.6b": Family(2, (mask(2),)),
    "phi-4": Family(2, (mask(2),)),
    "granite-3.0-8b": Family(2, (mask(2),)),
    "hunyuan-7b": Family(2, (mask(2),)),
    "bitnet-b1.58-2b": Family(2, (mask(2),)),
    "exaone-4.0-1.2b": Family(2, (mask(2),)),
    "smollm3-3b": Family(4, (mask(4),)),
    "apertus-70b": Family(2, (mask(2), constant("xIELU's numbers in bfloat16", -4))),
    "minicpm3-4b": Family(2, (mask(2), constant("the scale of the embedding", 2))),
    "glm-4-32b-0414": Family(2, (mask(2), rope_repeated(4, 64))),
    "olmo-1b": Family(2, (mask(2), rope_in_float32(128), per_token("norms keep the mean", 5 * 4))),
    "olmo-2-7b": Family(2, (mask(2), rope_in_float32(128))),
    "olmo-3-32b": Family(4, (mask(4), rope_in_float32(128, 2))),
    "command-r-v01": Family(
        2,
        (
            mask(2),
            constant("norms' weight in float32", 3 * 4 * 8192),
        ),
    ),
    "command-a-03-2025": Family(
        4,
        (
            mask(4),
            constant("norms' weight in float32", 5 * 4 * 12288),
        ),
    ),
    "gemma-2b": Family(2, (mask(2),)),
    "gemma-2-9b": Family(
        2,
        (mask(2), per_token("caps its logits", 2 * 256000)),
    ),
    "gemma-3-27b": Family(
        6,
        (mask(6),),
    ),
    "gemma-4-26b-a4b": Family(
        6,
        (
            mask(6),
            Difference("cos and sin of what a head does not rotate", lambda b, t: 2 * 2 * t * (512 - 128)),
            per_token("norms keep the mean square", 4 * (49 + 5 * (16 + 8 + 8) + 16 + 2 + 2)),
            constant("norms' weight in float32", 4 * (43 * 2816 + 10 * 256 + 2 * 512)),
            per_token("caps its logits", 2 * 262144),
            unsorted(6, 8, 2816, 4),
        ),
    ),
    # GPT and kin
    "gpt2-medium": Family(2, (mask(2),)),
    "gpt1": Family(2, (mask(2), no_positions())),
    "gpt-neo-125m": Family(2, (mask(2),)),
    "gpt-j-6b": Family(2, (mask(2), rope_repeated(8, 64))),
    "pythia-160m": Family(2, (mask(2),)),
    "opt-6.7b": Family(2, (mask(2), positions(1))),
    "xglm-564m": Family(
        2,
        (
            mask(2),
            Difference("torch.max keeps the masked scores", lambda b, t: 2 * (2 * b * 16 * t * t + 4)),
        ),
    ),
    "bloom-560m": Family(2, (mask(2),)),
    "mpt-7b": Family(4, (Difference("one mask of every sequence for all layers", lambda b, t: (b - 4) * t * t),)),
    "falcon-7b": Family(2, (mask(2), constant("indices −1 and −2", 2 * 2 * 8))),
    "starcoder-15b": Family(2, (mask(2),)),
    "starcoder2-15b": Family(2, (mask(2),)),
    "stablelm-2-1.6b": Family(2, (mask(2),)),
    "phi-2": Family(2, (mask(2),)),
    "nemotron-mini-4b": Family(2, (mask(2),)),
    # encoders, and models of both stacks
    "bert-base-uncased": Family(2, (mask(2), low_softmax(2, 12), no_positions())),
    "roberta-base": Family(2, (mask(2), low_softmax(2, 12), positions(2))),
    "electra-small": Family(2, (mask(2), low_softmax(2, 4), no_positions())),
    "albert-base-v2": Family(2, (mask(2), low_softmax(2, 12), no_positions())),
    "deberta-v3-base": Family(
        2,
        (
            Difference("a mask of every sequence", lambda b, t: 2 * (b - 1) * t * t),
            per_token("queries are kept once for two products", -2 * 2 * 768),
            per_token("masks its embeddings", 2),
        ),
    ),
    "modernbert-base": Family(3, (mask(3), Difference("cos and sin of both bases", lambda b, t: 2 * 2 * t * 64))),
    "eurobert-210m": Family(2, (mask(2),)),
    "nomic-embed-text-v1": Family(2, (mask(2), low_softmax(2, 12), positions(1))),
    "t5-11b": Family(2, (mask(4),)),
    "bart-base": Family(2, (mask(4), low_softmax(6, 12), positions(1))),
    "m2m100-1.2b": Family(2, (mask(4), low_softmax(6, 16))),
    "pegasus-large": Family(2, (mask(4), low_softmax(6, 16), no_positions(2, "positions are not trained"))),
    "whisper-large-v3": Family(
        2,
        (
            mask(2),
            mask(2, 1500),
            low_softmax(2, 20),
            low_softmax(2, 20, 1500, 1500),
            low_softmax(2, 20, None, 1500),
            positions(1),
        ),
    ),
    # mixtures of experts
    "mixtral-8x7b": Family(2, (mask(2), unsorted(2, 2, 4096, 4))),
    "qwen3-30b-a3b": Family(2, (mask(2), unsorted(2, 8, 2048))),
    "qwen1.5-moe-a2.7b": Family(2, (mask(2), unsorted(2, 4, 2048), undivided(2, 4))),
    "olmoe-1b-7b": Family(2, (mask(2), unsorted(2, 8, 2048), undivided(2, 8))),
    "minimax-m2.5": Family(2, (mask(2), unsorted(2, 8, 3072, 4))),
    "granite-3.0-1b-a400m": Family(2, (mask(2), unsorted(2, 8, 1024), scores_of_chosen(2, 32))),
    "deepseek-v2-lite": Family(
        2,
        (
            mask(2),
            unsorted(1, 6, 2048, 4),
            undivided(1, 6),
        ),
    ),
    "deepseek-v3": Family(4, (mask(4), unsorted(1, 8, 7168, 4))),
    "glm-4.5-air": Family(2, (mask(2), unsorted(1, 8, 4096, 4))),
    "dots.llm1": Family(
        2,
        (
            mask(2),
            unsorted(1, 6, 4096, 4),
            undivided(1, 6),
        ),
    ),
    "glm-5.2": Family(
        4,
        (
            Difference(
                EVERY_SEQUENCE,
                lambda b, t: -4 * b * t * t,
            ),
            unsorted(1, 8, 6144, 4),
        ),
    ),
    "trinity-large": Family(
        8,
        (
            mask(8),
            unsorted(2, 4, 3072, 4),
        ),
    ),
    "llama-4-scout": Family(4, reason="every expert on every token"),
    "gpt-oss-120b": Family(
        2,
        (
            mask(2),
            Difference("cos and sin of every pair once", lambda b, t: -2 * 2 * t * (64 - 64 // 2)),
            Difference("index of each query's largest score, with its sink", lambda b, t: 2 * b * 64 * t * 8),
            unsorted(2, 4, 2880),
            scores_of_chosen(2, 128),
            routed("experts' weights in bfloat16", 2, 4, -2),
        ),
    ),
    # convolutions and recurrent layers
    "lfm2-1.2b": Family(
        6, (mask(2), Difference("convolutions are padded on both sides", lambda b, t: 4 * 2 * b * 2048 * 2))
    ),
    "mamba-130m": Family(2, reason=FALLBACK, seq=64),
    "mamba2-2.7b": Family(2, reason=FALLBACK),
    "falcon-h1-0.5b": Family(2, reason=FALLBACK),
    "granite-4.0-h-micro": Family(6, reason=FALLBACK),
    "nemotron-h-8b": Family(10, reason=FALLBACK),
    "bamba-9b": Family(10, reason=FALLBACK),
    "zamba2-7b": Family(8, reason=FALLBACK),
    "qwen3-next-80b-a3b": Family(4, reason=FALLBACK),
    "qwen3.5-35b-a3b": Family(4, reason=FALLBACK),
    "rwkv-4-169m": Family(2, reason=FALLBACK, seq=64),
    "recurrentgemma-2b": Family(3, reason="another loop over tokens, with float32 states; caps its logits", seq=64),
}
"""A folder of `tests/data/cases`, or a preset, → how its class differs."""


# --- measuring --------------------------------------------------------------------------------------------------------


LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
"""The names that configs give to their numbers of layers."""


def config_of(name: str) -> dict[str, Any]:
    """A published config with few layers; that of a preset's text model where `tests/data/cases` has none."""
    family, path = FAMILIES[name], CASES / name / "config.json"
    if not path.exists():
        model = load(name).model
        stacks = [stack for stack in ("encoder", "decoder") if getattr(model, stack) is not None]
        changes = tuple(f"{stack}.num_hidden_layers={family.layers}" for stack in stacks)
        return to_config(load(name, changes).model)
    config: dict[str, Any] = json.loads(path.read_text())
    config = config.get("text_config", config)
    whole = next(config[field] for field in LAYERS if field in config)
    for field, value in config.items():
        if field in LAYERS:
            config[field] = family.layers
        elif isinstance(value, list | str) and len(value) == whole:
            config[field] = value[: family.layers]
    return config


def kernels_of(model: torch.nn.Module) -> KernelChoices:
    """The kernels of llmcalc that run what a class runs: norms are fused if all are torch's LayerNorm."""
    norms = [module for module in model.modules() if "norm" in type(module).__name__.lower()]
    return KernelChoices(norm="fused" if all(isinstance(module, torch.nn.LayerNorm) for module in norms) else "eager")


def measured(
    name: str, batch: int = BATCH, seq: int | None = None, dropout: float = 0.0
) -> tuple[str, KernelChoices, Held, Held]:
    """The class, the kernels of llmcalc that are compared with it, its bytes and those of llmcalc.

    dropout: the probability of dropout wherever the family's classes read one.
    """
    seq = FAMILIES[name].seq if seq is None else seq
    config = config_of(name)
    config |= dict.fromkeys(family_of(config["model_type"]).dropout_fields.values(), dropout)
    spec, model = spec_of(config), class_to_train(config)
    choices = kernels_of(model)
    with in_training(model) if dropout else nullcontext():
        theirs = held_by(spec, model, batch, seq)
    ours = without_values(spec, batch, seq, choices=choices)
    return type(model).__name__, choices, theirs, ours


@contextmanager
def in_training(model: torch.nn.Module) -> Iterator[None]:
    """Trains a class with dropout in one kernel, as on a GPU, and with all of its layers."""

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(x, p, True)[0] if training and p else x

    for module in model.train().modules():
        if hasattr(module, "layerdrop"):
            module.layerdrop = 0.0
    with patch.object(torch.nn.functional, "dropout", dropout):
        yield


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

    def _track_tensor(self, tensor: torch.Tensor, func: Any) -> None:
        key = tensor.untyped_storage()._cdata
        if key not in self.tracked:
            module = re.sub(r"\.\d+(?=\.|$)", "", self.modules[-1]) if self.modules else ""
            self.made[key] = f"{module} {func} {list(tensor.shape)} {tensor.dtype}"
        super()._track_tensor(tensor, func)


def saved_by_class(config: dict[str, Any], batch: int, seq: int) -> list[tuple[int, str]]:
    """(bytes, origin) of everything that a class saves."""
    model, found = class_to_train(config), list[tuple[int, str]]()
    Named.made, Named.modules = {}, []
    for path, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, path=path: Named.modules.append(path))
        module.register_forward_hook(lambda *_: Named.modules.__delitem__(-1))

    def saved(out: torch.Tensor, known: set[Any], device: str) -> int:
        saved_by_storage = {
            t.untyped_storage()._cdata: t for t in witness.saved_tensors(out) if t.device.type == device
        }
        found.extend(
            (t.untyped_storage().nbytes(), Named.made.get(key, ""))
            for key, t in saved_by_storage.items()
            if key not in known
        )
        return 0

    with patch.object(witness, "saved_bytes", saved):
        held_by(spec_of(config), model, batch, seq, Named)
    return found


def differences(name: str) -> Iterator[str]:
    """Lines that name the tensors that only one side saves."""
    config, seq = config_of(name), FAMILIES[name].seq
    _, choices, theirs, ours = measured(name)
    yield f"{name}: class {theirs.saved:,}, llmcalc {ours.saved:,}, difference {theirs.saved - ours.saved:,}"
    yield f"named: {explained(name)}, left {theirs.saved - ours.saved - sum(explained(name).values()):,}"
    blocks = saved_blocks(spec_of(config), RecordedPass(BATCH, seq, kernel_choices=choices))
    sides = {
        "class": saved_by_class(config, BATCH, seq),
        "llmcalc": [(block.bytes, ".".join(name for name, _ in block.creator_location.path)) for block in blocks],
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
    return {
        "class": cls,
        "norm": choices.norm,
        "layers": family.layers,
        "batch": BATCH,
        "seq": family.seq,
        **both,
        "differences": named,
    }


def classes_table() -> str:
    """The families, with what their classes and llmcalc save, in MB."""
    lines = [
        "| config | layers | class | saves | llmcalc | `--norm` | difference | because |",
        "|:---|---:|:---|---:|---:|:---|---:|:---|",
    ]
    for name, found in recorded().items():
        theirs, ours = found["saved"]
        why = "; ".join(f"{what} ({_megabytes(size, '+')})" for what, size in found["differences"].items())
        cells = [
            name,
            str(found["layers"]),
            found["class"],
            _megabytes(theirs),
            _megabytes(ours),
            found["norm"],
            "equal" if theirs == ours else f"{100 * (theirs / ours - 1):+.2f} %".replace("-", "−"),
            FAMILIES[name].reason or why,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _megabytes(size: int, sign: str = "") -> str:
    """Bytes as MB; fewer than 50 kB as kB or B."""
    for unit, text in ((10**6, "MB"), (10**3, "kB")):
        if abs(size) * 20 >= unit:
            return f"{size / unit:{sign},.1f} {text}".replace("-", "−")
    return f"{size:{sign}} B".replace("-", "−")


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
