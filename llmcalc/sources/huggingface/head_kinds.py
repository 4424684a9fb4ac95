"""The output head of the class that a config's `architectures` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...components.head_kind import HeadKind

HEAD_ENDINGS: dict[str, HeadKind] = {
    "ForCausalLM": "lm",
    "LMHeadModel": "lm",
    "LMHead": "lm",
    "ModelLM": "lm",
    "ForConditionalGeneration": "lm",
    "ForVisionText2Text": "lm",
    "ForMaskedLM": "lm",
    "ForBlockDiffusion": "lm",
    "WithLMHeadModel": "lm",
    "ForPreTraining": "lm",
    "MTModel": "lm",
    "DoubleHeadsModel": "lm",
    "GenerationDecoder": "lm",
    "GenerationEncoder": "none",
    "ForTextToText": "lm",
    "ForSpeechToText": "lm",
    "ForProteinText2Text": "lm",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "classification",
    "ForQuestionAnswering": "classification",
    "ForMultipleChoice": "classification",
    "ForNextSentencePrediction": "classification",
    "Qwen2ForRewardModel": "classification",
    "Qwen2ForProcessRewardModel": "classification",
    "InternLM2ForRewardModel": "classification",
    "OmniModel": "lm",
    "Pix2StructTextModel": "lm",
    "Model": "none",
    "NeoBERT": "none",
    "DPRQuestionEncoder": "none",
    "DPRContextEncoder": "none",
    "RND1LM": "lm",
    "HF_ColBERT": "none",
}
"""Class-name suffix → head kind; the first matching suffix wins.

`OmniModel` is what the first checkpoints of Qwen2.5-Omni call the class of the whole model; the class of Pix2Struct's
text model has its head. Classes of reward models are code of the models' repositories; `parts.REWARD_HEADS` has their
heads.
"""


PROJECTION_SIZES = {"HF_ColBERT": 128}
"""Class that projects every token's hidden state, without a bias → the usual size of the vector.

ColBERT's size is `dim` in `artifact.metadata`, a file beside the config, and not in the config itself.
"""

ARTIFACT_FILE = "artifact.metadata"
"""The file beside a `config.json` in which ColBERT's code states how the model was trained."""

PROJECTION_FIELD = "colbert_dim"
"""The config field of the size of that vector, in the name that vLLM reads; `artifact.metadata` calls it `dim`."""


def architecture_of(config_data: Mapping[str, Any]) -> str:
    """Returns the name of the class that saved a config, in a list or by itself; empty if the config has none."""
    class_names = config_data.get("architectures")
    class_name = class_names[0] if isinstance(class_names, list) and class_names else class_names
    return class_name if isinstance(class_name, str) else ""


def head_kind_of_config(config_data: Mapping[str, Any]) -> HeadKind:
    """Returns the output head that `architectures` names; a language-model head if it names none."""
    class_name, auto_map = architecture_of(config_data), config_data.get("auto_map")
    causal_class = auto_map.get("AutoModelForCausalLM") if isinstance(auto_map, dict) else None
    if class_name and isinstance(causal_class, str) and causal_class.rpartition(".")[2] == class_name:
        return "lm"  # whatever its name ends with (`GlmasrModel` of GLM-ASR's own code)
    return next((head for class_ending, head in HEAD_ENDINGS.items() if class_name.endswith(class_ending)), "lm")
