"""Multi-token prediction: modules on top of a decoder that each predict one token further ahead.

DeepSeek-V3 (arXiv:2412.19437), §2.2; on several residual streams DeepSeek-V4 (`MTPBlock` of its inference/model.py).
They are stored in the checkpoint, and counted only on request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field

from ..evidence import torch_witness
from ..flow.axis import Axis, JoinedShapes
from ..flow.record import Flow
from ..flow.value import Value, Weight
from ..optional import MTP
from ..workload.derived_rows import MultipliedRows
from ..workload.rows import LOGITS
from .base import Flag, ModelProperties, PartWitness
from .head import LMHead
from .norm import Norm
from .output_part import ModelOutput, OutputPart
from .runtime import PassState, share_tensors
from .stack import SHARED_LABEL_SUFFIX

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .layers.block import Layer
    from .residual_streams import ResidualStreams
    from .stack import Stack


MODULE_LABEL = "module"
"""The label, in counts, of a prediction module that runs several times."""


class MultiTokenPrediction(OutputPart):
    """The multi-token-prediction modules, each of which predicts one token further ahead.

    A module concatenates the norms of the last hidden state and of the next token's embedding, projects them from 2h to
    h, runs one layer of the decoder's kind and a norm, and shares embedding and output head with the model. Where the
    decoder's layers are hyper-connected, it reads their streams before they are merged: one projection of the embedding
    and one of each stream are added, and it merges its own streams before the norm (DeepSeek-V4). A module whose layer
    has no streams reads the merged state (GLM-5.3).

    num_nextn_predict_layers: the number of modules.
    repeated: whether there is one module, which runs that many times (Megatron-LM, `mtp_use_repeated_layer`).
    layer: the kind of the decoder's layer that they run; the last kind in its pattern by default.
    norm: all norms of a module.
    final_norm: whether a norm follows the layer, true by default; false in ERNIE 4.5.
    own_embedding: whether each module has a token embedding of its own (LongCat-Flash); false by default.
    own_head: whether each module has an output head of its own (Step 3.5); false by default.
    """

    formula_source: ClassVar[str] = "DeepSeek-V3 2024, §2.2"
    witness: ClassVar[PartWitness] = torch_witness("tests/simulator/test_predictions.py")
    kind: ClassVar[str] = "mtp"

    num_nextn_predict_layers: int = Field(ge=1, le=64, strict=True)
    repeated: bool = False
    layer: str | None = None
    norm: Norm = Norm(type="rmsnorm")
    final_norm: Flag = True
    own_embedding: Flag = False
    own_head: Flag = False

    def prediction_block(self, stack: Stack) -> Layer:
        """Returns the decoder layer that each prediction module runs."""
        return stack.layer(self.layer or stack.pattern[-1])

    def prediction_module_streams(self, stack: Stack) -> ResidualStreams | None:
        """Returns the residual streams of the prediction modules' decoder layer; None for a single stream."""
        required_streams = self.prediction_block(stack).required_stack_fields().get("streams", {})
        return stack.streams if required_streams.get("type") == "hyper" else None

    def check_output(self, model_output: ModelOutput) -> None:
        stack, head = model_output.stack, model_output.head
        if model_output.kind != "decoder" or not isinstance(head, LMHead):
            raise ValueError("mtp: multi-token prediction stands on a decoder with a language-model head")
        if self.layer not in (None, "block", *stack.variants):
            raise ValueError(
                f"mtp.layer: there is no layer called '{self.layer}'; expected one of "
                f"{', '.join(('block', *stack.variants))}"
            )
        if model_output.embedding_size is not None or head.transform is not None:
            raise ValueError(
                "mtp: its modules share a head that reads hidden_size; expected no embedding_size and no head.transform"
            )
        block = self.prediction_block(stack)
        field_name = (
            block.dependency_field()
            if self.prediction_module_streams(stack) is None
            else block.sublayer_dependency_field()
        )
        if field_name:
            raise ValueError(
                f"mtp.layer: a layer with {field_name} needs what stands around it in the decoder; expected another "
                "kind, or no mtp"
            )

    def flow(
        self, recorder: Flow, x: Value, stack: Stack, vocab: Axis, embedding_weight: Weight, output_weight: Weight
    ) -> Value:
        """Records the operations of all prediction modules in sequence. x: the last hidden states.

        embedding_weight: the embedding's weight. output_weight: the weight of the model's head.
        """
        module_count, prediction_block = self.num_nextn_predict_layers, self.prediction_block(stack)
        if self.prediction_module_streams(stack) is not None:
            assert recorder.streams is not None
            x = recorder.streams
        module_indices = range(module_count) if isinstance(module_count, int) else None
        node_fields = {"kind": self.kind, "optional": MTP.name, "source": self.formula_source}

        def record_module(module_input: Value) -> Value:
            return self._record_module(
                recorder,
                module_input,
                prediction_block,
                vocab,
                embedding_weight,
                output_weight,
                self.prediction_module_streams(stack),
            )

        if not self.repeated or (isinstance(module_count, int) and module_count == 1):
            return recorder.layers(x, record_module, module_count, module_indices, "mtp", **node_fields)
        first_indices, later_indices = (
            (None, None) if module_indices is None else (module_indices[:1], module_indices[1:])
        )
        x = recorder.layers(x, record_module, 1, first_indices, "mtp", label=MODULE_LABEL, **node_fields)
        return recorder.layers(
            x,
            record_module,
            module_count - 1,
            later_indices,
            "mtp",
            label=MODULE_LABEL + SHARED_LABEL_SUFFIX,
            role="shared",
            **node_fields,
        )

    def _record_module(
        self,
        recorder: Flow,
        x: Value,
        block: Layer,
        vocab: Axis,
        embedding_weight: Weight,
        output_weight: Weight,
        streams: ResidualStreams | None,
    ) -> Value:
        """Records the operations of one prediction module. x: hidden states or streams of model or previous module."""
        hidden_axis = x.axes[-1]
        if self.own_embedding:
            embedding, _ = recorder.table("embed_tokens", vocab, hidden_axis, output_rows=x.rows, kind="embedding")
        else:
            embedding = recorder.look_up(embedding_weight, x.rows).view(hidden_axis)
        recorder.hold(embedded=embedding)
        if streams is None:
            normed_inputs = recorder.part("enorm", self.norm, embedding), recorder.part("hnorm", self.norm, x)
            module_input = recorder.linear(
                "eh_proj", recorder.cat(*normed_inputs, axes=(JoinedShapes((x.axes, x.axes)),)), *x.axes
            )
        else:
            module_input = self._residual_stream_input(recorder, x, embedding)
        recorder.hold(joined=module_input)
        block_output = recorder.part("block", block, module_input, is_separate_model=True)
        recorder.hold(y=block_output)
        head_input = block_output if streams is None else streams.record_stream_merge(recorder, block_output)
        if self.final_norm:
            head_input = recorder.part("norm", self.norm, head_input)
        head_weight = None if self.own_head else output_weight
        recorder.add_output(recorder.linear("lm_head", head_input, vocab, weight=head_weight, rows=LOGITS))
        return block_output

    def _residual_stream_input(self, recorder: Flow, x: Value, embedding: Value) -> Value:
        """Returns the hyper-connected layer's input. x: all streams. embedding: the next token's embedding."""
        stream_axis, hidden_axis = x.axes
        assert isinstance(stream_axis, Axis)
        projected_embedding = recorder.linear("e_proj", recorder.part("enorm", self.norm, embedding), hidden_axis)
        stream_rows = MultipliedRows(source_rows=x.rows, rows_per_source=stream_axis.size)
        normed_streams = recorder.part("hnorm", self.norm, x.view(hidden_axis, new_rows=stream_rows))
        projected_streams = recorder.linear("h_proj", normed_streams, hidden_axis).view(*x.axes, new_rows=x.rows)
        return recorder.add(projected_streams, recorder.copies(projected_embedding, stream_axis))

    def reference(self, model_properties: ModelProperties, stack: Stack, output_weight: Tensor) -> nn.Module:
        """Builds the modules: forward(hidden states, ids, token embedding) → the logits of each module."""
        *_, last_kind = stack.pattern
        layers: dict[str, Layer] = {"block": stack.block, **stack.variants}
        return _reference_class()(
            self,
            model_properties,
            layers[last_kind if self.layer is None else self.layer],
            output_weight,
            stack.streams if getattr(layers[self.layer or last_kind], "type", "") == "hyper" else None,
        )

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_nextn_predict_layers=2),
            cls(num_nextn_predict_layers=1, norm=Norm(type="layernorm")),
            cls(num_nextn_predict_layers=3, repeated=True),
            cls(num_nextn_predict_layers=2, final_norm=False, own_embedding=True),
            cls(num_nextn_predict_layers=2, own_head=True),
        ]


@cache
def _reference_class() -> Callable[..., nn.Module]:
    import torch
    from torch import nn

    class TiedProjection(nn.Linear):
        """An output projection that uses another module's weight instead of its own."""

        def __init__(self, weight: nn.Parameter) -> None:
            nn.Module.__init__(self)
            self.out_features, self.in_features = weight.shape
            self.weight = weight
            self.register_parameter("bias", None)

    class PredictionModuleReference(nn.Module):
        """Predicts one token further ahead from hidden states and the ids of the next tokens.

        Hidden states, ids of the next tokens → hidden states and logits, a token further ahead.
        """

        def __init__(
            self,
            spec: MultiTokenPrediction,
            model_properties: ModelProperties,
            prediction_block: Layer,
            output_weight: nn.Parameter,
            streams: ResidualStreams | None,
        ) -> None:
            super().__init__()
            width = model_properties.hidden_size
            if spec.own_embedding:
                self.embed_tokens = nn.Embedding(output_weight.shape[0], width)
            self.enorm, self.hnorm = spec.norm.reference(model_properties), spec.norm.reference(model_properties)
            self._merge: Any = None
            self.reads_streams = streams is not None
            if streams is None:
                self.eh_proj = nn.Linear(2 * width, width, bias=False)
            else:
                self.e_proj, self.h_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
                stream_module: Any = streams.reference(model_properties)
                for child_name, child_module in stream_module.named_children():
                    self.add_module(child_name, child_module)
                self._merge = (stream_module,)  # torch registers no module in a tuple
            self.block = prediction_block.reference(model_properties)
            if spec.final_norm:
                self.norm = spec.norm.reference(model_properties)
            self.lm_head = (
                nn.Linear(width, output_weight.shape[0], bias=False) if spec.own_head else TiedProjection(output_weight)
            )

        def block_input(self, embedding: Tensor, hidden_states: Tensor) -> Tensor:
            """Concatenates the norms of embedding and hidden states; with residual streams, adds projections of both.
            instead.
            """
            if self._merge is None:
                joined_states: Tensor = self.eh_proj(torch.cat([self.enorm(embedding), self.hnorm(hidden_states)], -1))
                return joined_states
            projected_embedding = self.e_proj(self.enorm(embedding))
            stream_sum: Tensor = self.h_proj(self.hnorm(hidden_states)) + projected_embedding[:, :, None]
            return stream_sum

        def forward(
            self, hidden_states: Tensor, ids: Tensor, token_embedding: nn.Module, mla_form: str, **expert_fields: Any
        ) -> tuple[Tensor, Tensor]:
            embedding = getattr(self, "embed_tokens", token_embedding)(ids)
            module_input = self.block_input(embedding, hidden_states)
            block_output: Tensor = self.block(module_input, PassState(mla_form=mla_form, **expert_fields))
            merged_output = block_output if self._merge is None else self._merge[0].merge_streams(block_output, None)
            return block_output, self.lm_head(self.norm(merged_output) if hasattr(self, "norm") else merged_output)

    class MultiTokenPredictionReference(nn.ModuleList):
        def forward(
            self,
            hidden_states: Tensor,
            ids: Tensor,
            token_embedding: nn.Module,
            mla_form: str = "auto",
            **expert_fields: Any,
        ) -> list[Tensor]:
            """Runs all modules and returns the logits of each. expert_fields: fields of `PassState` for experts."""
            predictions = []
            for prediction_module in self:
                hidden_states, logits = prediction_module(
                    hidden_states, ids, token_embedding, mla_form, **expert_fields
                )
                predictions.append(logits)
            return predictions

    def build_modules(
        spec: MultiTokenPrediction,
        model_properties: ModelProperties,
        block: Layer,
        output_weight: nn.Parameter,
        streams: ResidualStreams | None,
    ) -> nn.Module:
        module_count = spec.num_nextn_predict_layers
        prediction_modules = MultiTokenPredictionReference(
            PredictionModuleReference(spec, model_properties, block, output_weight, streams)
            for _ in range(module_count)
        )
        for prediction_module in prediction_modules if spec.repeated else ():
            share_tensors(prediction_modules[0], prediction_module)
        return prediction_modules

    return build_modules
