"""Accelerators: every file loads and is plausible, the arithmetic in its comments holds,
and `llmcalc hardware` shows it.
"""

from __future__ import annotations

import json
import re

import pytest

from llmcalc.errors import InputError
from llmcalc.hardware import Hardware
from llmcalc.sources.files import validated
from llmcalc.sources.hardware import find_hardware, hardware_names, load_hardware
from llmcalc.sources.presets import plain, presets_dir

NAMES = hardware_names()
EXPECTED = {
    "a100-40gb",
    "a100-80gb",
    "b200",
    "gb200",
    "h100-pcie",
    "h100-sxm",
    "h200",
    "l40s",
    "m2-ultra",
    "m3-ultra",
    "m4-max",
    "mi300x",
    "mi325x",
    "rtx-4090",
    "tpu-v5e",
    "tpu-v5p",
    "tpu-v6e",
}

MINIMAL = {
    "title": "X", "vendor": "Y", "released": "2024-01", "memory_bytes": 2**30, "memory_bandwidth": 10**12,
    "sources": [{"url": "https://example.org/x", "gives": "all", "checked": "2026-11-21"}],
}  # fmt: skip


def test_the_accelerators_are_there():
    assert set(NAMES) >= EXPECTED


@pytest.mark.parametrize("name", NAMES)
class TestEachAccelerator:
    def test_names_its_sources(self, name):
        hardware = load_hardware(name)
        assert hardware.sources
        assert all(source.url.startswith("https://") and source.checked.year >= 2024 for source in hardware.sources)

    def test_says_in_a_note_what_its_memory_is(self, name):
        assert any("memory" in note for note in load_hardware(name).notes)

    def test_figures_are_plausible(self, name):
        hardware = load_hardware(name)
        assert 2**33 <= hardware.memory_bytes <= 2**40  # 8 GiB to 1 TiB
        assert hardware.memory_bytes % 2**30 == 0  # binary sizes, as the notes say
        assert 10**11 <= hardware.memory_bandwidth <= 2 * 10**13
        if hardware.interconnect is not None:  # a link is slower than the memory
            assert 10**10 <= hardware.interconnect.bandwidth_per_direction < hardware.memory_bandwidth
        if hardware.tdp_watts is not None:
            assert 50 <= hardware.tdp_watts <= 2000

    def test_peaks_fit_each_other(self, name):
        peaks = load_hardware(name).peak_flops
        if not peaks:
            assert any("no peak" in note for note in load_hardware(name).notes)
            return
        assert peaks.get("float16", peaks["bfloat16"]) == peaks["bfloat16"]
        for narrow, wide in (
            ("float8", "bfloat16"),
            ("int8", "bfloat16"),
            ("bfloat16", "tfloat32"),
            ("float4", "float8"),
        ):
            if (
                narrow in peaks and wide in peaks
            ):  # half the bits, twice the products; four times where a consumer part halves the wider
                assert 1.9 <= peaks[narrow] / peaks[wide] <= 4.1, (narrow, wide)
        if "float32" in peaks:
            assert peaks["float32"] < peaks["bfloat16"]

    def test_the_arithmetic_in_the_comments_holds(self, name):
        text = (presets_dir() / "hardware" / f"{name}.toml").read_text()
        for value, whole, divisor in re.findall(r"= ([0-9_]+)  # ([0-9.e+]+)[a-z/ ]* / ([0-9]+)$", text, re.MULTILINE):
            assert int(value) * int(divisor) == float(whole)


def test_halved_peaks_are_found_in_the_comments():
    """The pattern above finds something: H100's tensor-core peaks are halves of printed ones."""
    text = (presets_dir() / "hardware" / "h100-sxm.toml").read_text()
    assert "bfloat16 = 989_500_000_000_000  # 1.979e15 / 2" in text
    assert load_hardware("h100-sxm").peak_flops["bfloat16"] == 1_979_000_000_000_000 // 2


def test_names_and_aliases_are_unique():
    spellings = [plain(s) for name in NAMES for s in (name, *load_hardware(name).aliases)]
    assert {s for s in spellings if spellings.count(s) > 1} == set()


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("H100", "h100-sxm"),
        ("rtx 4090", "rtx-4090"),
        ("A100", "a100-80gb"),
        ("TPU_v5e", "tpu-v5e"),
        ("Trillium", "tpu-v6e"),
    ],
)
def test_finding_ignores_case_and_punctuation(asked, name):
    assert find_hardware(asked).name == name


def test_a_mistyped_name_gets_suggestions():
    with pytest.raises(InputError, match=r"no accelerator called 'h1000'.*Did you mean .*h100-sxm"):
        find_hardware("h1000")


def test_an_empty_name_is_no_accelerator():
    with pytest.raises(InputError, match="no accelerator called ''"):
        find_hardware("")


def test_links_are_given_each_way():
    assert load_hardware("h100-sxm").interconnect.bandwidth_per_direction == 450 * 10**9  # 900 GB/s both ways / 2
    assert load_hardware("tpu-v5p").interconnect.bandwidth_per_direction == 600 * 10**9  # 4800 Gbit/s / 8, one way


def test_ridge_of_the_h100():
    assert load_hardware("h100-sxm").ridge("bfloat16") == pytest.approx(989.5e12 / 3.35e12)  # 295 FLOPs a byte


def test_an_unknown_peak_is_an_error_that_names_those_known():
    with pytest.raises(InputError, match=r"A100 80 GB: no peak FLOP/s is known for fp8; expected one of .*bf16"):
        load_hardware("a100-80gb").peak("float8")
    with pytest.raises(InputError, match="Apple publishes none"):
        load_hardware("m4-max").peak("bfloat16")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memry": 1}, "memry: unknown field"),
        ({"memory_bytes": 0}, "memory_bytes: 0"),
        ({"memory_bytes": 1.5}, "memory_bytes: 1.5 is not a whole number"),
        ({"peak_flops": {"bf16": 1}}, "peak_flops: 'bf16' is not a number format"),
        ({"sources": []}, "sources"),
        (
            {"interconnect": {"name": "wire", "bandwidth": 1, "direction": "up"}},
            "interconnect.direction: 'up' is not known",
        ),
    ],
)
def test_bad_files_are_refused(change, message):
    assert validated(Hardware, MINIMAL, "x").peak_flops == {}
    with pytest.raises(InputError, match=re.escape(message)):
        validated(Hardware, {**MINIMAL, **change}, "x")


def test_the_list_fits_80_columns_and_names_everything(run):
    code, out, err = run("hardware")
    assert (code, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert [line.split()[0] for line in out.splitlines() if line.split() and line.split()[0] in NAMES] == list(NAMES)
    assert "memory GiB" in out
    assert "989.50" in out


def test_one_accelerator_in_full(run):
    code, out, _ = run("hardware", "H100")
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines() if "://" not in line)
    assert "1,979,000,000,000,000" in out  # float8
    assert "checked 2026" in " ".join(out.split())


def test_json_holds_raw_integers(run):
    code, out, _ = run("hardware", "h100", "m4-max", "--format", "json")
    document = json.loads(out)
    h100, m4 = document["hardware"]
    assert code == 0
    assert document["schema_version"] == 2
    assert h100["memory_bytes"] == 80 * 2**30
    assert h100["peak_flops"]["float8"] == 1_979_000_000_000_000
    assert h100["interconnect"]["direction"] == "bidirectional"
    assert h100["sources"][0]["checked"] >= "2026-01-01"
    assert m4["peak_flops"] == {}
    assert m4["interconnect"] is None


def test_json_without_names_holds_all(run):
    _, out, _ = run("hardware", "--format", "json")
    assert [one["name"] for one in json.loads(out)["hardware"]] == list(NAMES)


def test_a_mistyped_name_exits_with_2(run):
    code, out, err = run("hardware", "h1000")
    assert (code, out) == (2, "")
    assert err.startswith("error: no accelerator called 'h1000'")
    assert err.count("\n") == 1


def test_output_to_a_file(run, tmp_path):
    target = tmp_path / "hardware.csv"
    code, out, _ = run("hardware", "--format", "csv", "-o", str(target))
    lines = target.read_text().splitlines()
    assert (code, out) == (0, "")
    assert lines[0].startswith("name,memory_bytes,memory_bandwidth_bytes_per_s")
    assert len(lines) == 1 + len(NAMES)
