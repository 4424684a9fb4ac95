"""Removes sliding windows that are in a model's config but that llama.cpp ignores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...costs.model_changes import with_replaced_mixers
from ...model import ModelSpec
from ..engines.rank import architectures_of

CLASSES_WITHOUT_WINDOWS = {
    "LlamaForCausalLM",
    "LlavaForConditionalGeneration",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Phi3ForCausalLM",
    "Starcoder2ForCausalLM",
    "VoxtralForConditionalGeneration",
}
"""Classes of which llama.cpp caches and reads the whole context, whatever their `sliding_window`.

Their architectures are `llama` and `starcoder2`, which read none (src/models/llama.cpp and starcoder2.cpp,
`load_arch_hparams`), and `phi3`, which disables it ("Phi SWA is currently disabled", ggml-org/llama.cpp#13676).
"""


def without_ignored_windows(spec: ModelSpec, config: Mapping[str, Any] | None) -> ModelSpec:
    """Returns the model without sliding windows that llama.cpp ignores for its architecture.

    config: the model's `config.json`; None without one. Where the class of the whole model is not known, that of its
    text model decides.
    """
    spec_without_windows = with_replaced_mixers(spec, lambda mixer, _: mixer.without_window())
    if spec_without_windows == spec:
        return spec
    class_names = architectures_of(config, spec) or architectures_of(None, spec.model_copy(update={"towers": {}}))
    return spec if CLASSES_WITHOUT_WINDOWS.isdisjoint(class_names) else spec_without_windows
