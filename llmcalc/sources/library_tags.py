"""Names in Ollama's library whose tags leave out a size, a format or the model's version.

Source: ids, sizes and contexts of all tags on 2026-08-21
(https://github.com/auditomatic/ollama-models-registry/blob/31464bb10e1885669f65239569271651e269a072/data/models.json).
A tag without a format has the id of a tag that states it: `yi:34b` that of `yi:34b-chat-v1.5-q4_0`. Most files that
were uploaded before September 2024 are in Q4_0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

USUAL_SCHEME = "q4_k_m"
"""The scheme of `--quantize` for most tags of Ollama's library that state no format."""

_WORD_OF_NO_SIZE = re.compile(r"(?:^|-)(?:instruct|it|chat|text|base|code|think(?:ing)?)$")
"""Matches a word at the end of a tag that says how the model was tuned, such as `instruct`."""


@dataclass(frozen=True)
class LibraryName:
    """A model name in Ollama's library, with the size, format and version that its tags leave out.

    latest: the tag that `latest` is, with its size.
    scheme: the scheme of tags without a format; `none` for 16 bits.
    presets: tag → preset, where the tag's name does not say it.
    schemes: tag → scheme, where it is not `scheme`.
    context_lengths: tag → context length of the file in tokens, where it is not the preset's or that of its size.
        A tag that ends in a hyphen stands for those that go on with a format, where they are another version's.
    """

    latest: str
    scheme: str = USUAL_SCHEME
    presets: Mapping[str, str] = field(default_factory=dict)
    schemes: Mapping[str, str] = field(default_factory=dict)
    context_lengths: Mapping[str, int] = field(default_factory=dict)

    def size_tag(self, tag: str) -> str:
        """Returns the size in a tag: `8b` for `8b-instruct`, the default size for `latest` or an empty tag."""
        if tag in self.presets or tag in self.schemes:
            return tag
        return _WORD_OF_NO_SIZE.sub("", "" if tag == "latest" else tag) or self.latest

    def scheme_of_tag(self, size_tag: str) -> str:
        """Returns the quantization scheme of an Ollama tag that names no format. size_tag: the result of `size_tag`."""
        return self.schemes.get(size_tag, self.scheme)


LARGER_FILES = {
    "laguna-s-2.1:latest": 96.0,
    "laguna-xs.2:latest": 23.0,
    "phi4-mini-reasoning:3.8b": 3.2,
    "phi4-reasoning:14b": 11.0,
    "phi4-reasoning:plus": 11.0,
    "qwen3-coder-next:latest": 52.0,
    "qwen3.5:35b": 24.0,
    "qwen3.5:35b-a3b": 24.0,
    "qwen3.5:122b": 81.0,
    "qwen3.5:122b-a10b": 81.0,
    "qwen3.6:35b": 24.0,
    "qwen3.6:35b-a3b": 24.0,
}
"""Tag without a format → decimal GB of its files, of those with more bits than llama-quantize chooses.

Which tensors have more is not published; `frameworks/ggml/gguf_model.py` divides the rest over the layers. The source
is the registry above.
"""

LIBRARY_NAMES = {
    "all-minilm": LibraryName("22m", "none"),
    "athene-v2": LibraryName("72b", presets={"72b": "qwen2.5-72b"}, context_lengths={"72b": 32768}),
    "aya": LibraryName("8b", "q4_0"),
    "aya-expanse": LibraryName("8b"),
    "bge-large": LibraryName("335m", "none"),
    "bge-m3": LibraryName("567m", "none"),
    "codegemma": LibraryName("7b", "q4_0", presets={"code": "gemma-2b", "2b": "gemma-2b", "7b": "gemma-7b"}),
    "codellama": LibraryName(
        "7b", "q4_0", presets={"python": "codellama-7b-python"}, context_lengths={"70b": 2048, "70b-code": 16384}
    ),
    "codestral": LibraryName("22b", "q4_0"),
    "cogito": LibraryName(
        "8b",
        presets={
            "3b": "llama3.2-3b",
            "8b": "llama3.1-8b",
            "14b": "qwen2.5-14b",
            "32b": "qwen2.5-32b",
            "70b": "llama3.1-70b",
        },
    ),
    "command-a": LibraryName("111b", context_lengths={"111b": 16384}),
    "command-r": LibraryName(
        "35b", "q4_0", presets={"35b": "command-r-08-2024", "v0.1": "command-r"}, context_lengths={"v0.1": 131072}
    ),
    "command-r-plus": LibraryName("104b", "q4_0", context_lengths={"104b": 131072}),
    "command-r7b": LibraryName("7b"),
    "dbrx": LibraryName("132b", "q4_0"),
    "deepcoder": LibraryName(
        "14b", presets={"1.5b": "deepseek-r1-distill-qwen-1.5b", "14b": "deepseek-r1-distill-qwen-14b"}
    ),
    "deepscaler": LibraryName("1.5b", "none", presets={"1.5b": "deepseek-r1-distill-qwen-1.5b"}),
    "deepseek-coder": LibraryName("1.3b", "q4_0"),
    "deepseek-coder-v2": LibraryName("16b", "q4_0", presets={"236b": "deepseek-v2"}, context_lengths={"236b": 4096}),
    "deepseek-llm": LibraryName("7b", "q4_0"),
    "deepseek-ocr": LibraryName("3b", "none"),
    "deepseek-r1": LibraryName("8b"),
    "deepseek-v2": LibraryName("16b", "q4_0", context_lengths={"236b": 4096}),
    "deepseek-v2.5": LibraryName("236b", "q4_0", presets={"236b": "deepseek-v2.5"}, context_lengths={"236b": 4096}),
    "deepseek-v3": LibraryName("671b"),
    "deepseek-v3.1": LibraryName("671b"),
    "devstral": LibraryName("24b"),
    "devstral-2": LibraryName("123b"),
    "devstral-small-2": LibraryName("24b"),
    "dolphin-llama3": LibraryName(
        "8b",
        "q4_0",
        presets={"8b": "llama3-8b", "70b": "llama3-70b", "8b-256k": "llama3-8b"},
        context_lengths={"8b-256k": 256000},
    ),
    "dolphin-mistral": LibraryName("7b", "q4_0", presets={"7b": "mistral-7b"}),
    "dolphin-mixtral": LibraryName("8x7b", "q4_0", presets={"8x7b": "mixtral-8x7b", "8x22b": "mixtral-8x22b"}),
    "dolphin-phi": LibraryName("2.7b", "q4_0", presets={"2.7b": "phi-2"}),
    "dolphin3": LibraryName("8b", presets={"8b": "llama3.1-8b"}),
    "embeddinggemma": LibraryName("300m", "none"),
    "falcon": LibraryName("7b", "q4_0"),
    "falcon2": LibraryName("11b", "q4_0", context_lengths={"11b": 2048}),
    "falcon3": LibraryName("7b", schemes={"1b": "q8_0"}, context_lengths={"1b": 8192}),
    "functiongemma": LibraryName("270m", "q8_0", presets={"270m": "gemma3-270m"}),
    "gemma": LibraryName("7b", "q4_0"),
    "gemma2": LibraryName("9b", "q4_0"),
    "gemma3": LibraryName("4b", schemes={"270m": "q8_0"}),
    "gemma3n": LibraryName("e4b"),
    "gemma4": LibraryName("e4b"),
    "glm4": LibraryName("9b", "q4_0", context_lengths={"9b": 131072, "9b-text": 8192}),
    "gpt-oss": LibraryName("20b"),
    "gpt-oss-safeguard": LibraryName("20b", presets={"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"}),
    "granite-code": LibraryName(
        "3b",
        "q4_0",
        context_lengths={  # 3b and 8b have the ids of 3b-instruct-128k-q4_0 and 8b-instruct-128k-q4_0
            "3b": 128000,
            "8b": 128000,
            **dict.fromkeys(("3b-base", "3b-instruct-"), 2048),
            **dict.fromkeys(("8b-base", "8b-instruct-"), 4096),
        },
    ),
    "granite3-dense": LibraryName("2b"),
    "granite3-moe": LibraryName("1b"),
    "granite3.1-dense": LibraryName("8b"),
    "granite3.1-moe": LibraryName("3b", schemes={"1b": "q8_0"}),
    "granite3.2": LibraryName("8b"),
    "granite3.3": LibraryName("8b"),
    "granite4": LibraryName(
        "3b",
        schemes={"350m": "none", "1b": "none", "350m-h": "q8_0", "1b-h": "q8_0"},
        context_lengths=dict.fromkeys(
            ("350m-h", "1b-h", "3b-h", "7b-a1b-h", "32b-a9b-h", "micro-h", "small-h", "tiny-h"), 1048576
        ),
    ),
    "hermes3": LibraryName(
        "8b",
        "q4_0",
        presets={"3b": "llama3.2-3b", "8b": "llama3.1-8b", "70b": "llama3.1-70b", "405b": "llama3.1-405b"},
        schemes={"3b": "q4_k_m"},
    ),
    "internlm2": LibraryName("7b", "q4_0", presets={"20b": "internlm2.5-20b"}, context_lengths={"20b": 32768}),
    "lfm2": LibraryName("24b", context_lengths={"24b": 32768, "24b-a2b": 32768}),
    "lfm2.5-thinking": LibraryName("1.2b"),
    "llama-guard3": LibraryName("8b", presets={"1b": "llama3.2-1b", "8b": "llama3.1-8b"}, schemes={"1b": "q8_0"}),
    "llama2": LibraryName("7b", "q4_0"),
    "llama2-uncensored": LibraryName(
        "7b", "q4_0", presets={"7b": "llama2-7b", "70b": "llama2-70b"}, context_lengths={"7b": 2048, "70b": 2048}
    ),
    "llama3": LibraryName("8b", "q4_0"),
    "llama3.1": LibraryName("8b"),
    "llama3.2": LibraryName("3b", schemes={"1b": "q8_0"}),
    "llama3.2-vision": LibraryName("11b"),
    "llama3.3": LibraryName("70b"),
    "llama4": LibraryName("16x17b"),
    "llava": LibraryName("7b", "q4_0"),
    "magistral": LibraryName("24b", presets={"24b": "mistral-small-24b-2501"}, context_lengths={"24b": 40000}),
    "mathstral": LibraryName("7b", "q4_0"),
    "medgemma": LibraryName("4b"),
    "medgemma1.5": LibraryName("4b", presets={"4b": "gemma3-4b"}),
    "minicpm-v4.6": LibraryName("1b", presets={"1b": "minicpm-v-4.6"}),
    "ministral-3": LibraryName("8b"),
    "mistral": LibraryName(
        "7b",
        presets={
            "7b": "mistral-7b-v0.3",
            "7b-text": "mistral-7b-v0.2",
            "instruct": "mistral-7b-v0.3",
            "v0.1": "mistral-7b",
            "v0.2": "mistral-7b-v0.2",
        },
        schemes=dict.fromkeys(("7b-text", "instruct", "v0.1", "v0.2"), "q4_0"),
        context_lengths={"text": 16384, "7b-text": 16384, "7b-text-": 32768},
    ),
    "mistral-large": LibraryName("123b"),
    "mistral-medium-3.5": LibraryName("128b"),
    "mistral-nemo": LibraryName("12b", "q4_0", context_lengths={"12b": 1024000}),
    "mistral-small": LibraryName("24b", schemes={"22b": "q4_0"}, context_lengths={"22b": 131072}),
    "mistral-small3.1": LibraryName("24b"),
    "mistral-small3.2": LibraryName("24b"),
    "mixtral": LibraryName(
        "8x7b", "q4_0", presets={"v0.1": "mixtral-8x22b-instruct", "8x22b": "mixtral-8x22b-instruct"}
    ),
    "muse-glimmer": LibraryName("30b"),
    "mxbai-embed-large": LibraryName("335m", "none"),
    "nemotron": LibraryName("70b", presets={"70b": "llama3.1-70b"}),
    "nemotron-3-nano": LibraryName("30b", context_lengths=dict.fromkeys(("30b", "30b-a3b"), 1048576)),
    "nemotron-3-super": LibraryName("120b"),
    "nemotron-3.5-lightning": LibraryName("30b", presets={"30b": "nemotron-3.5-lightning"}),
    "nemotron-cascade-2": LibraryName("30b", presets={"30b": "nemotron-3-nano-30b-a3b"}),
    "nemotron-mini": LibraryName("4b"),
    "neural-chat": LibraryName("7b", "q4_0", presets={"7b": "mistral-7b"}),
    "nomic-embed-text": LibraryName("v1.5", "none", context_lengths={"v1.5": 2048}),
    "nous-hermes2": LibraryName("10.7b", "q4_0", presets={"10.7b": "solar-10.7b", "34b": "yi-34b"}),
    "olmo-3": LibraryName("7b"),
    "olmo-3.1": LibraryName("32b"),
    "olmo2": LibraryName("7b"),
    "openchat": LibraryName("7b", "q4_0", presets={"7b": "mistral-7b"}, context_lengths={"7b": 8192}),
    "openthinker": LibraryName(
        "7b", presets={"7b": "qwen2.5-7b", "32b": "qwen2.5-32b"}, context_lengths={"7b": 32768, "32b": 32768}
    ),
    "paraphrase-multilingual": LibraryName("278m", "none", presets={"278m": "multilingual-e5-base"}),
    "phi": LibraryName("2.7b", "q4_0"),
    "phi3": LibraryName(
        "3.8b",
        "q4_0",
        presets={
            "medium": "phi3-medium-128k",
            "mini": "phi3-mini-128k",
            "3.8b": "phi3-mini-128k",
            "14b": "phi3-medium-128k",
        },
        schemes={"mini-4k": "q4_k_m"},
    ),
    "phi3.5": LibraryName("3.8b", "q4_0"),
    "phi4": LibraryName("14b"),
    "phi4-mini": LibraryName("3.8b"),
    "phi4-mini-reasoning": LibraryName("3.8b"),
    "phi4-reasoning": LibraryName("14b", presets={"plus": "phi-4-reasoning"}),
    "qwen": LibraryName(
        "4b",
        "q4_0",
        presets={
            "0.5b": "qwen1.5-0.5b",
            "1.8b": "qwen1.5-1.8b",
            "4b": "qwen1.5-4b",
            "7b": "qwen1.5-7b",
            "14b": "qwen1.5-14b",
            "32b": "qwen1.5-32b",
            "72b": "qwen1.5-72b",
            "110b": "qwen1.5-110b",
        },
    ),
    "qwen2": LibraryName(
        "7b",
        "q4_0",
        presets={
            "0.5b": "qwen2-0.5b-instruct",
            "1.5b": "qwen2-1.5b-instruct",
            "7b": "qwen2-7b-instruct",
            "72b": "qwen2-72b-instruct",
            "7b-text": "qwen2-7b",
            "72b-text": "qwen2-72b",
        },
    ),
    "qwen2-math": LibraryName(
        "7b",
        "q4_0",
        presets={"1.5b": "qwen2-1.5b-instruct", "7b": "qwen2-7b-instruct", "72b": "qwen2-72b-instruct"},
        context_lengths={"1.5b": 4096, "7b": 4096, "72b": 4096},
    ),
    "qwen2.5": LibraryName(
        "7b",
        presets={
            "1.5b": "qwen2.5-1.5b-instruct",
            "7b": "qwen2.5-7b-instruct",
            "14b": "qwen2.5-14b-instruct",
            "32b": "qwen2.5-32b-instruct",
            "72b": "qwen2.5-72b-instruct",
        },
    ),
    "qwen2.5-coder": LibraryName("7b", presets={"0.5b-base": "qwen2.5-coder-0.5b"}, schemes={"0.5b-base": "q8_0"}),
    "qwen2.5vl": LibraryName("7b"),
    "qwen3": LibraryName(
        "8b",
        presets={
            "4b": "qwen3-4b-2507",
            "30b": "qwen3-30b-a3b-2507",
            "30b-a3b": "qwen3-30b-a3b-2507",
            "235b": "qwen3-235b-a22b-2507",
            "235b-a22b": "qwen3-235b-a22b-2507",
        },
    ),
    "qwen3-coder": LibraryName("30b"),
    "qwen3-embedding": LibraryName("8b", schemes={"0.6b": "q8_0"}),
    "qwen3-next": LibraryName("80b"),
    "qwen3-vl": LibraryName("8b"),
    "qwen3.5": LibraryName("9b", schemes={"0.8b": "q8_0", "2b": "q8_0"}),
    "qwen3.6": LibraryName("35b"),
    "qwen3.8": LibraryName("27b"),
    "qwq": LibraryName("32b"),
    "r1-1776": LibraryName(
        "70b", presets={"70b": "llama3.3-70b", "671b": "deepseek-r1"}, context_lengths={"671b": 4096}
    ),
    "shieldgemma": LibraryName("9b", presets={"2b": "gemma2-2b", "9b": "gemma2-9b", "27b": "gemma2-27b"}),
    "smollm": LibraryName("1.7b", "q4_0"),
    "smollm2": LibraryName("1.7b", "q8_0", schemes={"135m": "none", "360m": "none"}),
    "snowflake-arctic-embed": LibraryName(
        "335m",
        "none",
        presets={"l": "bge-large-en-v1.5", "m": "bge-base-en-v1.5", "s": "bge-small-en-v1.5", "xs": "all-minilm-l6-v2"},
    ),
    "snowflake-arctic-embed2": LibraryName("568m", "none"),
    "solar": LibraryName("10.7b", "q4_0"),
    "stable-code": LibraryName("3b", "q4_0", presets={"3b": "stablelm-3b-4e1t"}, context_lengths={"3b": 16384}),
    "stablelm2": LibraryName("1.6b", "q4_0"),
    "starcoder": LibraryName("3b", "q4_0", presets={"15b": "starcoder-15b"}),
    "starcoder2": LibraryName("3b", "q4_0", presets={"instruct": "starcoder2-15b"}),
    "starling-lm": LibraryName(
        "7b",
        "q4_0",
        presets={"alpha": "mistral-7b", "beta": "mistral-7b", "7b": "mistral-7b"},
        context_lengths={"alpha": 8192, "beta": 8192, "7b": 8192},
    ),
    "tinyllama": LibraryName("1.1b", "q4_0"),
    "translategemma": LibraryName("4b"),
    "tulu3": LibraryName("8b", presets={"8b": "llama3.1-8b", "70b": "llama3.1-70b"}),
    "vicuna": LibraryName("7b", "q4_0"),
    "wizard-vicuna-uncensored": LibraryName(
        "7b",
        "q4_0",
        presets={"7b": "llama2-7b", "13b": "llama2-13b", "30b": "llama-33b"},
        context_lengths={"7b": 2048, "13b": 2048},
    ),
    "wizardlm2": LibraryName("7b", "q4_0", presets={"7b": "mistral-7b", "8x22b": "mixtral-8x22b"}),
    "yi": LibraryName("6b", "q4_0", presets={"6b": "yi-1.5-6b", "9b": "yi-1.5-9b", "34b": "yi-1.5-34b"}),
    "zephyr": LibraryName(
        "7b", "q4_0", presets={"141b": "mixtral-8x22b", "7b-alpha": "mistral-7b", "7b-beta": "mistral-7b"}
    ),
}
"""Model name in Ollama's library, in lower case → what the name's tags leave out."""
