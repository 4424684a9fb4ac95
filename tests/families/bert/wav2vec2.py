"""Shapes of the families in `sources/huggingface/families/bert/wav2vec2.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": [8, 6, 10],
    "conv_kernel": [10, 3, 2],
    "conv_stride": [5, 2, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 12,
}
WAV2VEC2: dict[str, Any] = {"model_type": "wav2vec2", **SMALL}
STABLE = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True, "num_conv_pos_embeddings": 7}
HUBERT: dict[str, Any] = {"model_type": "hubert", **SMALL}

SHAPES = {
    "Wav2Vec2ForCTC": [
        WAV2VEC2,
        {**WAV2VEC2, **STABLE, "mask_time_prob": 0.0, "hidden_act": "relu"},
        {**WAV2VEC2, **STABLE, "adapter_attn_dim": 6},
    ],
    "Wav2Vec2ForSequenceClassification": [{**WAV2VEC2, "num_labels": 5}],
    "Wav2Vec2ForAudioFrameClassification": [{**WAV2VEC2, "num_labels": 5}],
    "Wav2Vec2Model": [WAV2VEC2],
    "HubertForCTC": [{**HUBERT, **STABLE}],
    "HubertForSequenceClassification": [{**HUBERT, "num_labels": 3}],
    "HubertModel": [{**HUBERT, "feat_proj_layer_norm": False}],
    "Data2VecAudioForCTC": [
        {"model_type": "data2vec-audio", **SMALL, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 5},
        {"model_type": "data2vec-audio", **SMALL, "num_conv_pos_embeddings": 3, "conv_pos_kernel_size": 4},
    ],
    **{
        class_name: [{"model_type": model_type, **SMALL}, {"model_type": model_type, **SMALL, **STABLE}]
        for class_name, model_type in (("UniSpeechForCTC", "unispeech"), ("UniSpeechSatForCTC", "unispeech-sat"))
    },
}
