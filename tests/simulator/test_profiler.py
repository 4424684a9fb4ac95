"""torch's profiler sees the CPU allocate what kernels without values allocate, and what its own kernels take beside.

Gradients may be added in place here: no dispatch mode is around the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

import llmcalc
from llmcalc.components.evidence import evidence_of_parts
from llmcalc.device_memory.settings import Settings
from llmcalc.model import ModelSpec
from llmcalc.simulator.adapters import Adapters
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.tensor import BFLOAT16
from llmcalc.sources.huggingface.registry import FILE_BY_TYPE
from llmcalc.witnesses.cpu_events import NUMBER_BYTES, GradientSums
from llmcalc.witnesses.memory import unsupported_reason
from tests.builders import family_shapes, spec_of, verbs_of, with_other_causes
from tests.contracts.test_parts import around_a_model
from tests.samples import in_one_test, sampled, spread
from tests.simulator.compare import examples
from tests.simulator.models import without_values
from tests.simulator.profiler import seen

SCRATCH = {
    "_safe_softmax": "which scores are minus infinity, and in which rows all are",
    "_softmax_backward_data": "a copy of a gradient that is not contiguous",
    "convolution": "copies of what is not contiguous, and the weight in the layout of oneDNN",
    "convolution_backward": "the same, of gradients too",
    "cumsum": "its input, converted to the type of the sums",
    "div": "an input of integers, converted",
    "embedding_dense_backward": "a copy of a gradient that is not contiguous",
    "gelu_backward": "a tensor of its own",
    "histc": "the edges of its bins",
    "mul": "an input of integers, converted",
    "native_dropout": "the numbers that its mask is drawn from",
    "native_dropout_backward": "a product beside its result",
    "repeat": "the indices of what is repeated",
    "sort": "the indices before they are sorted",
}
"""Kernel of the CPU that allocates more than a number and frees it before it returns → what that is.

Both are read from the profiler's events: a kernel's, and those of the operations that it calls.
"""

CASES: dict[tuple[str, str], set[str]] = {
    ("Attention-0", "eager"): set(),
    ("Attention-2", "eager"): {"mul"},
    ("Attention-10", "eager"): {"sort"},
    ("Attention-11", "eager"): {"div", "embedding_dense_backward"},
    ("Attention-0", "sdpa-math"): {"_safe_softmax"},
    ("Attention-4", "sdpa-math"): {"_safe_softmax"},
    ("MLA-0", "eager"): set(),
    ("MLA-3", "eager"): {"sort"},
    ("MLA-0", "sdpa-math"): {"_safe_softmax"},
    ("CompressedConvAttention-0", "eager"): {"convolution", "convolution_backward"},
    ("CompressedAttention-2", "eager"): {"sort"},
    ("DifferentialAttention-0", "eager"): {"repeat"},
    ("MixtureOfAttention-0", "eager"): {"cumsum", "histc", "repeat", "sort"},
    ("LocalAttention-1", "eager"): {"div", "embedding_dense_backward"},
    ("ShortConv-1", "eager"): {"convolution", "convolution_backward"},
    ("FeedForward-0", "eager"): set(),
    ("FeedForward-3", "eager"): set(),
    ("FeedForward-7", "eager"): set(),  # GELU in steps
    ("MoE-0", "eager"): {"cumsum", "histc", "sort"},
    ("MoE-3", "eager"): {"cumsum", "histc", "sort"},
    ("MoE-9", "eager"): {"cumsum", "histc", "sort"},
    ("ProductKeyMoE-0", "eager"): set(),
    ("RwkvChannelMix-0", "eager"): set(),
    ("Norm-0", "eager"): set(),  # LayerNorm
    ("Norm-3", "eager"): set(),  # RMSNorm
    ("Norm-6", "eager"): set(),
    ("Norm-8", "eager"): set(),  # 1 + weight in float32
    ("LearnedPositions-0", "eager"): set(),
    ("SinusoidalPositions-0", "eager"): set(),
    ("RelativeBias-0", "eager"): {"div", "embedding_dense_backward"},
    ("TokenTypes-0", "eager"): set(),
    ("Pooler-0", "eager"): set(),
    ("SideConvolution-0", "eager"): {"convolution", "convolution_backward", "embedding_dense_backward"},
    ("ConvStem-0", "eager"): {"convolution", "convolution_backward", "gelu_backward"},
    ("Block-0", "eager"): set(),
    ("Block-12", "sdpa-math"): {"_safe_softmax"},
    ("Gemma4Layer-1", "eager"): {"cumsum", "histc", "sort"},
    ("ShortcutLayer-0", "eager"): {"cumsum", "histc", "sort"},
    ("GatedNormLayer-0", "eager"): set(),
    ("Stack-0", "eager"): {"mul"},
    ("Stack-3", "eager"): {"_softmax_backward_data"},
    ("LlamaForCausalLM-llama-0", "eager"): set(),  # whole models of families
    ("Gemma2ForCausalLM-gemma2-0", "eager"): set(),
    ("T5ForConditionalGeneration-t5-0", "eager"): {
        "div",
        "embedding_dense_backward",
        "native_dropout",
        "native_dropout_backward",
    },
}
"""Part's example in a small model, or a family's model, and its attention → its kernels that allocate scratch."""


def spec(name: str) -> ModelSpec:
    parts = examples()
    return around_a_model(parts[name]) if name in parts else spec_of(shapes()[name])


@cache
def shapes() -> dict[str, dict[str, Any]]:
    return dict(family_shapes())


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_the_cpu_allocates_what_is_counted(name: str, attention: Any) -> None:
    choices = KernelChoices(attention=attention)
    ours = without_values(spec(name), choices=choices, dtype="float32", adds_in_place=True)
    held = ours.live, ours.forward, ours.backward
    cpu = seen(spec(name), choices)
    all_of_it = cpu.pass_bytes(lambda block: True)
    assert all_of_it[0] == ours.live + NUMBER_BYTES * cpu.saved_numbers  # `mul` saves a Python number as a tensor
    assert cpu.pass_bytes(lambda block: block.is_counted) == held
    scratch = {kernel.removeprefix("aten::") for kernel, size in cpu.scratch_bytes.items() if size > NUMBER_BYTES}
    assert scratch == CASES[name, attention]
    if not scratch:  # the numbers that are saved are beside the peaks, and at most one more with a copy in float32
        assert all(
            0 <= theirs - own <= NUMBER_BYTES * (cpu.saved_numbers + 2)
            for theirs, own in zip(all_of_it, held, strict=True)
        )


SCRATCH_OF_FORMATS = {"add", "addmm", "mm", "_grouped_mm", "index_add", "index_add_"}
"""Kernels of the CPU that take copies where they compute in bfloat16, or add tensors of two formats."""

ADAPTERS: dict[str, Adapters | None] = {
    "autocast": None,
    "fp32": Adapters(4, frozenset({"q_proj", "up_proj", "down_proj"})),
    "bf16": Adapters(4, frozenset({"q_proj", "up_proj", "down_proj"}), dtype=BFLOAT16),
    "dropout": Adapters(4, frozenset({"q_proj", "up_proj", "down_proj"}), dropout=True),
    "fp32 under autocast": Adapters(4, frozenset({"q_proj", "up_proj", "down_proj"})),
}
"""Adapters of the trained model, and whether it runs under autocast; None for a model that is trained whole."""


OTHER_RUNS = {
    f"{training}-{name}": (training, name)
    for name in ("Block-0", "Block-12", "Attention-0", "MoE-0", "LlamaForCausalLM-llama-0")
    for training in ADAPTERS
}


@pytest.mark.parametrize(("training", "name"), spread(sampled(OTHER_RUNS, lambda run: run)))
def test_the_cpu_allocates_what_is_counted_of_adapters_and_autocast(training: str, name: str) -> None:
    dtype = "bfloat16" if training == "bf16" else "float32"
    run: dict[str, Any] = {"adapters": ADAPTERS[training], "autocast": "autocast" in training, "dtype": dtype}
    ours = without_values(spec(name), adds_in_place=True, **run)
    cpu = seen(spec(name), **run)
    assert cpu.pass_bytes(lambda block: block.is_counted) == (ours.live, ours.forward, ours.backward)
    scratch = {kernel.removeprefix("aten::") for kernel, size in cpu.scratch_bytes.items() if size > NUMBER_BYTES}
    assert scratch <= SCRATCH_OF_FORMATS | set(SCRATCH)


# --- sums of gradients ------------------------------------------------------------------------------------------------


OTHER_KERNELS = {
    "bottleneck": "MobileBERT's reference cuts neighbouring embeddings out of one padded copy; the replay joins them",
    "input_features": "the reference makes the ids of further features, which the class is called with",
    "exclusive": "of NeoMME's mixed values and table of values, torch adds other gradients in place",
    "subsampling": "the reference runs a GLU as one kernel, and the replay a sigmoid and a product",
    "waveform": "the reference has a group norm over the whole sound, which the replay runs as a layer norm",
}
"""Part whose memory is stated as untested → why its reference holds other tensors than the replay."""


def is_compared(model: ModelSpec) -> bool:
    """Whether the reference runs the kernels that are counted: not those of recurrences, nor of `OTHER_KERNELS`."""
    untested = {part.name for part in evidence_of_parts(model) if part.status == "untested"}
    supported = not unsupported_reason(model, Settings("training", batch=2, seq=7), "cpu")
    return supported and untested.isdisjoint(OTHER_KERNELS)


def gradients_are_added_where_torch_adds_them(name: str) -> None:
    """In place, or into a new tensor; and the most bytes of both passes, which has three tables where they are tied."""
    sums = GradientSums()

    def add(size: int, in_place: bool) -> None:
        nonlocal sums
        sums = sums.with_addition(size, in_place)

    model = spec(name)
    ours = without_values(model, dtype="float32", adds_in_place=True, on_sum=add)
    cpu = seen(model)
    assert cpu.gradient_sums == sums
    assert sums.out_of_place_bytes > 0 or name.startswith("GatedCrossLayer")  # which adds nothing to a text
    assert cpu.pass_bytes() == (ours.live, ours.forward, ours.backward), name


def compared_examples() -> list[ParameterSet]:
    names = [name for name in examples() if is_compared(spec(name))]
    return sampled({name: name for name in names}, lambda name: verbs_of(spec(name)))


@in_one_test
@pytest.mark.parametrize("name", compared_examples)
def test_gradients_of_a_part(name: str) -> None:
    gradients_are_added_where_torch_adds_them(name)


def tied_models() -> list[tuple[str, ModelSpec]]:
    """The first shape of every class in each file of families whose embeddings are tied."""
    names = [name for name, _ in family_shapes(first_of_each_file=True) if spec(name).tie_word_embeddings]
    return [(name, spec(name)) for name in names if is_compared(spec(name))]


def with_other_tables(models: list[tuple[str, ModelSpec]]) -> Iterable[tuple[str, ModelSpec]]:
    """Models with every kind, head, positions and stack: what reads a tied table, or adds to
    its gradient. What their layers compute, `test_gradients_of_a_part` and `test_the_cpu_allocates_what_is_counted`
    compare.
    """
    return with_other_causes(models, lambda model: tables_of(model[1]))


def tables_of(model: ModelSpec) -> set[tuple[str, str]]:
    """What of a model reads or joins its embeddings: its kind, its head, and the type of each of its own fields."""
    return {(field, type(getattr(model, field)).__name__) for field in type(model).model_fields} | {
        ("kind", model.kind),
        ("head", model.head.type),
    }


@pytest.mark.parametrize("choose", [with_other_tables, pytest.param(list, marks=pytest.mark.exhaustive)])
def test_gradients_of_tied_embeddings(choose: Callable[..., Iterable[tuple[str, ModelSpec]]]) -> None:
    for name, _ in choose(tied_models()):
        gradients_are_added_where_torch_adds_them(name)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("MobileBertModel-mobilebert-0", "bottleneck"),
        ("RoCBertModel-roc_bert-0", "input_features"),
        ("Speech2TextModel-speech_to_text-0", "subsampling"),
        ("MoonshineModel-moonshine-0", "waveform"),
    ],
)
def test_what_is_not_compared_differs(name: str, part: str) -> None:
    """A part whose reference and replay come to agree leaves `OTHER_KERNELS`, and its models are compared."""
    model = spec(name)
    statuses = {one.name: one.status for one in evidence_of_parts(model)}
    assert (statuses[part], part in OTHER_KERNELS) == ("untested", True)
    ours = without_values(model, dtype="float32", adds_in_place=True)
    assert seen(model).pass_bytes() != (ours.live, ours.forward, ours.backward)


def test_families_have_tied_embeddings() -> None:
    kinds = {FILE_BY_TYPE[dict(family_shapes())[name]["model_type"]] for name, _ in tied_models()}
    assert {"bert.bert", "gpt.gpt", "seq2seq.t5"} <= kinds


def test_a_tied_table_has_three_gradients_at_once() -> None:
    """The head's, the embedding's, and their sum: a linear layer's gradient is a view, whose base keeps its storage."""
    tied, untied = (llmcalc.load("qwen3-0.6b", **TABLES, tie_word_embeddings=tie).model for tie in (True, False))
    table = 4 * tied.vocab_size * tied.hidden_size
    cpu, apart = seen(tied), seen(untied)
    assert cpu.gradient_sums.out_of_place_bytes == apart.gradient_sums.out_of_place_bytes + table
    assert cpu.pass_bytes().backward_peak > 3 * table
    ours = [without_values(model, dtype="float32", adds_in_place=True).backward for model in (tied, untied)]
    assert ours == [cpu.pass_bytes().backward_peak, apart.pass_bytes().backward_peak]


TABLES = {"num_hidden_layers": 1, "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8}
"""A model of little but tables."""


def test_every_kernel_with_scratch_is_met() -> None:
    assert set().union(*CASES.values()) == set(SCRATCH)


def test_a_pass_that_holds_more_is_seen() -> None:
    """The same model, one token longer."""
    longer = seen(spec("Attention-0"), seq=8).pass_bytes(lambda block: block.is_counted)
    assert longer > seen(spec("Attention-0")).pass_bytes(lambda block: block.is_counted)
