"""Arguments of SGLang for a measurement: what differs between modes, and what a bare machine needs."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

PLAIN, OWN = "plain", "sglang-replay"
OURS = ("exact", "dual-nvfp4", "dual-nvfp4-fp16", "fp16-sr")
"""Our modes are presets."""

MODES = (PLAIN, OWN, *OURS)

_BASE: Settings = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enable_multimodal": False,
    "dtype": "bfloat16",
    "mamba_ssm_dtype": "float32",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "mm_attention_backend": "triton_attn",
    "moe_runner_backend": "triton",
    "disable_prefill_cuda_graph": True,
    "disable_radix_cache": True,
    "context_length": 8192,
    "mem_fraction_static": 0.85,
    "random_seed": 1,
    "log_level": "info",
}
_HALF = ("dual-nvfp4-fp16", "fp16-sr")
_SPARE_SLOTS = 4


def replay_config(mode: str) -> Settings | None:
    """Our configuration in a mode, None for SGLang alone."""
    return {"preset": mode} if mode in OURS else None


def settings(model: str, mode: str, draft: int = 1) -> Settings:
    """Keyword arguments of `ServerArgs`, without sizes.

    Args:
        model: folder of a configuration.
        mode: one of `MODES`.
        draft: T, tokens of a verify step; 1 for standard decode.
    """
    chosen = {**_BASE, "model_path": model, **_attention(model)}
    if mode == OWN:
        chosen["enable_linear_replayssm"] = True
    if mode in _HALF:
        chosen["mamba_ssm_dtype"] = "float16"
    if draft > 1:
        chosen |= {
            "speculative_algorithm": "NGRAM",
            "speculative_num_draft_tokens": draft,
            "speculative_ngram_min_bfs_breadth": 1,
            "speculative_ngram_max_bfs_breadth": 1,
        }
    return chosen


def served(model: str, mode: str, draft: int) -> bool:
    """Whether a mode has anything for a model: SGLang's own replay takes GDN and KDA, and no drafts of NGRAM."""
    return mode != OWN or (draft == 1 and not _is_mamba2(model))


def sized(batches: list[int], tokens: int) -> Settings:
    """Pools for the largest batch, of requests of so many tokens, and a graph for each batch."""
    largest = max(batches)
    return {
        "cuda_graph_bs_decode": sorted(set(batches)),
        "max_running_requests": largest,
        "max_mamba_cache_size": largest + _SPARE_SLOTS,
        "max_total_tokens": largest * (tokens + 16),
    }


def unsized() -> Settings:
    """Pools that fill the memory fraction, and no graphs beside them."""
    return {"disable_cuda_graph": True}


def _is_mamba2(model: str) -> bool:
    return "nemotron" in model or "mamba2" in model


def _attention(model: str) -> Settings:
    # Nemotron-H replaces a backend that is named for both phases by one that a bare machine lacks.
    if _is_mamba2(model):
        return {"prefill_attention_backend": "triton", "decode_attention_backend": "triton"}
    return {"attention_backend": "triton"}
