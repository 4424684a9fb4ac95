"""The layers between the hidden states and an output head: a linear layer, an activation, a norm.

Devlin 2019 (`BertPredictionHeadTransform`).
"""

from __future__ import annotations

from typing import ClassVar

from .base import TORCH_WITNESS, Flag, InnerWidth, Part, PartWitness
from .networks.feed_forward import Activation
from .norm import Norm


class Transform(Part):
    """BERT's masked-language-model transform before the vocabulary: a linear layer, an activation, a norm.

    hidden_act: the activation, gelu by default.
    bias: whether the linear layer has a bias, true by default.
    size: the output width; by default the width of the embedding. Only an untied head can differ (RemBERT).
    norm: the norm, a LayerNorm by default.
    bottleneck_size: the width of another linear layer with its activation before the linear layer (Ultrabert); none by
        default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    hidden_act: Activation = "gelu"
    bias: Flag = True
    size: InnerWidth | None = None
    norm: Norm | None = Norm(type="layernorm")
    bottleneck_size: InnerWidth | None = None
