"""The byte latent transformer: large layers run over patches of bytes, between small layers that run over bytes.

Pagnoni et al. 2024 (arXiv:2412.09871). A frozen language model of bytes ends a patch where the next byte is hard to
predict, so the number of patches depends on the text. transformers: models/blt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from ..workload.derived_rows import BytePatchRows, MultipliedRows, PatchVectors
from .base import Flag, InnerWidth, Layers, ModelProperties, Part, StackPosition, Vocab
from .layers.block import Block
from .norm import Norm
from .reading import Reading
from .residual_streams import ResidualStreams
from .runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_BYTES, MAX_VECTORS, MAX_TABLES = 2**16, 64, 256
"""The largest numbers of bytes per patch, of vectors per patch in the byte layers, and of byte n-gram tables."""


class ByteLayers(Part):
    """Transformer layers that run on one vector per byte, instead of per token or patch.

    num_hidden_layers: the number of layers.
    block: the layer.
    """

    noun: ClassVar[str] = "layers of bytes"

    num_hidden_layers: Layers
    block: Block

    def check_stack_position(self, error_location: str, width: int) -> None:
        self.block.check_stack_position(StackPosition(f"{error_location}.block", width, "decoder"))

    def flow(self, recorder: Flow, x: Value, record_cross_attention: Callable[[Value], Value] | None = None) -> Value:
        """Records the operations of the layers over bytes. record_cross_attention: called before each layer."""
        layer_count = self.num_hidden_layers

        def record_layer(layer_input: Value) -> Value:
            if record_cross_attention is None:
                return self.block.flow(recorder, layer_input)
            layer_input = record_cross_attention(layer_input)
            with recorder.scope("block"):
                return self.block.flow(recorder, layer_input)

        layer_indices = range(layer_count) if isinstance(layer_count, int) else None
        return recorder.layers(x, record_layer, layer_count, layer_indices, source=self.block.formula_source)


class Patcher(ByteLayers):
    """A frozen language model of bytes, whose next-byte entropy determines the ends of patches.

    vocab_size: its vocabulary.
    hidden_size: the width of its layers.
    norm: the norm before its head.
    """

    vocab_size: Vocab
    hidden_size: InnerWidth
    norm: Norm


class PatchStreams(ResidualStreams):
    """Transformer layers over bytes before and after the layers over patches.

    patch_size: the number of bytes that a patch is counted with; it is 1 where every byte is a patch.
    local_size: the width of the layers of bytes.
    vectors: the number of vectors of a patch in the layers of bytes, which read the bytes and which the bytes read.
    projected: whether a linear layer brings the vectors of a patch to the width of the layers; otherwise they have it
        together. False by default.
    hash_tables, hash_vocab_size: the number of tables with embeddings of groups of bytes, and the rows of each.
    encoder: the layers of bytes before the patches.
    reads: the cross-attention of the patches to the bytes.
    decoder: the layers of bytes after the patches.
    writes: the cross-attention of the bytes to the patches.
    writes_every_layer: whether each layer of the decoder has one, false by default; otherwise the first layer.
    norm: the norm after the decoder.
    patcher: the language model of bytes, none where the patches are given.
    patcher_runs: whether it runs in a forward pass, true by default.
    """

    formula_source: ClassVar[str] = "Pagnoni et al. 2024, §3"

    type: Literal["byte_patches"] = "byte_patches"
    patch_size: int = Field(ge=1, le=MAX_BYTES, strict=True)
    local_size: InnerWidth
    vectors: int = Field(ge=1, le=MAX_VECTORS, strict=True)
    projected: Flag = False
    hash_tables: int = Field(ge=1, le=MAX_TABLES, strict=True)
    hash_vocab_size: Vocab
    encoder: ByteLayers
    reads: Reading
    decoder: ByteLayers
    writes: Reading
    writes_every_layer: Flag = False
    norm: Norm
    patcher: Patcher | None = None
    patcher_runs: Flag = True

    @property
    def one_pass_model_name(self) -> str:
        return "a model of patches of bytes"

    def embedding_width(self) -> int:
        return self.local_size

    def check_stack_position(self, stack_position: StackPosition) -> None:
        error_location, width = stack_position.error_path, self.local_size
        if stack_position.stack_name != "decoder":
            raise ValueError(f"{error_location}: bytes do not read later bytes; expected a decoder")
        if not self.projected and self.vectors * width != stack_position.width:
            raise ValueError(
                f"{error_location}.projected: {self.vectors} vectors of {width} are not {stack_position.width}; "
                "expected true"
            )
        for stack_name, layers in (("encoder", self.encoder), ("decoder", self.decoder)):
            layers.check_stack_position(f"{error_location}.{stack_name}", width)
        for stack_name, cross_attention in (("reads", self.reads), ("writes", self.writes)):
            cross_attention.check_width(f"{error_location}.{stack_name}", width)
        if self.patcher is not None:
            self.patcher.check_stack_position(f"{error_location}.patcher", self.patcher.hidden_size)

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the first byte layers and of the patch vectors. x: the bytes' embeddings."""
        hidden_axes = recorder.layer_memo["hidden"]
        if self.patcher is not None:
            self._record_patcher(recorder, self.patcher, x)
        hash_axis = Axis("hashes", self.hash_tables * self.hash_vocab_size)
        ngram_rows = MultipliedRows("groups of bytes", source_rows=x.rows, rows_per_source=self.hash_tables)
        hash_embeddings, _ = recorder.table(
            "hash_embedding", hash_axis, *x.axes, output_rows=ngram_rows, rows_read=1, kind=self.kind
        )
        x = recorder.add(
            x, recorder.sum(hash_embeddings.view(Axis("tables", self.hash_tables), *x.axes, new_rows=x.rows), *x.axes)
        )
        with recorder.scope("local_encoder"):
            with recorder.separate_stack(recorder.causal):
                x = self.encoder.flow(recorder, x)
            patch_rows = BytePatchRows(source_rows=x.rows, patch_bytes=self.patch_size)
            vector_axis = Axis("vectors", self.vectors)
            patch_means = recorder.resampled(x, patch_rows)
            patch_vectors = recorder.linear("patch_proj", patch_means, vector_axis, *x.axes, kind=self.kind)
            patch_vectors = recorder.part(
                "reads", self.reads, self._view_as_vectors(patch_vectors, x, patch_rows), memory=x
            )
            patch_vectors = patch_vectors.view(vector_axis, *x.axes, new_rows=patch_rows)
        recorder.layer_memo["bytes"] = x
        recorder.keep(bytes=x)
        if self.projected:
            return recorder.linear("in_proj", patch_vectors, *hidden_axes, kind=self.kind)
        return patch_vectors.view(*hidden_axes)

    def record_stream_merge(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the layers over bytes that follow the layers over patches. x: the patch vectors."""
        byte_states: Value = recorder.layer_memo["bytes"]
        with recorder.scope("local_decoder"):
            patch_vectors = recorder.linear(
                "patch_proj", x, Axis("vectors", self.vectors), *byte_states.axes, kind=self.kind
            )
            memory, layers = self._view_as_vectors(patch_vectors, byte_states, x.rows), self.decoder

            def read_patches(byte_queries: Value) -> Value:
                return recorder.part("writes", self.writes, byte_queries, memory=memory)

            if not self.writes_every_layer:
                byte_states = read_patches(byte_states)
            with recorder.separate_stack(recorder.causal):
                byte_states = layers.flow(recorder, byte_states, read_patches if self.writes_every_layer else None)
            return recorder.part("norm", self.norm, byte_states)

    def _view_as_vectors(self, projected_patches: Value, x: Value, patch_rows: Any) -> Value:
        """Returns a view of the patch vectors with one row per vector. x: the byte embeddings."""
        new_rows = PatchVectors(patch_rows=patch_rows, vectors_per_patch=self.vectors)
        return projected_patches.view(*x.axes, new_rows=new_rows)

    def _record_patcher(self, recorder: Flow, patcher: Patcher, x: Value) -> None:
        vocab, hidden_axis = Axis("vocab", patcher.vocab_size), Axis("hidden", patcher.hidden_size)
        patcher_role: Any = "no_grad" if self.patcher_runs else "idle"
        with recorder.scope("patcher", role=patcher_role), recorder.separate_stack(recorder.causal):
            byte_embeddings, _ = recorder.table(
                "embed_tokens", vocab, hidden_axis, output_rows=x.rows, kind="embedding"
            )
            byte_embeddings = recorder.part("norm", patcher.norm, patcher.flow(recorder, byte_embeddings))
            recorder.linear("lm_head", byte_embeddings, vocab, kind="lm_head")

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class ByteLayersReference(nn.Module):
        """The base class of the reference's byte-level encoder and decoder; projects each patch to several vectors."""

        def __init__(self, layers: ByteLayers, local_size: int, patch_size: int, vector_count: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                layers.block.reference(ModelProperties(local_size)) for _ in range(layers.num_hidden_layers)
            )
            self.patch_proj = nn.Linear(patch_size, vector_count * local_size, bias=False)
            self.vectors = vector_count

        def split_into_vectors(self, patches: Tensor) -> Tensor:
            patch_vectors: Tensor = self.patch_proj(patches)
            return patch_vectors.unflatten(-1, (self.vectors, -1)).flatten(1, 2)

    class ByteEncoderReference(ByteLayersReference):
        """Runs the byte layers before the patches, and the cross-attention of patches to bytes.

        [batch, bytes, width] → same shape, [batch, patches, vectors · width].
        """

        def __init__(self, spec: PatchStreams) -> None:
            super().__init__(spec.encoder, spec.local_size, spec.local_size, spec.vectors)
            self.reads, self.patch_size = spec.reads.reference(spec.local_size, spec.local_size), spec.patch_size

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            for layer in self.layers:
                x = layer(x, PassState())
            patch_count = 1 - (-x.shape[1] // self.patch_size)
            patch_of_byte = torch.arange(x.shape[1], device=x.device).add(self.patch_size - 1) // self.patch_size
            patch_index = patch_of_byte[None, :, None].expand_as(x)
            empty_maxima = x.new_zeros(x.shape[0], patch_count, x.shape[2])
            patch_maxima = empty_maxima.scatter_reduce(1, patch_index, x, "amax", include_self=False)
            return x, self.reads(self.split_into_vectors(patch_maxima), x).unflatten(1, (patch_count, -1)).flatten(2)

    class CrossAttentionBlock(nn.Module):
        """A byte layer with a preceding cross-attention to the patch vectors."""

        def __init__(self, block: nn.Module, cross_attention: nn.Module) -> None:
            super().__init__()
            self.writes, self.block = cross_attention, block

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            layer_output: Tensor = self.block(self.writes(x, memory), PassState())
            return layer_output

    class ByteDecoderReference(ByteLayersReference):
        """Runs the byte layers after the patches, with cross-attention to the patches.

        [batch, bytes, width], [batch, patches, hidden] → [batch, bytes, width].
        """

        def __init__(self, spec: PatchStreams, hidden_size: int) -> None:
            super().__init__(spec.decoder, spec.local_size, hidden_size, spec.vectors)
            if spec.writes_every_layer:
                self.layers = nn.ModuleList(
                    CrossAttentionBlock(block, self._patch_cross_attention(spec)) for block in self.layers
                )
            else:
                self.writes = self._patch_cross_attention(spec)
            self.norm = spec.norm.reference(ModelProperties(spec.local_size))

        @staticmethod
        def _patch_cross_attention(spec: PatchStreams) -> nn.Module:
            return spec.writes.reference(spec.local_size, spec.local_size)

        def forward(self, x: Tensor, patches: Tensor) -> Tensor:
            memory = self.split_into_vectors(patches)
            x = self.writes(x, memory) if hasattr(self, "writes") else x
            for layer in self.layers:
                x = layer(x, memory) if isinstance(layer, CrossAttentionBlock) else layer(x, PassState())
            byte_states: Tensor = self.norm(x)
            return byte_states

    class PatcherReference(nn.Module):
        """Runs the byte language model whose entropies determine the ends of patches. ids: [batch, bytes]."""

        def __init__(self, spec: Patcher) -> None:
            super().__init__()
            model_properties = ModelProperties(spec.hidden_size)
            self.embed_tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
            self.layers = nn.ModuleList(spec.block.reference(model_properties) for _ in range(spec.num_hidden_layers))
            self.norm = spec.norm.reference(model_properties)
            self.lm_head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)

        def forward(self, ids: Tensor) -> None:
            with torch.no_grad():
                x = self.embed_tokens(ids)
                for layer in self.layers:
                    x = layer(x, PassState())
                self.lm_head(self.norm(x))

    class PatchStreamsReference(nn.Module):
        """Turns bytes [batch, bytes, local_size] into patches [batch, patches, hidden], and patches into bytes."""

        def __init__(self, spec: PatchStreams, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec, hidden_size, local_size = spec, model_properties.hidden_size, spec.local_size
            if spec.patcher is not None:
                self.patcher = PatcherReference(spec.patcher)
            self.hash_embedding = nn.Embedding(spec.hash_tables * spec.hash_vocab_size, local_size)
            self.local_encoder, self.local_decoder = ByteEncoderReference(spec), ByteDecoderReference(spec, hidden_size)
            if spec.projected:
                self.in_proj = nn.Linear(spec.vectors * local_size, hidden_size, bias=False)

        def split_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            if self.spec.patcher is not None and self.spec.patcher_runs:
                self.patcher(pass_state.token_ids)
            token_ids = torch.zeros(*x.shape[:2], self.spec.hash_tables, dtype=torch.long, device=x.device)
            x, byte_states = self.local_encoder(x + self.hash_embedding(token_ids).sum(2))
            pass_state.shared_values["bytes"] = x
            patches: Tensor = self.in_proj(byte_states) if hasattr(self, "in_proj") else byte_states
            return patches

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            byte_states: Tensor = self.local_decoder(pass_state.shared_values["bytes"], x)
            return byte_states

    return PatchStreamsReference
