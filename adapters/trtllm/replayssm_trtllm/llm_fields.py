"""Names of TensorRT-LLM's LLM arguments and environment, as far as this adapter reads or writes them.

Recorded from public source (docs/engines/tensorrt-llm.md has the links). The lists of names serve to find a typo before a
model loads. A name that is near to none is left to TensorRT-LLM, which refuses unknown fields; in `speculative_config`
every unknown name is refused, since a field of a later release could change what a verified step is.
"""

from __future__ import annotations

KV_CACHE = "kv_cache_config"
SPECULATIVE = "speculative_config"
MODEL_KWARGS = "model_kwargs"
ENV_OVERRIDES = "env_overrides"
TRANSCEIVER = "cache_transceiver_config"
CUDA_GRAPHS = "cuda_graph_config"

USE_V2 = "use_kv_cache_manager_v2"
STATE_DTYPE = "mamba_ssm_cache_dtype"
STATE_ROUNDING = "mamba_ssm_stochastic_rounding"
PHILOX_ROUNDS = "mamba_ssm_philox_rounds"
STATE_DTYPES = ("auto", "float32", "bfloat16", "float16")

REPLAY_KEY = "replay_ssm"
"""Where `model_kwargs` carries the plugin's configuration; it becomes an attribute of the model's configuration."""

NESTED = "text_config"
"""The configuration of a composite model's text model: the one other place where ranks look for `REPLAY_KEY`."""

ENV_CONFIG = "TRTLLM_REPLAYSSM_CONFIG"
"""The same as JSON; workers inherit only variables whose names begin with TRTLLM or TLLM."""

ENV_MAMBA_REPLAY = "TRTLLM_USE_MAMBA_REPLAY"
ENV_GDN_REPLAY = "TRTLLM_USE_GDN_REPLAY"
ENV_PYTHON_MAMBA = "TRTLLM_USE_PY_MAMBA"
ENV_MANAGER = "TLLM_MAMBA_MANAGER_PREFERENCE"
ENV_VERIFY_OP = "TRTLLM_MAMBA2_MTP_USE_CUSTOM_OP"

TOP_LEVEL = frozenset(
    (
        *("model", "tokenizer", "tokenizer_mode", "skip_tokenizer_init", "trust_remote_code", "dtype", "revision"),
        *("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "gpus_per_node"),
        *("moe_tensor_parallel_size", "moe_expert_parallel_size", "moe_cluster_parallel_size", "moe_config"),
        *("enable_attention_dp", "enable_lora", "lora_config", "quant_config", "peft_cache_config", "backend"),
        *("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width"),
        *(KV_CACHE, SPECULATIVE, MODEL_KWARGS, ENV_OVERRIDES, TRANSCEIVER, CUDA_GRAPHS, "kv_connector_config"),
        *("torch_compile_config", "sparse_attention_config", "scheduler_config", "attention_dp_config"),
        *("attn_backend", "sampler_type", "load_format", "guided_decoding_backend", "allreduce_strategy"),
        *("enable_chunked_prefill", "disable_overlap_scheduler", "print_iter_log", "enable_iter_perf_stats"),
        *("stream_interval", "num_postprocess_workers", "postprocess_tokenizer_dir", "reasoning_parser"),
        *("orchestrator_type", "disable_mm_encoder", "checkpoint_format", "return_perf_metrics"),
    )
)
"""Fields at the top of the YAML that `--config` takes."""

KV_CACHE_FIELDS = frozenset(
    (
        *(USE_V2, STATE_DTYPE, STATE_ROUNDING, PHILOX_ROUNDS, "mamba_state_config", "mamba_state_cache_interval"),
        *("enable_block_reuse", "block_reuse_config", "enable_partial_reuse", "copy_on_partial_reuse"),
        *("max_tokens", "max_attention_window", "sink_token_length", "tokens_per_block", "dtype", "use_uvm"),
        *("free_gpu_memory_fraction", "max_gpu_total_bytes", "host_cache_size", "avg_seq_len", "pool_ratio"),
        *("event_buffer_max_size", "onboard_blocks", "secondary_offload_min_priority", "max_util_for_resume"),
        *("cross_kv_cache_fraction", "attention_dp_events_gather_period_ms"),
    )
)
"""Fields of `kv_cache_config`."""

SPECULATIVE_FIELDS = frozenset(
    (
        *("decoding_type", "max_draft_len", "max_total_draft_tokens", "speculative_model", "speculative_model_dir"),
        *("max_concurrency", "draft_len_schedule", "load_format", "use_rejection_sampling", "enable_penalty"),
        *("acceptance_rate_window_size", "acceptance_rate_threshold", "acceptance_window"),
        *("acceptance_length_threshold", "allow_advanced_sampling", "advanced_sampling_mode", "sa_config"),
        *("use_dynamic_tree", "dynamic_tree_max_topK", "eagle_choices", "greedy_sampling", "posterior_threshold"),
        *("num_eagle_layers", "max_non_leaves_per_layer", "eagle3_one_model", "eagle3_layers_to_capture"),
        *("eagle3_model_arch", "num_nextn_predict_layers", "use_mtp_vanilla", "mtp_eagle_one_model"),
        *("use_relaxed_acceptance_for_thinking", "relaxed_topk", "relaxed_delta", "begin_thinking_phase_token"),
        *("end_thinking_phase_token", "max_matching_ngram_size", "enable_global_pool", "global_pool_size"),
        *("mask_token_id", "target_layer_ids", "attention_backend", "medusa_choices"),
        *("use_sa_spec", "sa_spec_threshold", "max_batch_size"),
    )
)
"""Fields of `speculative_config`, of the drafters that are served and of those that are refused by name."""
