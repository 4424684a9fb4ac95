"""Example commands for the end of help pages; each runs unchanged if the files that the command names exist."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("params llama3-8b", "fit llama3-8b --hardware rtx-4090"),
    "params": ("params deepseek-v3", "params config.json"),
    "flops": ("flops llama3-8b --seq 8k", "flops llama3-8b --phase training --conventions"),
    "kv": ("kv llama3.1-8b --seq 128k", "kv gemma3-27b --users 16 --kv-dtype fp8"),
    "memory": ("memory llama3-8b --phase training --fsdp 8", "memory qwen3-8b --engine vllm --hardware h100"),
    "fit": ("fit llama3-8b --hardware rtx-4090 --quantize q4_k_m", "fit llama3-70b --hardware h100 --devices 4"),
    "plan": ("plan llama3-8b --hardware h100 --devices 8 --seq 4k",),
    "time": (
        "time llama3-8b --hardware h100 --phase decode --users 16",
        "time llama3-8b --hardware h100 --devices 8 --fsdp 8 --seq 8k",
    ),
    "serve": ("serve qwen3-8b --hardware h100 --input 4k --output 1k --price 2",),
    "cost": (
        "cost llama3-8b --tokens 1T --hardware h100 --devices 64",
        "cost phi-4 --requests 1M --input 4k --output 1k --hardware l4",
    ),
    "plot": ("plot memory gpt2 --phase training -o memory.svg", "plot schedule --pp 4 --num-microbatches 8"),
    "plot memory": ("plot memory gpt2 --phase training -o memory.svg",),
    "plot schedule": ("plot schedule --pp 4 --num-microbatches 8 -o schedule.svg",),
    "plot time": ("plot time gpt2 --hardware h100 --phase decode -o time.svg",),
    "plot serve": ("plot serve phi-4 --hardware l4 --input 4k --output 1k -o s.svg",),
    "plot roofline": ("plot roofline llama3-8b --hardware h100 -o roofline.svg",),
    "plot params": ("plot params llama3-8b gemma3-27b deepseek-v3 -o params.svg",),
    "plot kv": ("plot kv llama3-8b gemma3-27b -o kv.pdf",),
    "plot flops": ("plot flops llama3-8b -o flops.png",),
    "plot shape": ("plot shape llama3-8b -o shape.svg",),
    "plot aspect": ("plot aspect --moe -o aspect.png",),
    "compare": ("compare gpt3-175b llama3-8b deepseek-v3", "compare --all --moe --sort active"),
    "diff": ("diff llama3-8b qwen3-8b", "diff llama3-8b 'llama3-8b?num_hidden_layers=16'"),
    "shape": ("shape llama3-8b", "shape --params 1B --tie --vocab 32000"),
    "explain": ("explain llama3-8b self_attn", "explain gpt2 --latex --bibtex"),
    "explain-log": ("explain-log vllm.log",),
    "verify": ("verify llama3-8b", "verify deepseek-v3 --against published"),
    "check": ("check model.safetensors config.json",),
    "budget": ("budget llmcalc.toml",),
    "convert": ("convert config.json -o model.toml", "convert llama3-8b --to hf"),
    "presets": ("presets qwen3", "presets --attention mla --max-params 100B"),
    "hardware": ("hardware h100",),
    "schema": ("schema -o description.schema.json",),
    "lock": ("lock llama3-8b -o llmcalc.lock.json", "lock --check"),
    "web": ("web --export site",),
    "mcp": ("mcp",),
}
"""Command, empty for the program itself → its examples, each the arguments of a call of `llmcalc`."""
