"""Slow tests: cases that only `pytest -m exhaustive` runs, with what finds the same in every run, and files that start
first. Beside the cases stand those that a test's own sample leaves out (tests/samples.py).
"""

ADAPTERS = "frameworks/fsdp2/test_fsdp2.py::test_adapters_are_sharded_with_the_frozen_weights"
PIPELINE = "frameworks/fsdp2/test_fsdp2_pipeline.py"
TITAN = "frameworks/fsdp2/test_torchtitan.py::test_reserved_bytes_of_ranks_of_a_sequence_and_of_a_pipeline"
DEEPER = "simulator/test_unfolding.py::test_blocks_and_segments_are_those_of_a_replay_of_all_layers"

EXHAUSTIVE: dict[str, str] = {
    f"{DEEPER}[smollm2-135m?num_hidden_layers=130-training2-expandable2]": "the same model with 40 layers",
    f"{DEEPER}[qwen3-0.6b?num_hidden_layers=28-training5-expandable5]": "the other dense models",
    "costs/quantization/test_quantize_config.py::test_every_name_is_counted[deepseek-v3]": "the other mixtures",
    f"{PIPELINE}::test_many_layers_from_few[--pp 2 --dp 2 --zero 3 --no-reshard]": "the interleaved pipeline",
    f"{PIPELINE}::test_a_rank_holds_what_torch_does[--tp-2---pp-2---dp-2---vpp-2---sequence-parallel---zero-3---"
    "no-reshard---schedule-interleaved-stage-0-of-4-bfloat16-full]": "the same without --tp, and --tp without --vpp",
    f"{ADAPTERS}[llama3-8b-fields1-layout1-fsdp1]": "micro-batches without adapters",
    "studies/test_fit.py::test_many_devices_run_the_phase_that_is_asked_for[--phase inference-inference]": "no --phase",
    "studies/test_plan.py::test_the_first_are_replayed_and_all_are_counted[torch]": "the other frameworks",
    f"{TITAN}[name3]": "the other published ranks",
    f"{TITAN}[name2]": "the other published ranks",
    "studies/test_plan.py::test_tokens_that_ranks_of_tensors_divide[fsdp2]": "the same under Megatron",
    "studies/test_run_time.py::test_plan_and_time_give_the_same_seconds[recomputed]": "timing/test_training.py",
    "studies/test_run_time.py::test_plan_and_time_give_the_same_seconds[adapters]": "timing/test_training.py",
    "studies/test_run_time.py::test_plan_and_time_give_the_same_seconds[another network]": "another stack",
    "studies/test_serving.py::test_engines_have_layouts_and_rules_of_their_own[vllm==0.19]": "the other engines",
    "frameworks/torch/test_pipeline.py::test_a_walk_of_layers_that_differ_finds_the_peak_too[granite-4.0-h-tiny]": (
        "the other hybrid"
    ),
    "parallel/test_rank_contract.py::test_a_rank_of_a_preset_computes_its_share[4]": "two ranks; every part on four",
    "test_commands_in_python.py::test_a_picture_is_the_commands[serve]": "plots/test_time_plots.py",
    "test_commands_in_python.py::test_a_picture_is_the_commands[aspect]": "plots/test_counts_plots.py",
    "test_mcp.py::test_an_answer_is_the_commands_document[serve]": "test_commands_in_python.py",
    "studies/test_plan.py::test_a_row_needs_what_memory_says_of_it[torch]": "uneven stages of torch",
    "reports/test_goldens.py::test_the_screen_is_the_golden[plan-mixture]": "the golden plan; studies/test_plan.py",
    "cli/test_hostile_text.py::test_pictures[serve-]": "the other pictures",
    "cli/test_hostile_text.py::test_pictures[shape-1]": "the other pictures",
    "plots/test_schedule_plot.py::test_the_picture_says_what_runs[zb-h1]": "the picture of DualPipe",
}
"""Test below tests/ → where the same is found."""

LONGEST = (
    "tests/test_checks.py",
    "tests/test_documents.py",
    "tests/cli/test_fuzz_files.py",
    "tests/sources/test_bad_config.py",
    "tests/timing/test_measured.py",
    "tests/witnesses/test_config_fields.py",
    "tests/witnesses/test_distributed.py",
)
"""Files with tests of ten seconds and more."""
