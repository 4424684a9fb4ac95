#!/bin/bash
MODEL=./models/qwen3-8b-q4_k_m.gguf
LAYERS=99
exec ./build/bin/llama-server -m "$MODEL" -ngl "$LAYERS" -c $((32 * 1024)) -fa on -ctk q8_0 -ctv q8_0 --parallel 4
