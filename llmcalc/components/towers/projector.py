"""Projectors from an encoder's width to the text model's width: patch merging, a norm, linear layers.

Gemma 3 averages a square of patches. Pixtral, Qwen-VL and Kimi concatenate them, which equals the pixel shuffle of
Llama 4, Aya and SmolVLM; ERNIE also concatenates frames. transformers: models/gemma3, gemma3n, gemma4, mistral3,
qwen2_vl, qwen3_5, kimi_k25, llama4, aya_vision, cohere2_vision, lfm2_vl, ernie4_5_vl_moe, hunyuan_vl, phi4_multimodal.

Qwen-VL (Bai 2023, arXiv:2308.12966, §2), MiniCPM-V (Yao 2024, arXiv:2408.01800) and Aria (Li 2024, arXiv:2410.05993)
have a fixed number of learned queries that read the patches (`Resampler`).
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeAlias

from pydantic import Field

from ...algebra import are_equal, exact_div, floor_div
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import IMAGES, PATCHES, ConcatenatedRows, ExtendedRows, MergedPatchRows, MultipliedRows
from ..base import MAX_LAYERS, Flag, InnerWidth, ModelProperties, Part, Positions, StackPosition, Vocab
from ..inputs import AudioInput
from ..layers.block import Block
from ..mixers.attention import Attention
from ..networks.feed_forward import Activation, FeedForward, activate
from ..norm import Norm
from ..part_choice import PartChoice
from ..runtime import PassState
from ..stack import Stack
from .base import LearnedQueries, TowerPart

if TYPE_CHECKING:
    from torch import Tensor, nn


class ProjectorLayer(Part):
    """One linear layer of a projector, with its optional activation.

    size: its output width.
    bias: whether it has a bias, false by default.
    hidden_act: the activation on its output, identity by default.
    gated: whether the activated second half of the output multiplies the first half, false by default.
    halves: whether it is a convolution that reads three patches by three and halves the sides of the grid (Step 3.7),
        false by default.
    """

    size: InnerWidth
    bias: Flag = False
    hidden_act: Activation = "identity"
    gated: Flag = False
    halves: Flag = False

    def check_fields(self) -> None:
        if self.gated and self.halves:
            raise ValueError("gated: true; expected false with halves, which is a convolution without a gate")

    def flow(self, recorder: Flow, x: Value, linear_name: str) -> Value:
        if self.gated:
            half_axis = (Axis("hidden", exact_div(self.size, 2)),)
            gated_half, gate = recorder.split(
                recorder.linear(linear_name, x, JoinedShapes((half_axis, half_axis)), bias=self.bias),
                half_axis,
                half_axis,
            )
            return recorder.mul(gated_half, _activate(recorder, gate, self.hidden_act))
        hidden_axis = Axis("hidden", self.size)
        if self.halves:
            halved_rows = MergedPatchRows(source_rows=x.rows, square_side=2)
            x = recorder.conv(linear_name, x, hidden_axis, kernel=9, bias=self.bias, rows=halved_rows)
            return _activate(recorder, x, self.hidden_act)
        return _activate(recorder, recorder.linear(linear_name, x, hidden_axis, bias=self.bias), self.hidden_act)


class Resampler(LearnedQueries):
    """Learned queries that attend to an image's patches in one cross-attention layer.

    projected: whether a linear layer without a bias brings the patches to that width, true by default.
    attention: the attention of the queries.
    norm: the norm of the queries, and that of the patches; none by default.
    reads_queries: whether the queries read each other beside the patches (KOSMOS-2), false by default.
    positions: whether a vector per query, which is stored as a parameter, is added to it; false by default.
    double_projections: whether queries, keys and values have linear layers without a bias before those of attention,
        and its output has one with a bias after it (Aria); false by default.
    """

    type: Literal["queries"] = "queries"
    attention: Attention
    norm: Norm | None = None
    projected: Flag = True
    reads_queries: Flag = False
    positions: Flag = False
    double_projections: Flag = False

    def check_fields(self) -> None:
        self.attention.check_stack_position(StackPosition("resampler.attention", self.hidden_size, "encoder"))
        self.attention.check_cross_attention()

    def check_input(self, input_size: int) -> None:
        if not self.projected and self.hidden_size != input_size:
            raise ValueError(
                f"resampler.hidden_size: {self.hidden_size} differs from input_size {input_size}; "
                "expected projected = true"
            )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["resampler"](self, model_properties.hidden_size)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the resampler and returns its output vectors for each image. x: the patches."""
        query_axis, hidden_axis = Axis("queries", self.queries), Axis("hidden", self.hidden_size)
        keys = recorder.linear("kv_proj", x, hidden_axis) if self.projected else x
        keys = keys if self.norm is None else recorder.part("kv_norm", self.norm, keys)
        query_rows = MultipliedRows(name="queries", source_rows=IMAGES, rows_per_source=self.queries)
        query = recorder.vector("query", query_axis, hidden_axis, row_count=self.queries).view(
            hidden_axis, new_rows=query_rows
        )
        query = query if self.norm is None else recorder.part("query_norm", self.norm, query)
        if self.reads_queries:
            memory_rows = ConcatenatedRows(name="patches and queries", first_rows=keys.rows, second_rows=query_rows)
            keys = recorder.cat(keys, query, axes=keys.axes, rows=memory_rows)
        if self.positions:
            query = recorder.add(
                query,
                recorder.vector("positions", query_axis, hidden_axis, row_count=self.queries).view(
                    hidden_axis, new_rows=query_rows
                ),
            )
        value_input: Value | None = None
        if self.double_projections:
            query, keys, value_input = (
                recorder.linear(projection_name, projection_input, hidden_axis)
                for projection_name, projection_input in (("q_in", query), ("k_in", keys), ("v_in", keys))
            )
        with recorder.separate_stack(causal=False):
            attn_output = recorder.part("attention", self.attention, query, memory=keys, value_input=value_input)
        if self.double_projections:
            return recorder.linear("attention_out", attn_output, hidden_axis, bias=True)
        return attn_output


RESAMPLERS = PartChoice(
    "queries",
    {
        "queries": "towers.projector:Resampler",
        "perceiver": "towers.perceiver:Perceiver",
        "qformer": "towers.qformer:QFormer",
    },
)

if TYPE_CHECKING:
    AnyResampler: TypeAlias = LearnedQueries
else:
    AnyResampler = Annotated[Part, RESAMPLERS]
    """The components whose learned queries read the patches, chosen by `type`."""


class Projector(TowerPart):
    """A projector from patches of input_size to vectors of the text model's input width.

    input_size: the width of the input.
    maps: the linear layers; after a resampler there may be none.
    merge: the side of the square of patches that are merged into one, 1 by default.
    merged: whether merged patches are concatenated (`concat`, by default) or averaged (`mean`).
    frames: the number of consecutive images, or of positions of audio, that are merged into one, 1 by default.
    norm: the norm before the linear layers, none by default.
    norm_of: whether the norm is on each patch before merging (`patch`, by default) or on the merged patches (`merged`).
        A mean is always normalized after merging.
    out_norm: the norm on the last layer's output, none by default.
    out_act: the activation after that, identity by default.
    vocab_size: the number of special non-text tokens, which have embeddings of input_size and a norm of their own
        (Gemma 3n); none by default.
    input_marks, output_marks: the number of learned vectors inserted before and after the linear layers (line ends,
        separators); 0 by default.
    grid_positions: the number of learned positions of rows and of columns, each of half the width, whose vectors side
        by side are added to the input (Florence-2); none by default.
    frame_positions: the number of computed positions of frames, of which the first is added as well; none by default.
    mean_vector: whether the mean of the patches becomes one vector more, false by default.
    resampler: the learned queries that read the patches before the norm and the linear layers, none by default.
    stack: the layers of attention after the linear layers (Fun-ASR), none by default.
    encoders: the number of encoders before it, each with its projectors, whose outputs for a patch it reads side by
        side (OpenVLA), 1 by default.
    encoder_layers: the number of layers of the encoder before it whose outputs for a patch it reads side by side
        (ViP-LLaVA), 1 by default.
    lower_layer: the index of the encoder's layer whose output it reads while the encoder runs on (DeepStack); by
        default it reads the encoder's output.
    with_images: whether it is used for audio in prompts with images, or in others alone (Phi-4-multimodal); by default
        for both.
    reads_class_embedding: whether it reads the encoder's class embedding too, as one more patch of each image (BLIP-2);
        false by default.
    raw: whether the input does not come from an encoder but is raw audio frames (the unified Gemma 4); false by
        default.
    audio: how the processor cuts audio into raw frames; none by default, where that is not known.
    """

    type: Literal["projector"] = "projector"
    input_size: InnerWidth
    maps: tuple[ProjectorLayer, ...] = Field(max_length=10)
    merge: InnerWidth = 1
    merged: Literal["concat", "mean"] = "concat"
    frames: InnerWidth = 1
    norm: Norm | None = None
    norm_of: Literal["patch", "merged"] = "patch"
    out_norm: Norm | None = None
    out_act: Activation = "identity"
    vocab_size: Vocab | None = None
    input_marks: int = Field(default=0, ge=0, le=1000, strict=True)
    output_marks: int = Field(default=0, ge=0, le=1000, strict=True)
    grid_positions: Positions | None = None
    frame_positions: Positions | None = None
    mean_vector: Flag = False
    resampler: AnyResampler | None = None
    stack: Stack | None = None
    encoders: int = Field(default=1, ge=1, le=10, strict=True)
    encoder_layers: int = Field(default=1, ge=1, le=100, strict=True)
    lower_layer: int | None = Field(default=None, ge=0, le=MAX_LAYERS, strict=True)
    with_images: Flag | None = None
    reads_class_embedding: Flag = False
    raw: Flag = False
    audio: AudioInput | None = None

    def check_fields(self) -> None:
        for linear_map in self.maps:
            if linear_map.gated and linear_map.size % 2:
                raise ValueError(
                    f"maps.size: {linear_map.size} has no two halves; expected an even number where a map is gated"
                )
            if linear_map.halves and (self.resampler is not None or self.frames > 1):
                raise ValueError("maps.halves: reads a grid of patches; expected no resampler or frames")
        if self.merged == "mean" and self.norm_of == "merged":
            raise ValueError('merged: "mean" is always normalized after merging; expected no norm_of = "merged"')
        if self.resampler is not None and (
            self.merge * self.frames > 1 or self.vocab_size is not None or self.input_marks
        ):
            raise ValueError("resampler: reads all patches; expected no merge, frames, vocab_size or input_marks")
        if self.resampler is not None:
            self.resampler.check_input(self.input_size)
        elif not self.maps:
            raise ValueError("maps: is empty; expected a linear layer, or a resampler")
        adds_vectors = self.grid_positions is not None or self.frame_positions is not None or self.mean_vector
        if adds_vectors and (self.resampler is not None or self.merge * self.frames > 1):
            raise ValueError(
                "grid_positions, frame_positions, mean_vector: are for patches that maps read one by one; expected no "
                "resampler, merge or frames"
            )
        if self.stack is not None:
            self.stack.check_stack_position(StackPosition("stack", self.output_width, "encoder"))
        if self.audio is not None and not self.raw:
            raise ValueError("audio: only a projector of raw frames cuts audio; expected raw = true")
        if self.vocab_size is not None and self.norm is None:
            raise ValueError("vocab_size: requires the norm of patches for its tokens too; expected a norm")

    @property
    def output_width(self) -> int:
        if not self.maps and self.resampler is not None:
            return self.resampler.hidden_size
        last_map = self.maps[-1]
        return last_map.size // 2 if last_map.gated else last_map.size

    def input_value(self) -> Value:
        rows = ExtendedRows() if self.reads_class_embedding else PATCHES
        return Value(rows, (Axis("hidden", self.input_size),), is_constant=True)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the projector and returns the projected patches.

        Non-text tokens pass the same layers separately; only their embedding and norm are recorded.
        """
        if self.vocab_size is not None and self.norm is not None:
            token_embedding, _ = recorder.table("token_embedding", Axis("vocab", self.vocab_size), *x.axes)
            recorder.part("token_norm", self.norm, token_embedding)
        x = self._add_positions(recorder, x)
        is_normed_after_merge = self.merged == "mean" or self.norm_of == "merged"
        if self.resampler is not None:
            with recorder.scope("resampler"):
                x = self.resampler.flow(recorder, x)
        x = x if is_normed_after_merge or self.norm is None else recorder.part("norm", self.norm, x)
        x = self._merge_patches(recorder, x)
        x = recorder.part("norm", self.norm, x) if is_normed_after_merge and self.norm is not None else x
        if self.input_marks:
            x = self._append_marker_vectors(recorder, "input_marks", x, self.input_marks, *x.axes)
        for linear_index, linear_map in enumerate(self.maps, 1):
            x = linear_map.flow(recorder, x, f"map_{linear_index}")
        if self.output_marks:
            x = self._append_marker_vectors(recorder, "output_marks", x, self.output_marks, *x.axes)
        x = x if self.out_norm is None else recorder.part("out_norm", self.out_norm, x)
        x = _activate(recorder, x, self.out_act)
        if self.stack is None:
            return x
        with recorder.separate_stack(causal=False):
            return self.stack.flow(recorder, x)

    def _add_positions(self, recorder: Flow, x: Value) -> Value:
        """Adds the optional positions to the patches, and appends the optional mean of all patches as a vector."""
        if self.grid_positions is not None:
            column_width = floor_div(self.input_size, 2)
            table_widths = {"column_positions": self.input_size - column_width, "row_positions": column_width}
            position_vectors = [
                recorder.table(
                    table_name,
                    Axis("positions", self.grid_positions),
                    Axis("hidden", table_width),
                    output_rows=x.rows,
                    index_source="positions",
                )[0]
                for table_name, table_width in table_widths.items()
            ]
            joined_axes = (JoinedShapes(tuple(position_vector.axes for position_vector in position_vectors)),)
            x = recorder.add(x, recorder.cat(*position_vectors, axes=joined_axes).view(*x.axes))
        if self.frame_positions is not None:
            x = recorder.add(x, recorder.buffer("frame_positions", Axis("frames", self.frame_positions), *x.axes))
        if self.mean_vector:
            mean_vector = recorder.resampled(x, MultipliedRows("mean", source_rows=IMAGES, rows_per_source=1))
            x = recorder.cat(mean_vector, x, axes=x.axes, rows=ExtendedRows(source_rows=x.rows, extra_rows=1))
        return x

    def _merge_patches(self, recorder: Flow, x: Value) -> Value:
        """Merges square blocks of patches, also over consecutive frames, into one vector each."""
        if are_equal(self.merge, 1) and are_equal(self.frames, 1):
            return x
        merged_axes = (Axis("rows", self.merge), Axis("columns", self.merge))
        merged_rows = MergedPatchRows(source_rows=x.rows, square_side=self.merge, frames=self.frames)
        return recorder.merge(x, merged_rows, Axis("frames", self.frames), *merged_axes, is_mean=self.merged == "mean")

    def _append_marker_vectors(
        self, recorder: Flow, marker_name: str, x: Value, marker_count: int, *axes: Axis | JoinedShapes
    ) -> Value:
        """Appends learned marker vectors, such as separators of images, to x."""
        mark_vectors = recorder.vector(marker_name, Axis("marks", marker_count), *axes, row_count=marker_count)
        return recorder.cat(
            x, mark_vectors, axes=x.axes, rows=ExtendedRows(source_rows=x.rows, extra_rows=marker_count)
        )

    def describe(self, hidden_size: int) -> str:
        return " → ".join(str(width) for width in (self.input_size, *(linear_map.size for linear_map in self.maps)))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["projector"](self)

    @classmethod
    def examples(cls) -> list[Self]:
        from .perceiver import Perceiver
        from .qformer import QFormer

        rmsnorm, layernorm = Norm(type="rmsnorm"), Norm(type="layernorm")
        unweighted_norm = Norm(type="rmsnorm", weight=False)
        biased_attention = Attention(num_attention_heads=4, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
        resampler = partial(Resampler, hidden_size=12, attention=biased_attention, norm=layernorm)
        resamplers = (
            (10, resampler(queries=3)),
            (12, resampler(queries=5, norm=rmsnorm, projected=False, positions=True)),
            (12, resampler(queries=4, projected=False, double_projections=True)),
            (12, resampler(queries=4, norm=None, projected=False, reads_queries=True)),
        )
        network = FeedForward(intermediate_size=20, hidden_act="relu", up_bias=True, down_bias=True)
        layer = Block(attention=biased_attention, feed_forward=network, norm=layernorm, norm_placement="pre")
        maps = (ProjectorLayer(size=12, hidden_act="silu", gated=True), ProjectorLayer(size=24))
        return [
            cls(input_size=12, maps=(ProjectorLayer(size=24),), merge=2, merged="mean", norm=rmsnorm),
            cls(
                input_size=12,
                maps=(ProjectorLayer(size=48, bias=True, hidden_act="gelu"), ProjectorLayer(size=24, bias=True)),
                merge=2,
                norm=layernorm,
            ),
            cls(
                input_size=10,
                maps=(ProjectorLayer(size=10), ProjectorLayer(size=24, hidden_act="gelu"), ProjectorLayer(size=24)),
                merge=2,
            ),
            cls(input_size=10, maps=maps, merge=2, norm=layernorm, norm_of="merged"),
            cls(
                input_size=10, maps=(ProjectorLayer(size=24, bias=True),), frames=2, out_norm=layernorm, out_act="gelu"
            ),
            cls(input_size=10, maps=(ProjectorLayer(size=24),), norm=rmsnorm, out_norm=unweighted_norm, vocab_size=7),
            cls(
                input_size=10,
                maps=(ProjectorLayer(size=24, bias=True),),
                input_marks=1,
                output_marks=3,
                out_norm=rmsnorm,
            ),
            cls(input_size=10, maps=(ProjectorLayer(size=24, bias=True),), merge=2, input_marks=2),
            *(
                cls(input_size=input_size, maps=(ProjectorLayer(size=24),), norm=layernorm, resampler=input_resampler)
                for input_size, input_resampler in resamplers
            ),
            cls(input_size=12, maps=(), resampler=Perceiver.examples()[0]),
            cls(input_size=10, maps=(ProjectorLayer(size=24),), stack=Stack(num_hidden_layers=2, block=layer)),
            *(
                cls(input_size=10, maps=(ProjectorLayer(size=24, bias=True),), resampler=qformer)
                for qformer in QFormer.examples()
            ),
            cls(input_size=10, maps=(ProjectorLayer(size=12, bias=True, halves=True), ProjectorLayer(size=24))),
            cls(
                input_size=11,
                maps=(ProjectorLayer(size=24),),
                out_norm=layernorm,
                grid_positions=9,
                frame_positions=5,
                mean_vector=True,
            ),
        ]


def _activate(recorder: Flow, x: Value, function_name: Activation) -> Value:
    return x if function_name == "identity" else recorder.act(x, function_name)


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class MarkerEmbeddings(nn.Module):
        def __init__(self, query_count: int, hidden_size: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(query_count, hidden_size) * 0.02)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, self.weight.expand(len(x), -1, -1)], 1)

    class FramePositions(nn.Module):
        """Adds the position vector of the image's single frame. x: [images, patches, hidden] → same shape."""

        def __init__(self, frame_count: int, hidden_size: int) -> None:
            super().__init__()
            self.register_buffer("value", torch.zeros(frame_count, hidden_size))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.get_buffer("value")[0]

    class ResamplerReference(nn.Module):
        """Attends from learned queries to patches. x: [images, patches, input_size] → [images, queries, hidden]."""

        def __init__(self, spec: Resampler, input_width: int) -> None:
            super().__init__()
            hidden_size = spec.hidden_size
            if spec.projected:
                self.kv_proj = nn.Linear(input_width, hidden_size, bias=False)
            self.query = MarkerEmbeddings(spec.queries, hidden_size)
            self.reads_queries = spec.reads_queries
            if spec.norm is not None:
                self.kv_norm, self.query_norm = (spec.norm.reference(ModelProperties(hidden_size)) for _ in range(2))
            if spec.positions:
                self.positions = MarkerEmbeddings(spec.queries, hidden_size)
            self.attention = spec.attention.reference(
                ModelProperties(hidden_size, is_causal=False, is_cross_attention=True)
            )
            if spec.double_projections:
                self.q_in, self.k_in, self.v_in = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(3))
                self.attention_out = nn.Linear(hidden_size, hidden_size)

        def forward(self, x: Tensor) -> Tensor:
            keys = self.kv_proj(x) if hasattr(self, "kv_proj") else x
            query = self.query.weight.expand(len(x), -1, -1)
            if hasattr(self, "kv_norm"):
                keys, query = self.kv_norm(keys), self.query_norm(query)
            keys = torch.cat([keys, query], 1) if self.reads_queries else keys
            query = query + self.positions.weight if hasattr(self, "positions") else query
            if not hasattr(self, "attention_out"):
                return self.attention(query, PassState(encoder_output=keys))
            heads = self.attention(self.q_in(query), PassState(encoder_output=self.k_in(keys)), self.v_in(keys))
            return self.attention_out(heads)

    class ProjectorReference(nn.Module):
        """Projects patches. x: [images, patches, input_size] → [images / frames, patches / merge², size].

        The patches are row by row, with `patch_columns` patches per row.

        Marks are appended at the end; the published classes insert them at the end of rows or of images.
        """

        def __init__(self, spec: Projector) -> None:
            super().__init__()
            self.spec, input_width = spec, spec.input_size
            if spec.vocab_size is not None and spec.norm is not None:
                self.token_embedding = nn.Embedding(spec.vocab_size, input_width)
                self.token_norm = spec.norm.reference(ModelProperties(input_width))
            if spec.grid_positions is not None:
                self.column_positions = nn.Embedding(spec.grid_positions, input_width - input_width // 2)
                self.row_positions = nn.Embedding(spec.grid_positions, input_width // 2)
            if spec.frame_positions is not None:
                self.frame_positions = FramePositions(spec.frame_positions, input_width)
            if spec.resampler is not None:
                self.resampler = spec.resampler.reference(ModelProperties(input_width))
                input_width = spec.resampler.hidden_size
            if spec.merged == "concat":
                input_width = input_width * spec.merge**2 * spec.frames
            if spec.input_marks:
                self.input_marks = MarkerEmbeddings(spec.input_marks, input_width)
            if spec.norm is not None:
                normed_width = spec.input_size if spec.norm_of == "patch" and spec.resampler is None else input_width
                self.norm = spec.norm.reference(ModelProperties(normed_width))
            for linear_index, linear_map in enumerate(spec.maps, 1):
                map_module: nn.Module
                if linear_map.halves:
                    map_module = nn.Conv2d(input_width, linear_map.size, 3, 2, 1, bias=linear_map.bias)
                else:
                    map_module = nn.Linear(input_width, linear_map.size, bias=linear_map.bias)
                self.add_module(f"map_{linear_index}", map_module)
                input_width = linear_map.size // 2 if linear_map.gated else linear_map.size
            if spec.output_marks:
                self.output_marks = MarkerEmbeddings(spec.output_marks, input_width)
            if spec.out_norm is not None:
                self.out_norm = spec.out_norm.reference(ModelProperties(input_width))
            self._stack: tuple[nn.Module, ...] = ()
            if spec.stack is not None:
                stack = spec.stack.reference(ModelProperties(input_width, is_causal=False))
                for child_name, child_module in stack.named_children():
                    self.add_module(child_name, child_module)
                self._stack = (stack,)  # as a tuple: the stack's children are registered as this module's own

        def tokens(self, token_ids: Tensor) -> Tensor:
            """Returns projected embeddings of the projector's special tokens, such as image separators."""
            return self._apply_projector_layers(self.token_norm(self.token_embedding(token_ids)), 1)

        def _apply_projector_layers(self, x: Tensor, patch_columns: int) -> Tensor:
            """Applies the linear layers in order. patch_columns: the patches per row, for convolutional layers."""
            for linear_index, linear_map in enumerate(self.spec.maps, 1):
                map_module = self.get_submodule(f"map_{linear_index}")
                if linear_map.halves:
                    grid = map_module(x.unflatten(1, (-1, patch_columns)).permute(0, 3, 1, 2))
                    projected_x, patch_columns = grid.flatten(2).transpose(1, 2), grid.shape[-1]
                else:
                    projected_x = map_module(x)
                if linear_map.gated:
                    gated_half, gate = projected_x.chunk(2, -1)
                    x = gated_half * activate(linear_map.hidden_act, gate)
                else:
                    x = activate(linear_map.hidden_act, projected_x)
            x = self.output_marks(x) if hasattr(self, "output_marks") else x
            x = activate(self.spec.out_act, self.out_norm(x) if hasattr(self, "out_norm") else x)
            for stack in self._stack:
                x = stack.forward(x, PassState(patch_columns=1))
            return x

        def forward(self, x: Tensor, patch_columns: int) -> Tensor:
            if hasattr(self, "column_positions"):
                patch_indices = torch.arange(x.shape[1], device=x.device)
                column_vectors = self.column_positions(patch_indices % patch_columns)
                x = x + torch.cat([column_vectors, self.row_positions(patch_indices // patch_columns)], -1)
            if hasattr(self, "frame_positions"):
                x = self.frame_positions(x)
            x = torch.cat([x.mean(1, keepdim=True), x], 1) if self.spec.mean_vector else x
            patch_columns = 1 if self.spec.mean_vector else patch_columns
            merge, is_mean, frames = self.spec.merge, self.spec.merged == "mean", self.spec.frames
            if hasattr(self, "resampler"):
                x = self.resampler(x)
                return self._apply_projector_layers(self.norm(x) if hasattr(self, "norm") else x, 1)
            is_normed_after_merge = is_mean or self.spec.norm_of == "merged"
            x = self.norm(x) if hasattr(self, "norm") and not is_normed_after_merge else x
            patch_squares = (
                x.unflatten(1, (-1, merge, patch_columns // merge, merge)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
            )
            x = patch_squares.mean(2) if is_mean else patch_squares.flatten(2)
            if frames > 1:
                frames_of_images = x.unflatten(0, (-1, frames)).transpose(1, 2)
                x = frames_of_images.mean(2) if is_mean else frames_of_images.flatten(2)
            x = self.norm(x) if hasattr(self, "norm") and is_normed_after_merge else x
            return self._apply_projector_layers(
                self.input_marks(x) if hasattr(self, "input_marks") else x, patch_columns // merge
            )

    return {"projector": ProjectorReference, "resampler": ResamplerReference}
