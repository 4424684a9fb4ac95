"""Training steps over the grid of what can be chosen, such that every part meets every value of every option.

A case is a small model and one value of each option. The seeded sample `cases()` covers each pair (part, option =
value) that torch can run at least once; `LEFT_OUT` names the others, with the reason. The full grid has every example
of every part, with every value of every option by itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from llmcalc.components.base import Component
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.mla import MLA
from llmcalc.components.stack import Stack
from llmcalc.costs.trained_tensors import trained_tensors
from llmcalc.device_memory.training import TrainingConfig
from llmcalc.model import ModelSpec
from llmcalc.optional import MTP
from llmcalc.simulator.adapters import Adapters
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.liveness import module_scopes_below
from llmcalc.simulator.tensor import BFLOAT16, FLOAT32
from llmcalc.workload.expert_capacity import parse_expert_capacity
from llmcalc.workload.recompute import RECOMPUTE_MODES, parse_recompute
from tests.contracts.test_parts import ATTENTION, FEED_FORWARD, HIDDEN, NORM, around_a_model, decoder
from tests.simulator.compare import examples

Values: TypeAlias = Mapping[str, str]
"""Option → its value."""

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "--recompute": (*RECOMPUTE_MODES, "every:2", "nodes"),
    "--attn-implementation": ("eager", "sdpa-math", "flash"),
    "--norm": ("eager", "fused"),
    "--cross-entropy": ("eager", "fused", "chunked"),
    "--logits-dtype": ("default", "bfloat16"),
    "--precision": ("bf16", "fp32", "autocast", "bf16-master"),
    "--optimizer": ("adamw", "sgd", "sgd with momentum", "adafactor", "muon"),
    "--optimizer-impl": ("foreach", "fused", "loop"),
    "--num-microbatches": ("1", "2"),
    "--zero-grad": ("none", "zeros"),
    "--lora": ("none", "fp32", "bf16 with dropout"),
    "--moe": ("dropless", "capacity:0.75", "capacity:1.5"),
    "sizes": ("1 x 9", "2 x 7"),
}
"""Option → its values. `nodes` stands for one of the modules of the model's layers."""


# --- models -----------------------------------------------------------------------------------------------------------

EXAMPLES = examples()

RECURRENT = (
    "DeltaNet",
    "Retention",
    "HGRN2",
    "GatedLinearAttention",
    "GatedDeltaNet",
    "Mamba",
    "Mamba2",
    "KimiDeltaAttention",
    "JetBlock",
    "RGLRU",
    "RwkvTimeMix",
    "LightningAttention",
    "MLSTM",
)
"""Parts whose published kernels hold other tensors than the reference's loop (tests/simulator/published). Their layers
stand here with another mixer.
"""

AS_WIDE = MLA(num_attention_heads=4, kv_lora_rank=12, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=8)


def encoder(**fields: Any) -> ModelSpec:
    """A small encoder with these parts in its stack, or beside it."""
    block = Block(attention=ATTENTION, feed_forward=FEED_FORWARD, norm=NORM, norm_placement="post")
    beside = {name: fields.pop(name) for name in ("head", "pooler", "contact_head") if name in fields}
    stack = Stack(num_hidden_layers=2, block=block, **fields)
    return ModelSpec(vocab_size=50, hidden_size=HIDDEN, tie_word_embeddings=False, encoder=stack, **beside)


@cache
def models() -> dict[str, ModelSpec]:
    """Models in which every part stands, most of them with several."""
    part = EXAMPLES
    ascii_replacement = Attention(num_attention_heads=4)
    layers = {
        "gemma": part["Gemma4Layer-0"],
        "shortcut": part["ShortcutLayer-1"],
        "hybrid": part["HybridBlock-0"].model_copy(update={"state_space": ascii_replacement}),
        "zamba": part["ZambaLayer-1"].model_copy(update={"attention": ascii_replacement}),
    }
    several = Stack(num_hidden_layers=5, block=part["GatedNormLayer-0"], variants=layers, pattern=("block", *layers))
    return {
        "latent": decoder(
            attention=AS_WIDE, feed_forward=part["MoE-4"], head=part["LMHead-1"], mtp=part["MultiTokenPrediction-0"]
        ),
        "convolved": decoder(
            attention=part["CompressedConvAttention-1"],
            feed_forward=part["ProductKeyMoE-0"],
            position=part["LearnedPositions-1"],
            norm=part["Norm-0"],
        ),
        "differential": decoder(
            attention=part["DifferentialAttention-1"],
            feed_forward=part["RwkvChannelMix-0"],
            position=part["SinusoidalPositions-0"],
            unused_embedding=part["UnusedEmbedding-0"],
        ),
        "compressed": around_a_model(part["CompressedAttention-1"]),
        "shared entries": around_a_model(part["SharedCompressedKVAttention-2"]),
        "dynamic mask": around_a_model(part["DynamicMaskAttention-0"]),
        "attention of experts": around_a_model(part["MixtureOfAttention-0"]),
        "short convolution": around_a_model(part["ShortConv-1"]),
        "bias": around_a_model(part["RelativeBias-0"]),
        "local": around_a_model(part["LocalAttention-0"]),
        "by distance": around_a_model(part["RelativeAttention-1"]),
        "disentangled": around_a_model(part["RelativeEmbedding-0"]),
        "beside": encoder(
            second_stream=part["SecondStream-0"],
            token_types=part["TokenTypes-0"],
            side_convolution=part["SideConvolution-0"],
            contact_head=part["ContactHead-0"],
            pooler=part["Pooler-2"],
        ),
        "classifier": around_a_model(part["Classifier-0"]),
        "merged": around_a_model(part["MergedAttention-0"]),
        "frames": around_a_model(part["ConvStem-0"]),
        "layers": ModelSpec(vocab_size=50, hidden_size=HIDDEN, tie_word_embeddings=False, decoder=several),
    }


def parts_of(value: Any) -> Iterator[str]:
    """The names of all kinds of parts in a spec."""
    if isinstance(value, Component):
        yield type(value).__name__
    if isinstance(value, ModelSpec | Component):
        for name in type(value).model_fields:
            yield from parts_of(getattr(value, name))
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from parts_of(one)


@cache
def parts_in(model: str) -> frozenset[str]:
    """The kinds of parts in a model that have examples."""
    return frozenset(parts_of(models()[model])) & PARTS


PARTS = frozenset(name.rpartition("-")[0] for name in EXAMPLES) - {"GatedCrossLayer"}
"""The kinds of parts that have examples, without the layer that is idle on text."""


# --- what torch cannot run --------------------------------------------------------------------------------------------

SEVERAL_CORES = "one softmax over several cores is eager, and not checkpointed by itself"
BIASED = "its scores have a bias, which the fused kernels do not take"
TWICE = "torch refuses: each layer goes backward through a tensor that all of them read"
NO_LOGITS = "there is no language-model head, and so no loss over logits"
FUSED_ATTENTION = ("sdpa-math", "flash")

LEFT_OUT: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("CompressedAttention", "--attn-implementation"): dict.fromkeys(FUSED_ATTENTION, SEVERAL_CORES),
    ("CompressedAttention", "--recompute"): dict.fromkeys(("attention", "selective"), SEVERAL_CORES),
    ("SharedCompressedKVAttention", "--attn-implementation"): dict.fromkeys(FUSED_ATTENTION, SEVERAL_CORES),
    ("SharedCompressedKVAttention", "--recompute"): dict.fromkeys(("attention", "selective"), SEVERAL_CORES),
    ("MergedAttention", "--attn-implementation"): dict.fromkeys(FUSED_ATTENTION, SEVERAL_CORES),
    ("MergedAttention", "--recompute"): {
        "attention": SEVERAL_CORES,
        "selective": SEVERAL_CORES,
        "full-reentrant": TWICE,
    },
    ("LocalAttention", "--attn-implementation"): dict.fromkeys(FUSED_ATTENTION, "blocks of keys are eager alone"),
    ("DynamicMaskAttention", "--attn-implementation"): dict.fromkeys(FUSED_ATTENTION, BIASED),
    ("RelativeAttention", "--attn-implementation"): dict.fromkeys(FUSED_ATTENTION, BIASED),
    ("RelativeBias", "--attn-implementation"): dict.fromkeys(FUSED_ATTENTION, BIASED),
    ("RelativeBias", "--recompute"): {"full-reentrant": TWICE},
    ("RelativeEmbedding", "--attn-implementation"): dict.fromkeys(FUSED_ATTENTION, BIASED),
    ("RelativeEmbedding", "--recompute"): {"full-reentrant": TWICE},
    ("ConvStem", "--recompute"): {"full-reentrant": TWICE},
    ("MixtureOfAttention", "--precision"): {"autocast": "torch has no grouped product of bf16 rows and fp32 weights"},
    ("ShortConv", "--precision"): {"autocast": "the published convolution under autocast has no kernels here"},
    ("Classifier", "--cross-entropy"): dict.fromkeys(("fused", "chunked"), NO_LOGITS),
    ("Classifier", "--logits-dtype"): {"bfloat16": NO_LOGITS},
}
"""(Part, option) → value → why no model with the part runs with it."""

MOE = "MoE"
"""The part that `--moe` is about."""

GROUPED = frozenset({MOE, "MixtureOfAttention"})
"""Parts with grouped products, which on meta torch refuses in float32."""


@cache
def takes(model: str, option: str, value: str) -> bool:
    """Whether torch can run a model with a value of one option."""
    without_moe = option == "--moe" and value != "dropless" and MOE not in parts_in(model)
    return not without_moe and not any(value in LEFT_OUT.get((part, option), {}) for part in parts_in(model))


def _fit(model: str, values: Values) -> bool:
    """Whether values fit each other: some run on meta alone, others on the CPU alone."""
    on_meta = values.get("--attn-implementation") == "flash" or values.get("--norm") == "fused"
    optimizer, impl = values.get("--optimizer"), values.get("--optimizer-impl")
    on_cpu = values.get("--precision") == "autocast" or impl == "fused" or optimizer == "adafactor"
    if values.get("--precision") == "fp32" and values.get("--moe", "dropless") == "dropless":
        on_cpu = on_cpu or not GROUPED.isdisjoint(parts_in(model))
    zamba_needs = values.get("--recompute") == "full-reentrant" and "ZambaLayer" in parts_in(model)
    one_step = values.get("--num-microbatches") == "2"
    return (
        not (on_meta and on_cpu)
        and not (optimizer == "adafactor" and impl == "fused")
        and not (one_step and values.get("--zero-grad") == "zeros")
        and not (zamba_needs and values.get("--lora") == "none")  # else all layers read an embedding that is trained
    )


# --- cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model with one value of each option. With two micro-batches it runs one step, else two."""

    model: str
    values: tuple[tuple[str, str], ...]

    @property
    def steps(self) -> int:
        """The number of steps."""
        return 3 - int(dict(self.values)["--num-microbatches"])

    def __str__(self) -> str:
        usual = {option: values[0] for option, values in OPTIONS.items()}
        return " ".join((self.model, *(f"{o}={v}" for o, v in self.values if usual[o] != v)))


def wanted() -> set[tuple[str, str, str]]:
    """Every (part, option, value) that a case must have."""
    return {
        (part, option, value)
        for part in PARTS - set(RECURRENT)
        for option, values in OPTIONS.items()
        for value in values
        if value not in LEFT_OUT.get((part, option), {}) and (option != "--moe" or part == MOE)
    }


@cache
def cases(seed: int = 0) -> tuple[Case, ...]:
    """A sample of the grid that covers what is wanted. Each next case covers as much as a random order of options does.

    Raises `AssertionError` for what no model covers.
    """
    pick, left, found = random.Random(seed), wanted(), []
    while left:
        parts = {part for part, _, _ in left}
        drawn = [_drawn(model, left, pick) for model in models() if not parts.isdisjoint(parts_in(model))]
        best = max(drawn, key=lambda case: len(_covered(case) & left))
        assert _covered(best) & left, f"no model covers {sorted(left)}"
        left -= _covered(best)
        found.append(best)
    return tuple(found)


def _covered(case: Case) -> set[tuple[str, str, str]]:
    return {(part, option, value) for part in parts_in(case.model) for option, value in case.values}


def _drawn(model: str, left: set[tuple[str, str, str]], pick: random.Random) -> Case:
    """A case of a model. Each option has the value that covers the most of what is left, beside those before it."""
    values: dict[str, str] = {}
    for option in pick.sample(list(OPTIONS), len(OPTIONS)):
        taken = [value for value in OPTIONS[option] if takes(model, option, value)]
        able = [value for value in taken if _fit(model, {**values, option: value})]
        new = {value: sum((part, option, value) in left for part in parts_in(model)) for value in able}
        most = max(new.values())
        values[option] = pick.choice([value for value in able if new[value] == most])
    return Case(model, tuple((option, values[option]) for option in OPTIONS))


def every() -> Iterator[tuple[str, ModelSpec, Values]]:
    """The full grid: every example of every part, with every value of every option by itself."""
    usual = {option: values[0] for option, values in OPTIONS.items()}
    for name, example in EXAMPLES.items():
        for option, values in OPTIONS.items():
            for value in values:
                yield f"{name} {option}={value}", around_a_model(example), {**usual, option: value}


# --- a case as a run --------------------------------------------------------------------------------------------------


def training(spec: ModelSpec, values: Values, seed: int = 0) -> TrainingConfig:
    """The run of a model with these values. seed: chooses the module that runs again by itself."""
    batch, _, seq = values["sizes"].partition(" x ")
    precision, logits, recompute = values["--precision"], values["--logits-dtype"], values["--recompute"]
    if recompute == "nodes":
        recompute = f"nodes:{random.Random(seed).choice(nodes(spec))}"
    return TrainingConfig(
        batch=int(batch),
        seq=int(seq),
        microbatches=int(values["--num-microbatches"]),
        dtype="float32" if precision in ("fp32", "autocast") else "bfloat16",
        has_master_weights=precision == "bf16-master",
        autocast=precision == "autocast",
        optimizer=values["--optimizer"].split()[0],
        has_momentum=values["--optimizer"] == "sgd with momentum",
        implementation=values["--optimizer-impl"],  # type: ignore[arg-type]
        recompute=parse_recompute(recompute),
        kernel_choices=KernelChoices(
            attention=values["--attn-implementation"],  # type: ignore[arg-type]
            norm=values["--norm"],  # type: ignore[arg-type]
            cross_entropy=values["--cross-entropy"],  # type: ignore[arg-type]
            logits_dtype=None if logits == "default" else logits,
            expert_capacity=parse_expert_capacity(values["--moe"]),
        ),
        adapters=adapters(spec, values["--lora"]),
        include=frozenset() if spec.mtp is None else frozenset({MTP.name}),
        keeps_gradients=values["--zero-grad"] == "zeros",
    )


def nodes(spec: ModelSpec) -> list[str]:
    """The modules right below the layers that are no norms."""
    scopes = [
        scope
        for scope in spec.program().root.scopes()
        if scope.first_input is not None and not scope.node_fields.get("optional")
    ]
    paths = dict.fromkeys(path for scope in scopes for path, _ in module_scopes_below(scope))
    return [path for path in paths if "." not in path and "norm" not in path and "scale" not in path]


def adapters(spec: ModelSpec, value: str) -> Adapters | None:
    """Adapters beside every linear layer of the layers, or none."""
    if value == "none":
        return None
    held = (one for one in trained_tensors(spec.tree()) if one.is_layer_matrix and one.kind != "router")
    targets = frozenset(one.path.rpartition(".")[2] for one in held)
    return Adapters(3, targets, dropout="dropout" in value, dtype=FLOAT32 if value == "fp32" else BFLOAT16)
