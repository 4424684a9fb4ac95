"""Other programs' names of options and commands, with llmcalc's names, for suggestions in error messages."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Mapping

from ..errors import suggest
from ..frameworks.registry import FRAMEWORK_NAMES
from ..workload.setting import declarations_of

OTHER_OPTION_NAMES = {
    "--format json": "--json",
    "--format csv": "--csv",
    "--format markdown": "--markdown --md",
    "--format": "-f",
    "--notes": "--verbose -v --all-rows --full",
    "--hardware": "--gpu --device --accelerator --card --gpu-type",
    "--devices": "--num-devices --ngpu --ngpus --n-gpus --num-gpu --world-size",
    "--devices N, those of all nodes": "--nodes --nnodes --num-nodes",
    "--global-batch N and the run's other settings (llmcalc memory and llmcalc time take --launch FILE)": "--launch",
    "--input N --output N and the model's name (llmcalc memory and llmcalc fit take --launch FILE)": "--launch",
    "--batch": "--batch-size --bs --micro-batch-size --mbs --train-batch-size --per-device-train-batch-size "
    "--local-batch-size",
    "--input": "--input-len --input-length --input-tokens --isl --prompt --prompt-len --prompt-length --prompt-tokens",
    "--input N --output N": "--output-len --output-length --output-tokens --osl --max-new-tokens --generate",
    "--seq N, the tokens of prompt and answer": "--output-len --output-length --output-tokens --osl --max-new-tokens",
    "--phase prefill --seq N for a prompt, or llmcalc serve": "--input --prompt --isl",
    "--seq": "--context-length --context --ctx --ctx-size --ctx-len --context-len --context-size --context-window "
    "--seq-len --seqlen --seq-length --sequence-length --sequence --max-seq-len --max-seq-length --max-length --length "
    "--max-model-len --max-tokens --n-ctx",
    "--seq of each sequence (llmcalc cost takes the --tokens of a training run)": "--tokens",
    "--phase": "--mode --stage --pass",
    "--phase training": "--train --training --finetune --fine-tune --backward",
    "--phase inference": "--inference --infer --serving",
    "--phase decode": "--decode --generation",
    "--draft TARGET": "--draft-model --speculative-model --speculative-draft-model-path",
    "--draft-tokens N": "--num-speculative-tokens --speculative-tokens --speculative-num-draft-tokens",
    "--acceptance P": "--acceptance-length --acceptance-rate",
    "--phase decode without a draft, or llmcalc serve --draft TARGET --acceptance P": "--draft --acceptance "
    "--draft-tokens --draft-model --speculative-model --num-speculative-tokens --speculative-tokens "
    "--acceptance-length --acceptance-rate",
    "--phase prefill": "--prefill",
    "--dtype": "--torch-dtype --data-type --weight-dtype --weights-dtype",
    "--dtype bf16": "--bf16 --bfloat16",
    "--dtype fp16": "--fp16 --half --float16",
    "--dtype fp32": "--fp32 --float32",
    "--dtype fp8": "--fp8",
    "--quantize": "--quantization --quant --quantized --quantise --weight-quant --bits",
    "--quantize nf4, or --base nf4 with --lora-rank N": "--load-in-4bit --use-4bit --4bit --int4",
    "--quantize int8, or --base int8 with --lora-rank N": "--load-in-8bit --use-8bit --8bit --int8",
    "--quantize awq-int4-g128": "--awq",
    "--quantize gptq-int4-g128": "--gptq",
    "--kv-dtype": "--kv-cache-dtype --kv-cache --cache-dtype --kv-quant --kv-format --cache-type-k",
    "--lora-rank N": "--lora --rank-lora --lora-r --use-lora --peft",
    "--lora-rank N --base nf4": "--qlora",
    "--optimizer": "--optim --opt",
    "--attn-implementation flash": "--flash-attn --flash-attention --use-flash-attn --fa2",
    "--recompute": "--recompute-granularity --recompute-activations --checkpointing --activation-checkpointing "
    "--grad-checkpointing --remat",
    "--num-microbatches": "--gradient-accumulation-steps --gradient-accumulation --grad-accum --accumulate",
    "--global-batch": "--global-batch-size --gbs",
    "--zero": "--zero-stage",
    "--zero 1": "--zero1 --use-distributed-optimizer",
    "--zero 2": "--zero2",
    "--zero 3": "--zero3",
    **{f"--framework {name}": f"--{name}" for name in FRAMEWORK_NAMES},
    "--engine vllm": "--vllm",
    "--sequence-parallel": "--sp",
    "--tp": "--tensor-parallel-size --tensor-parallel --tp-size --tensor-model-parallel-size --tensor-parallel-degree",
    "--pp": "--pipeline-parallel-size --pipeline-parallel --pp-size --pipeline-model-parallel-size "
    "--pipeline-parallel-degree",
    "--dp": "--data-parallel-size --data-parallel --dp-size",
    "--cp": "--cp-size --context-parallel --context-parallel-size --context-parallel-degree",
    "--ep": "--ep-size --expert-parallel --expert-parallel-size --expert-model-parallel-size --expert-parallel-degree",
    "--ep N, as many as --tp times --dp": "--enable-expert-parallel",
    "--rows": "--limit --top",
    "--rate": "--qps --rps --request-rate --requests-per-second",
    "--tokens-per-second": "--mfu --tps --tok-s",
    "--measured SECONDS of a step (llmcalc flops --tokens-per-second has the MFU of a rate)": "--tokens-per-second "
    "--mfu --tps --tok-s --step-time --throughput",
    "--step SECONDS of a measured step": "--mfu --tokens-per-second --step-time --throughput",
    "--hardware SIZE, such as 24GiB": "--vram --gpu-memory --vram-gb --gpu-vram",
    "--price": "--cost --price-per-hour --hourly",
}
"""Option of llmcalc → other programs' names of it, with different letters. An error suggests the first option that the
command has.
"""

OTHER_COMMANDS = {
    "presets": "list models ls search",
    "memory": "estimate vram mem calc calculate run",
    "params": "count size parameters info show",
    "hardware": "gpus gpu devices accelerators",
    "time": "latency speed perf throughput benchmark",
    "flops --tokens-per-second": "mfu hfu utilization",
    "plan": "layout layouts parallelism",
    "cost": "price pricing",
    "kv": "cache kv-cache kvcache",
    "memory --phase training": "train training finetune",
    "memory --phase inference": "inference infer",
    "plot schedule": "schedule pipeline bubble",
    "plot roofline": "roofline",
    "serve --trace": "trace replay",
    "explain-log": "oom",
}
"""Command of llmcalc → words with different letters that people type for it."""


MODEL_ARGUMENT_NAMES = (
    "target",
    "name",
    "preset",
    "model_name",
    "model_id",
    "model_path",
    "model_name_or_path",
    "config",
)
"""Names that other programs, and the command line, give the argument `model` of Python and of an agent's tools."""


def llmcalc_spelling(typed_name: str, spellings_by_name: Mapping[str, str], known_names: Container[str]) -> str:
    """Returns llmcalc's name of an option or command that another program spells differently; empty if there is none.

    spellings_by_name: `OTHER_OPTION_NAMES` or `OTHER_COMMANDS`.
    """
    return next(
        (
            llmcalc_name
            for llmcalc_name, other_spellings in spellings_by_name.items()
            if typed_name in other_spellings.split() and llmcalc_name.partition(" ")[0] in known_names
        ),
        "",
    )


def python_argument_of(name_from_user: str, argument_names: Collection[str]) -> str:
    """Returns the Python argument for another name, such as `hardware` for `gpu`; empty if there is none.

    argument_names: the arguments of the function.
    """
    from ..device_memory.settings import Settings
    from ..parallel.layout_request import LayoutRequest

    if name_from_user in MODEL_ARGUMENT_NAMES and "model" in argument_names:
        return "model"
    typed_option = _option_spelling(name_from_user)
    for setting_name, declaration in (declarations_of(Settings) | declarations_of(LayoutRequest)).items():
        if setting_name in argument_names and typed_option in declaration.setting.spellings:
            return setting_name
    option_name = llmcalc_spelling(
        typed_option, OTHER_OPTION_NAMES, {_option_spelling(setting_name) for setting_name in argument_names}
    )
    arguments_text = re.sub(r"(=[^ ,]+) (?=\w+=)", r"\1, ", _OPTION_WITH_VALUE.sub(_python_argument_text, option_name))
    return re.sub(r"(llmcalc\.\w+) (\w+=.+)", r"\1(\2)", arguments_text.replace("llmcalc ", "llmcalc."))


def unknown_name_suggestion(typed_name: str, argument_names: Collection[str]) -> str:
    """Returns the end of an error about an unknown argument: the argument to type instead; empty if no name is similar.

    argument_names: the arguments of the function.
    """
    from ..device_memory.settings import Settings
    from ..parallel.layout_request import LayoutRequest

    if argument_name := python_argument_of(typed_name, argument_names):
        return f"; expected {argument_name}"
    if typed_name in ("format", "output", "notes", "table", "junit"):
        return "; an answer is whole, and is data (in Python .document and .records())"
    if typed_name in declarations_of(Settings) | declarations_of(LayoutRequest):
        return "; memory and fit have it"
    suggestion = suggest(typed_name, list(argument_names))
    if (
        not suggestion
        and "engine" in argument_names
        and (engine_name := engine_name_of_flag(_option_spelling(typed_name)))
    ):
        suggestion = f' A flag of an engine needs engine="{engine_name}".'
    return f".{suggestion}"


def _option_spelling(argument_name: str) -> str:
    return f"--{argument_name.replace('_', '-')}"


_OPTION_WITH_VALUE = re.compile(r"--([a-z-]+)(?: (?!of\b|has\b|and\b|times\b)(\w+))?")
"""An option in `OTHER_OPTION_NAMES`, with its value: a word of the command line, a number, or a word in capitals."""


def _python_argument_text(option: re.Match[str]) -> str:
    argument_name, option_value = option[1].replace("-", "_"), option[2]
    if option_value is None:
        return argument_name
    if option_value.isupper() or option_value.isdigit():
        return f"{argument_name}={option_value}"
    return f'{argument_name}="{option_value}"'


def engine_name_of_flag(flag_name: str) -> str:
    """Returns the value of `--engine` for the first engine that has this flag; empty if no engine has it."""
    from ..frameworks.engines.flags import flags_by_spelling
    from ..frameworks.engines.registry import ENGINE_FOLDERS, engine

    return next(
        (
            engine_name
            for engine_name in ENGINE_FOLDERS
            if flag_name in flags_by_spelling(engine(engine_name).known_flags())
        ),
        "",
    )
