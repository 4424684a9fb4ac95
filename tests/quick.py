"""The tests that `pytest --quick` runs: those that notice most mistakes in counts, memory and the command line in the
least time. `python -m tests.mutants` says what they notice.
"""

from __future__ import annotations

import re

QUICK = (
    # counts
    "costs/test_params.py",
    "costs/test_flops.py",
    "costs/test_cache.py",
    "costs/test_cache_formats.py",
    "costs/quantization/test_quantize.py",
    "costs/quantization/test_quantize_config.py",
    "contracts/test_parts.py",
    "components/test_odd_parts.py",
    "components/mixers/test_state_space.py",
    "components/networks/test_identity_experts.py",
    "test_model.py",
    # readers
    "sources/test_presets_as_configs.py::test_presets_become_configs_and_come_back[phi-2]",
    "sources/test_checkpoints.py",
    "witnesses/test_real_configs.py",
    "sources/test_target.py",
    # the memory of one device
    "simulator/test_allocator.py",
    "simulator/test_aten.py",
    "simulator/test_choices.py",
    "simulator/test_eager.py",
    "simulator/test_unfolding.py::test_training",
    "simulator/test_unfolding.py::test_where_repeats_differ_all_layers_are_replayed",
    "simulator/test_unfolding.py::test_the_allocators_bytes_grow_by_the_same_for_each_layer",
    "device_memory/test_fold.py::test_a_run_of_four_repeats_has_the_layers_before_the_end_of_its_pattern",
    "device_memory/test_memory.py",
    "device_memory/test_inference.py",
    "device_memory/test_resident.py",
    "device_memory/test_training.py",
    "device_memory/test_optimizer_states.py",
    # layouts and frameworks
    "parallel/test_layout.py",
    "parallel/test_messages.py",
    "parallel/test_rank.py",
    "parallel/test_share.py",
    "frameworks/fsdp2/test_torchtitan.py",
    "frameworks/deepspeed/test_deepspeed.py",
    "frameworks/megatron/test_gradient_buffers.py",
    "frameworks/megatron/test_megatron.py",
    # the command line
    "reports/test_cluster.py",
    "reports/test_forms.py",
    "reports/test_goldens.py::test_the_screen_is_the_golden[params-csv]",
    "reports/test_goldens.py::test_the_screen_is_the_golden[params-mixture]",
    "reports/test_notes.py",
)
"""Files and tests below tests/."""

SLOW = (
    "components/test_odd_parts.py::test_a_pass_too_short_for_an_entry",
    "contracts/test_parts.py::test_decoding_from_the_cache_gives_the_full_pass",
    "contracts/test_parts.py::test_a_token_sees_only_those_before_it",
    "contracts/test_parts.py::test_training_reduces_the_loss",
    "costs/quantization/test_quantize.py::test_fp8_experts_of_transformers",
    "costs/quantization/test_quantize.py::test_fp8_modules_of_transformers",
    "costs/test_cache.py::test_what_is_listed_is_what_is_held",
    "costs/test_flops.py::test_recompute_full_is_reentrant_checkpointing",
    "device_memory/test_inference.py::test_a_few_layers_say_what_all_do",
    "device_memory/test_inference.py::test_both_stacks_of_an_encoder_decoder_are_folded",
    "device_memory/test_inference.py::test_the_first_and_last_chunks_hold_the_most",
    "parallel/test_rank.py::test_shards_of_a_whole_model",
    "frameworks/deepspeed/test_deepspeed.py::test_published_rows_under_deepspeed",
    "frameworks/megatron/test_megatron.py::test_a_peak_of_even_routing_is_that_of_the_first_steps",
    "frameworks/megatron/test_megatron.py::test_an_interleaved_schedule_runs_every_micro_batch_on_every_rank",
    "frameworks/fsdp2/test_torchtitan.py::test_reserved_bytes_of_ranks_of_a_sequence_and_of_a_pipeline",
    "reports/test_cluster.py::test_files_and_options_that_contradict_each_other",
    "reports/test_cluster.py::test_an_option_beside_a_file_replaces_its_value_and_the_heading_says_so",
    "reports/test_cluster.py::test_options_say_what_a_file_without_a_model_does_not",
    "reports/test_cluster.py::test_replicas_of_a_whole_model_that_do_not_fit_say_what_divides_it",
    "reports/test_notes.py::test_packages_of_recurrent_kernels_are_named",
    "reports/test_notes.py::test_all_of_them_are_in_json_and_with_the_option",
    "simulator/test_allocator.py::test_random_sequences",
    "simulator/test_choices.py::test_a_loss_whose_chunks_are_recomputed_holds_what_torch_holds",
    "simulator/test_choices.py::test_log_probabilities_in_chunks_hold_what_torch_holds",
    "simulator/test_eager.py::test_a_part_runs_published_kernels",
    "sources/test_checkpoints.py::test_a_saved_model_is_what_its_config_says",
    "sources/test_target.py::test_a_name_is_a_wrapper_only_if_its_first_word_is_the_type",
)
"""Tests of these files that take long and are left out."""

CASES = {
    "components/test_odd_parts.py::test_passes_of_one_token_and_of_two": r"-1$",
    "contracts/test_parts.py::test_reference_agrees_on_meta": r"-0$|^(Attention|FeedForward)-|^MoE-[1-6]$",
    "costs/test_flops.py::test_other_modes_recompute_what_torch_does": r"^0-(?!every:2)",
    "device_memory/test_training.py::test_a_step_holds_what_torch_holds": r"^[02]-",
    "frameworks/deepspeed/test_deepspeed.py::test_bytes_are_those_of_deepspeed": r"^stage \d(, \w+)?$",
    "frameworks/megatron/test_megatron.py::test_golden_values_of_megatrons_ci": r"^(?!nemotron/)",
    "parallel/test_messages.py::test_every_part_is_counted_or_refused": r"-(fsdp2|torch)$",
    "parallel/test_rank.py::test_shards_of_1024_ranks": r"^(llama3-8b|qwen|gpt2).*-between$",
    "simulator/test_eager.py::test_a_part_holds_what_torch_holds": r"-0$|^(Attention|FeedForward)-[1-9]$",
    "simulator/test_unfolding.py::test_training": r"^(dense|experts)-",
    "test_model.py::test_it_agrees_on_meta": r"tied|decoder",
}
"""Tests of these files with many cases → the ids of those that run. Of parts they are the first examples, which the
others change in a field or two.
"""


def is_quick(name: str) -> bool:
    """Whether `--quick` runs a test or a case of a test, which stands below tests/, in one of its files."""
    test, _, case = name.removeprefix("tests/").partition("[")
    return test not in SLOW and (test not in CASES or re.search(CASES[test], case.removesuffix("]")) is not None)
