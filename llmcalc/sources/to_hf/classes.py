"""The names of classes in `transformers`:
which a family has, for each kind of head (a test holds them against the installed classes).
"""

from __future__ import annotations

from ...components.head import Classifier, LMHead
from ...model import ModelSpec

PREFIXES = {
    "axk1": "AXK1",
    "axk2": "AXK2",
    "ctrl": "CTRL",
    "gpt_neox_japanese": "GPTNeoXJapanese",
    "granite_swa": "GraniteSWA",
    "granitemoe_swa": "GraniteMoeSWA",
    "hy_v4": "HYV4",
    "hyperclovax": "HyperCLOVAX",
    "data2vec-text": "Data2VecText",
    "fsmt": "FSMT",
    "rembert": "RemBert",
    "roberta-prelayernorm": "RobertaPreLayerNorm",
    "roformer": "RoFormer",
    "t5gemma2": "T5Gemma2",
    "xlm-roberta-xl": "XLMRobertaXL",
    "xlnet": "XLNet",
    "biogpt": "BioGpt",
    "bitnet": "BitNet",
    "codegen": "CodeGen",
    "diffllama": "DiffLlama",
    "distilbert": "DistilBert",
    "ernie4_5": "Ernie4_5",
    "ernie4_5_moe": "Ernie4_5_Moe",
    "eurobert": "EuroBert",
    "gpt2": "GPT2",
    "gpt_bigcode": "GPTBigCode",
    "gpt_neo": "GPTNeo",
    "gpt_neox": "GPTNeoX",
    "gptj": "GPTJ",
    "granitemoe": "GraniteMoe",
    "granitemoehybrid": "GraniteMoeHybrid",
    "granitemoeshared": "GraniteMoeShared",
    "hunyuan_v1_dense": "HunYuanDenseV1",
    "hunyuan_v1_moe": "HunYuanMoEV1",
    "hunyuan_vl": "HunYuanVL",
    "hy_v3": "HYV3",
    "jetmoe": "JetMoe",
    "longt5": "LongT5",
    "m2m_100": "M2M100",
    "mbart": "MBart",
    "mimo_v2_flash": "MiMoV2Flash",
    "minicpm3": "MiniCPM3",
    "minimax": "MiniMax",
    "minimax_m2": "MiniMaxM2",
    "minimax_m3_vl": "MiniMaxM3VL",
    "modernbert": "ModernBert",
    "modernbert-decoder": "ModernBertDecoder",
    "mpnet": "MPNet",
    "mt5": "MT5",
    "nanochat": "NanoChat",
    "openai-gpt": "OpenAIGPT",
    "opt": "OPT",
    "paligemma": "PaliGemma",
    "plbart": "PLBart",
    "qwen2_5_vl": "Qwen2_5_VL",
    "qwen2_vl": "Qwen2VL",
    "qwen3_vl": "Qwen3VL",
    "qwen3_vl_moe": "Qwen3VLMoe",
    "qwen3_5": "Qwen3_5",
    "qwen3_5_moe": "Qwen3_5Moe",
    "smollm3": "SmolLM3",
    "stablelm": "StableLm",
    "t5gemma": "T5Gemma",
    "umt5": "UMT5",
    "vaultgemma": "VaultGemma",
    "xglm": "XGLM",
    "xlm-roberta": "XLMRoberta",
    "xlstm": "xLSTM",
}
"""Model type → how the names of its classes begin,
where that is not the model type in capitals (`qwen3_moe`: Qwen3Moe).
"""

NO_CLASS = frozenset(
    {"emu3_text_model", "ernie4_5_vl_moe_text", "gpt-sw3", "internlm3", "iquestcoder", "phi4_multimodal"}
)
"""Read, and without a class there for the text by itself, or with another family's (or, ERNIE 4.5 VL, with positions
that a description says nothing of).
"""

TEXT = "_text"
"""How the model type of a text model ends whose wrapper has the name itself;
its bare class is called so too (Gemma3TextModel).
"""

LM_HEADS = {
    "bert": "LMHeadModel",
    "bert-generation": "Decoder",
    "ctrl": "LMHeadModel",
    "gpt2": "LMHeadModel",
    "openai-gpt": "LMHeadModel",
    "marian": "MTModel",
    "xlnet": "LMHeadModel",
}
"""Language-model classes that are not called ForCausalLM, ForMaskedLM or ForConditionalGeneration."""

BARE = {"bert-generation": "Encoder"}
"""Classes without a head that are not called Model."""

SPEAKING_TEXTS = frozenset(
    {
        "cohere_compass_text",
        "gemma3_text",
        "gemma3n_text",
        "gemma4_text",
        "gemma4_unified_text",
        "llama4_text",
        "minimax_m3_vl_text",
        "qwen3_5_moe_text",
        "qwen3_5_text",
    }
)
"""Text models with a language-model class of their own; that of others is the wrapper's."""

MASKED = frozenset(
    {
        "albert",
        "bert",
        "camembert",
        "data2vec-text",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "esm",
        "eurobert",
        "gte",
        "jina_embeddings_v3",
        "megatron-bert",
        "modernbert",
        "mpnet",
        "nomic_bert",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roformer",
        "xlm-roberta",
        "xlm-roberta-xl",
    }
)
"""Encoders with a class for masked tokens."""

CAUSAL_TOO = frozenset(
    {
        "bart",
        "bert",
        "blenderbot",
        "blenderbot-small",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "marian",
        "mbart",
        "megatron-bert",
        "mvp",
        "pegasus",
        "plbart",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roformer",
        "whisper",
        "xlm-roberta",
        "xlm-roberta-xl",
    }
)
"""Encoders with a class that runs them as decoders, and encoder-decoders with one for the decoder alone."""

CONDITIONAL = frozenset(
    {
        "bart",
        "blenderbot",
        "blenderbot-small",
        "fsmt",
        "longt5",
        "m2m_100",
        "marian",
        "mbart",
        "mt5",
        "mvp",
        "nllb-moe",
        "pegasus",
        "plbart",
        "switch_transformers",
        "t5",
        "t5gemma",
        "t5gemma2",
        "umt5",
        "whisper",
    }
)
"""Encoder-decoders."""

SEQUENCES = frozenset(
    """
    albert arcee axk1 axk2 bart bert biogpt bloom camembert ctrl deberta deberta-v2 deepseek_v2 deepseek_v3 diffllama
    distilbert electra eurobert exaone4 falcon gemma gemma2 glm glm4 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj
    helium hunyuan_v1_dense hunyuan_v1_moe jamba jetmoe llama mbart minicpm3 minimax ministral ministral3 mistral
    mistral4 mixtral modernbert modernbert-decoder mpnet mpt mt5 nemotron nomic_bert olmo olmo2 olmo3 openai-gpt opt
    persimmon phi phi3 phimoe plbart qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next roberta seed_oss smollm3 stablelm
    starcoder2 t5 t5gemma umt5 xlm-roberta zamba zamba2 data2vec-text ernie esm gte jina_embeddings_v3 megatron-bert mvp
    rembert roberta-prelayernorm roformer t5gemma2 xlm-roberta-xl xlnet
    """.split()  # noqa: SIM905
)
"""With a class for classifying sequences."""

TOKENS = frozenset(
    """
    albert apertus arcee axk1 axk2 bert biogpt bloom camembert deberta deberta-v2 deepseek_v3 diffllama distilbert
    electra eurobert exaone4 falcon gemma gemma2 glm glm4 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss helium llama minimax
    ministral ministral3 mistral mistral4 mixtral modernbert mpnet mpt mt5 nemotron nomic_bert persimmon phi phi3 qwen2
    qwen2_moe qwen3 qwen3_moe qwen3_next roberta seed_oss smollm3 stablelm starcoder2 t5 t5gemma umt5 xlm-roberta
    data2vec-text ernie esm gte jina_embeddings_v3 megatron-bert rembert roberta-prelayernorm roformer t5gemma2
    xlm-roberta-xl xlnet
    """.split()  # noqa: SIM905
)
"""With a class for classifying tokens."""

PRETRAINED = frozenset({"albert", "bert", "electra", "ernie", "megatron-bert"})
"""With a class for what they were pre-trained on."""

ENCODERS = frozenset({"longt5", "mt5", "switch_transformers", "t5", "t5gemma", "umt5"})
"""Encoder-decoders with a class for the encoder alone."""


def class_names(kind: str, spec: ModelSpec) -> list[str]:
    """Classes of a model type that have the head of this spec, the likeliest first."""
    if kind in NO_CLASS:
        return []
    return [prefix(kind) + ending for ending in _endings(kind, spec)]


def prefix(kind: str) -> str:
    """How the names of a model type's classes begin."""
    base = kind.removesuffix(TEXT)
    return PREFIXES.get(base) or "".join(part[:1].upper() + part[1:] for part in base.replace("-", "_").split("_"))


def _endings(kind: str, spec: ModelSpec) -> list[str]:
    if isinstance(spec.head, Classifier):
        return (
            ["ForSequenceClassification"] * (kind in SEQUENCES)
            + ["ForTokenClassification"] * (kind in TOKENS)
            + ["ForPreTraining"] * (kind in PRETRAINED)
        )
    if isinstance(spec.head, LMHead):
        return _speaking(kind, spec)
    if spec.kind == "encoder" and kind in ENCODERS:
        return ["EncoderModel"]
    return ["TextModel" if kind.endswith(TEXT) else BARE.get(kind, "Model")]


def _speaking(kind: str, spec: ModelSpec) -> list[str]:
    """Language models: of the kinds of stack that the spec has."""
    if kind.endswith(TEXT) and kind not in SPEAKING_TEXTS:
        return []
    if spec.kind == "encoder-decoder":
        return [LM_HEADS.get(kind, "ForConditionalGeneration")] if kind in CONDITIONAL else []
    if spec.kind == "encoder" and kind in MASKED | CONDITIONAL:
        return (
            ["ForPreTraining" if kind in PRETRAINED and spec.pooler is not None else "ForMaskedLM"]
            if kind in MASKED
            else []
        )
    if kind in MASKED | CONDITIONAL and kind not in CAUSAL_TOO:
        return []
    return ["ForCausalLM" if kind in CONDITIONAL else LM_HEADS.get(kind, "ForCausalLM")]
