"""The tests that `pytest --quick` runs: those that notice most mistakes in counts, memory and the command line in the
least time. `python -m tests.mutants` says what they notice.
"""

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
    "sources/test_convert.py::test_presets_come_back",
    "sources/test_convert.py::test_presets_become_configs_and_come_back[phi-2]",
    "sources/test_checkpoints.py",
    "witnesses/test_families.py::test_real_configs_are_exact",
    "sources/test_target.py",
    # the memory of one device
    "simulator/test_allocator.py",
    "simulator/test_aten.py",
    "simulator/test_choices.py",
    "simulator/test_eager.py",
    "simulator/test_unfolding.py::test_training",
    "simulator/test_unfolding.py::test_where_repeats_differ_all_layers_are_replayed",
    "simulator/test_unfolding.py::test_the_allocators_bytes_grow_by_the_same_for_each_layer",
    "simulator/test_unfolding.py::test_of_more_layers_what_the_allocator_adds_is_extrapolated",
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
    "contracts/test_parts.py::test_decoding_from_the_cache_gives_the_full_pass",
    "contracts/test_parts.py::test_a_token_sees_only_those_before_it",
    "costs/quantization/test_quantize.py::test_fp8_modules_of_transformers",
    "costs/test_cache.py::test_what_is_listed_is_what_is_held",
    "costs/test_flops.py::test_recompute_full_is_reentrant_checkpointing",
    "device_memory/test_inference.py::test_the_first_and_last_chunks_hold_the_most",
    "parallel/test_rank.py::test_shards_of_a_whole_model",
    "frameworks/deepspeed/test_deepspeed.py::test_published_rows_under_deepspeed",
    "frameworks/fsdp2/test_torchtitan.py::test_reserved_bytes_of_ranks_of_a_sequence_and_of_a_pipeline",
    "reports/test_cluster.py::test_an_option_beside_a_file_replaces_its_value_and_the_heading_says_so",
    "reports/test_cluster.py::test_options_say_what_a_file_without_a_model_does_not",
    "reports/test_notes.py::test_all_of_them_are_in_json_and_with_the_option",
    "simulator/test_allocator.py::test_random_sequences",
    "sources/test_checkpoints.py::test_a_saved_model_is_what_its_config_says",
)
"""Tests of these files that take long and are left out."""
