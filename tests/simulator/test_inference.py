"""A prompt, at once or in chunks, then one token after it with the cache, without gradients: what each pass holds, at
every moment, to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.compressed_attention import CompressedAttention
from llmcalc.costs.cache import kv
from llmcalc.flow.program import all_steps
from llmcalc.model import ModelSpec
from llmcalc.simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from llmcalc.simulator.lowering import UnsupportedKernel
from llmcalc.workload.execution import LatentForm
from tests.builders import family_shapes, spec_of, verbs_of
from tests.comparisons import compares, of_run
from tests.contracts.test_parts import around_a_model
from tests.samples import sampled
from tests.simulator.compare import examples, sampled_examples
from tests.simulator.passes import BATCH, CHUNKS, ONE_PROMPT, SEQ, Pass, by_torch, without_values
from tests.simulator.test_eager import PUBLISHED, REFUSED

EXAMPLES = examples()

FAMILIES = (
    "ApertusForCausalLM-apertus-0",  # xIELU
    "BartForConditionalGeneration-bart-2",  # an encoder with an embedding of its own
    "BloomForCausalLM-bloom-0",  # ALiBi
    "DiffLlamaForCausalLM-diffllama-0",
    "DogeForCausalLM-doge-0",  # a mask learned from the values
    "Gemma2ForCausalLM-gemma2-0",  # windows
    "Gemma3nForCausalLM-gemma3n_text-0",  # layers that share keys and values; AltUp
    "Gemma4ForCausalLM-gemma4_text-0",
    "GPTNeoForCausalLM-gpt_neo-0",
    "LlamaForCausalLM-llama-0",
    "LongT5ForConditionalGeneration-longt5-2",  # sums of tokens in the encoder
    "OPTForCausalLM-opt-0",
    "T5ForConditionalGeneration-t5-0",
    "T5Gemma2ForConditionalGeneration-t5gemma2-0",  # cross-attention merged with self-attention
    "WhisperForConditionalGeneration-whisper-0",
    "BertForMaskedLM-bert-0",  # an encoder, which caches nothing
    "ElectraForPreTraining-electra-0",
)

RECURRENT = (
    "FalconH1ForCausalLM-falcon_h1-0",
    "FalconMambaForCausalLM-falcon_mamba-0",
    "JambaForCausalLM-jamba-0",
    "Lfm2ForCausalLM-lfm2-0",
    "Mamba2ForCausalLM-mamba2-0",
    "Qwen3NextForCausalLM-qwen3_next-0",
    "RecurrentGemmaForCausalLM-recurrent_gemma-0",
    "RwkvForCausalLM-rwkv-0",
    "Zamba2ForCausalLM-zamba2-0",
)
"""Families with published kernels, which run the prompt; the decoding step is the reference's."""

SHAPES = dict(family_shapes())


def compared(
    spec: ModelSpec,
    passes: Sequence[int],
    only_last: bool = False,
    mla: LatentForm = "auto",
    choices: KernelChoices = EAGER_CHOICES,
) -> list[Pass]:
    """The passes, after a comparison with torch. only_last: of the earlier passes, only what they cache."""
    passes = passes if spec.kind != "encoder" else passes[:1]
    ours: list[str] = []
    theirs: list[str] = []
    held = without_values(spec, passes, ours, mla, choices)
    wanted = by_torch(spec, passes, theirs, mla, choices)
    shown = "\n".join([*ours, "=====", *theirs])
    assert [one.after for one in held] == [one.after for one in wanted], shown
    first = len(passes) - 1 if only_last else 0
    assert [one.peak for one in held[first:]] == [one.peak for one in wanted[first:]], shown
    assert all(a.moments == b.moments for a, b in zip(held[first:], wanted[first:], strict=True)), shown
    return held


def cached(spec: ModelSpec, tokens: int) -> int:
    """The bytes that the cost of a cache counts."""
    return 0 if spec.kind == "encoder" else kv(spec, BATCH, tokens, source=SEQ if spec.encoder else None).bytes


def caches_windows(spec: ModelSpec) -> bool:
    """Whether a cache keeps the last tokens alone."""
    return any(step.verb == "cache" and step.options["limit"] for step in all_steps(spec.shared_program.root.items))


OTHER_TOKEN = {"MLA-9"}
"""Examples whose token takes another order of small tensors: an indexer of pools holds 84 bytes more of 5,088."""


@pytest.mark.parametrize(
    "name", sampled_examples(name for name in EXAMPLES if name not in PUBLISHED | REFUSED | OTHER_TOKEN)
)
def test_a_pass_holds_what_torch_holds(name: str) -> None:
    """The prompt in two chunks, of which the second reads the cache."""
    spec = around_a_model(EXAMPLES[name])
    after = [one.after for one in compared(spec, CHUNKS)]
    rows = [cached(spec, tokens) for tokens in (4, 7, 8)[: len(after)]]
    if caches_windows(spec):  # views of all that was concatenated; after a token it is the window alone
        assert after[-1] == rows[-1]
        assert all(a >= b for a, b in zip(after, rows, strict=True))
    else:
        assert after == rows


@pytest.mark.parametrize("name", ["Attention-7", "Block-15", "MLA-3", "CompressedAttention-2", "Stack-1"])
def test_a_whole_prompt_holds_what_torch_holds(name: str) -> None:
    compared(around_a_model(EXAMPLES[name]), ONE_PROMPT)


TRAINED_ALONE = {"JetBlock-0", "JetBlock-1"}
"""Examples whose published kernels are modelled in training alone."""


@compares(lambda name: of_run(around_a_model(EXAMPLES[name])))
@pytest.mark.parametrize("name", sampled_examples(sorted(PUBLISHED - TRAINED_ALONE)))
def test_a_recurrent_part_decodes_as_torch_does(name: str) -> None:
    """Published kernels run the prompt: they keep what the reference keeps."""
    spec = around_a_model(EXAMPLES[name])
    compared(spec, ONE_PROMPT, only_last=True)
    assert [one.after for one in without_values(spec, CHUNKS)] == [cached(spec, tokens) for tokens in (4, 7, 8)]


@pytest.mark.parametrize(
    "name", sampled({name: name for name in FAMILIES}, lambda name: verbs_of(spec_of(SHAPES[name])))
)
def test_a_family_holds_what_torch_holds(name: str) -> None:
    compared(spec_of(SHAPES[name]), CHUNKS)


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_family_decodes_as_torch_does(name: str) -> None:
    compared(spec_of(SHAPES[name]), ONE_PROMPT, only_last=True)


@pytest.mark.parametrize(
    "name",
    ["CompressedAttention-2", "MLA-3", "Attention-10", "CompressedConvAttention-0", "SharedCompressedKVAttention-1"],
)
def test_several_steps_hold_what_torch_holds(name: str) -> None:
    """Entries of the cache are completed, and blocks and windows are filled, on the way."""
    compared(around_a_model(EXAMPLES[name]), (1,) * 6)


@pytest.mark.parametrize("name", ["MLA-1", "MLA-2"])
@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_a_form_of_latent_attention_holds_what_torch_holds(name: str, form: Any) -> None:
    compared(around_a_model(EXAMPLES[name]), CHUNKS, mla=form)


@pytest.mark.parametrize("name", ["Attention-4", "Block-1", "Block-15"])
@pytest.mark.parametrize(
    "choices",
    [KernelChoices("flash"), KernelChoices("sdpa-math"), KernelChoices(norm="fused")],
    ids=["flash", "sdpa-math", "norm"],
)
def test_other_kernels_hold_what_torch_holds(name: str, choices: KernelChoices) -> None:
    compared(around_a_model(EXAMPLES[name]), CHUNKS, choices=choices)


def test_sdpa_math_copies_one_latent_for_each_head() -> None:
    compared(around_a_model(EXAMPLES["MLA-0"]), CHUNKS, choices=KernelChoices("sdpa-math"))


def test_training_on_less_than_an_entry() -> None:
    """No entry is whole: their norms and products do not run."""
    from tests.simulator import models

    for part in CompressedAttention.examples()[1:]:
        spec = around_a_model(part)
        assert models.without_values(spec, seq=1) == models.by_torch(spec, seq=1)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_part_is_refused_where_its_kernel_does_not_run(name: str) -> None:
    with pytest.raises(UnsupportedKernel, match="has no kernel for chunks"):
        without_values(around_a_model(EXAMPLES[name]))


def test_a_difference_is_seen() -> None:
    """The comparison can fail: another window keeps another cache."""
    narrow, wide = (around_a_model(Attention(num_attention_heads=4, sliding_window=window)) for window in (3, 6))
    assert [one.after for one in without_values(narrow)] != [one.after for one in by_torch(wide)]
