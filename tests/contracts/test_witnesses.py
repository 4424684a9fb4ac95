"""Contract: what states a witness of its memory is run by the test that it names, and what such tests run states one.

What was called exact before and is not now is listed, each with its reason.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import llmcalc.components
from llmcalc.components.base import Part
from llmcalc.components.evidence import snake_case_name
from llmcalc.components.mixers.attention import Attention
from llmcalc.device_memory.device_memory import TENSORS_TERM, with_evidence
from llmcalc.device_memory.optimizers.registry import optimizers
from llmcalc.errors import InputError
from llmcalc.evidence import (
    STATUSES,
    UNTESTED,
    Evidence,
    FrameworkEvidence,
    Witness,
    kernels_compared,
    torch_witness,
    weakest_status,
    witness_of,
)
from llmcalc.evidence import compared as kernel_compared
from llmcalc.frameworks.deepspeed import evidence as deepspeed
from llmcalc.frameworks.fsdp2 import evidence as fsdp2
from llmcalc.frameworks.megatron import evidence as megatron
from llmcalc.frameworks.registry import FRAMEWORK_NAMES
from llmcalc.frameworks.torch import evidence as distributed_torch
from llmcalc.simulator.evidence import choice_name, evidence_of_chosen_kernels, kernel_title
from llmcalc.simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from llmcalc.simulator.profiles.eager import EagerKernels
from tests.comparisons import Thing, compared_things
from tests.contracts.copies import TOYS, command, copy_to, insert, outputs
from tests.contracts.test_parts import around_a_model
from tests.samples import in_one_test
from tests.simulator.compare import examples

MODULES = (
    "tests/simulator/test_eager.py",
    "tests/simulator/test_choices.py",
    "tests/simulator/test_sdpa.py",
    "tests/simulator/test_dropout.py",
    "tests/simulator/test_inference.py",
    "tests/simulator/test_predictions.py",
    "tests/simulator/test_adapter_libraries.py",
    "tests/simulator/test_fused_adapters.py",
    "tests/simulator/published/test_published.py",
    "tests/device_memory/test_grid.py",
    "tests/device_memory/test_optimizer_steps.py",
    "tests/device_memory/test_projected_optimizers.py",
    "tests/device_memory/test_published.py",
    "tests/frameworks/fsdp2/test_fsdp2.py",
    "tests/frameworks/fsdp2/test_fsdp2_pipeline.py",
    "tests/frameworks/fsdp2/test_two_dimensions.py",
    "tests/frameworks/deepspeed/test_deepspeed.py",
    "tests/frameworks/test_serving_records.py",
    "tests/frameworks/torch/test_pipeline.py",
    "tests/frameworks/megatron/test_megatron.py",
    "tests/frameworks/megatron/test_megatron_delta.py",
    "tests/frameworks/megatron/test_megatron_sparse.py",
    "tests/frameworks/megatron/test_megatron_adapters.py",
)
"""The modules with tests that compare."""

RECORDS_OF_FRAMEWORKS = (
    fsdp2.SHARDED_EVIDENCE,
    fsdp2.PIPELINE_EVIDENCE,
    fsdp2.TENSOR_PARALLEL_EVIDENCE,
    deepspeed.EVIDENCE,
    megatron.EVIDENCE,
    distributed_torch.TRAINING_EVIDENCE,
    distributed_torch.SERVING_EVIDENCE,
)


@cache
def compared(module: str) -> frozenset[Thing]:
    """What the marked tests of a module run."""
    return frozenset(compared_things(module))


def classes_of_parts() -> Iterator[type[Part]]:
    """Yields every class of a part, but those of encoders of images and audio."""
    for module in pkgutil.walk_packages(llmcalc.components.__path__, "llmcalc.components."):
        importlib.import_module(module.name)
    found, left = set[type[Part]](), [Part]
    while left:
        for cls in left.pop().__subclasses__():
            if cls not in found:
                found.add(cls)
                left.append(cls)
    yield from (
        cls for cls in found if cls.__module__.startswith("llmcalc.components.") and "towers" not in cls.__module__
    )


def stated() -> Iterator[tuple[Thing, Witness]]:
    """Yields everything that states a witness, with it."""
    for cls in classes_of_parts():
        found = witness_of(cls)
        types: Mapping[str, Witness] = {_type(cls): found} if isinstance(found, Witness) else found
        yield from ((Thing(cls.noun, name), witness) for name, witness in types.items())
    for base in EagerKernels.__mro__:
        for name, kernel in vars(base).items():
            choice: Mapping[str, Any] = getattr(kernel, "choice", {})
            names = [choice_name(*one) for one in choice.items()] or [kernel_title(name)]
            if callable(kernel):
                yield from ((Thing("kernel", one), _one(witness_of(kernel))) for one in names)
    yield from ((Thing("optimizer", record.name), record.witness) for record in optimizers())
    for record in RECORDS_OF_FRAMEWORKS:
        yield Thing("framework", record.name), record.witness
        yield Thing("framework", record.name), record.other_witness
        yield from ((Thing(*part, record.name), witness) for part, witness in record.parts.items())
        yield from ((Thing("optimizer", name, record.name), one) for name, one in record.optimizers.items())


def _type(cls: type[Part]) -> str:
    """The `type` of a class of parts, or its name."""
    field = cls.model_fields.get("type")
    return snake_case_name(cls.__name__) if field is None else str(field.default)


def _one(found: Witness | Mapping[str, Witness]) -> Witness:
    assert isinstance(found, Witness)
    return found


STATED = [(thing, witness) for thing, witness in stated() if witness != UNTESTED]


def test_the_modules_that_compare_are_known() -> None:
    root = Path(__file__).parents[2]
    marked = {
        str(file.relative_to(root))
        for file in (root / "tests").rglob("test_*.py")
        if "\n@compares(" in file.read_text(encoding="utf-8")
    }
    assert marked == set(MODULES)


def test_a_stated_witness_is_a_test_that_runs_the_thing() -> None:
    missing = [(str(thing), witness.test_path) for thing, witness in STATED if thing not in compared(witness.test_path)]
    assert missing == []
    assert len(STATED) > 250


def test_what_a_test_compares_states_a_witness() -> None:
    known_things = {thing for thing, _ in STATED}
    silent = {thing for module in MODULES for thing in compared(module) if thing not in known_things}
    assert {thing for thing in silent if not thing.under} == set()
    # Under torch, training is known by the source whatever the parts are.
    assert {thing for thing in silent if thing.under != "torch"} == set()


def test_a_witness_says_what_it_is() -> None:
    """Whatever states a witness says what it is, and which test compares."""
    assert {witness.status for _, witness in STATED} == {"exact", "source", "estimate"}
    assert all(witness.name and witness.test_path for _, witness in STATED)


# --- the default --------------------------------------------------------------------------------------------------


def test_a_class_of_kernels_states_the_check_of_those_that_state_none() -> None:
    of_class, of_method = torch_witness("tests/of_class.py"), torch_witness("tests/of_method.py")

    @kernels_compared(of_class, unchecked_kernels=("do_new",))
    class Kernels:
        def do_add(self) -> None: ...

        def do_new(self) -> None: ...

        def helper(self) -> None: ...

        @kernel_compared(of_method)
        def core_scan(self) -> None: ...

    witnesses = {name: witness_of(vars(Kernels)[name]) for name in ("do_add", "do_new", "helper", "core_scan")}
    assert witnesses == {"do_add": of_class, "do_new": UNTESTED, "helper": UNTESTED, "core_scan": of_method}


def test_a_class_does_not_inherit_a_witness() -> None:
    class Other(Attention):
        """A mixer of somebody's own."""

    assert witness_of(Attention) != UNTESTED
    assert witness_of(Other) == UNTESTED


def test_a_chosen_kernel_without_a_statement_is_untested() -> None:
    (found,) = evidence_of_chosen_kernels(EagerKernels, KernelChoices(attention="flash"))
    assert found.status == "exact"
    (found,) = evidence_of_chosen_kernels(EagerKernels, KernelChoices(attention="paged"))  # type: ignore[arg-type]
    assert (str(found), found.status) == ("kernel paged attention", "untested")
    assert list(evidence_of_chosen_kernels(EagerKernels, EAGER_CHOICES)) == []


def test_a_framework_states_nothing_by_default() -> None:
    record = FrameworkEvidence("toy")
    run = record.run([Evidence("mixer", "attention")], "adamw")
    assert [one.status for one in run] == ["untested"] * 3
    assert list(map(str, run)) == ["framework toy", "mixer attention under toy", "optimizer adamw under toy"]
    assert set(FRAMEWORK_NAMES) == {record.name for record in RECORDS_OF_FRAMEWORKS}


@pytest.mark.parametrize("status", STATUSES)
def test_a_sum_is_known_as_well_as_its_least_known_term(status: Any) -> None:
    below = STATUSES[: STATUSES.index(status) + 1]
    assert weakest_status(below) == status
    evidence = [Evidence("optimizer", one, Witness(one, f"a {one}", "")) for one in below]
    assert with_evidence(TENSORS_TERM, evidence).status == status


def test_what_the_runtime_takes_does_not_depend_on_the_run() -> None:
    term = TENSORS_TERM.__class__("CUDA context", 1, "estimate", "", belongs_to_runtime=True)
    assert with_evidence(term, [Evidence("optimizer", "signum")]) == term


# --- what was called exact before, and is not now ---------------------------------------------------------------------

ONCE_EXACT = {
    "fsdp2": fsdp2.SHARDED_EVIDENCE,
    "fsdp2, a pipeline": fsdp2.PIPELINE_EVIDENCE,
    "fsdp2, tensor parallelism": fsdp2.TENSOR_PARALLEL_EVIDENCE,
    "deepspeed": deepspeed.EVIDENCE,
    "torch, inference on several ranks": distributed_torch.SERVING_EVIDENCE,
}
"""Runs of which the tensors were called exact, whatever the model and the optimizer were."""

DRAFTED = "new: the passes of a draft with its target were not compared"
NOT_RUN = "no run with it was compared; the framework's source was read"
RECURRENT = "a recurrent mixer, whose published kernels are known by their source by themselves"

NOT_EXACT: Mapping[str, Mapping[str, str]] = {
    "fsdp2": {
        "layer gemma4": "torch refuses its layers in the mixed precision of fully_shard",
        "layer hybrid": RECURRENT,
        "layer zamba": RECURRENT,
        "part shared_block": RECURRENT,
        "part vision_experts": NOT_RUN,
        "part boxes": NOT_RUN,
        "part query_factors": NOT_RUN,
        "part pooled": NOT_RUN,
        "part token_indexer": NOT_RUN,
        "part shared_scores": NOT_RUN,
        "part value_experts": NOT_RUN,
        **dict.fromkeys(("layer delayed_hyper", "streams delayed_hyper", "mixer shared_entries"), NOT_RUN),
        **dict.fromkeys(("part candidate_blocks", "part shared_compressed_kv_indexer", "part ngram_input"), NOT_RUN),
        "part multi_token_prediction": "the comparison leaves it out, as training does by default",
        "optimizer adafactor": NOT_RUN,
        "optimizer adafactor-transformers": NOT_RUN,
        "optimizer muon": "refused on shards",
    },
    "fsdp2, a pipeline": {"all but a Llama with AdamW": NOT_RUN},
    "fsdp2, tensor parallelism": {"all but models like Llama and Qwen with AdamW": NOT_RUN},
    "deepspeed": {"all but a Llama with AdamW": NOT_RUN},
    "torch, inference on several ranks": {"all but models like Llama, GPT-2, Gemma 2 and Qwen": NOT_RUN},
}
"""Run → what is known by its source now, each with the reason."""

RULES = (
    *("budget", "canvas", "clips", "covering", "fixed", "longest_edge", "padded", "pinpoints", "smart_resize"),
    *("slices", "split", "tiles", "native_tiles", "dynamic_hd", "hd_transform", "crops", "chunks", "recording"),
    "patch_grid",
)
TOKENS_ALONE = "it says how many patches and tokens there are, and holds no memory"

NO_MODEL = "new: its example was compared alone, and no model with it"
ALONE = "new: compared in the model around an example alone"
NEW_ROWS = "new: rows beside those of the tokens were not compared"

NOT_KNOWN: Mapping[str, str] = {
    "part latent under megatron": "its experts of a latent width are in no published run",
    "optimizer sgd under megatron": "no published run has it",
    "mixer fourier": "new: torch's transform was not compared",
    "mixer context": DRAFTED,
    "mixer latent_context": DRAFTED,
    "layer draft": DRAFTED,
    "layer grouped_conv": DRAFTED,
    "streams target_states": DRAFTED,
    "part proposal": DRAFTED,
    "part clusters": DRAFTED,
    "part medusa": DRAFTED,
    "part mlp_speculator": DRAFTED,
    "layer bottleneck": "new: MobileBERT's layer was not compared",
    "part inner_network": "new: MobileBERT's layer was not compared",
    "mixer grouped_projections": "new: convolutions of width 1 were not compared",
    "network grouped_mlp": "new: convolutions of width 1 were not compared",
    "layer dense_residual": "new: experts that read the layer's input were not compared",
    "layer residual_gate": "new: its gates were not compared",
    "layer initial_states": "new: its mixture with the stream's start was not compared",
    "mixer exclusive": "new: the share of the own value was not compared",
    "streams value_embeddings": "new: the share of the own value was not compared",
    "layer block_residual": "new: the sums that later layers read were not compared",
    "layer gated_streams": "new: gated means of streams were not compared",
    "streams gated_streams": "new: gated means of streams were not compared",
    "part mean_indexer": "new: means of keys were not compared",
    "layer convolved_residual": "new: the sums that later layers read were not compared",
    "streams block_residual": "new: the sums that later layers read were not compared",
    "layer adapter": "new: adapters of languages were not compared",
    "layer gated_cross_text": "new: attention without keys was not compared",
    "layer global_local": NEW_ROWS,
    "mixer global_local": NEW_ROWS,
    "mixer ngram": NEW_ROWS,
    "layer funnel": NEW_ROWS,
    "mixer blended": ALONE,
    "mixer looped": ALONE,
    "layer looped": ALONE,
    "mixer funnel": NEW_ROWS,
    "mixer memory_gate": "new: gates on a recurrence of a lower layer were not compared",
    "mixer sampled_blocks": "new: the selection of blocks was not compared",
    "mixer span_convolution": "new: filters of each token were not compared",
    "streams global_tokens": NEW_ROWS,
    "streams predict_streams": NEW_ROWS,
    "streams prompt_tokens": NEW_ROWS,
    "head latents": "new: attention of every token to latents was not compared",
    "head projection": "new: a projection of every token was not compared",
    "part value_convolution": "new: one filter for each head was not compared",
    **dict.fromkeys(("layer convolved", "mixer gated_profile", "mixer profile", "streams self_conditioning"), NO_MODEL),
    "part entities": "no pass over text reads them",
    "part input_features": "new: embeddings that are joined were not compared",
    "mixer rwkv_head_mix": "new: RWKV-5's and RWKV-6's recurrences were not compared",
    "mixer rwkv7_time_mix": "new: RWKV-7's recurrence was not compared",
    "network rwkv7_channel_mix": "new: its squared ReLU behind a token shift was not compared",
    "mixer selective_mamba2": "new: a scan with separate projections was not compared",
    "part ngram_embedding": "new: tables of n-grams were not compared",
    "part subsampling": "new: its gated convolutions were not compared",
    "part waveform": "new: convolutions with strides over samples were not compared",
    "part wave_convolution": "new: convolutions with strides, and weight norm, were not compared",
    "part conformer_convolution": "new: convolutions with a batch norm were not compared",
    "part features": "new: features as the input of an encoder were not compared with a class",
    "layers of bytes patcher": "new: the memory of patches of bytes is not modelled",
    "streams byte_patches": "new: the memory of patches of bytes is not modelled",
    "reading reading": NEW_ROWS,
    "streams latents": NEW_ROWS,
    **dict.fromkeys(
        ("layer reversible", "mixer chunked", "position axial", "streams reversible"),
        "new: the memory of reversible layers, which compute their activations again, is not modelled",
    ),
    "part frames": "new: asinh, and convolutions with strides, were not compared",
    "part spectrum": "new: convolutions over time and frequency were not compared",
    "part wave": "new: convolutions with strides, and weight norm, were not compared",
    "part relative_keys": ALONE,
    "mixer relative_keys": ALONE,
    "layer conditioned": ALONE,
    "layer adapted": ALONE,
    "layer paired": ALONE,
    "layer conformer": "new: convolutions with a batch norm were not compared",
    **{f"rule of a processor {name}": TOKENS_ALONE for name in RULES},
    "part gate": "new: one of its forms, a bias of each head, was not compared",
    "network grove_moe": "the indices of the groups of a token's experts are not modelled",
}
"""What is untested now, each with the reason: it was called `source` before."""


def once_exact() -> set[tuple[str, str]]:
    """The parts and optimizers that are exact by themselves."""
    exact = {thing for thing, one in STATED if one.status == "exact" and not thing.under}
    return {(thing.kind, thing.name) for thing in exact if thing.kind not in {"kernel", "framework"}}


@in_one_test
@pytest.mark.parametrize("run", ONCE_EXACT)
def test_what_is_not_exact_any_more_has_a_reason(run: str) -> None:
    record, reasons = ONCE_EXACT[run], NOT_EXACT[run]
    exact = set(record.parts) | {("optimizer", name) for name in record.optimizers}
    assert exact <= once_exact()
    lower = {f"{kind} {name}" for kind, name in once_exact() - exact}
    assert record.other_witness.status == "source"
    if len(reasons) > 1:
        assert lower == set(reasons)
    else:
        assert lower
    assert all(reasons.values())


def test_what_is_untested_has_a_reason() -> None:
    bases = {snake_case_name(cls.__name__) for cls in classes_of_parts() if _is_abstract(cls)}
    silent = (thing for thing, one in stated() if one == UNTESTED and thing.kind not in {"kernel", "framework"})
    names = {str(Evidence(*thing[:2], framework=thing.under)) for thing in silent if thing.name not in {*bases, "none"}}
    assert names == set(NOT_KNOWN)


def _is_abstract(cls: type[Part]) -> bool:
    """Whether it is the base class of parts, and none itself."""
    return bool(cls.__subclasses__()) and cls.model_fields.get("type") is None


def test_every_step_of_every_example_has_a_stated_kernel() -> None:
    """A verb that a profile runs without a statement makes an answer untested."""
    things = set().union(*(compared(module) for module in MODULES))
    stating = {thing for thing, _ in STATED}
    assert {thing for thing in things if thing.kind == "kernel"} <= stating


# --- toys -------------------------------------------------------------------------------------------------------------

TOY = """
title = "Toy"
developer = "nobody"
released = "2026-01-01"
dtype = "bfloat16"

[model]
vocab_size = 1000
hidden_size = 64
tie_word_embeddings = false

[model.decoder]
num_hidden_layers = 2
final_norm = { type = "rmsnorm" }

[model.decoder.block]
norm = { type = "rmsnorm" }
norm_placement = "pre"
attention = { type = "tempered", num_attention_heads = 4, num_key_value_heads = 2, head_dim = 16 }
feed_forward = { intermediate_size = 160, hidden_act = "silu", gated = true }
"""

TRAINING = ("--phase", "training", "--seq", "64")
AS_JSON = ("--format", "json")


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with a mixer and an optimizer that nobody has compared."""
    folder = copy_to(tmp_path_factory.mktemp("toys"))
    package = folder / "llmcalc"
    line = '        "tempered": "mixers.tempered:TemperedAttention",\n'
    insert(package / "components" / "choices.py", '        "attention": "', line)
    shutil.copy(TOYS / "tempered.py", package / "components" / "mixers" / "tempered.py")
    optimizers = package / "device_memory" / "optimizers"
    insert(optimizers / "registry.py", '    "adamw",\n', '    "signum",\n')
    shutil.copy(TOYS / "signum.py", optimizers / "signum.py")
    (folder / "toy.toml").write_text(TOY)
    return folder


def tensors(document: Any) -> dict[str, Any]:
    """The first term of the first device of a document."""
    if isinstance(document, dict):
        if "terms" in document:
            found: dict[str, Any] = document["terms"][0]
            return found
        document = list(document.values())
    if isinstance(document, list):
        return next(filter(None, map(tensors, document)), {})
    return {}


TOY_RUNS: list[tuple[str, tuple[str, ...], str]] = [
    ("toy.toml", TRAINING, "mixer tempered"),
    ("toy.toml", (), "mixer tempered"),
    ("gpt2", (*TRAINING, "--optimizer", "signum"), "optimizer signum"),
    ("toy.toml", (*TRAINING, "--optimizer", "signum"), "mixer tempered, optimizer signum"),
    ("toy.toml", (*TRAINING, "--framework", "fsdp2", "--devices", "2"), "mixer tempered"),
    ("gpt2", (*TRAINING, "--optimizer", "signum", "--framework", "torch", "--devices", "2"), "optimizer signum"),
    (
        "gpt2",
        (*TRAINING, "--optimizer", "signum", "--framework", "deepspeed", "--devices", "2", "--zero", "2"),
        "optimizer signum",
    ),
]
"""TARGET, options, and what has no measurement."""


@pytest.fixture(scope="module")
def shown(toys: Path) -> dict[tuple[str, ...], str]:
    """Command → what it prints, of `memory` with each of `TOY_RUNS`, as a screen and as JSON."""
    commands = [("memory", target, *words, *form) for target, words, _ in TOY_RUNS for form in ((), AS_JSON)]
    return dict(zip(commands, outputs(toys, *commands), strict=True))


@pytest.mark.parametrize(("target", "words", "missing"), TOY_RUNS)
def test_a_toy_is_untested(
    shown: dict[tuple[str, ...], str], target: str, words: tuple[str, ...], missing: str
) -> None:
    """In the document, and on the screen without --notes."""
    words = ("memory", target, *words)
    term = tensors(json.loads(shown[(*words, *AS_JSON)]))
    assert (term["status"], term["witness"]) == ("untested", f"no measurement of {missing}")
    assert f"untested: tensors (no measurement of {missing})" in " ".join(shown[words].split())


def test_what_is_compared_stays_as_it_is_beside_the_toys(toys: Path) -> None:
    eager = ("--attn-implementation", "eager")
    assert tensors(command(toys, "memory", "gpt2", *TRAINING, *eager))["status"] == "exact"


def test_verify_lists_the_toys(toys: Path) -> None:
    """Its checks agree, so that its exit code is 0."""
    toy, gpt2, screen = outputs(
        toys, ("verify", "toy.toml", *AS_JSON), ("verify", "gpt2", *AS_JSON), ("verify", "toy.toml")
    )
    document = json.loads(toy)
    assert document["ok"]
    mixer, optimizer = {"kind": "mixer", "name": "tempered"}, {"kind": "optimizer", "name": "signum"}
    assert document["untested"] == [mixer, optimizer]
    assert json.loads(gpt2)["untested"] == [optimizer]
    assert "untested: mixer tempered, optimizer signum: no measurement of its memory is stated" in " ".join(
        screen.split()
    )


def test_nothing_is_untested_in_a_model_that_is_compared(run: Any) -> None:
    code, out, err = run("verify", "gpt2", "--format", "json")
    assert (code, err) == (0, "")
    assert json.loads(out)["untested"] == []


def test_a_framework_refuses_a_mixer_that_it_does_not_have(toys: Path) -> None:
    words = ("memory", "toy.toml", *TRAINING, "--framework", "megatron", "--devices", "2")
    environment = {**os.environ, "PYTHONPATH": str(toys)}
    done = subprocess.run(
        [sys.executable, "-m", "llmcalc", *words],
        cwd=toys,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: toy.toml: --framework megatron: Megatron-LM has no mixer 'tempered' (it has attention, "
        "gated_delta_net, mamba2, mla); expected a model without it, or --framework torch or fsdp2\n"
    )


@in_one_test
@pytest.mark.parametrize(
    ("example", "words"),
    [
        ("ShortConv-0", "no mixer 'short_conv' (it has attention, gated_delta_net, mamba2, mla)"),
        ("HybridBlock-0", "no layer 'hybrid' (it has block)"),
        ("ShortcutLayer-1", "no layer 'shortcut' (it has block)"),
        ("Norm-6", "no norm 'affine' (it has layernorm, rmsnorm)"),
        ("Attention-2", "no position 'alibi' (it has learned, rope)"),
        ("UnusedEmbedding-0", "no part 'unused_embedding'"),
    ],
)
def test_megatron_refuses_parts_that_it_does_not_have(example: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"--framework megatron: Megatron-LM has {words}")):
        megatron.check_components(around_a_model(examples()[example]))
