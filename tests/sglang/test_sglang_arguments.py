"""Arguments of SGLang that do not go with ReplaySSM, and the dtype that its pool gets."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from replayssm import ReplayConfig, UnsupportedError
from replayssm_sglang import arguments


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enable_linear_replayssm", True),
        ("enable_linear_replayssm_spec", True),
        ("enable_gdn_replayssm_spec", True),
        ("disaggregation_mode", "decode"),
        ("enable_hierarchical_cache", True),
        ("enable_lmcache", True),
        ("enable_unified_cache_external_linker", True),
        ("enable_int8_mamba_checkpoint", True),
        ("enable_unified_memory", True),
        ("enable_torch_compile", True),
        ("use_ray", True),
        ("enable_dp_attention", True),
        ("pp_size", 2),
        ("speculative_algorithm", "DSPARK"),
        ("speculative_adaptive", True),
    ],
)
def test_a_refusal_names_the_flag_and_what_to_do(field, value):
    (reason,) = arguments.conflicts(SimpleNamespace(**{field: value}))
    assert reason.startswith("--" + field.replace("_", "-"))
    assert ";" in reason


def test_nothing_against_a_plain_launch():
    view = SimpleNamespace(
        disaggregation_mode="null", enable_hierarchical_cache=False, speculative_algorithm="NEXTN", use_ray=False
    )
    assert not list(arguments.conflicts(view))
    assert not list(arguments.conflicts(SimpleNamespace()))


def test_a_second_engine_does_not_take_the_first_ones_dtype_for_the_users(monkeypatch):
    config = ReplayConfig()
    monkeypatch.delenv(arguments.STATE_DTYPE_VARIABLE, raising=False)
    monkeypatch.setattr(arguments.launch, "active_config", lambda: config)
    monkeypatch.setattr(arguments.surface, "resolved", lambda args: args)
    monkeypatch.setattr(arguments, "check_model", lambda *_: None)
    for preset, dtype in (("exact", "float32"), ("fp16-sr", "float16"), ("exact", "float32")):
        config = ReplayConfig(preset=preset)
        arguments.check(SimpleNamespace())
        assert os.environ[arguments.STATE_DTYPE_VARIABLE] == dtype
    arguments.forget_dtype()
    assert arguments.STATE_DTYPE_VARIABLE not in os.environ
    # The user's own stays, and is what it was.
    monkeypatch.setenv(arguments.STATE_DTYPE_VARIABLE, "float16")
    with pytest.raises(SystemExit, match="SGLANG_MAMBA_SSM_DTYPE float16 differs"):
        arguments.check(SimpleNamespace())
    config = ReplayConfig(preset="fp16-sr")
    arguments.check(SimpleNamespace())
    arguments.forget_dtype()
    assert os.environ[arguments.STATE_DTYPE_VARIABLE] == "float16"


def speculation(draft, **more):
    return SimpleNamespace(speculative_algorithm="NEXTN", speculative_num_draft_tokens=draft, **more)


def test_a_window_below_the_draft_length_is_refused():
    (reason,) = arguments.speculation_conflicts(ReplayConfig(window=3), speculation(4))
    assert "--replayssm-window 3" in reason
    assert "at least 4" in reason
    assert not list(arguments.speculation_conflicts(ReplayConfig(window=4), speculation(4)))


def test_a_backend_that_no_graph_captures_is_refused():
    view = SimpleNamespace(device="cuda", disable_cuda_graph=False)
    (reason,) = arguments.backend_conflicts(ReplayConfig(backend="torch"), view)
    assert reason.startswith("backend 'torch' waits for the device")
    assert "--disable-cuda-graph" in reason
    for config in (ReplayConfig(), ReplayConfig(backend="triton")):
        assert not list(arguments.backend_conflicts(config, view))
    for other in (SimpleNamespace(device="cpu"), SimpleNamespace(device="cuda", disable_cuda_graph=True)):
        assert not list(arguments.backend_conflicts(ReplayConfig(backend="torch"), other))


def test_drafts_and_trees():
    assert arguments.draft_length(SimpleNamespace()) == 1
    assert arguments.draft_length(speculation(4)) == 4
    assert not arguments.drafts_trees(speculation(4, speculative_eagle_topk=1))
    assert not arguments.drafts_trees(speculation(4, speculative_eagle_topk=None))
    assert arguments.drafts_trees(speculation(4, speculative_eagle_topk=2))
    assert not arguments.drafts_trees(SimpleNamespace(speculative_eagle_topk=2))


@pytest.mark.parametrize(("preset", "dtype"), [("exact", "float32"), ("fp16-sr", "float16"), ("dual-nvfp4", "float32")])
def test_dtype_of_the_pool_follows_the_checkpoint(preset, dtype):
    config = ReplayConfig(preset=preset)
    assert arguments.state_dtype(config, None, None) == dtype
    assert arguments.state_dtype(config, dtype, dtype) == dtype


def test_another_dtype_or_a_format_that_prefill_cannot_write_is_refused():
    with pytest.raises(UnsupportedError, match="--mamba-ssm-dtype bfloat16 differs"):
        arguments.state_dtype(ReplayConfig(), "bfloat16", None)
    with pytest.raises(UnsupportedError, match="SGLANG_MAMBA_SSM_DTYPE float16 differs"):
        arguments.state_dtype(ReplayConfig(), None, "float16")
    served = "exact, fp16-sr, dual-nvfp4, dual-nvfp4-fp16 or dual-fp8"
    with pytest.raises(UnsupportedError, match=f"checkpoint of fp8 is not served.*; use the preset {served}"):
        arguments.state_dtype(ReplayConfig(preset="dual-nvfp4-fp8"), None, None)
