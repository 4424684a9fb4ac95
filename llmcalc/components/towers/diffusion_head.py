"""A diffusion head: layers that predict the noise of a latent vector from a text model's output (VibeVoice).

Peebles 2023 (arXiv:2212.09748, §3.2); Peng 2025 (arXiv:2508.19205, §2.2). transformers: models/vibevoice
(`VibeVoiceDiffusionHead`).
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ..base import InnerWidth, ModelProperties, Part
from ..networks.feed_forward import Activation, FeedForward, activate
from ..norm import Norm

if TYPE_CHECKING:
    from torch import Tensor, nn


class DiffusionHead(Part):
    """Layers that denoise latent vectors of speech step by step, conditioned on a text model's output.

    Text alone and recordings that are read do not use them: their parameters are counted, no FLOPs.

    hidden_size: the width, which is the text model's.
    num_hidden_layers: the number of layers.
    frequency_size: the width of the sinusoids that encode the step.
    hidden_act: the activation of the step's two linear layers, and before those that scale and shift.
    feed_forward: the network of a layer.
    norm: the norm of a layer; the norm of the output has no weight.
    """

    type: Literal["diffusion_head"] = "diffusion_head"
    hidden_size: InnerWidth
    num_hidden_layers: int = Field(ge=1, le=1000, strict=True)
    frequency_size: InnerWidth
    hidden_act: Activation
    feed_forward: FeedForward
    norm: Norm

    @property
    def output_norm(self) -> Norm:
        """The norm of the output, which has no weight."""
        return self.norm.model_copy(update={"weight": False})

    def flow(self, recorder: Flow, latents: Value) -> None:
        """Records the head's operations. latents: the noisy latent vectors, from which the head predicts noise."""
        hidden_axis = Axis("hidden", self.hidden_size)
        text_output = Value(latents.rows, (hidden_axis,), is_constant=True)
        sinusoids = Value(latents.rows, (Axis("frequencies", self.frequency_size),), is_constant=True)
        x = recorder.linear("latent_proj", latents, hidden_axis)
        step_embedding = recorder.act(recorder.linear("step_proj_1", sinusoids, hidden_axis), self.hidden_act)
        condition = recorder.add(
            recorder.linear("condition_proj", text_output, hidden_axis),
            recorder.linear("step_proj_2", step_embedding, hidden_axis),
        )
        record_layer = partial(self._record_layer, recorder, condition=condition)
        x = recorder.layers(x, record_layer, self.num_hidden_layers, range(self.num_hidden_layers), kind="layer")
        with recorder.scope("output"):
            modulation_shift, modulation_scale = self._modulation(recorder, condition, 2)
            x = _modulate(recorder, recorder.part("norm", self.output_norm, x), modulation_scale, modulation_shift)
            recorder.linear("proj", x, *latents.axes)

    def _record_layer(self, recorder: Flow, x: Value, condition: Value) -> Value:
        """Records a layer's operations; the condition scales and shifts its norm, and gates its output."""
        modulation_shift, modulation_scale, modulation_gate = self._modulation(recorder, condition, 3)
        modulated_x = _modulate(recorder, recorder.part("norm", self.norm, x), modulation_scale, modulation_shift)
        return recorder.add(x, recorder.mul(modulation_gate, recorder.part("mlp", self.feed_forward, modulated_x)))

    def _modulation(self, recorder: Flow, condition: Value, part_count: int) -> tuple[Value, ...]:
        """Records a linear layer on the activated condition; returns its output in `part_count` equal parts."""
        shape = (Axis("hidden", self.hidden_size),)
        activated_condition = recorder.act(condition, self.hidden_act)
        return recorder.split(
            recorder.linear("modulation", activated_condition, JoinedShapes((shape,) * part_count)),
            *(shape,) * part_count,
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        """Builds the module: forward(latents, sinusoids, text_output) → latents."""
        return _reference_class()(self, model_properties.hidden_size)


def _modulate(recorder: Flow, x: Value, modulation_scale: Value, modulation_shift: Value) -> Value:
    """Records the computation of x · (1 + scale) + shift."""
    return recorder.add(recorder.mul(x, recorder.plus(modulation_scale, 1)), modulation_shift)


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class DiffusionLayer(nn.Module):
        """Adds a feed-forward network; the condition shifts and scales its input and gates its output."""

        def __init__(self, spec: DiffusionHead) -> None:
            super().__init__()
            self.spec, hidden_size = spec, spec.hidden_size
            self.modulation = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
            self.norm, self.mlp = (
                component.reference(ModelProperties(hidden_size)) for component in (spec.norm, spec.feed_forward)
            )

        def forward(self, x: Tensor, condition: Tensor) -> Tensor:
            modulation_shift, modulation_scale, modulation_gate = self.modulation(
                activate(self.spec.hidden_act, condition)
            ).chunk(3, -1)
            layer_output: Tensor = x + modulation_gate * self.mlp(
                self.norm(x) * (1 + modulation_scale) + modulation_shift
            )
            return layer_output

    class DiffusionOutput(nn.Module):
        """Projects hidden states to latents after a norm whose output is scaled and shifted by the condition."""

        def __init__(self, spec: DiffusionHead, latent_size: int) -> None:
            super().__init__()
            self.spec, hidden_size = spec, spec.hidden_size
            self.modulation = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
            self.norm = spec.norm.model_copy(update={"weight": False}).reference(ModelProperties(hidden_size))
            self.proj = nn.Linear(hidden_size, latent_size, bias=False)

        def forward(self, x: Tensor, condition: Tensor) -> Tensor:
            modulation_shift, modulation_scale = self.modulation(activate(self.spec.hidden_act, condition)).chunk(2, -1)
            projected_x: Tensor = self.proj(self.norm(x) * (1 + modulation_scale) + modulation_shift)
            return projected_x

    class DiffusionHeadReference(nn.Module):
        """Predicts noise. latents: [rows, latent_size], sinusoids: [rows, frequency_size] → [rows, latent_size]."""

        def __init__(self, spec: DiffusionHead, latent_size: int) -> None:
            super().__init__()
            self.spec, hidden_size = spec, spec.hidden_size
            self.latent_proj = nn.Linear(latent_size, hidden_size, bias=False)
            self.step_proj_1 = nn.Linear(spec.frequency_size, hidden_size, bias=False)
            self.condition_proj, self.step_proj_2 = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(2))
            self.layers = nn.ModuleList(DiffusionLayer(spec) for _ in range(spec.num_hidden_layers))
            self.output = DiffusionOutput(spec, latent_size)

        def forward(self, latents: Tensor, sinusoids: Tensor, text_output: Tensor) -> Tensor:
            step_embedding = self.step_proj_2(activate(self.spec.hidden_act, self.step_proj_1(sinusoids)))
            x, condition = self.latent_proj(latents), self.condition_proj(text_output) + step_embedding
            for layer in self.layers:
                x = layer(x, condition)
            prediction: Tensor = self.output(x, condition)
            return prediction

    return DiffusionHeadReference
