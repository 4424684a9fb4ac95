"""Contract: the flow of vision and audio encoders is accurate.

Each encoder reads its real input, a projector reads the output of its encoder, and strides and merges give as many rows
as in the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sympy
import torch

from llmcalc.components.base import ModelProperties
from llmcalc.components.towers import TOWERS, record_towers
from llmcalc.components.towers.audio import AudioTower
from llmcalc.components.towers.conformer import Conformer
from llmcalc.components.towers.convnext import ConvNextEncoder
from llmcalc.components.towers.mobilenet import MobileNet
from llmcalc.components.towers.patch_embedder import PatchEmbedder
from llmcalc.components.towers.projector import Projector, ProjectorLayer
from llmcalc.components.towers.sam import SamEncoder
from llmcalc.components.towers.vision import VisionTower
from llmcalc.costs.params import active_params_of, total_params_of
from llmcalc.flow.program import AlternativeBranches, ModuleScope, Step
from llmcalc.flow.record import Flow
from llmcalc.flow.value import Value
from llmcalc.model import ModelSpec
from llmcalc.ops import ConformerAttentionCore
from llmcalc.optional import ALL_PART_NAMES
from llmcalc.workload.derived_rows import IMAGES, PATCHES
from llmcalc.workload.inputs import EncoderPass
from llmcalc.workload.rows import FixedRows
from llmcalc.workload.workload import Workload
from tests.builders import parts_of, spec_of
from tests.components.towers.test_tower_parts import beside
from tests.components.towers.test_towers import WRAPPED, wrapped
from tests.components.towers.tower_shapes import WRAPPERS
from tests.contracts.test_recording import Sizes, array, names, symbol
from tests.samples import in_one_test, sampled

KINDS: list[Any] = TOWERS.load_component_classes()
EXAMPLES = [
    pytest.param(example, id=f"{part.__name__}-{i}") for part in KINDS for i, example in enumerate(part.examples())
]


def alone(tower: Any, **reading: Any) -> tuple[Flow, Value]:
    """Returns the program of one encoder, and its output. reading: changes to its input value."""
    recorder, own = Flow(), tower.input_value()
    x = Value(reading.get("rows", own.rows), own.axes, is_constant=True)
    return recorder, recorder.part("vision_tower", tower, x)


def steps_named(recorder: Flow, name: str) -> Iterator[Step]:
    return (step for step in recorder.root.steps() if step.name == name)


def scopes(scope: ModuleScope) -> Iterator[ModuleScope]:
    yield scope
    for item in scope.items:
        for inner in item.branches.values() if isinstance(item, AlternativeBranches) else [item]:
            if isinstance(inner, ModuleScope):
                yield from scopes(inner)


@in_one_test
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_output_of_a_tower_is_as_wide_as_it_says(example: Any) -> None:
    _, out = alone(example)
    assert out.width == example.output_width


@in_one_test
@pytest.mark.parametrize("example", EXAMPLES)
def test_a_tower_reads_what_was_made_before_or_what_it_is_given(example: Any) -> None:
    """No edge comes from the text model, from nowhere, or from a later step; and the input is read."""
    spec = beside(vision_tower=example)
    (towers,) = (s for s in spec.program().root.items if isinstance(s, ModuleScope) and s.name == "towers")
    steps = list(towers.steps())
    made: set[int] = set()
    for step in steps:
        for value in step.input_values:
            assert id(value.storage) in made or value.storage.is_constant, (step.verb, step.name)
        made |= {id(value.storage) for value in step.output_values}
    own = example.input_value()
    raw = [v for step in steps for v in step.input_values if v.storage.is_constant and v.storage.axes == own.axes]
    assert raw
    assert raw[0].storage.rows == own.rows


def same_in_symbols_and_arrays(spec: ModelSpec) -> None:
    plain = spec.tree()
    lettered, tabled = Sizes(symbol), Sizes(array)
    symbolic, arrays = lettered.of(spec).tree(), tabled.of(spec).tree()
    assert names(symbolic) == names(arrays) == names(plain)
    numbers = {symbol(i, value): value for i, value in lettered.made.items()}
    for cost in (total_params_of, active_params_of):
        expected = plain.total(cost, include=ALL_PART_NAMES)
        assert sympy.sympify(symbolic.total(cost, include=ALL_PART_NAMES)).subs(numbers) == expected
        assert list(np.broadcast_to(arrays.total(cost, include=ALL_PART_NAMES), (2,))) == [expected, expected]


@pytest.mark.parametrize("example", EXAMPLES)
def test_symbols_and_arrays_record_the_tower_of_ints(example: Any) -> None:
    same_in_symbols_and_arrays(beside(vision_tower=example))


def first_of_wrappers() -> dict[str, ModelSpec]:
    """Model type of a wrapper → a small model with its encoders."""
    return {kind: spec_of(wrapped(kind, shapes[0])) for kind, (_, _, shapes) in WRAPPERS.items()}


@pytest.mark.parametrize("spec", sampled(first_of_wrappers(), lambda spec: parts_of(spec.towers)))
def test_symbols_and_arrays_record_the_towers_of_a_wrapper(spec: ModelSpec) -> None:
    """Each part in each place; the test above has the values of their fields."""
    same_in_symbols_and_arrays(spec)


@in_one_test
@pytest.mark.parametrize("example", EXAMPLES)
def test_equal_layers_of_a_tower_give_what_the_next_one_takes(example: Any) -> None:
    recorder, _ = alone(example)
    for scope in scopes(recorder.root):
        if scope.first_input is not None:
            assert scope.output is not None
            assert (scope.first_input.rows, scope.first_input.axes) == (scope.output.rows, scope.output.axes)


@in_one_test
@pytest.mark.parametrize("example", EXAMPLES)
def test_attention_in_a_tower_sees_both_ways_and_leaves_the_text_model_causal(example: Any) -> None:
    recorder = Flow(encoder_output=Value(PATCHES, ()))
    recorder.layer_memo["keys and values"] = handed = {"of the text": 1}
    before = recorder.causal, recorder.encoder_output, recorder.layer_memo
    recorder.part("vision_tower", example, example.input_value())
    assert (
        (recorder.causal, recorder.encoder_output, recorder.layer_memo)
        == before
        == (True, before[1], {"keys and values": {"of the text": 1}})
    )
    assert recorder.layer_memo["keys and values"] is handed
    attending = [step for step in recorder.root.steps() if step.verb == "attention"]
    assert attending or isinstance(example, Projector | PatchEmbedder | ConvNextEncoder)
    for step in attending:
        assert step.options["causal"] is False
        assert step.op is None or not step.op.causal  # type: ignore[attr-defined]


def test_the_class_vector_stands_among_the_patches_inside_the_layers_alone() -> None:
    example = next(one for one in VisionTower.examples() if one.class_embedding)
    recorder, out = alone(example, rows=FixedRows(length=12))
    q = next(steps_named(recorder, "q_proj"))
    assert (q.input_values[0].rows.new_rows(Workload()), out.rows.new_rows(Workload())) == (13, 12)


def test_a_pooling_head_asks_one_query_of_each_image() -> None:
    example = next(one for one in VisionTower.examples() if one.pooling)
    recorder, out = alone(example)
    (probe,) = steps_named(recorder, "probe")
    attends = [step for step in recorder.root.steps() if step.verb == "attention"][-1]
    q, k, _ = attends.input_values
    assert (q.rows, k.rows, out.rows) == (IMAGES, PATCHES, PATCHES)
    reading_step = next(
        step for step in recorder.root.steps() if probe.output_values[0] in [v.storage for v in step.input_values]
    )
    assert reading_step.name == "q_proj"


@pytest.mark.parametrize("example", Conformer.examples())
def test_scores_of_a_conformer_read_what_is_added_to_them(example: Conformer) -> None:
    """Besides queries, keys and values: projected distances in one example, a relative bias in the other."""
    recorder, _ = alone(example)
    (attends,) = (step for step in recorder.root.steps() if step.verb == "attention")
    maker = {id(v): step for step in recorder.root.steps() for v in step.output_values}
    beside_them = [maker[id(v.storage)].name for v in attends.input_values[3:]]
    assert beside_them == (["r_proj"] if example.attention.relative_keys else ["relative_bias"])
    core, left = attends.op, example.attention.context_left
    assert isinstance(core, ConformerAttentionCore)
    expected = (example.segment, 0) if left is None else (example.attention.chunk_size, left - 1 + 1)
    assert (core.chunk, core.context_keys) == expected


# --- inputs of a projector --------------------------------------------------------------------------------------------


def read_by(recorder: Flow, name: str) -> list[Value]:
    """Returns the storages that the scope of that name reads and does not write."""
    (scope,) = (s for s in scopes(recorder.root) if s.name == name)
    steps = list(scope.steps())
    written_storages = {id(v.storage) for step in steps for v in step.output_values}
    return list(
        {
            id(v.storage): v.storage
            for step in steps
            for v in step.input_values
            if id(v.storage) not in written_storages
        }.values()
    )


def recorded(towers: dict[str, Any]) -> tuple[Flow, dict[str, Value]]:
    recorder = Flow()
    return recorder, record_towers(recorder, towers)


@in_one_test
@pytest.mark.parametrize(("kind", "shape"), WRAPPED)
def test_a_projector_reads_the_very_output_of_a_tower_above_it(kind: str, shape: dict[str, Any]) -> None:
    spec = spec_of(wrapped(kind, shape))
    recorder, made = recorded(spec.towers)
    above: list[str] = []
    for name, tower in spec.towers.items():
        if isinstance(tower, Projector) and above and not tower.raw and max(tower.encoder_layers, tower.encoders) == 1:
            (read,) = read_by(recorder, name)
            (of,) = (one for one in above if made[one].storage is read)
            assert of in (above[0], above[-1])
            assert made[of].width == tower.input_size
        above = [*above, name] if isinstance(tower, Projector) and not tower.raw else [name]


def chain(**projectors: tuple[int, int]) -> dict[str, Any]:
    encoder = next(one for one in VisionTower.examples() if one.hidden_size == 12)
    maps = {
        name: Projector(input_size=read, maps=(ProjectorLayer(size=size),)) for name, (read, size) in projectors.items()
    }
    return {"vision_tower": encoder, **maps}


def test_a_projector_reads_the_projector_above_it_or_the_encoder_by_its_width() -> None:
    recorder, made = recorded(chain(first_projector=(12, 20), second_projector=(20, 24), third_projector=(12, 24)))
    assert read_by(recorder, "first_projector") == [made["vision_tower"].storage]
    assert read_by(recorder, "second_projector") == [made["first_projector"].storage]
    assert read_by(recorder, "third_projector") == [made["vision_tower"].storage]


def test_a_projector_of_raw_values_or_below_no_tower_reads_no_output() -> None:
    raw = Projector(input_size=12, maps=(ProjectorLayer(size=24),), raw=True)
    recorder, made = recorded({**chain(), "audio_projector": raw})
    (read,) = read_by(recorder, "audio_projector")
    assert read.is_constant
    assert read is not made["vision_tower"].storage
    recorder, _ = recorded({"mm_projector": raw.model_copy(update={"raw": False})})
    assert [value.is_constant for value in read_by(recorder, "mm_projector")] == [True]


# --- rows -------------------------------------------------------------------------------------------------------------


def rows_of(tower: Any, given: int) -> int:
    """Returns the rows of the output for a number of rows of the input."""
    _, out = alone(tower, rows=FixedRows(length=given))
    rows: int = out.rows.new_rows(Workload())
    return rows


@pytest.mark.parametrize("example", Conformer.examples())
@pytest.mark.parametrize("frames", [40, 41, 43, 160])
def test_convolutions_leave_as_many_frames_as_the_reference(example: Conformer, frames: int) -> None:
    out = example.reference(ModelProperties(24)).eval()(torch.randn(1, frames, example.subsampling.num_mel_bins))
    assert (rows_of(example, frames), example.output_width) == out.shape[1:]


@in_one_test
@pytest.mark.parametrize("kernel", [(2, 3), (3, 3), (4, 2), (5, 3)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 2)])
def test_a_spectrum_is_as_long_and_as_high_as_what_each_convolution_leaves(
    kernel: tuple[int, int], stride: tuple[int, int]
) -> None:
    """Compares the steps of the flow with the output shapes of PyTorch's convolutions."""
    first = Conformer.examples()[0]
    convs = tuple(c.model_copy(update={"kernel": kernel, "stride": stride}) for c in first.subsampling.convolutions)
    below = first.subsampling.model_copy(update={"convolutions": convs})
    net = below.reference(ModelProperties(first.hidden_size)).eval()
    seen: dict[str, int] = {}
    for name, module in net.named_children():
        if name.startswith("conv"):
            module.register_forward_hook(lambda m, i, o, name=name: seen.update({name: o.shape[2] * o.shape[3]}))
    net(torch.randn(1, 31, below.num_mel_bins))
    recorder, _ = alone(first.model_copy(update={"subsampling": below}), rows=FixedRows(length=31))
    counted = {s.name: s.output_values[0].rows.new_rows(Workload()) for s in recorder.root.steps() if s.name in seen}
    assert counted == seen
    assert len(counted) == 2


@pytest.mark.parametrize("example", [*VisionTower.examples(), *PatchEmbedder.examples(), *MobileNet.examples()])
def test_as_many_patches_as_the_reference_gives(example: Any) -> None:
    p = example.patches
    pixels = torch.randn(1, p.num_channels, p.temporal_patch_size, 4 * p.patch_size, 3 * p.patch_size)
    out = example.reference(ModelProperties(24)).eval()(pixels)
    pooled = getattr(example, "pooling", None) is not None  # the reference returns one pooled vector per image
    assert (1 if pooled else rows_of(example, 12), example.output_width) == out.shape[1:]


@pytest.mark.parametrize("example", Projector.examples())
def test_merges_and_marks_leave_as_many_rows_as_the_reference(example: Projector) -> None:
    """Compares the rows for several images that are merged into one."""
    x = torch.randn(example.frames, 4 * 6, example.input_size)
    out = example.reference(ModelProperties(24)).eval()(x, 6)
    assert (1, rows_of(example, 4 * 6 * example.frames), example.output_width) == out.shape


def test_an_encoder_of_sound_has_the_positions_of_its_table() -> None:
    fixed, *in_chunks = AudioTower.examples()
    assert alone(fixed)[1].rows.new_rows(Workload()) == 9
    for example in in_chunks:
        stem: Any = example.stack.stem
        for frames in (3, 4, 6, 17):
            shape = (1, stem.num_mel_bins, frames) if stem.type == "convolution" else (1, frames, 9)
            out = example.reference(ModelProperties(24)).eval()(torch.randn(*shape))
            positions = alone(example)[1].rows.new_rows(EncoderPass(rows=frames, columns=1))
            assert (positions, example.hidden_size) == out.shape[1:], frames


@in_one_test
@pytest.mark.parametrize("example", EXAMPLES)
def test_how_many_patches_there_are_is_not_known(example: Any) -> None:
    _, out = alone(example)
    reads_by_queries = (isinstance(example, Projector) and example.resampler is not None) or (
        isinstance(example, SamEncoder) and example.reader is not None and example.reader.queries is not None
    )
    if not isinstance(example, AudioTower | MobileNet) and not reads_by_queries:
        with pytest.raises(TypeError, match="patches: how many there are is not known"):
            out.rows.new_rows(Workload())


def test_rows_that_do_not_merge_whole_are_refused() -> None:
    projector = Projector(input_size=3, maps=(ProjectorLayer(size=5),), merge=2)
    with pytest.raises(ArithmeticError, match="4 does not divide 6"):
        rows_of(projector, 6)
