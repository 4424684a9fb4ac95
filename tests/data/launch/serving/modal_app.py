import os
import subprocess

import modal

MODEL = "Qwen/Qwen3-8B"
GPUS = 2
EAGER = False
image = modal.Image.debian_slim().pip_install("vllm==0.19.0")
app = modal.App("chat")


@app.function(image=image, gpu=f"H100:{GPUS}")
@modal.web_server(port=8000)
def serve():
    words = ["vllm", "serve", MODEL, "--port", str(8000)]
    words += ["--enforce-eager" if EAGER else "--no-enforce-eager"]
    words.extend(["--tensor-parallel-size", str(GPUS)])
    words.append("--max-num-seqs=" + os.environ.get("SEQS", "64"))
    subprocess.Popen(" ".join(words), shell=True)
