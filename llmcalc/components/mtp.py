"""Multi-token prediction: modules on top of a decoder that each predict one token further ahead.

DeepSeek-V3 (arXiv:2412.19437), §2.2. They are stored in the checkpoint, and counted only on request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field

from ..evidence import by_torch
from ..flow.axis import Axis, JoinedShapes
from ..flow.record import Flow
from ..flow.value import Value, Weight
from ..optional import MTP
from ..workload.rows import LOGITS
from .base import ModelProperties, PartWitness
from .head import LMHead
from .norm import Norm
from .output_part import ModelOutput, OutputPart
from .runtime import ForwardPass, share_tensors
from .stack import SHARED

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .layers.block import Layer
    from .stack import Stack


MODULE = "module"
"""The label of a module that runs several times."""


class MultiTokenPrediction(OutputPart):
    """The multi-token-prediction modules, each of which predicts one token further ahead.

    A module concatenates the norms of the last hidden state and of the next token's embedding, projects them from 2h to
    h, runs one layer of the decoder's kind and a norm, and shares embedding and output head with the model.

    num_nextn_predict_layers: the number of modules.
    repeated: whether there is one module, which runs that many times (Megatron-LM, `mtp_use_repeated_layer`).
    layer: the kind of the decoder's layer that they run; the last kind in its pattern by default.
    norm: all norms of a module.
    """

    formula_source: ClassVar[str] = "DeepSeek-V3 2024, §2.2"
    witness: ClassVar[PartWitness] = by_torch("tests/simulator/test_predictions.py")
    kind: ClassVar[str] = "mtp"

    num_nextn_predict_layers: int = Field(ge=1, le=64, strict=True)
    repeated: bool = False
    layer: str | None = None
    norm: Norm = Norm(type="rmsnorm")

    def prediction_block(self, stack: Stack) -> Layer:
        """Returns the decoder layer that each prediction module runs."""
        return stack.layer(self.layer or stack.pattern[-1])

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
        field_name = self.prediction_block(stack).dependency_field()
        if field_name:
            raise ValueError(
                f"mtp.layer: a layer with {field_name} needs what stands around it in the decoder; expected another "
                "kind, or no mtp"
            )

    def flow(
        self, recorder: Flow, x: Value, stack: Stack, vocab: Axis, embedding_weight: Weight, output_weight: Weight
    ) -> Value:
        """Records all prediction modules in sequence. x: the last hidden states.

        embedding_weight: the embedding's weight. output_weight: the weight of the model's head.
        """
        module_count, prediction_block = self.num_nextn_predict_layers, self.prediction_block(stack)
        module_indices = range(module_count) if isinstance(module_count, int) else None
        node_fields = {"kind": self.kind, "optional": MTP.name, "source": self.formula_source}

        def record_module(module_input: Value) -> Value:
            return self._record_module(recorder, module_input, prediction_block, vocab, embedding_weight, output_weight)

        if not self.repeated or (isinstance(module_count, int) and module_count == 1):
            return recorder.layers(x, record_module, module_count, module_indices, "mtp", **node_fields)
        first_indices, later_indices = (
            (None, None) if module_indices is None else (module_indices[:1], module_indices[1:])
        )
        x = recorder.layers(x, record_module, 1, first_indices, "mtp", label=MODULE, **node_fields)
        return recorder.layers(
            x,
            record_module,
            module_count - 1,
            later_indices,
            "mtp",
            label=MODULE + SHARED,
            role="shared",
            **node_fields,
        )

    def _record_module(
        self, recorder: Flow, x: Value, block: Layer, vocab: Axis, embedding_weight: Weight, output: Weight
    ) -> Value:
        """Records one prediction module. x: hidden states of the model or of the previous module."""
        embedding = recorder.look_up(embedding_weight, x.rows).view(*x.axes)
        recorder.hold(embedded=embedding)
        normed_inputs = recorder.part("enorm", self.norm, embedding), recorder.part("hnorm", self.norm, x)
        module_input = recorder.linear(
            "eh_proj", recorder.cat(*normed_inputs, axes=(JoinedShapes((x.axes, x.axes)),)), *x.axes
        )
        recorder.hold(joined=module_input)
        block_output = recorder.part("block", block, module_input, is_separate_model=True)
        recorder.hold(y=block_output)
        recorder.add_output(
            recorder.linear(
                "lm_head", recorder.part("norm", self.norm, block_output), vocab, weight=output, rows=LOGITS
            )
        )
        return block_output

    def reference(self, model_properties: ModelProperties, stack: Stack, output_weight: Tensor) -> nn.Module:
        """Builds the modules: forward(hidden states, ids, token embedding) → the logits of each module."""
        *_, last_kind = stack.pattern
        layers: dict[str, Layer] = {"block": stack.block, **stack.variants}
        return _reference_class()(
            self, model_properties, layers[last_kind if self.layer is None else self.layer], output_weight
        )

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(num_nextn_predict_layers=2),
            cls(num_nextn_predict_layers=1, norm=Norm(type="layernorm")),
            cls(num_nextn_predict_layers=3, repeated=True),
        ]


@cache
def _reference_class() -> Callable[..., nn.Module]:
    import torch
    from torch import nn

    class TiedProjection(nn.Linear):
        """An output projection that shares another module's weight."""

        def __init__(self, weight: nn.Parameter) -> None:
            nn.Module.__init__(self)
            self.out_features, self.in_features = weight.shape
            self.weight = weight
            self.register_parameter("bias", None)

    class ModuleReference(nn.Module):
        """Predicts one token further ahead from hidden states and the ids of the next tokens.

        Hidden states, ids of the next tokens → hidden states and logits, a token further ahead.
        """

        def __init__(
            self,
            spec: MultiTokenPrediction,
            model_properties: ModelProperties,
            prediction_block: Layer,
            output_weight: nn.Parameter,
        ) -> None:
            super().__init__()
            self.enorm, self.hnorm = spec.norm.reference(model_properties), spec.norm.reference(model_properties)
            self.eh_proj = nn.Linear(2 * model_properties.hidden_size, model_properties.hidden_size, bias=False)
            self.block, self.norm = prediction_block.reference(model_properties), spec.norm.reference(model_properties)
            self.lm_head = TiedProjection(output_weight)

        def forward(
            self, hidden_states: Tensor, ids: Tensor, token_embedding: nn.Module, mla: str, **experts: Any
        ) -> tuple[Tensor, Tensor]:
            embedding = token_embedding(ids)
            module_input = self.eh_proj(torch.cat([self.enorm(embedding), self.hnorm(hidden_states)], -1))
            block_output: Tensor = self.block(module_input, ForwardPass(mla=mla, **experts))
            return block_output, self.lm_head(self.norm(block_output))

    class PredictionReference(nn.ModuleList):
        def forward(
            self, hidden_states: Tensor, ids: Tensor, token_embedding: nn.Module, mla: str = "auto", **experts: Any
        ) -> list[Tensor]:
            """Runs all modules and returns the logits of each. experts: `ForwardPass` options for the experts' rows."""
            predictions = []
            for prediction_module in self:
                hidden_states, logits = prediction_module(hidden_states, ids, token_embedding, mla, **experts)
                predictions.append(logits)
            return predictions

    def build_modules(
        spec: MultiTokenPrediction, model_properties: ModelProperties, block: Layer, output: nn.Parameter
    ) -> nn.Module:
        module_count = spec.num_nextn_predict_layers
        prediction = PredictionReference(
            ModuleReference(spec, model_properties, block, output) for _ in range(module_count)
        )
        for prediction_module in prediction if spec.repeated else ():
            share_tensors(prediction[0], prediction_module)
        return prediction

    return build_modules
