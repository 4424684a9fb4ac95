"""Attention without scores, torch's fallback in float32, and fused norms hold what torch's operations hold on meta."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.components.distance_bias import AlibiBias
from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.flow.program import all_steps
from llmcalc.model import ModelSpec
from llmcalc.simulator.evidence import kernel_names_of
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.lowering import UnsupportedKernel
from tests.comparisons import compares, of_run
from tests.contracts.test_parts import around_a_model
from tests.simulator.models import by_torch, without_values


@pytest.mark.parametrize(
    ("name", "verb", "kernels"),
    [
        ("gpt2", "linear", ["do_linear"]),
        ("gpt2", "attention", ["do_attention", "attention_AttentionCore"]),
        ("mamba-130m", "core", ["do_core", "core_SelectiveScan", "module_SelectiveScan", "decode_SelectiveScan"]),
    ],
)
def test_the_kernels_whose_evidence_an_answer_states_are_those_of_its_ops(
    name: str, verb: str, kernels: list[str]
) -> None:
    steps = all_steps(llmcalc.load(name).model.shared_program.root.items)
    assert list(kernel_names_of(next(step for step in steps if step.verb == verb))) == kernels


def spec(number: int) -> ModelSpec:
    return around_a_model(Block.examples()[number])


@compares(lambda kind, number: of_run(spec(number), KernelChoices(attention=kind)))
@pytest.mark.parametrize("number", [0, 1, 2, 12, 13])
@pytest.mark.parametrize("kind", ["flash", "sdpa-math"])
def test_attention_holds_what_torch_holds(kind: Any, number: int) -> None:
    choices = KernelChoices(attention=kind)
    ours: list[str] = []
    theirs: list[str] = []
    held = without_values(spec(number), log=ours, choices=choices)
    assert held == by_torch(spec(number), log=theirs, choices=choices), "\n".join([*ours, "=====", *theirs])


@compares(lambda number: of_run(spec(number), KernelChoices(norm="fused")))
@pytest.mark.parametrize("number", [1, 12, 13])
def test_a_fused_norm_holds_what_torch_holds(number: int) -> None:
    ours: list[str] = []
    theirs: list[str] = []
    held = without_values(spec(number), log=ours, choices=KernelChoices(norm="fused"))
    assert held == by_torch(spec(number), log=theirs, choices=KernelChoices(norm="fused")), "\n".join(
        [*ours, "=====", *theirs]
    )


def test_on_a_gpu_flash_attention_takes_more_in_the_backward_pass_alone() -> None:
    wide = around_a_model(Attention(num_attention_heads=4, num_key_value_heads=2, head_dim=96))
    meta, gpu = (without_values(wide, choices=KernelChoices("flash", multiprocessors=number)) for number in (0, 132))
    assert (meta.saved, meta.live, meta.forward, meta.after) == (gpu.saved, gpu.live, gpu.forward, gpu.after)
    assert meta.backward < gpu.backward


def wide_vocabulary() -> ModelSpec:
    """A model whose logits decide the peaks."""
    return spec(9).model_copy(update={"vocab_size": 4096})


@compares(lambda loss, divides: of_run(wide_vocabulary(), KernelChoices(cross_entropy=loss, divides_logits=divides)))
@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("loss", ["eager", "fused", "flash", "flash-in-place"])
def test_losses_of_logits_hold_what_torch_holds(loss: Any, divides: bool) -> None:
    run: dict[str, Any] = {"batch": 1, "seq": 256, "choices": KernelChoices(cross_entropy=loss, divides_logits=divides)}
    ours: list[str] = []
    theirs: list[str] = []
    quantities = without_values(wide_vocabulary(), log=ours, **run)
    assert quantities == by_torch(wide_vocabulary(), log=theirs, **run), "\n".join([*ours, "=====", *theirs])


@compares(lambda logits, kept, batch: of_run(wide_vocabulary(), KernelChoices(cross_entropy="selective")))
@pytest.mark.parametrize("logits", ["float32", "bfloat16"])
@pytest.mark.parametrize("kept", [None, 100])
@pytest.mark.parametrize("batch", [1, 3])
def test_log_probabilities_hold_what_torch_holds(logits: Any, kept: int | None, batch: int) -> None:
    choices = KernelChoices(cross_entropy="selective", logits_dtype=logits, logits_to_keep=kept)
    run: dict[str, Any] = {"batch": batch, "seq": 192, "choices": choices}
    ours: list[str] = []
    theirs: list[str] = []
    quantities = without_values(wide_vocabulary(), log=ours, **run)
    assert quantities == by_torch(wide_vocabulary(), log=theirs, **run), "\n".join([*ours, "=====", *theirs])


@compares(lambda **_: of_run(wide_vocabulary(), KernelChoices(cross_entropy="selective-chunked")))
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("kept", "batch", "vocabulary"), [(None, 1, 4096), (100, 3, 9000), (2100, 1, 5000)])
def test_log_probabilities_in_chunks_hold_what_torch_holds(
    kept: int | None, batch: int, vocabulary: int, autocast: bool
) -> None:
    wide = wide_vocabulary().model_copy(update={"vocab_size": vocabulary})
    tokens = max(192, (kept or 0) + 20)
    choices = KernelChoices(
        "eager" if tokens == 192 else "flash", cross_entropy="selective-chunked", logits_to_keep=kept
    )
    run: dict[str, Any] = {"batch": batch, "seq": tokens, "choices": choices, "autocast": autocast and tokens == 192}
    ours: list[str] = []
    theirs: list[str] = []
    quantities = without_values(wide, log=ours, **run)
    assert quantities == by_torch(wide, log=theirs, **run), "\n".join([*ours, "=====", *theirs])


@compares(lambda **_: of_run(wide_vocabulary(), KernelChoices(cross_entropy="recomputed")))
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("chunk", "batch", "tokens", "head"),
    [
        (None, 1, 192, {}),
        (100, 3, 192, {}),
        (64, 2, 33, {}),
        (100, 3, 192, {"scales_logits": True}),  # Cohere's
        (100, 3, 192, {"caps_logits": True}),  # Gemma 2's
        (64, 2, 33, {"scales_logits": True, "caps_logits": True}),
    ],
)
def test_a_loss_whose_chunks_are_recomputed_holds_what_torch_holds(
    chunk: int | None, batch: int, tokens: int, head: dict[str, Any], autocast: bool
) -> None:
    """TRL 1.10's default (trainer/sft_trainer.py, `_chunked_cross_entropy_loss`)."""
    choices = KernelChoices(cross_entropy="recomputed", loss_chunk=chunk, **head)
    run: dict[str, Any] = {"batch": batch, "seq": tokens, "choices": choices, "autocast": autocast}
    ours: list[str] = []
    theirs: list[str] = []
    quantities = without_values(wide_vocabulary(), log=ours, **run)
    assert quantities == by_torch(wide_vocabulary(), log=theirs, **run), "\n".join([*ours, "=====", *theirs])


def test_a_loss_in_chunks_never_has_all_logits() -> None:
    """The vocabulary is 50 and the hidden size 24: three chunks of 8 tokens in the place of 16."""
    whole, over, chunked = (
        without_values(spec(0), batch=2, seq=8, choices=KernelChoices(cross_entropy=how))
        for how in ("eager", "fused", "chunked")
    )
    logits = 2 * 8 * 50
    assert whole.saved - over.saved == 4 * logits + 4 - 2 * logits  # log-probabilities and the sum of their weights
    assert over.saved - chunked.saved == 2 * logits - 2 * 50 * 24  # it keeps gradients of its input and weight instead
    assert over.forward < whole.forward


@compares(lambda **_: of_run(wide_vocabulary(), KernelChoices(cross_entropy="chunked")))
@pytest.mark.parametrize("chunk", [None, 100, 192])
def test_chunks_of_their_own_size_hold_what_torch_holds(chunk: int | None) -> None:
    """Liger-Kernel's chunks, and those of Unsloth's loss (unsloth_zoo/fused_losses/cross_entropy_loss.py)."""
    choices = KernelChoices("flash", cross_entropy="chunked", loss_chunk=chunk)
    assert without_values(wide_vocabulary(), seq=192, choices=choices) == by_torch(
        wide_vocabulary(), seq=192, choices=choices
    )


def test_chunks_need_less_where_tokens_are_many() -> None:
    wide = wide_vocabulary()
    over, chunked = (
        without_values(wide, batch=1, seq=512, choices=KernelChoices("flash", cross_entropy=how))
        for how in ("fused", "chunked")
    )
    assert chunked.forward < over.forward


def test_what_cannot_be_fused_is_refused() -> None:
    biased = around_a_model(Attention(num_attention_heads=4, position=AlibiBias()))
    sunk = around_a_model(Attention(num_attention_heads=4, sinks=True))
    for refused, kind in ((biased, "flash"), (biased, "sdpa-math"), (sunk, "sdpa-math")):
        with pytest.raises(
            UnsupportedKernel, match=rf"layers\.self_attn\.core: --attn-implementation {kind} takes no bias, no sinks"
        ):
            without_values(refused, choices=KernelChoices(kind))  # type: ignore[arg-type]
