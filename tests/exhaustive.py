"""Slow tests: those, or cases of them, that only `pytest -m exhaustive` runs, with what finds the same in every run;
those that the site's test command runs; and files that start first. Beside these are the cases that a test's own sample
leaves out (tests/samples.py).
"""

FEW_LAYERS = "frameworks/fsdp2/test_fsdp2.py::test_a_run_of_few_layers_stands_for_all"
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
    "no-reshard-stage-0-of-4-bfloat16-full]": "the same without --tp, and --tp without --vpp",
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
    "plots/test_schedule_plot.py::test_the_picture_says_what_runs[dualpipe]": "the golden of DualPipe's schedule",
    "plots/test_counts_plots.py::test_every_picture_is_written[aspect-svg]": "the other pictures",
    "plots/test_time_plots.py::test_the_front_and_the_load_are_those_of_the_answer": "studies/test_serving.py",
    "witnesses/test_distributed.py::test_torchrun_runs_the_same_command": "a process with torchrun's environment",
    "witnesses/test_measured_presets.py::test_some_agree_with_their_class": "test_families.py; the references here",
    "witnesses/test_verify_memory.py::test_every_phase_holds_what_torch_holds[deepseek-v2-lite?num_hidden_layers=2&"
    "num_experts=8&hidden_size=256&vocab_size=1000]": "the mixture; simulator/test_inference.py",
    "contracts/test_contributing.py::test_each_of_them_is_needed": "the lists that are enough",
    "contracts/test_architecture.py::test_picture_is_that_of_the_imports": "the rooms that the picture names",
    "reports/test_views.py::test_every_architecture_can_be_explained": "contracts/test_trees_add_up.py: its formulas",
    "symbolic/test_explain.py::test_a_terminal_of_80_columns_holds_every_formula_whole[deepseek-v3]": "the others",
    "symbolic/test_values_only.py::test_values_are_those_of_the_formulas[words0]": "the other two",
    "studies/test_plan.py::test_a_row_needs_what_memory_says_of_it[megatron]": "experts under Megatron",
    "studies/test_plan.py::test_a_row_needs_what_memory_says_of_it[deepspeed]": "test_selection.py; FSDP2",
    "studies/test_run_time.py::test_plan_and_time_give_the_same_seconds[nothing hidden]": "FSDP; timing/",
    "studies/test_run_time.py::test_plan_and_time_give_the_same_seconds[8 bits]": "timing/test_training.py",
    "studies/test_run_time.py::test_plan_and_time_give_the_same_seconds[long sequences]": "timing/test_training.py",
    "studies/test_cost.py::test_training_costs_its_steps_under_the_fastest_layout": "the golden cost; test_run_time.py",
    "studies/test_fit.py::test_many_devices_run_the_phase_that_is_asked_for[--users 2-inference]": "no --phase",
    "studies/test_fit.py::test_many_devices_run_the_phase_that_is_asked_for[--phase decode-decode]": "no --phase",
    "test_certainty.py::test_errors_of_memory_are_those_of_the_rows": "device_memory/test_published.py",
    "test_certainty.py::test_the_worst_row_is_named": "device_memory/test_published.py",
    "witnesses/test_gpu_measured.py::test_requested_bytes_are_near": "the comparisons with torch to the byte",
    "witnesses/test_gpu_measured.py::test_blocks_and_segments_are_near": "simulator/test_allocator.py",
    "witnesses/test_gpu_measured.py::test_classes_of_transformers_take_what_is_computed": "test_class_memory.py",
    "witnesses/test_measured_presets.py::test_some_agree_with_their_reference": "test_families.py; parts",
    "witnesses/test_verify_memory.py::test_every_phase_holds_what_torch_holds[apertus-8b?num_hidden_layers=1&"
    "hidden_size=256&vocab_size=1000]": "simulator/test_families.py",
    "witnesses/test_verify_memory.py::test_every_phase_holds_what_torch_holds[gemma2-2b?num_hidden_layers=2&"
    "hidden_size=256&vocab_size=1000]": "simulator/test_families.py",
    "witnesses/test_latent.py::test_expanded_on_top_of_a_context_costs_what_the_class_does[deepseek_v32]": "the others",
    "witnesses/test_latent.py::test_expanded_on_top_of_a_context_costs_what_the_class_does[deepseek_v2]": "the others",
    "frameworks/test_selective_recompute.py::test_selective_is_the_frameworks_own[deepspeed]": "torch, whose it is",
    "contracts/test_toy_part.py::test_it_is_verified_past_its_window": "test_witnesses.py, which verifies the toy",
    "test_bounds.py::test_large_sizes_are_answered[serving on the most devices]": "a plan for the most devices",
    "web/test_hub.py::test_its_config_is_fetched[an address]": "web/test_bridge.py: what a text names; the id alone",
    "web/test_hub.py::test_its_config_is_fetched[a revision]": "a pull request, whose revision has slashes too",
    "test_bounds.py::test_large_sizes_are_answered[a plan for a large prime]": "a plan for the most devices",
    "reports/test_goldens.py::test_the_screen_is_the_golden[fit-training]": "the goldens fit and memory-training",
    "reports/test_goldens.py::test_the_screen_is_the_golden[fit-serving]": "the golden fit-devices",
    "reports/test_goldens.py::test_the_screen_is_the_golden[serve]": "studies/test_serving.py, test_documents.py",
    "reports/test_goldens.py::test_the_screen_is_the_golden[cost]": "studies/test_cost.py, test_documents.py",
    "frameworks/vllm/test_vllm.py::test_a_screen_has_at_most_24_lines_before_its_notes": "reports/test_screen.py",
    "studies/test_calibration.py::test_half_of_a_source_s_rows_and_the_error_of_the_other_half": "the tests above it",
    "studies/test_fit_options.py::test_each_is_what_memory_says_of_it[words0]": "the other words; test_fit.py",
    "test_release.py::test_workflows_and_the_action_are_valid": "zizmor, which reads them too",
    "test_commands_in_python.py::test_the_document_is_the_commands[fit over devices]": "fit; memory of ranks",
    "test_commands_in_python.py::test_the_document_is_the_commands[fit of an engine]": "fit; memory of an engine",
    "test_commands_in_python.py::test_the_document_is_the_commands[plan by time]": "plan",
    "frameworks/deepspeed/test_deepspeed.py::test_published_rows_under_deepspeed": "the bytes of deepspeed",
    "frameworks/launch/test_programs.py::test_a_file_without_a_model_asks_for_one": "cli/test_bad_input.py",
    "test_commands_in_python.py::test_a_picture_is_the_commands[memory]": "the pictures of params and kv",
    "test_commands_in_python.py::test_a_picture_is_the_commands[roofline]": "the pictures of params and kv",
    "test_commands_in_python.py::test_a_picture_is_the_commands[time]": "the pictures of params and kv",
    "cli/test_hostile_text.py::test_pictures[shape-0]": "the other pictures",
    "cli/test_hostile_text.py::test_pictures[roofline-]": "the other pictures",
    "cli/test_hostile_text.py::test_pictures[time-]": "the other pictures",
    "symbolic/test_explain.py::test_a_terminal_of_80_columns_holds_every_formula_whole[gpt-oss-120b]": "the others",
    "studies/test_plan.py::test_an_encoder_decoder_has_layouts_without_a_pipeline[torch]": "the other frameworks",
    "studies/test_plan.py::test_an_encoder_decoder_has_layouts_without_a_pipeline[deepspeed]": "FSDP2",
    "studies/test_plan.py::test_the_first_are_replayed_and_all_are_counted[megatron]": "FSDP2",
    "studies/test_claims.py::test_mixtures_of_experts_are_shallower_at_the_same_total": "no count; a claim of the docs",
    "studies/test_lock.py::test_an_entry_has_the_counts[deepseek-v3]": "the other models",
    "studies/test_serving.py::test_cost_is_price_times_time": "test_serve_identities.py",
    "studies/test_serving.py::test_no_point_beats_one_of_the_front": "test_serve_identities.py",
    "studies/test_serving.py::test_the_cheapest_is_never_dearer_than_a_layout_that_is_typed": "serve_identities",
    "witnesses/test_verify.py::test_running_one_layer_of_a_kind_measures_what_running_all_does[t5-base]": "the others",
    "witnesses/test_verify.py::test_running_one_layer_of_a_kind_measures_what_running_all_does[deepseek-v3]": "others",
    "frameworks/test_selective_recompute.py::test_plans_and_fits_read_it_too": "the test above; test_fit_options.py",
    "frameworks/fsdp2/test_fsdp2_pipeline_replay.py::test_passes_recorded_with_few_layers_are_those_of_all_layers"
    "[qwen3-8b-two chunks]": "the passes that are played, of two chunks; the other stages",
    "frameworks/fsdp2/test_fsdp2_pipeline_replay.py::test_passes_recorded_with_few_layers_are_those_of_all_layers"
    "[qwen3-8b-one stage a rank]": "llama3-8b; the two chunks and the recomputed layers of another",
    "frameworks/fsdp2/test_fsdp2_pipeline_replay.py::test_passes_recorded_with_few_layers_are_those_of_all_layers"
    "[llama3-8b-recomputed]": "qwen3-8b",
    "frameworks/fsdp2/test_fsdp2_pipeline_replay.py::test_passes_recorded_with_few_layers_are_those_of_all_layers"
    "[llama3-8b-one stage a rank]": "recomputed stages of qwen3-8b; two chunks; the passes that are played",
    "frameworks/torch/test_long_pipelines.py::test_fewer_micro_batches_on_the_allocator[FSDP2, chunks]": (
        "chunks of torch, stages of FSDP2"
    ),
    "frameworks/megatron/test_record_chunks.py::test_a_chunk_recorded_with_few_layers_has_the_passes_of_all"
    "[nemotron-h-8b-layout2-none]": "the same recomputed; a dense model without recomputation",
    "frameworks/megatron/test_record_chunks.py::test_a_chunk_recorded_with_few_layers_has_the_passes_of_all"
    "[deepseek-v2-lite?num_hidden_layers=13-layout1-none]": "the same recomputed; a chunk alone without recomputation",
    "parallel/test_rank_contract.py::test_experts_of_all_ranks_are_those_of_the_model[4]": "two ranks",
    "parallel/test_rank.py::test_shards_of_a_whole_model[deepseek-v3-layout1]": "its shards of 1,024 ranks; llama3-8b",
    "studies/test_cost.py::test_the_hours_of_published_runs_are_in_the_range[llama3.1-405b]": "llama2-7b",
    "plots/test_time_plots.py::test_every_picture_is_written[serve llama3-8b --hardware h100 --input 2k "
    "--output 256-svg]": "plots/test_counts_plots.py: a picture for a paper",
    "plots/test_memory_plot.py::test_every_format_is_written[png]": "the same of a schedule; svg",
    "plots/test_memory_plot.py::test_every_format_is_written[pdf]": "the same of a schedule; svg",
    "frameworks/fsdp2/test_fsdp2.py::test_a_whole_model_on_many_ranks": "the drawn cases; test_torchtitan.py",
    f"{ADAPTERS}[llama3-8b-fields0-layout0-fsdp0]": "adapters of qwen3-8b",
    f"{PIPELINE}::test_many_layers_from_few": "test_fsdp2_pipeline_replay.py",
    "contracts/test_witnesses.py::test_verify_lists_the_toys": "test_contributing.py, whose toys are counted",
    "studies/test_cost.py::test_requests_cost_the_cheapest_server_that_is_full": "test_serve_identities.py",
    "studies/test_fit.py::test_a_token_of_every_user_is_the_answer_of_time": "test_serve_identities.py",
    "studies/test_walk_errors.py::test_a_replay_needs_what_is_stated[mixtral-8x7b-512-64-deepspeed]": (
        "frameworks/torch/test_pipeline.py"
    ),
    "studies/test_run_time.py::test_plan_and_time_give_the_same_seconds[experts]": "FSDP; timing/",
    "parallel/test_rank_contract.py::test_a_rank_of_a_preset_computes_its_share[2]": "every part on a rank",
    "contracts/test_toy_part.py::test_explain_gives_its_formula": "symbolic/test_explain.py; test_contributing.py",
    "device_memory/test_serving_attention.py::test_no_preset_needs_much_more_than_weights_and_cache": "the test below",
    f"{FEW_LAYERS}[qwen3-30b-a3b-attention+matmuls-3-fsdp2]": "the other layers",
    "frameworks/test_serving_records.py::test_the_layout_with_most_replicas_that_fits_is_found": (
        "studies/test_serving.py: engines have layouts of their own"
    ),
    "studies/test_walk_errors.py::test_a_replay_needs_what_is_stated[mixtral-8x7b-512-64-megatron]": (
        "frameworks/torch/test_pipeline.py"
    ),
    "studies/test_plan.py::test_a_row_needs_what_memory_says_of_it[experts under megatron]": "FSDP2; sequences",
    "studies/test_plan.py::test_stages_that_may_need_most[qwen3-0.6b?num_hidden_layers=8-fsdp2-layout4-8]": "others",
    "studies/test_fit_options.py::test_one_accelerator_proposes_more_of_it": "those that fit come first",
    "studies/test_run_time.py::test_narrow_products_are_faster_and_keep_more": "timing/; device_memory/",
    "studies/test_cost.py::test_what_is_not_known_is_null": "test_documents.py: types of a cost",
    "studies/test_serving.py::test_engines_have_layouts_and_rules_of_their_own[tensorrt-llm]": "serve_identities",
    "contracts/test_independence.py::test_a_wrong_layer_in_multi_token_prediction_is_told[None]": "the other layers",
    "reports/test_goldens.py::test_the_screen_is_the_golden[verify]": "witnesses/test_verify.py; test_documents.py",
    "witnesses/test_latent.py::test_both_forms_train_as_the_reference_does": "contracts/test_parts.py: training of MLA",
    "witnesses/test_verify_memory.py::test_a_model_that_is_too_large_for_the_cpu_is_named": "a run that is too large",
    "frameworks/llama_cpp/test_llama_cpp.py::test_fit_names_the_placements_that_a_card_holds": "the next test",
    "test_processes.py::test_plans_are_those_of_one_process[qwen3-8b --devices 16 --seq 16384 --rows 4]": (
        "the searches that end early, of the same model and length"
    ),
    "test_processes.py::test_plans_are_those_of_one_process[qwen3-0.6b?num_hidden_layers=6 --devices 8 --seq 128 "
    "--framework fsdp2 --by memory]": "the plan of DeepSpeed",
    "test_processes.py::test_plans_are_those_of_one_process[qwen3-0.6b?num_hidden_layers=4 --devices 4 --seq 128 "
    "--framework torch --rows 3]": "the plan of DeepSpeed",
    "studies/test_plan.py::test_a_framework_that_counts_no_layout_of_a_model_leaves_it_to_the_next_one"
    "[albert-base-v2]": "the other model",
    "studies/test_plan.py::test_a_layout_of_typed_sizes_fits_as_memory_counts_it[fsdp2-layout3]": "Megatron; a row",
    "studies/test_plan.py::test_a_layout_whose_tensors_alone_fit_does_not_count": (
        "a fastest layout whose replay does not fit gives way to the next"
    ),
    "frameworks/vllm/test_vllm.py::test_the_start_check_of_compressed_attention_counts_whole_tuples"
    "[0.22.0-1051776]": "0.23, whose check is the same",
    "frameworks/fsdp2/test_fsdp2.py::test_trained_copies_are_sharded_with_their_frozen_originals"
    "[separate]": "together; an embedding",
    "frameworks/fsdp2/test_fsdp2_pipeline_replay.py::test_passes_recorded_with_few_layers_are_those_of_all_layers"
    "[llama3-8b-two chunks]": "the passes that are played, of two chunks; the recomputed stages",
    "frameworks/torch/test_long_pipelines.py::test_steps_of_few_layers_are_those_of_all"
    "[gemma3-1b?num_hidden_layers=24-layout2-3]": "the other models; simulator/test_unfolding.py has windows",
    "studies/test_run_time.py::test_devices_alone_have_the_layout_of_plan_and_cost"
    "[gpt2-h100-sizes1]": "the other model",
    "test_mcp.py::test_an_answer_is_the_commands_document[cost]": "test_commands_in_python.py",
    "cli/test_bad_input.py::test_the_largest_sizes_take_no_memory"
    "[gemma2-9b --set num_hidden_layers=100000]": "the same of llama3-8b",
    "studies/test_serve_identities.py::test_one_request_takes_the_time_of_time[llama3.3-70b h100]": "the other servers",
    "test_processes.py::test_a_search_that_ends_early_is_that_of_one_process[150000]": "the search that ends later",
    "timing/test_gpu_steps.py::test_steps_of_newer_families_on_an_h200": "test_measured.py: a sample of the same rows",
    "reports/test_screen.py::test_a_screen_of_servers_has_at_most_24_lines_with_its_notes"
    "[options2]": "the other screen",
    "cli/test_examples.py::test_every_example_runs"
    "[plan llama3-8b --hardware h100 --devices 8 --seq 4k]": "the golden plan",
    "cli/test_examples.py::test_every_example_runs[fit llama3-8b --hardware rtx-4090]": "the command of README.md",
    "cli/test_examples.py::test_every_example_runs"
    "[plot roofline llama3-8b --hardware h100 -o roofline.svg]": "the command of README.md; plots/test_time_plots.py",
    "cli/test_examples.py::test_every_example_runs[schema -o description.schema.json]": "sources/test_json_schema.py",
    "cli/test_examples.py::test_every_example_runs[mcp]": "test_mcp.py: a process that speaks the protocol",
    "test_benchmarks.py::test_the_smallest_case_runs[startup]": "test_startup.py",
    "studies/test_usual_engines.py::test_fit_counts_the_buffers_of_the_engine_whose_time_it_has"
    "[gpt-oss:20b --hardware rtx-4090]": "the same on a Mac",
    "studies/test_usual_engines.py::test_layers_of_a_gguf_file_are_divided_among_accelerators"
    "[rtx-4090 --devices 2-8k-True]": "two rtx-3090",
    "cli/test_examples.py::test_every_example_runs[plot aspect --moe -o aspect.png]": (
        "plots/test_counts_plots.py; the example of compare --moe"
    ),
    "cli/test_examples.py::test_every_example_runs[plot serve phi-4 --hardware l4 --input 4k --output 1k -o s.svg]": (
        "plots/test_time_plots.py; the example of serve"
    ),
    "witnesses/test_families.py::test_small_shapes_agree_with_the_reference": (
        "their classes in the same file; contracts/test_parts.py: the references"
    ),
    "cli/test_examples.py::test_every_example_runs[fit llama3-70b --hardware h100 --devices 4]": (
        "the golden fit-devices"
    ),
}
"""Test, or file, below tests/ → where the same is found."""

OF_THE_SITE = frozenset(
    {
        "web/test_serving_panels.py",
        "web/test_memory_panels.py",
        "web/test_shape_panels.py",
        "web/test_preset_pages.py",
        "web/test_links.py",
        "web/test_command.py",
        "web/test_answers_in_chinese.py::test_refused_servers_and_runs_are_in_chinese",
        "web/test_answers_in_chinese.py::test_sentences_of_servers_and_costs_are_in_chinese",
        "web/test_answers_in_chinese.py::test_sentences_of_a_model_are_in_chinese",
    }
)
"""Slow tests, or files, of the page's own code, which the site's test command runs although they need no browser;
test_bridge.py finds what of them is llmcalc's.
"""

LONGEST = (
    "tests/test_checks.py",
    "tests/test_documents.py",
    "tests/cli/test_fuzz_files.py",
    "tests/sources/test_bad_config.py",
    "tests/witnesses/test_config_fields.py",
    "tests/witnesses/test_distributed.py",
)
"""Files with tests of ten seconds and more."""
