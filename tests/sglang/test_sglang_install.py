"""Our parts in place of SGLang's, without the engine: what is replaced, and what ends the process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fake_engine import GROUPS, HEADS, LAYERS, K, V, make_session

from replayssm import TokenInputs, UnsupportedError
from replayssm_sglang import facts, install
from replayssm_sglang.delta import DeltaKernel
from replayssm_sglang.metrics import Exporter


def decode(session, layers):
    for index in layers:
        inputs = TokenInputs(
            q=torch.randn(1, 1, GROUPS, K),
            k=torch.randn(1, 1, GROUPS, K),
            v=torch.randn(1, 1, HEADS, V),
            gate=-torch.rand(1, 1, HEADS),
            beta=torch.rand(1, 1, HEADS),
        )
        session.steps.decode(index, inputs, torch.tensor([1]))


def test_every_kernel_that_decodes_or_verifies_is_ours():
    session, _ = make_session()
    dispatcher = SimpleNamespace(
        decode_kernel=1, verify_kernel=2, tree_verify_kernel=3, extend_kernel=4, supports_packed_decode=False
    )
    backend = SimpleNamespace(
        kernel_dispatcher=dispatcher,
        _fused_chain_verify_fn=len,
        _can_run_dspark_cutedsl_mtp=lambda **_: True,
    )
    install.take_delta_kernels(session, None, backend, SimpleNamespace(is_draft_worker=False))
    for name in ("decode_kernel", "verify_kernel", "tree_verify_kernel"):
        assert isinstance(getattr(dispatcher, name), DeltaKernel)
    assert dispatcher.extend_kernel == 4
    assert dispatcher.supports_packed_decode
    assert backend._fused_chain_verify_fn is None
    assert not backend._can_run_dspark_cutedsl_mtp(layer=None)


def test_a_verify_kernel_that_commits_on_its_own_ends_the_process():
    session, _ = make_session()
    backend = SimpleNamespace(kernel_dispatcher=SimpleNamespace(), accept_lens_pool=torch.ones(2))
    with pytest.raises(SystemExit, match="--linear-attn-verify-backend triton"):
        install.take_delta_kernels(session, None, backend, SimpleNamespace(is_draft_worker=False))


@pytest.mark.parametrize("reached", [0, 1])
def test_a_decode_past_our_layers_ends_the_process(reached):
    session, _ = make_session()
    reporter = SimpleNamespace(current_scheduler_metrics_enabled=False)
    decode(session, range(reached))
    with pytest.raises(SystemExit, match="does not reach our layers"):
        install.after_decode(Exporter(), session, None, reporter, can_run_cuda_graph=False)
    decode(session, range(len(LAYERS)))
    install.after_decode(Exporter(), session, None, reporter, can_run_cuda_graph=False)


def test_heads_that_do_not_split_are_refused():
    class Config:
        @property
        def mamba2_cache_params(self):
            raise AssertionError("4 is not divisible by 3")

    with pytest.raises(UnsupportedError, match=r"--tp-size \(4 is not divisible by 3\); use one that divides"):
        facts.cache_params(Config())
    assert facts.cache_params(SimpleNamespace(mamba2_cache_params="theirs")) == "theirs"
