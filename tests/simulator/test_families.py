"""Whole small models of published families hold what torch holds, to the byte."""

from __future__ import annotations

import pytest

from tests.builders import family_shapes, spec_of
from tests.simulator.models import by_torch, without_values
from tests.test_model import MODELS

FAMILIES = (
    "AlbertForSequenceClassification-albert-0",  # layers share parameters
    "ApertusForCausalLM-apertus-0",  # xIELU
    "BartForCausalLM-bart-0",  # cross-attention that never runs
    "BartForConditionalGeneration-bart-2",  # an encoder with an embedding of its own
    "BertForPreTraining-bert-0",
    "BloomForCausalLM-bloom-0",
    "CohereForCausalLM-cohere-0",
    "DebertaV2ForMaskedLM-deberta-v2-0",
    "DebertaV2ForQuestionAnswering-deberta-v2-0",  # a convolution after the first layer
    "DiffLlamaForCausalLM-diffllama-0",
    "DogeForCausalLM-doge-0",  # a mask learned from the values
    "ElectraForPreTraining-electra-0",
    "FalconForCausalLM-falcon-0",
    "GPT2DoubleHeadsModel-gpt2-0",
    "GPTJForCausalLM-gptj-0",
    "GPTNeoForCausalLM-gpt_neo-0",
    "Gemma2ForCausalLM-gemma2-0",
    "Gemma3nForCausalLM-gemma3n_text-0",  # AltUp
    "Gemma4ForCausalLM-gemma4_text-0",
    "LlamaForCausalLM-llama-0",
    "LongT5ForConditionalGeneration-longt5-2",  # sums of tokens
    "ModernBertForMaskedLM-modernbert-0",
    "MPNetForMaskedLM-mpnet-0",
    "MptForCausalLM-mpt-0",
    "OPTForCausalLM-opt-0",
    "Olmo2ForCausalLM-olmo2-0",
    "Qwen3ForCausalLM-qwen3-0",
    "RemBertModel-rembert-0",
    "T5ForConditionalGeneration-t5-0",
    "T5GemmaForConditionalGeneration-t5gemma-1",  # an encoder of another width
    "T5Gemma2ForConditionalGeneration-t5gemma2-0",  # cross-attention merged with self-attention
    "UMT5ForConditionalGeneration-umt5-0",  # a bias of each layer
    "WhisperForConditionalGeneration-whisper-0",
    "XLNetLMHeadModel-xlnet-0",
)

SHAPES = dict(family_shapes())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_holds_what_torch_holds(name: str) -> None:
    spec = spec_of(SHAPES[name])
    assert without_values(spec) == by_torch(spec)


@pytest.mark.parametrize("seq", [7, 33])
def test_stacks_with_one_table_of_positions_hold_what_torch_holds(seq: int) -> None:
    spec = MODELS["encoder-decoder with one table of positions"]
    assert without_values(spec, seq=seq) == by_torch(spec, seq=seq)


@pytest.mark.parametrize("name", ["BertForPreTraining-bert-0", "LlamaForCausalLM-llama-0", "T5Model-t5-0"])
@pytest.mark.parametrize(("batch", "seq"), [(1, 33), (3, 1)])
def test_a_family_holds_what_torch_holds_at_other_lengths(name: str, batch: int, seq: int) -> None:
    spec = spec_of(SHAPES[name])
    assert without_values(spec, batch, seq) == by_torch(spec, batch, seq)
