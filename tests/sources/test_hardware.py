"""Accelerators: every file loads and is plausible, the arithmetic in its comments is right, and `llmcalc hardware`
prints it.
"""

from __future__ import annotations

import csv
import json
import re
from typing import Any

import pytest

from llmcalc.accelerator import HardwarePreset
from llmcalc.errors import InputError
from llmcalc.sources.files import validate
from llmcalc.sources.hardware import (
    APPLE_COMPUTERS,
    COMMON_HARDWARE,
    NOTEBOOK_SERVICES,
    accelerator_of_machine,
    accelerators_and_devices,
    find_hardware,
    hardware_names,
    load_hardware,
    machine_types,
    with_configuration,
)
from llmcalc.sources.presets import normalized, presets_dir
from tests.samples import in_one_test

NAMES = hardware_names()
EXPECTED = {
    "a10", "a10g", "a40", "a100-40gb", "a100-80gb", "a6000", "b200", "b300", "dgx-spark", "gaudi2", "gaudi3",
    "gb200", "gb300", "h20", "h100-nvl", "h100-pcie", "h100-sxm", "h200", "h200-nvl", "l4", "l40s", "m1", "m1-max",
    "m1-pro", "m1-ultra", "m2", "m2-max", "m2-pro", "m2-ultra", "m3", "m3-max", "m3-pro", "m3-ultra", "m4",
    "m4-max", "m4-pro", "m5", "m5-max", "m5-pro", "mi250x", "mi300x", "mi325x", "mi355x", "rtx-3060", "rtx-3070",
    "rtx-3080", "rtx-3090", "rtx-3090-ti", "rtx-4060", "rtx-4060-ti-16gb", "rtx-4070", "rtx-4070-super",
    "rtx-4070-ti", "rtx-4070-ti-super", "rtx-4080", "rtx-4080-super", "rtx-4090", "rtx-5060-ti-16gb", "rtx-5070",
    "rtx-5070-ti", "rtx-5080", "rtx-5090", "rtx-6000-ada", "rtx-pro-6000", "ryzen-ai-max-395", "t4", "tpu-v4",
    "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7", "trainium2", "v100-16gb", "v100-32gb", "h800", "h20-3e", "a800",
    "a100-pcie", "a30", "gh200", "trainium1", "trainium3", "inferentia2", "ascend-910b", "ascend-910c", "mi300a",
    "mi350x", "rtx-4000-ada", "rtx-5000-ada", "rtx-pro-5000", "rtx-pro-4500", "rtx-4090-d", "rtx-3080-ti",
    "arc-pro-b60", "rubin", "mi455x", "rx-7900-xtx", "rtx-2080-ti", "rtx-3060-ti", "rtx-3070-ti", "rtx-4060-ti-8gb",
    "rtx-5060", "rtx-5060-ti-8gb", "a4000", "a4500", "a5000", "rtx-2000-ada", "rtx-pro-4000", "titan-rtx",
    "quadro-rtx-6000", "quadro-rtx-8000", "tesla-p40", "tesla-p100", "gtx-1080-ti", "mi50", "mi60", "mi100", "mi210",
    "rx-7900-xt", "rx-9070", "rx-9070-xt", "radeon-pro-w7900", "radeon-ai-pro-r9700", "jetson-agx-orin",
    "jetson-orin-nano",
    "a16", "a2", "a2000", "a2000-6gb", "a5500", "arc-a750", "arc-a770", "arc-b570", "arc-b580", "arc-pro-b50",
    "gtx-1060", "gtx-1070", "gtx-1070-ti", "gtx-1080", "gtx-1660-super", "gtx-1660-ti", "agx-orin-32gb",
    "gtx-1050-ti", "gtx-1650", "gtx-1660", "rx-480", "rx-570", "rx-580", "rx-5700-xt", "rx-vega-56", "rx-vega-64",
    "tesla-m40",
    "jetson-orin-nx", "jetson-orin-nx-8gb", "l20", "l40", "mi250", "quadro-rtx-5000", "radeon-vii", "rtx-2060",
    "rtx-2060-12gb", "rtx-2060-super", "rtx-2070", "rtx-2070-super", "rtx-2080", "rtx-2080-super", "rtx-3050",
    "rtx-3060-laptop", "rtx-3070-laptop", "rtx-3070-ti-laptop", "rtx-3080-laptop", "rtx-3080-ti-laptop",
    "rtx-4000-sff-ada", "rtx-4050-laptop", "rtx-4060-laptop", "rtx-4070-laptop", "rtx-4080-laptop",
    "rtx-4090-laptop", "rtx-4500-ada", "rtx-5050", "rtx-5050-laptop", "rtx-5060-laptop", "rtx-5070-laptop",
    "rtx-5070-ti-laptop", "rtx-5080-laptop", "rtx-5090-laptop", "rtx-pro-2000",
    "rtx-pro-6000-max-q", "rx-6600", "rx-6600-xt", "rx-6650-xt", "rx-6700-xt", "rx-6750-xt", "rx-6800",
    "rx-6800-xt", "rx-6900-xt", "rx-6950-xt", "rx-7600", "rx-7600-xt", "rx-7700-xt", "rx-7800-xt", "rx-7900-gre",
    "rx-9060-xt-16gb", "rx-9060-xt-8gb", "t1000-8gb", "tesla-p4", "jetson-agx-thor", "snapdragon-x-elite",
    "arc-pro-b65", "arc-pro-b70", "mi50-32gb", "epyc-9354", "epyc-9554",
    "epyc-9654", "raspberry-pi-5", "ryzen-9-7950x", "steam-deck", "rtx-pro-4000-sff", "jetson-t4000",
    "ryzen-ai-max-385", "ryzen-ai-max-390",
}  # fmt: skip

MINIMAL = {
    "title": "X", "vendor": "Y", "released": "2024-01", "memory_bytes": 2**30, "memory_bandwidth": 10**12,
    "sources": [{"url": "https://example.org/x", "gives": "all", "checked": "2026-11-21"}],
}  # fmt: skip

TERMS = {
    "memory_bytes": r"\bmemory\b(?! bandwidth)",
    "driver_total": "driver's total",
    "usable_memory_bytes": "usable memory",
    "memory_bandwidth": "memory bandwidth",
    "peak_flops": r"\bpeaks?\b",
    "tdp_watts": r"\bTDP\b",
    "compute_units": r"\bcount\b",
    "compute_capability": "compute capability",
    "boost_clock_hz": "boost clock",
    "interconnect": r"\blink\b",
    "domain_size": "scale-up domain",
    "nic": r"\bNIC\b",
}
"""Figure → the words with which a source states it."""

SAME_RATE = {
    ("gaudi3", "float8", "bfloat16"),  # Intel: the MMEs multiply both at one rate
    ("tpu-v4", "int8", "bfloat16"),
    ("tpu-v5p", "float8", "bfloat16"),
    ("tpu-v6e", "float8", "bfloat16"),
    ("trainium2", "bfloat16", "tfloat32"),
    ("mi250x", "int8", "bfloat16"),
    ("trainium1", "float8", "bfloat16"),
    ("trainium1", "bfloat16", "tfloat32"),
    ("inferentia2", "float8", "bfloat16"),
    ("inferentia2", "bfloat16", "tfloat32"),
    ("trainium3", "bfloat16", "tfloat32"),
    ("trainium3", "float4", "float8"),
    ("mi455x", "int8", "bfloat16"),
    ("ryzen-ai-max-385", "int8", "bfloat16"),
    ("ryzen-ai-max-390", "int8", "bfloat16"),
    ("ryzen-ai-max-395", "int8", "bfloat16"),
    ("mi250", "int8", "bfloat16"),
}
SLOW_HALVES = {"gtx-1050-ti", "gtx-1060", "gtx-1070", "gtx-1070-ti", "gtx-1080", "gtx-1080-ti", "tesla-p4", "tesla-p40"}
"""Chips of Pascal with one unit for float16 for 64 for float32."""
SLOW_INTEGERS = {"b300", "gb300", "rubin"}  # Blackwell Ultra and Rubin have few int8 units


def test_the_accelerators_are_there():
    assert set(NAMES) >= EXPECTED


def test_names_are_sorted_as_people_read_them():
    assert [name for name in NAMES if name.startswith("a10")] == ["a10", "a10g", "a100-40gb", "a100-80gb", "a100-pcie"]


def test_the_accelerators_that_memory_asks_about_are_some_of_them():
    assert set(COMMON_HARDWARE) < set(NAMES)
    assert len(set(COMMON_HARDWARE)) == len(COMMON_HARDWARE) <= 24


@in_one_test
@pytest.mark.parametrize("name", NAMES)
class TestEachAccelerator:
    def test_names_sources_that_a_reader_can_open(self, name):
        sources = load_hardware(name).sources
        assert sources
        for source in sources:
            assert source.url.startswith("https://")
            assert source.checked.year >= 2026
            if (
                "/blob/" in source.url and "github.com" in source.url
            ):  # the link must name a commit, so that the file cannot change
                assert re.search(r"/blob/[0-9a-f]{40}/", source.url)

    def test_says_where_each_figure_is_from(self, name):
        hardware = load_hardware(name)
        given = ", ".join(source.gives for source in hardware.sources)
        figures = {field for field in TERMS if getattr(hardware, field, None)}
        if hardware.interconnect is not None and hardware.interconnect.domain_size:
            figures.add("domain_size")
        assert {field for field in figures if not re.search(TERMS[field], given)} == set()

    def test_says_in_a_note_what_its_memory_is(self, name):
        assert any("memory" in note for note in load_hardware(name).notes)

    def test_figures_are_plausible(self, name):
        hardware = load_hardware(name)
        assert hardware.memory_bandwidth is not None
        assert 4 * 2**30 <= hardware.memory_bytes <= (2**43 if hardware.is_processor else 2**40)
        assert hardware.memory_bytes % 2**30 == 0  # binary sizes, as stated in the notes
        assert (10**10 if hardware.is_processor else 6 * 10**10) <= hardware.memory_bandwidth <= 3 * 10**13
        if hardware.driver_total is not None:  # 0.1 to 0.7 GiB below what nvidia-smi shows
            assert 0.9 <= hardware.driver_total / hardware.memory_bytes <= 1
        if hardware.usable_memory_bytes is not None:
            assert 0.5 <= hardware.usable_memory_bytes / hardware.memory_bytes <= 1  # half on a Steam Deck
        if hardware.interconnect is not None:  # a link is slower than the memory
            assert 10**10 <= hardware.interconnect.bandwidth_per_direction < hardware.memory_bandwidth
            assert 2 <= (hardware.interconnect.domain_size or 2) <= 10_000
            if hardware.nic is not None:  # and the network is slower than the link
                assert hardware.nic.bandwidth_per_direction < hardware.interconnect.bandwidth_per_direction
        if hardware.tdp_watts is not None:
            assert 20 <= hardware.tdp_watts <= 2000  # a Jetson module to a module of two accelerators
        if hardware.boost_clock_hz is not None:
            assert 7 * 10**8 <= hardware.boost_clock_hz <= (6 if hardware.is_processor else 3.2) * 10**9

    def test_peaks_fit_each_other(self, name):
        peaks = load_hardware(name).peak_flops
        wide = peaks.get("bfloat16", peaks.get("float16"))
        if wide is None:
            assert any("no peak" in note for note in load_hardware(name).notes)
            return
        if "bfloat16" in peaks and name != "gaudi3":  # whose float16 runs at the rate of tfloat32
            assert peaks.get("float16", wide) == wide
        for narrow, wider in (
            ("float8", "bfloat16"),
            ("int8", "bfloat16"),
            ("bfloat16", "tfloat32"),
            ("float4", "float8"),
        ):
            if narrow not in peaks or wider not in peaks or (narrow == "int8" and name in SLOW_INTEGERS):
                continue
            ratio = peaks[narrow] / peaks[wider]
            if (name, narrow, wider) in SAME_RATE:
                assert ratio == 1
            else:  # half the bits, twice the products; four times if a consumer card halves the wider format's rate
                assert 1.9 <= ratio <= 4.4, (narrow, wider)
        if "float32" in peaks:  # Apple's cores multiply both at one rate
            assert (peaks["float32"] <= wide) == (name not in SLOW_HALVES)
        for dtype, rate in load_hardware(name).float16_accumulation_flops.items():
            assert rate == pytest.approx(2 * peaks[dtype], rel=1e-3)

    def test_the_arithmetic_in_the_comments_holds(self, name):
        text = (presets_dir() / "hardware" / f"{name}.toml").read_text()
        for value, whole, divisor in re.findall(r"= ([0-9_]+)  # ([0-9.e+]+)[a-z/ ]* / ([0-9]+)$", text, re.MULTILINE):
            assert int(value) * int(divisor) == float(whole)
        for value, units, flop, clock, base in re.findall(
            r"= ([0-9_]+)  # ([0-9]+) (?:SM|CU|[a-zA-Z]+ cores|core) x ([0-9]+) FLOP x ([0-9_]+) Hz(, the base.*)?$",
            text,
            re.MULTILINE,
        ):
            assert int(value) == int(units) * int(flop) * int(clock)
            assert load_hardware(name).compute_units.count == int(units)
            assert load_hardware(name).boost_clock_hz == (None if base else int(clock))
        for value, links, rate in re.findall(r"= ([0-9_]+)  # ([0-9]+) links x ([0-9.]+) GB/s$", text, re.MULTILINE):
            assert int(value) == int(links) * float(rate) * 10**9
        for value, bits, rate in re.findall(r"= ([0-9_]+)  # ([0-9]+) bits x ([0-9e]+) bit/s / 8$", text, re.MULTILINE):
            assert int(value) == int(bits) * float(rate) / 8
        for value, mib in re.findall(r"= ([0-9_]+)  # ([0-9]+) MiB", text):
            assert int(value) == int(mib) * 2**20
        for value, gib in re.findall(r"= ([0-9_]+)  # ([0-9]+) Gi?B\b", text):
            assert int(value) == int(gib) * 2**30

    def test_each_memory_size_that_it_is_sold_with_has_a_name(self, name):
        hardware = load_hardware(name)
        for one in hardware.configurations:
            size = f"{one.memory_bytes // 2**30}gb"
            found = find_hardware(f"{name}-{size}")
            assert (found.name, found.memory_bytes) == (f"{name}-{size}", one.memory_bytes)
            assert (found.usable_memory_bytes, found.memory_bandwidth) == (
                one.usable_memory_bytes,
                one.memory_bandwidth,
            )
        if hardware.configurations:
            largest = hardware.configurations[-1]
            assert largest.memory_bandwidth == hardware.memory_bandwidth
            assert largest.usable_memory_bytes == hardware.usable_memory_bytes


def test_halved_peaks_are_found_in_the_comments():
    """The pattern above matches: H100's tensor-core peaks are half of the printed ones."""
    text = (presets_dir() / "hardware" / "h100-sxm.toml").read_text()
    assert "bfloat16 = 989_500_000_000_000  # 1.979e15 / 2" in text
    assert load_hardware("h100-sxm").peak_flops["bfloat16"] == 1_979_000_000_000_000 // 2


@pytest.mark.parametrize(
    (
        "name",
        "per_clock",
        "published",
    ),  # a card with a published peak, which the formula for other cards must reproduce
    [("rtx-4090", 512, 165.2e12), ("rtx-5090", 512, 209.5e12), ("rtx-3090", 512, 71e12), ("a6000", 1024, 154.8e12)],
)
def test_the_formula_of_derived_peaks_gives_the_printed_ones(name, per_clock, published):
    card = load_hardware(name)
    assert card.compute_units.count * per_clock * card.boost_clock_hz == pytest.approx(published, rel=3e-3)
    assert card.peak_flops["bfloat16"] == pytest.approx(published, rel=3e-3)


def test_names_and_aliases_are_unique():
    chips = [load_hardware(name) for name in NAMES]
    sized = [with_configuration(chip, one) for chip in chips for one in chip.configurations]
    spellings = [
        s for chip in [*chips, *sized] for s in {normalized(s) for s in (chip.name, chip.title, *chip.aliases)}
    ]
    assert {s for s in spellings if spellings.count(s) > 1} == set()


@in_one_test
@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("H100", "h100-sxm"),
        ("rtx 4090", "rtx-4090"),
        ("A100", "a100-80gb"),
        ("TPU_v5e", "tpu-v5e"),
        ("Trillium", "tpu-v6e"),
        ("V100", "v100-32gb"),
        ("3090", "rtx-3090"),
        ("RTX A6000", "a6000"),
        ("ironwood", "tpu-v7"),
        ("trn2", "trainium2"),
        ("m4 max 64GB", "m4-max-64gb"),
        ("Apple-M1-Max-64", "m1-max-64gb"),
        ("m4-16GiB", "m4-16gb"),
        ("strix halo", "ryzen-ai-max-395"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),  # as torch.cuda.get_device_name() has it, and so on
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("AMD Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", "rtx-4070-laptop"),  # not the card of that name
        ("NVIDIA L40", "l40"),
        ("Intel(R) Arc(TM) B580 Graphics", "arc-b580"),
        ("RTX 4060 8GB", "rtx-4060"),  # with its memory, as in questions
        ("MacBook Pro M3 Max 64 GB", "m3-max-64gb"),
        ("m2 air 16gb", "m2-16gb"),
        ("M2 Pro MacBook Pro 16GB", "m2-pro-16gb"),
        ("T4 GPU", "t4"),
        ("T4 colab", "t4"),
        ("Google Colab T4 GPU (16GB)", "t4"),
    ],
)
def test_finding_ignores_case_and_punctuation(asked, name):
    assert find_hardware(asked).name == name


def test_a_mistyped_name_gets_suggestions():
    with pytest.raises(InputError, match=r"no accelerator called 'h1000'.*Did you mean .*h100-sxm"):
        find_hardware("h1000")


def test_a_memory_that_a_card_does_not_have_is_refused_with_its_own() -> None:
    with pytest.raises(InputError, match=r"RTX 4060 16GB: the GeForce RTX 4060 has 8 GB; .* rtx-4060, or 16GiB for"):
        find_hardware("RTX 4060 16GB")
    with pytest.raises(InputError, match=r"no accelerator called .M30."):  # and not: no M3 with 0 GB
        find_hardware("M30")


@pytest.mark.parametrize(
    "asked",
    ["2x4090", "2 × RTX 4090", "rtx-4090 x2", "NVIDIA GeForce RTX 4090*2", "RTX4090:2", "4090 24GB x2", "4090x2",
     "dual 4090", "Dual RTX-4090", "two 4090s", "a pair of RTX 4090s", "2 4090", "2 RTX 4090 24GB"],
)  # fmt: skip
def test_several_accelerators_are_named_with_the_option_for_their_number(asked):
    with pytest.raises(InputError, match=r"2 accelerators; expected one, --hardware rtx-4090, and --devices 2 where"):
        find_hardware(asked)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # the name of the L40S ends in the letter of the plural; the L40 is another card
        ("2x l40s", "one, --hardware l40s, and --devices 2 where a command has it"),
        ("4 L40S", "one, --hardware l40s, and --devices 4 where a command has it"),
        ("2x l40", "one, --hardware l40, and --devices 2 where a command has it"),
        ("8 h100 80gb", "one, --hardware h100-sxm, and --devices 8 where a command has it"),
        ("kaggle t4 x2", "one, --hardware t4, and --devices 2 where a command has it"),
        ("colab tpu", "--hardware tpu-v5e"),  # https://github.com/jax-ml/jax-ai-stack/pull/242
        ("Kaggle TPU VM", "--hardware tpu-v5e --devices 8"),
    ],
)
def test_words_for_several_accelerators_are_answered_with_their_options(words: str, expected: str) -> None:
    with pytest.raises(InputError, match=rf"expected {expected}$"):
        find_hardware(words)


def test_a_count_of_one_is_the_accelerator_and_a_count_of_none_is_no_name() -> None:
    assert find_hardware("1x4090").name == find_hardware("rtx-4090 x1").name == "rtx-4090"
    with pytest.raises(InputError, match=r"no accelerator called '0x4090'. Did you mean rtx-4090\?"):
        find_hardware("0x4090")
    with pytest.raises(InputError, match=r"no accelerator called '1048577x4090'"):  # more than --devices takes
        accelerators_and_devices(["1048577x4090"])


def test_several_memory_sizes_are_named_with_the_option_for_their_number() -> None:
    for sizes in ("2x24GB", "2 24GB"):
        with pytest.raises(InputError, match=r"2 accelerators; expected one, --hardware 24GB, and --devices 2 where"):
            find_hardware(sizes)
    assert find_hardware("1080 8GB").name == "gtx-1080"  # and not: 1,080 of 8 GB


def test_a_service_that_lends_notebooks_is_answered_with_its_accelerators() -> None:
    for service, accelerators in NOTEBOOK_SERVICES.items():
        for name in re.findall(r"[a-z]+[0-9][a-z0-9-]*", accelerators):
            assert find_hardware(name).vendor == "NVIDIA"
        with pytest.raises(InputError, match="lends several accelerators"):
            find_hardware(service)
    with pytest.raises(InputError, match="such as t4"):
        find_hardware("Google Colab Pro")


def test_an_empty_name_is_no_accelerator():
    with pytest.raises(InputError, match="no accelerator called ''"):
        find_hardware("")


def test_links_are_given_each_way():
    assert (
        load_hardware("h100-sxm").interconnect.bandwidth_per_direction == 450 * 10**9
    )  # 900 GB/s in both directions / 2
    assert load_hardware("tpu-v5p").interconnect.bandwidth_per_direction == 600 * 10**9  # 4800 Gbit/s / 8, one way


def test_an_unknown_peak_is_an_error_that_names_those_known():
    with pytest.raises(InputError, match=r"A100 80 GB: no peak FLOP/s is known for fp8; expected one of .*bf16"):
        load_hardware("a100-80gb").peak_rate("float8")
    with pytest.raises(InputError, match=r"M4 Max: no peak FLOP/s is known for bf16; expected one of fp32, fp16"):
        load_hardware("m4-max").peak_rate("bfloat16")


def test_sums_in_float16_double_the_published_peak_of_the_rtx_4090():
    assert load_hardware("rtx-4090").float16_accumulation_flops == {"float16": 3304 * 10**11, "float8": 6606 * 10**11}


def test_figures_that_may_change_are_said_to_be_preliminary(run):
    assert {name for name in NAMES if load_hardware(name).preliminary} == {"rubin", "mi455x"}
    assert "preliminary" in run("hardware", "rubin")[1].splitlines()[0]


# A configuration, a memory size, a user's file


def test_a_configuration_has_its_own_figures():
    small, large = find_hardware("m4-max-36gb"), find_hardware("m4-max")
    assert (small.memory_bandwidth, large.memory_bandwidth) == (410 * 10**9, 546 * 10**9)
    assert small.compute_units.count == 32
    assert small.peak_flops["float16"] == large.peak_flops["float16"] * 32 // 40
    # logs of Metal since macOS 26: 30,150.67 MB of 36 GB, 12,713.12 MB of 16 GB (74 % in pages of 16 KiB)
    assert (small.usable_memory_bytes, find_hardware("m2-16gb").usable_memory_bytes) == (30150672384, 12713115648)
    assert find_hardware("m3-max-96gb").memory_bandwidth == 300 * 10**9  # the chip with 30 cores


def test_a_size_that_a_chip_is_not_sold_with_names_those_that_are():
    with pytest.raises(InputError, match=r"Apple does not sell the M4 Max with 96 GB; expected one of m4-max-36gb, "):
        find_hardware("m4-max-96gb")


@in_one_test
@pytest.mark.parametrize(
    ("asked", "name", "size"),
    [
        ("24GiB", "24GiB", 24 * 2**30),
        ("24GB", "24GB", 24 * 10**9),
        ("80gb", "80GB", 80 * 10**9),
        (" 1.5 TiB", "1.5TiB", 3 * 2**39),
        ("512mib", "512MiB", 2**29),
    ],
)
def test_a_memory_size_stands_for_an_accelerator_of_that_memory(asked, name, size):
    anonymous = find_hardware(asked)
    assert (anonymous.name, anonymous.memory_bytes, anonymous.usable_memory_bytes) == (name, size, size)
    assert anonymous.peak_flops == {}
    with pytest.raises(InputError, match=f"{name}: no memory bandwidth is known; expected a named accelerator, or a"):
        anonymous.bandwidth()
    with pytest.raises(InputError, match=f"{name}: no peak FLOP/s is known; expected a named accelerator, or a TOML"):
        anonymous.peak_rate("bfloat16")


@pytest.mark.parametrize("asked", ["0GiB", "0.0001MiB"])
def test_a_memory_size_of_no_bytes_is_refused(asked):
    with pytest.raises(InputError, match=f"--hardware: {asked}: not a memory size; expected whole bytes"):
        find_hardware(asked)


@pytest.mark.parametrize("asked", ["24 bananas", "-24GiB", "GiB", "9999999999GiB"])
def test_what_is_neither_a_size_nor_a_name_is_told_both_forms(asked):
    with pytest.raises(InputError, match=r"no accelerator called .* a memory size such as 24GiB, or a \.toml file"):
        find_hardware(asked)


def test_a_memory_size_without_a_unit_names_both_units() -> None:
    with pytest.raises(InputError, match="24: not understood as a memory size; expected 24GB or 24GiB"):
        find_hardware("24")


OWN = """
memory_bytes = 17_179_869_184
memory_bandwidth = 500_000_000_000
[peak_flops]
bfloat16 = 50_000_000_000_000
"""


def test_a_file_of_ones_own_needs_its_memory_alone(tmp_path, run):
    path = tmp_path / "my-gpu.toml"
    path.write_text("memory_bytes = 17_179_869_184")
    assert find_hardware(str(path)).title == "my-gpu"
    path.write_text(OWN)
    own = find_hardware(str(path))
    assert (own.name, own.vendor, own.released, own.sources) == ("my-gpu.toml", "", None, ())
    assert own.peak_rate("bfloat16") / own.bandwidth() == 100
    code, out, err = run("hardware", str(path))
    assert (code, err) == (0, "")
    assert "500.00 GB/s" in out


def test_a_file_of_ones_own_may_start_from_a_preset(tmp_path):
    path = tmp_path / "slow-network.toml"
    path.write_text('like = "H100"\n[nic]\nbandwidth_per_direction = 25_000_000_000\n[peak_flops]\nfloat8 = 1\n')
    own, preset = find_hardware(str(path)), load_hardware("h100-sxm")
    assert (own.name, own.title, own.like, own.vendor) == ("slow-network.toml", "slow-network", "h100-sxm", "NVIDIA")
    assert (own.nic.name, own.nic.bandwidth_per_direction) == (preset.nic.name, 25 * 10**9)
    assert own.peak_flops == {**preset.peak_flops, "float8": 1}
    assert (own.capacity_bytes, own.memory_bandwidth) == (preset.capacity_bytes, preset.memory_bandwidth)
    path.write_text('like = "h100"\nmemory_bytes = 1_000_000_000')  # the driver's total is of the preset's memory
    assert find_hardware(str(path)).capacity_bytes == 10**9


def test_another_link_than_the_presets_joins_its_own_way(tmp_path):
    """A mesh and messages through the host are those of the preset's link, not of one with another name."""
    path = tmp_path / "switched.toml"
    for preset, field in (("mi300x", "is_mesh"), ("rtx-4090", "peer_access")):
        path.write_text(f'like = "{preset}"\n[interconnect]\nbandwidth = 900_000_000_000\n')
        preset_value = getattr(load_hardware(preset).interconnect, field)
        assert getattr(find_hardware(str(path)).interconnect, field) is preset_value
        path.write_text(f'like = "{preset}"\n[interconnect]\nname = "switch"\nbandwidth = 900_000_000_000\n')
        assert getattr(find_hardware(str(path)).interconnect, field) is not preset_value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('like = "h1000"', "no accelerator called 'h1000'"),
        ("like = 3", "like"),
        (OWN.replace("memory_bytes", "memory_byte"), "memory_byte"),
        (OWN.replace("17_179_869_184", '"16 GiB"'), "memory_bytes: '16 GiB' is not a whole number"),
        (OWN.replace("bfloat16", "bf16"), "peak_flops: 'bf16' is not a number format"),
        (OWN + "memory = ", "not valid TOML"),
        ("", "memory_bytes"),
    ],
)
def test_a_wrong_file_of_ones_own_names_the_field(text, message, tmp_path, run):
    path = tmp_path / "my-gpu.toml"
    path.write_text(text)
    for words in (("hardware", str(path)), ("memory", "gpt2", "--hardware", str(path))):
        err = run(*words).error
        assert message in err
        assert "my-gpu.toml" in err


def test_two_files_of_one_name_are_two_accelerators(tmp_path, run):
    paths = [tmp_path / folder / "gpu.toml" for folder in ("small", "large")]
    for path, size in zip(paths, (2**30, 2**34), strict=True):
        path.parent.mkdir()
        path.write_text(f"memory_bytes = {size}")
    asked = [word for path in (*paths, paths[0]) for word in ("--hardware", str(path))]
    _, out, _ = run("memory", "gpt2", *asked, "--format", "json")
    assert [fit["memory_bytes"] for fit in json.loads(out)["fits"]] == [2**30, 2**34]


def test_a_file_that_is_not_there_is_refused(run, tmp_path):
    code, _, err = run("memory", "gpt2", "--hardware", str(tmp_path / "no.toml"))
    assert code == 2
    assert "no.toml: No such file" in err


@pytest.mark.parametrize(("size", "exit_code"), [("24GiB", 0), ("15GiB", 1), ("16GB", 1)])
def test_memory_asks_whether_a_model_fits_a_size(size, exit_code, run):
    code, out, _ = run("memory", "llama3-8b", "--hardware", size, "--format", "json", "--seq", "8192")
    (fit,) = json.loads(out)["fits"]
    assert (code, fit["hardware"]) == (exit_code, size)


def test_memory_says_what_a_gb_is_where_one_is_asked_for(run):
    said = {size: " ".join(run("memory", "gpt2", "--hardware", size)[1].split()) for size in ("24GB", "24GiB")}
    assert "24GB: 1 GB = 1,000,000,000 bytes; cards are sold in GiB" in said["24GB"]
    assert "1 GB =" not in said["24GiB"]
    assert "22.35" in said["24GB"]


@in_one_test
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memry": 1}, "memry: unknown field"),
        ({"memory_bytes": 0}, "memory_bytes: 0"),
        ({"memory_bytes": 1.5}, "memory_bytes: 1.5 is not a whole number"),
        ({"peak_flops": {"bf16": 1}}, "peak_flops: 'bf16' is not a number format"),
        ({"sources": []}, "sources"),
        ({"vendor": ""}, "vendor"),
        ({"usable_memory_bytes": 2**31}, "usable_memory_bytes: 2147483648 is more than memory_bytes"),
        ({"configurations": [{"memory_bytes": 2**29}]}, "configurations: expected each memory size once, ascending"),
        ({"nic": {"name": "card"}}, "nic.bandwidth_per_direction: required field is missing"),
        ({"compute_units": {"name": "SM", "count": 0}}, "compute_units.count: 0"),
        (
            {"interconnect": {"name": "wire", "bandwidth": 1, "direction": "up"}},
            "interconnect.direction: 'up' is not known",
        ),
    ],
)
def test_bad_files_are_refused(change, message):
    assert validate(HardwarePreset, MINIMAL, "x").peak_flops == {}
    with pytest.raises(InputError, match=re.escape(message)):
        validate(HardwarePreset, {**MINIMAL, **change}, "x")


def test_the_list_fits_80_columns_and_names_everything(run):
    code, out, err = run("hardware")
    assert (code, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert [line.split()[0] for line in out.splitlines() if line.split() and line.split()[0] in NAMES] == list(NAMES)
    assert "memory GB/s" in out
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
    assert h100["interconnect"]["domain_size"] == 8
    assert h100["nic"]["bandwidth_per_direction"] == 50 * 10**9
    assert h100["compute_units"] == {"name": "SM", "count": 132}
    assert h100["boost_clock_hz"] == 1_830_000_000
    assert h100["configurations"] == []
    assert m4["peak_flops"]["float16"] == 40 * 256 * 1_678 * 10**6
    assert m4["interconnect"] is None
    assert m4["nic"] is None
    assert [size["memory_bytes"] // 2**30 for size in m4["configurations"]] == [36, 48, 64, 128]


def test_csv_is_one_regular_table(run):
    _, out, _ = run("hardware", "--format", "csv")
    heading, *rows = csv.reader(out.splitlines())
    assert [row[0] for row in rows] == list(NAMES)
    assert {len(row) for row in rows} == {len(heading)}
    assert {cell for row in rows for cell in row[1:]} - {""} == {
        cell for row in rows for cell in row[1:] if re.fullmatch("[0-9]+", cell)
    }


@pytest.mark.parametrize("name", ["h100", "m4-max", "a10g", "24GB", "m3-max-96gb"])
def test_every_figure_is_shown_with_its_unit(name, run):
    code, out, err = run("hardware", name)
    hardware = find_hardware(name)
    assert (code, err) == (0, "")
    for said, value in (
        ("memory", hardware.memory_bytes),
        ("memory bandwidth", hardware.memory_bandwidth),
        ("usable memory", hardware.driver_total or hardware.usable_memory_bytes),
        ("TDP", hardware.tdp_watts),
        ("scale-up domain", hardware.interconnect and hardware.interconnect.domain_size),
        ("NIC", hardware.nic and hardware.nic.bandwidth_per_direction),
        ("compute units", hardware.compute_units and hardware.compute_units.count),
        ("boost clock", hardware.boost_clock_hz),
    ):
        assert bool(re.search(rf"^ +{said} .*{value:,}" if value else rf"^ +{said} ", out, re.MULTILINE)) == bool(value)


@pytest.mark.parametrize("name", ["a100-80gb", "h200", "b200", "rtx-4090", "rtx-5090", "mi300x", "tpu-v5e"])
def test_a_table_of_figures_has_80_columns(name, run):
    """The rates of a GeForce RTX 5090 had lines of 93 letters, which a terminal of 80 columns breaks."""
    table, _, _ = run("hardware", name).out.partition("\n\n")
    assert max(map(len, table.splitlines())) <= 80


def test_json_without_names_holds_all(run):
    _, out, _ = run("hardware", "--format", "json")
    assert [one["name"] for one in json.loads(out)["hardware"]] == list(NAMES)


def test_a_mistyped_name_exits_with_2(run):
    assert run("hardware", "h1000").error.startswith("error: no accelerator called 'h1000'")


def test_output_to_a_file(run, tmp_path):
    target = tmp_path / "hardware.csv"
    code, out, _ = run("hardware", "--format", "csv", "-o", str(target))
    lines = target.read_text().splitlines()
    assert (code, out) == (0, "")
    assert lines[0].startswith("target,memory_bytes,memory_bandwidth_bytes_per_s")
    assert len(lines) == 1 + len(NAMES)


@in_one_test
@pytest.mark.parametrize(
    ("machine_type", "hardware_name", "count"),
    [
        # https://docs.aws.amazon.com/batch/latest/userguide/gpu-jobs.html
        ("g5.12xlarge", "a10g", 4),
        ("g5.16xlarge", "a10g", 1),
        ("ml.g5.12xlarge", "a10g", 4),
        ("g4dn.12xlarge", "t4", 4),
        ("p5.48xlarge", "h100-sxm", 8),
        ("DGX H100", "h100-sxm", 8),
        # https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines
        ("a3-highgpu-8g", "h100-sxm", 8),
        ("a2-ultragpu-1g", "a100-80gb", 1),
        ("gpu_8x_h100_sxm5", "h100-sxm", 8),  # Lambda
        # https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated/ndh100v5-series
        ("Standard_ND96isr_H100_v5", "h100-sxm", 8),
    ],
)
def test_machines_of_clouds(machine_type: str, hardware_name: str, count: int) -> None:
    assert accelerator_of_machine(machine_type) == (hardware_name, count)
    if count == 1:
        assert find_hardware(machine_type).name == hardware_name
        return
    with pytest.raises(InputError, match=f"expected {hardware_name}, and --devices {count} a machine"):
        find_hardware(machine_type)


def test_every_machine_has_a_known_accelerator() -> None:
    assert {hardware_name for hardware_name, _ in machine_types().values()} <= set(NAMES)


def test_an_apple_computer_is_answered_with_chips_that_exist() -> None:
    for computer, chips in APPLE_COMPUTERS.items():
        for chip in re.findall(r"m[0-9][a-z0-9-]*", chips):
            assert find_hardware(chip).vendor == "Apple"
        with pytest.raises(InputError, match="sold with several chips"):
            find_hardware(computer)


def test_details_fit_a_terminal(run: Any) -> None:
    for name in ("mi350x", "mi355x"):
        rows = run("hardware", name).out.partition("\n\n")[0].splitlines()
        assert max(map(len, rows)) <= 80


@pytest.mark.parametrize(
    ("arguments", "devices", "expected"),
    [
        (["2x3090"], None, (["rtx-3090"], 2)),
        (["2x3090"], 2, (["rtx-3090"], 2)),
        (["dual 4090"], None, (["rtx-4090"], 2)),
        (["2x24GB"], None, (["24GB"], 2)),
        (["2x m4-max-64gb"], None, (["m4-max-64gb"], 2)),
        (["3090"], 4, (["rtx-3090"], 4)),
        (["1080 8gb", "h100"], None, (["gtx-1080", "h100-sxm"], None)),
        (["p5.48xlarge"], None, (["h100-sxm"], 8)),
        (["p5.48xlarge"], 16, (["h100-sxm"], 16)),  # two machines
        (["2x p5.48xlarge"], None, (["h100-sxm"], 16)),
        (["gb300-nvl72"], None, (["gb300"], 72)),
        (["hgx-b200"], None, (["b200"], 8)),
        (["v5e-8"], None, (["tpu-v5e"], 8)),
        (["tpu-v6e-8"], None, (["tpu-v6e"], 8)),
        (["v5p-16"], None, (["tpu-v5p"], 8)),  # 16 TensorCores
        (["mi300x-8"], None, (["mi300x"], 8)),
        ([], 8, ([], 8)),
    ],
)
def test_a_number_before_an_accelerator_is_that_of_devices(arguments, devices, expected):
    accelerators, device_count = accelerators_and_devices(arguments, devices)
    assert ([accelerator.name for accelerator in accelerators], device_count) == expected


@pytest.mark.parametrize(
    ("arguments", "devices", "message"),
    [
        (["2x3090"], 4, "2x3090: names 2 accelerators, which contradicts --devices 4; expected one of the two numbers"),
        (["2x3090", "4xh100"], None, "4xh100: names 4 accelerators, which contradicts 2 of another name; expected"),
        (["p5.48xlarge"], 12, "names 8 accelerators, which contradicts --devices 12"),
    ],
)
def test_numbers_of_accelerators_that_contradict_are_refused(arguments, devices, message):
    with pytest.raises(InputError, match=message):
        accelerators_and_devices(arguments, devices)


@pytest.mark.parametrize(
    ("typed_name", "message"),
    [
        ("4090ti", r"no accelerator called '4090ti'. Did you mean rtx-4090\? Expected"),
        ("rtx 3060 ultra", r"Did you mean rtx-3060\? Expected"),
        (
            "radeon 780m",
            "a GPU in a processor, without memory of its own; expected the memory of .* as 16GiB",
        ),
        ("890M", "a GPU in a processor"),
        ("Intel Iris Xe", "a GPU in a processor"),
        ("uhd 630", "a GPU in a processor"),
        ("vega 8", "a GPU in a processor"),
        ("gtx 860m", "no accelerator called 'gtx 860m'"),  # a card
        ("macbook pro m3 36gb", r"m3-24gb; with 36 GB: m3-pro-36gb, m3-max-36gb"),
        ("m4-17gb", r"does not sell the M4 with 17 GB; expected one of [^;]*$"),
    ],
)
def test_the_error_for_an_unknown_name_says_what_to_type(typed_name, message):
    with pytest.raises(InputError, match=message):
        find_hardware(typed_name)


def test_a_gpu_is_found_by_its_own_name() -> None:
    assert find_hardware("Radeon 8060S").name == find_hardware("strix halo").name
    assert find_hardware("vega 64").name.endswith("64")  # a card, and no GPU of a processor
