"""Finds the output head of the class that a config's `architectures` names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

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
    "ForCTC": "lm",
    "ForProteinText2Text": "lm",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "classification",
    "ForAudioFrameClassification": "classification",
    "ForQuestionAnswering": "classification",
    "ForMultipleChoice": "classification",
    "ForNextSentencePrediction": "classification",
    "Qwen2ForRewardModel": "classification",
    "Qwen2ForProcessRewardModel": "classification",
    "InternLM2ForRewardModel": "classification",
    "JinaVLForRanking": "classification",
    "Omni_Reasoning_V3": "lm",
    "Qwen2_5OmniModel": "lm",
    "Blip2Model": "lm",
    "Pix2StructTextModel": "lm",
    "Model": "none",
    "NeoBERT": "none",
    "DPRQuestionEncoder": "none",
    "DPRContextEncoder": "none",
    "RND1LM": "lm",
    "NeoMMEForRetrieval": "lm",
}
"""Class-name suffix → head kind; the first matching suffix wins.

`Qwen2_5OmniModel` is what the first checkpoints of Qwen2.5-Omni call the class of the whole model; the classes of
BLIP-2 without a task and of Pix2Struct's text model have a head, and NeoMME's reader replaces that of its retriever.
`Omni_Reasoning_V3` ends the class of Nemotron 3 Nano Omni's own code.
Classes of reward models are code of the models' repositories; `parts.REWARD_HEADS` has their heads.
"""


PROJECTION_FIELD = "colbert_dim"
"""The config field of the size of ColBERT's vectors, as vLLM calls it; in `artifact.metadata` it is `dim`."""


class ClassProjection(NamedTuple):
    """The projection of every token's hidden state that a class of another library (such as ColBERT's) has.

    vector_size: the usual size of the vector.
    size_field: the field of the config, or of the text model's section, that states another size.
    has_bias: whether the layer has a bias.
    has_half_width_layer: whether another linear layer to half the width, with a ReLU, is before it.
    """

    vector_size: int
    size_field: str = "dim"
    has_bias: bool = True
    has_half_width_layer: bool = False


PROJECTION_BY_CLASS = {
    "HF_ColBERT": ClassProjection(128, PROJECTION_FIELD, has_bias=False),
    "JinaEmbeddingsV4Model": ClassProjection(128, "multi_vector_projector_dim"),
    "JinaForRanking": ClassProjection(512, "embedding_size", has_bias=False, has_half_width_layer=True),
    "BiPaliProj": ClassProjection(1024),
    "ColQwen3": ClassProjection(320),
    **dict.fromkeys(
        (
            "ColPali", "ColIdefics3", "ColGemma3", "ColQwen2", "ColQwen2_5", "ColQwen2_5Omni", "ColQwen3_5",
            "ColModernVBert", "ColEuroVBert", "ColInternVL3_5",
        ),
        ClassProjection(128),
    ),
}  # fmt: skip
"""Class name without an output head → the class's projection of every token's hidden state.

ColBERT's size is `dim` in `artifact.metadata`, a file beside the config, and not in the config itself. The classes from
`BiPaliProj` on are those of illuin-tech/colpali (colpali_engine/models), whose configs state the model type of the
model that they extend. For jina-embeddings-v4 modeling_jina_embeddings_v4.py in its repository, for jina-reranker-v3
modeling.py in its repository and jina.py of vLLM.
"""

ARTIFACT_FILE = "artifact.metadata"
"""The file beside a `config.json` in which ColBERT's code states how the model was trained."""

BI_ENCODER_CLASSES = (
    "BiPali", "BiGemma3", "BiIdefics3", "BiQwen2", "BiQwen2_5", "BiQwen3", "BiQwen3_5", "BiModernVBert", "BiEuroVBert",
)  # fmt: skip
"""Class names in illuin-tech/colpali that return a single token's hidden state."""

CLASSES_WITHOUT_HEAD = frozenset((*PROJECTION_BY_CLASS, *BI_ENCODER_CLASSES))
"""Class names of models without an output head."""

_SCORES_OR_VECTORS = re.compile(r"^(Col|Bi)[A-Z](?!.*LM$)|Reward|Scor(e|ing)|Rerank|Ranker|Ranking|Retriev|Embedd")
"""Pattern of class names that return scores or vectors; classes of illuin-tech/colpali begin with `Col` or `Bi`."""


def names_another_head(class_name: str) -> bool:
    """Whether the name of an unknown class implies scores or vectors as outputs instead of logits."""
    is_known = class_name in CLASSES_WITHOUT_HEAD or class_name.endswith(tuple(HEAD_ENDINGS))
    return not is_known and _SCORES_OR_VECTORS.search(class_name) is not None


def architecture_of(config_data: Mapping[str, Any]) -> str:
    """Returns the class name in a config's `architectures`, a list or a text; empty if the config has none."""
    class_names = config_data.get("architectures")
    class_name = class_names[0] if isinstance(class_names, list) and class_names else class_names
    return class_name if isinstance(class_name, str) else ""


def head_kind_of_config(config_data: Mapping[str, Any]) -> HeadKind:
    """Returns the output head that `architectures` names; a language-model head by default."""
    class_name, auto_map = architecture_of(config_data), config_data.get("auto_map")
    causal_class = auto_map.get("AutoModelForCausalLM") if isinstance(auto_map, dict) else None
    if class_name and isinstance(causal_class, str) and causal_class.rpartition(".")[2] == class_name:
        return "lm"  # whatever its name ends with (`GlmasrModel` of GLM-ASR's own code)
    if class_name in CLASSES_WITHOUT_HEAD or names_another_head(class_name):
        return "none"
    return next((head for class_ending, head in HEAD_ENDINGS.items() if class_name.endswith(class_ending)), "lm")
