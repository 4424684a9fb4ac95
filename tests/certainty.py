"""How near answers are to what they were compared with: tables of docs/how-sure.md, serve.md and engines.md.

`python -m tests.certainty` writes them anew, in both languages (minutes: it computes every measured row).
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple

from llmcalc.sources.presets import load_preset, model_names
from tests.device_memory.published import Outcome, fine_tuning, servers
from tests.frameworks.vllm import test_logs as vllm_logs
from tests.gpu_rows import GPUS
from tests.timing import measured, measured_rows
from tests.timing.measured import Score
from tests.witnesses import test_gpu_measured as gpu
from tests.witnesses.verdicts import recorded

ROOT = Path(__file__).parents[1]
PAGES = {"en": ROOT / "docs/how-sure.md", "zh": ROOT / "docs/zh/how-sure.md"}

SERVE_PAGE = ROOT / "docs/serve.md"
ENGINES_PAGE = ROOT / "docs/engines.md"

QUANTITIES = {
    "parameters": ("parameters", "参数量"),
    "forward_flops": ("FLOPs of a forward pass", "一次前向的 FLOPs"),
    "cache_bytes": ("cache", "KV 缓存"),
}
MEMORY = {
    "reference": (
        "training steps of llmcalc's PyTorch model on an H200 and an H100, requested bytes",
        "llmcalc 的 PyTorch 模型的训练步（H200 与 H100，请求的字节）",
    ),
    "classes": ("training steps of transformers' classes on both, peak", "transformers 各类的训练步（同上，峰值）"),
    "passes": (
        "prompts and tokens of transformers' classes on the H100, peak",
        "transformers 各类的 prefill 与 decode（H100，峰值）",
    ),
    "tuning": ("published peaks of fine-tuning", "公开的微调显存峰值"),
    "servers": ("published caches and weights of servers", "公开的推理服务缓存与权重"),
}
HEADINGS = {
    "counts": (
        "| quantity | families equal to their class | equal by its modules' shapes | not comparable |",
        "| 数量 | 与 transformers 的类相等的族 | 按模块形状核对的族 | 无法比较 |",
    ),
    "presets": (
        "| presets | compared with a class | with a published count |",
        "| 预设 | 与类比较过 | 有公开的参数量 |",
    ),
    "memory": (
        "| compared with | rows | median error | one in ten above | worst row |",
        "| 比较对象 | 行数 | 中位误差 | 十分之一超过 | 最差的一行 |",
    ),
    "worst": (
        "| class | the three rows that are furthest off, estimate over measurement |",
        "| 类别 | 偏差最大的三行（估计 ÷ 实测） |",
    ),
    "time": (
        "| class | rows | sources | median error | one in ten above | bias | in the range | naive | largest error |",
        "| 类别 | 行数 | 来源 | 中位误差 | 十分之一超过 | 偏差 | 落在区间内 | 朴素法则 | 最大误差 |",
    ),
    "served": ("| class | rows | median error | one in ten above | bias | in the range |", ""),
    "logs": ("| term | logs | median error | within 1 % | within 5 % |", ""),
}
LOG_TERMS = {
    "weights": "weights",
    "weights, complete flags": "weights, all flags known",
    "profile_run": "peak of the profile run",
    "cuda_graphs": "CUDA graphs",
    "kv_cache": "cache",
    "kv_tokens": "tokens of cache",
    "kv_tokens, complete flags": "tokens of cache, all flags known",
}
LANGUAGES = ("en", "zh")


class Comparison(NamedTuple):
    """A computed value beside a measured one. name: of the row. error: computed over measured, minus 1."""

    name: str
    error: float


def percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %").replace("-", "−")


def lines(table: str, language: str, rows: Iterable[Sequence[str]]) -> str:
    """A table of a page, with its heading in the page's language."""
    heading = HEADINGS[table][LANGUAGES.index(language)]
    columns = heading.count("|") - 1
    rule = "|:---|" + "---:|" * (columns - 1)
    return "\n".join([heading, rule, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def counts_table(language: str) -> str:
    """Families by how each quantity was compared with its class of transformers."""
    verdicts = recorded()
    rows = []
    for quantity, titles in QUANTITIES.items():
        counted = Counter(verdict.get(quantity, "") for verdict in verdicts.values())
        title = titles[LANGUAGES.index(language)]
        rows.append((title, str(counted["exact"]), str(counted["followed"]), str(counted[""])))
    return lines("counts", language, rows)


def presets_table(language: str) -> str:
    """Presets by what each was compared with."""
    known = json.loads((ROOT / "tests/data/presets.json").read_text())
    names = model_names()
    with_class = sum(known[name]["witness"] != "reference" for name in names)
    published = sum(load_preset(name).published.parameters is not None for name in names)
    return lines("presets", language, [(str(len(names)), str(with_class), str(published))])


def gpu_comparisons(errors: Iterable[gpu.Error], *quantities: str) -> list[Comparison]:
    """The errors of quantities on the GPU."""
    return [
        Comparison(
            f"{error.row['model']}, {error.row['batch']} × {error.row.get('seq', error.row.get('context'))}",
            error.relative,
        )
        for error in errors
        if error.quantity in quantities
    ]


def published_comparisons(outcomes: Iterable[Outcome]) -> list[Comparison]:
    """The errors of published rows that are compared."""
    return [
        Comparison(outcome.id, outcome.error)
        for outcome in outcomes
        if not outcome.left_out and outcome.measured is not None and outcome.note != "out of memory"
    ]


def memory_comparisons() -> dict[str, list[Comparison]]:
    """What was compared → its rows."""
    return {
        "reference": gpu_comparisons(chain.from_iterable(map(gpu.reference_errors, GPUS)), "requested_bytes"),
        "classes": gpu_comparisons(gpu.class_errors(), "peak_bytes"),
        "passes": gpu_comparisons(gpu.inference_errors(), "prefill", "decode"),
        "tuning": published_comparisons(fine_tuning()),
        "servers": published_comparisons(servers()),
    }


def memory_table(language: str, comparisons: dict[str, list[Comparison]]) -> str:
    """Errors of memory by what it was compared with, the worst row named."""
    rows = []
    for name, compared in comparisons.items():
        errors = [abs(comparison.error) for comparison in compared]
        worst = max(compared, key=lambda comparison: abs(comparison.error))
        row = (percent(median(errors)), percent(measured.percentile(errors, 0.9)))
        rows.append(
            (
                MEMORY[name][LANGUAGES.index(language)],
                str(len(compared)),
                *row,
                f"{worst.name}: {percent(worst.error)}",
            )
        )
    return lines("memory", language, rows)


def time_table(language: str, scores: Sequence[Score]) -> str:
    """Errors of times by class, the source with the largest error named."""
    rows = []
    for kind in measured_rows.CLASSES:
        of_class = [score for score in scores if score.row.kind == kind]
        by_set: dict[str, list[float]] = defaultdict(list)
        for score in of_class:
            by_set[score.row.set].append(score.error)
        worst = max(by_set, key=lambda name: median(by_set[name]))
        summary = measured.Summary.of(of_class)
        rows.append(
            (
                kind,
                f"{summary.rows:,}",
                str(len(by_set)),
                percent(summary.median),
                percent(summary.p90),
                percent(summary.bias),
                f"{summary.covered:.0%}".replace("%", " %"),
                percent(summary.naive),
                f"{worst}: {percent(median(by_set[worst]))}",
            )
        )
    return lines("time", language, rows)


def worst_table(language: str, scores: Sequence[Score]) -> str:
    """The three rows of each class whose estimates are furthest from what was measured, as ratios."""
    rows = []
    for kind in measured_rows.CLASSES:
        of_class = (score for score in scores if score.row.kind == kind)
        worst = sorted(of_class, key=lambda score: max(score.ratio, 1 / score.ratio), reverse=True)[:3]
        rows.append((kind, "<br>".join(f"`{score.row.id}`: {score.ratio:.2f}" for score in worst)))
    return lines("worst", language, rows)


OUTLYING_SET = "serve_inferencex_slo"
"""The measured servers whose prompts seem to wait before the engine (tests/data/timing/CAUSES.md)."""


def served_table(scores: Sequence[Score]) -> str:
    """Errors of servers by class of docs/serve.md, with and without mixtures of experts and the outlying set."""

    def of_kind(kind: str, condition: Callable[[Score], bool] = lambda score: True) -> list[Score]:
        return [score for score in scores if score.row.kind == kind and condition(score)]

    def has_experts(score: Score) -> bool:
        return measured_rows.has_experts(score.row["model"])

    without_outlying = f"of them without {OUTLYING_SET}"
    parts = {
        "TPOT, servers on NVIDIA": of_kind(measured_rows.SERVERS),
        "tokens/s of full servers (TensorRT-LLM, vLLM)": of_kind(measured_rows.FULL),
        "of them dense models": of_kind(measured_rows.FULL, lambda score: not has_experts(score)),
        "of them mixtures of experts": of_kind(measured_rows.FULL, has_experts),
    }
    rows = list(parts.items())
    for title, kind in (
        ("tokens/s at a concurrency (vLLM, SGLang)", measured_rows.RATE),
        ("time to the first token under load", measured_rows.LOADED),
    ):
        rows += [(title, of_kind(kind)), (without_outlying, of_kind(kind, lambda score: score.row.set != OUTLYING_SET))]
    return lines("served", "en", [(title, *_rounded(measured.Summary.of(scored))) for title, scored in rows])


def _rounded(summary: measured.Summary) -> tuple[str, ...]:
    """The rows of a class and its errors in whole percent."""
    errors = (summary.median, summary.p90, summary.bias, summary.covered)
    return f"{summary.rows:,}", *(f"{error:.0%}".replace("%", " %").replace("-", "−") for error in errors)


def pairs_text(scores: Sequence[Score]) -> str:
    """How often the order of two measured servers of one source is right."""
    kinds = (measured_rows.SERVERS, measured_rows.FULL, measured_rows.RATE)
    served = [score for score in scores if score.row.kind in kinds]
    (faster, speeds), (cheaper, prices) = (measured.right_pairs(served, per_device) for per_device in (False, True))
    shares = [f"{right / total:.0%}".replace("%", " %") for right, total in ((faster, speeds), (cheaper, prices))]
    return (
        "Of two servers of one source that differ by more than a tenth the faster one is told right in "
        f"{shares[0]} of {speeds:,} pairs, the cheaper one in {shares[1]} of {prices:,}.\n"
    )


def logs_table() -> str:
    """Errors of vLLM's memory by term, against start-up logs."""
    rows = []
    for term, title in LOG_TERMS.items():
        of_term = [row for row in vllm_logs.compared() if row.term == term]
        shares = (f"{vllm_logs.share(of_term, within):.0%}".replace("%", " %") for within in (0.01, 0.05))
        median_error = f"{median(abs(row.error) for row in of_term):.2%}".replace("%", " %")
        rows.append((title, str(len(of_term)), median_error, *shares))
    stated = [
        (row, vllm_logs.computed(number)) for number, row in enumerate(vllm_logs.LOGS) if row["starts"] is not None
    ]
    right_count = sum(row["starts"] == memory.can_start for row, memory in stated)
    return (
        f"Compared with {len(vllm_logs.LOGS)} start-up logs of vLLM that users published (`tests/data/engines/`); "
        f"whether it starts was right in {right_count} of {len(stated)}:\n\n" + lines("logs", "en", rows)
    )


def section(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- sure {name} -->\n)(.*?)(<!-- /sure {name} -->)", re.DOTALL)


def shown(name: str, page: Path) -> str:
    """A table as the page has it."""
    match = section(name).search(page.read_text())
    assert match is not None
    return match[2].strip()


if __name__ == "__main__":
    compared, (scored, _) = (
        memory_comparisons(),
        measured.score(row for rows in measured_rows.read_sets().values() for row in rows),
    )
    tables: dict[str, Callable[[str], str]] = {
        "counts": counts_table,
        "presets": presets_table,
        "memory": lambda language: memory_table(language, compared),
        "time": lambda language: time_table(language, scored),
        "worst": lambda language: worst_table(language, scored),
    }
    contents = {page: {name: table(language) for name, table in tables.items()} for language, page in PAGES.items()} | {
        SERVE_PAGE: {"served": served_table(scored), "pairs": pairs_text(scored)},
        ENGINES_PAGE: {"logs": logs_table()},
    }
    for page, sections in contents.items():
        text = page.read_text()
        for name, content in sections.items():
            text = section(name).sub(lambda match, content=content: f"{match[1]}\n{content}\n{match[3]}", text)  # type: ignore[misc]
        page.write_text(text)
