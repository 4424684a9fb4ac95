"""A teacher beside the trained model: its weights, and the bytes of the loss that compares both models' logits."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml

import llmcalc
from llmcalc.errors import InputError
from llmcalc.frameworks.frozen_model import SecondLoss, Teacher
from llmcalc.frameworks.launch.launch_types import Launch
from llmcalc.frameworks.launch.read_launch_file import launch_from_text
from llmcalc.frameworks.ms_swift.rlhf import GKD_BYTES_PER_LOGIT, GKD_CHUNK_TOKENS
from llmcalc.frameworks.trl.distillation import BYTES_PER_LOGIT
from tests.simulator.witness import Alive

FILES = Path(__file__).parents[2] / "data" / "launch"
TOKENS, VOCABULARY, WIDTH = 64, 1000, 8
LARGE = 7_615_616_512
"""Parameters of Qwen2.5 7B, by its model card 7.61B."""


def changed(devices: int | None = None, **changes: Any) -> Launch:
    data = yaml.safe_load((FILES / "trl_gkd.yaml").read_text()) | changes
    return launch_from_text(yaml.safe_dump(data), "trl_gkd.yaml", devices, launch_folder=FILES)


def teacher(launch: Launch) -> Teacher:
    assert isinstance(launch.frozen_model, Teacher)
    return launch.frozen_model


def test_the_teacher_is_whole_on_each_device_unless_zero_3_divides_it() -> None:
    assert teacher(changed()).weight_bytes(LARGE, "bfloat16") == 2 * LARGE
    assert teacher(changed()).parameter_count == LARGE
    fsdp = changed(4, fsdp="full_shard auto_wrap", fsdp_config={"version": 2})
    assert fsdp.framework == "fsdp2"
    assert teacher(fsdp).rank_count == 1  # prepare_model(evaluation_mode=True) wraps nothing
    zero = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 2}
    assert teacher(changed(4, deepspeed=zero)).rank_count == 4


def test_its_weights_and_the_loss_are_added_to_training() -> None:
    options: dict[str, Any] = {"phase": "training", "batch": 2, "seq": 1024, "num_microbatches": 4, "precision": "bf16"}
    alone = llmcalc.memory("qwen2.5-0.5b", recompute="full", attn_implementation="sdpa", **options).document
    document = llmcalc.memory(launch=FILES / "trl_gkd.yaml").document
    loss = 20 * 2 * 1024 * 151_936  # bytes per logit · sequences · tokens · vocabulary
    assert document["memory"]["exact_bytes"] == alone["memory"]["exact_bytes"] + 2 * LARGE + loss


def divergence(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """The generalized Jensen-Shannon divergence of Agarwal et al. 2023, Eq. 1, with torch's functions as TRL calls.

    Its variables keep the logits that are divided by the temperature.
    """
    student, teacher = student / 1.0, teacher / 1.0
    p, q = F.log_softmax(student, -1), F.log_softmax(teacher, -1)
    if beta in (0, 1):
        inputs, target = (p, q) if beta == 0 else (q, p)
        by_logit = F.kl_div(inputs, target, reduction="none", log_target=True)
        return by_logit.sum()
    share = torch.tensor(beta, dtype=p.dtype, device=p.device)
    mixture = torch.logsumexp(torch.stack([p + torch.log1p(-share), q + torch.log(share)]), 0)
    of_teacher = F.kl_div(mixture, q, reduction="none", log_target=True)
    of_student = F.kl_div(mixture, p, reduction="none", log_target=True)
    by_logit = share * of_teacher + (1 - share) * of_student
    return by_logit.sum()


def divergence_in_chunks(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """The same of selected tokens, 512 at a time, with Kullback-Leibler divergences by torch's exp and sum.

    As ms-swift calls torch's functions (swift/rlhf_trainers/gkd_loss.py).
    """

    def kl_divergence(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (torch.exp(target) * (target - inputs)).sum(-1)

    selected = torch.zeros(len(student), dtype=torch.int64, device=student.device)
    student, teacher = student[selected], teacher[selected]
    student, teacher = student / 0.9, teacher / 0.9
    share = torch.tensor(beta, dtype=student.dtype, device=student.device)
    log_share, log_rest = torch.log(share), torch.log1p(-share)
    total = student.new_zeros(())
    for start in range(0, len(student), GKD_CHUNK_TOKENS):
        p, q = (F.log_softmax(logits[start : start + GKD_CHUNK_TOKENS], -1) for logits in (student, teacher))
        if beta in (0, 1):
            by_token = kl_divergence(p, q) if beta == 0 else kl_divergence(q, p)
        else:
            mixture = torch.logsumexp(torch.stack([p + log_rest, q + log_share]), 0)
            by_token = share * kl_divergence(mixture, q) + (1 - share) * kl_divergence(mixture, p)
        total = total + by_token.sum()
    return total


def peak_per_logit(
    dtype: torch.dtype, beta: float | None, float32_logits: bool, tokens: int = TOKENS, loss_of: Any = divergence
) -> float:
    """Bytes per logit at the peak of a loss and its backward pass. beta: None for the eager cross-entropy."""
    hidden, head = (torch.empty(n, WIDTH, dtype=dtype, device="meta", requires_grad=True) for n in (tokens, VOCABULARY))
    labels = torch.zeros(tokens, dtype=torch.int64, device="meta")
    tracker = Alive([hidden, head, labels])
    with tracker:
        logits = hidden @ head.T
        if beta is None:
            loss = F.cross_entropy(logits.float(), labels)
        else:
            with torch.no_grad():
                of_teacher = hidden @ head.T
            if float32_logits:
                logits, of_teacher = logits.float(), of_teacher.float()
            loss = loss_of(logits, of_teacher, beta)
        loss.backward()  # type: ignore[no-untyped-call]
    return tracker.peak / (tokens * VOCABULARY)


@pytest.fixture(autouse=True, scope="module")
def first_loss() -> None:
    """Torch's first loss leaves a cycle of objects that keeps a tensor until garbage is collected."""
    peak_per_logit(torch.bfloat16, None, False)


@pytest.mark.parametrize("logits", BYTES_PER_LOGIT)
def test_the_bytes_of_the_loss_are_torchs(logits: str) -> None:
    dtype = torch.float32 if logits == "float32" else torch.bfloat16
    of_cross_entropy = peak_per_logit(dtype, None, False)
    for betas, expected in zip(((0.5,), (0, 1)), BYTES_PER_LOGIT[logits], strict=True):
        for beta in betas:
            assert int(peak_per_logit(dtype, beta, logits == "autocast")) - int(of_cross_entropy) == expected


@pytest.mark.parametrize("logits", GKD_BYTES_PER_LOGIT)
def test_the_bytes_of_a_loss_in_chunks_are_an_upper_bound_of_torchs(logits: str) -> None:
    dtype = torch.float32 if logits == "float32" else torch.bfloat16
    for betas, (width, chunk_width) in zip(((0.5,), (0, 1)), GKD_BYTES_PER_LOGIT[logits], strict=True):
        for beta, tokens in product(betas, (512, 2048, 8192)):
            peak = peak_per_logit(dtype, beta, logits == "autocast", tokens, divergence_in_chunks)
            more = peak - peak_per_logit(dtype, None, False, tokens)
            assert more - 0.02 <= width + chunk_width * GKD_CHUNK_TOKENS / tokens <= more + (5.3 if beta == 0 else 2.3)


def forward_kl(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """torchtune/modules/loss/kd_losses.py, `ForwardKLLoss.forward`, without padding."""
    teacher_prob = F.softmax(teacher, dim=-1, dtype=torch.float32)
    inf_mask = torch.isinf(student)
    student_logprob = F.log_softmax(student, dim=-1, dtype=torch.float32)
    prod_probs = torch.masked_fill(teacher_prob * student_logprob, inf_mask, 0)
    return -torch.sum(torch.sum(prod_probs, dim=-1).view(-1), dim=0)


def test_the_loss_of_torchtune_saves_what_is_counted() -> None:
    """Beside the teacher's logits: a probability and a logarithm in float32, and a mask, of each logit."""
    saved: dict[int, torch.Tensor] = {}
    student, teacher_logits = (
        torch.empty(TOKENS, VOCABULARY, dtype=torch.bfloat16, device="meta", requires_grad=i == 0) for i in range(2)
    )
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.setdefault(id(x), x), lambda x: x):
        forward_kl(student, teacher_logits)
    saved_bytes = sum(x.numel() * x.element_size() for x in saved.values())
    file = FILES / "torchtune_lora.yaml"
    table = yaml.safe_load(file.read_text()) | {
        "teacher_model": {"_component_": "torchtune.models.qwen2_5.qwen2_5_7b_instruct"},
        "kd_loss": {"_component_": "torchtune.modules.loss.ForwardKLWithChunkedOutputLoss"},
    }
    launch = launch_from_text(yaml.safe_dump(table), "kd.yaml", 1)
    assert teacher(launch).parameter_count == LARGE
    loss = teacher(launch).loss
    assert loss is not None
    assert loss.bytes_per_logit == 2 + saved_bytes / (TOKENS * VOCABULARY)
    assert loss.chunk_tokens * 8 == launch.settings["batch"] * launch.settings.get("seq", 2048)
    for key, message in (
        ("teacher_model", "teacher_model: 'gpt5' is not known"),
        ("kd_loss", "'gpt5' is not modelled"),
    ):
        with pytest.raises(InputError, match=message):
            launch_from_text(yaml.safe_dump(table | {key: {"_component_": "x.gpt5"}}), "kd.yaml", 1)


SWIFT = "NPROC_PER_NODE=4 swift rlhf --rlhf_type gkd --model Qwen/Qwen2.5-0.5B --tuner_type full --max_length 1024"


def distilled(more: str) -> Launch:
    return launch_from_text(f"{SWIFT} {more}", "gkd.sh", None, launch_folder=FILES)


def test_ms_swift_divides_the_teacher_by_its_own_deepspeed_config() -> None:
    whole = distilled("--teacher_model Qwen/Qwen2.5-7B")
    assert teacher(whole).weight_bytes(LARGE, "bfloat16") == 2 * LARGE
    assert teacher(distilled("--teacher_model Qwen/Qwen2.5-7B --deepspeed zero3")).rank_count == 4
    alone = "--teacher_model Qwen/Qwen2.5-7B --deepspeed zero3 --teacher_deepspeed zero0"
    assert teacher(distilled(alone)).rank_count == 1
    loss = teacher(whole).loss
    assert loss is not None
    assert (loss.bytes_per_logit, loss.chunk_tokens, loss.chunk_bytes_per_logit) == (8, 512, 6)
    assert isinstance(distilled("--sft_alpha 0.1").frozen_model, SecondLoss)
    assert distilled("--teacher_model_server http://localhost:8000").frozen_model is None
    for more, words in (
        (
            "--use_vllm true --sleep_level 1",
            "--use_vllm: an engine on the same devices is not modelled beside a teacher",
        ),
        ("--teacher_model Qwen/Qwen2.5-7B --use_liger_kernel true", "--use_liger_kernel: with --rlhf_type gkd"),
        (
            "--teacher_model Qwen/Qwen2.5-7B --teacher_deepspeed zero3_offload",
            "'zero3_offload' is not modelled; expected zero0",
        ),
        ("--teacher_model Qwen/Qwen2.5-7B --teacher_deepspeed own.json", "'own.json' is not modelled"),
    ):
        with pytest.raises(InputError, match=words):
            distilled(more)


def test_what_is_not_modelled_is_named() -> None:
    with pytest.raises(InputError, match="use_liger_kernel: true; with teacher_model_name_or_path"):
        changed(use_liger_kernel=True)
    with pytest.raises(InputError, match="teacher_model_name_or_path: 'no-such-model' cannot be read"):
        changed(teacher_model_name_or_path="no-such-model")
