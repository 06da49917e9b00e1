"""SGLang's calls of our kernels, packed as it packs them, against the core's own step; acceptance of chains and trees."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fake_engine import GROUPS, HEADS, LAYERS, K, V, make_session

from replayssm import LayerKind, RawGate, ReplayState, StepError, TokenInputs, UnsupportedError
from replayssm_sglang import mamba2, speculation
from replayssm_sglang.delta import DeltaKernel, tree_parents

SLOTS = torch.tensor([2, 0, 4], dtype=torch.int32)
"""Three rows, the second of which is padding."""


def reference(session, rows):
    """Layers of their own with the same checkpoints, one slot a row."""
    made = []
    for index, layer in enumerate(session.layers):
        state = ReplayState(session.layout(rows), A=layer.layer.A)
        state.load(torch.arange(rows), session.states[index][SLOTS.long()])
        made.append(state)
    return made


def projections(kind, tokens):
    """What SGLang's delta layers hand over: packed q, k, v after the convolution, raw gates, weights."""
    gate = HEADS * K if kind is LayerKind.KDA else HEADS
    return SimpleNamespace(
        mixed=torch.randn(tokens, 2 * GROUPS * K + HEADS * V),
        a=torch.randn(tokens, gate),
        b=torch.randn(tokens, HEADS),
        A_log=torch.rand(HEADS),
        dt_bias=torch.randn(gate),
    )


def as_inputs(kind, x, rows, draft, lower_bound=None):
    q, k, v = x.mixed.split([GROUPS * K, GROUPS * K, HEADS * V], -1)
    gate = (HEADS, K) if kind is LayerKind.KDA else (HEADS,)
    return TokenInputs(
        q=q.reshape(rows, draft, GROUPS, K),
        k=k.reshape(rows, draft, GROUPS, K),
        v=v.reshape(rows, draft, HEADS, V),
        gate=x.a.reshape(rows, draft, *gate),
        beta=x.b.reshape(rows, draft, HEADS),
        raw=RawGate(A_log=x.A_log, dt_bias=x.dt_bias.reshape(gate), lower_bound=lower_bound),
        qk_l2norm=True,
        scale=K**-0.5,
    )


def filled(kind, **options):
    session, pool = make_session(kind, **options)
    session.states.copy_(torch.randn_like(session.states))
    return session, pool


@pytest.mark.parametrize(("kind", "lower_bound"), [(LayerKind.GDN, None), (LayerKind.KDA, None), (LayerKind.KDA, -5.0)])
@pytest.mark.parametrize("packed", [True, False])
def test_delta_decode(kind, lower_bound, packed):
    session, _ = filled(kind)
    kernel, ours = DeltaKernel(session), reference(session, 3)
    for _ in range(2 * session.config.window):
        for index in range(len(LAYERS)):
            x = projections(kind, 3)
            more = {"A_log": x.A_log.view(1, 1, -1, 1), "dt_bias": x.dt_bias, "lower_bound": lower_bound}
            more |= {"ssm_states": session.states[index], "cache_indices": SLOTS}
            if packed:
                out = kernel.packed_decode(x.mixed, x.a, x.b, scale=K**-0.5, num_v_heads=HEADS, head_v_dim=V, **more)
            else:
                q, k, v = x.mixed.split([GROUPS * K, GROUPS * K, HEADS * V], -1)
                heads = (q.view(1, 3, GROUPS, K), k.view(1, 3, GROUPS, K), v.view(1, 3, HEADS, V))
                out = kernel.decode(*heads, x.a, x.b, query_start_loc=None, **more)
            expected = ours[index].decode(as_inputs(kind, x, 3, 1, lower_bound), torch.arange(3))
            assert out.shape == (1, 3, HEADS, V)
            torch.testing.assert_close(out[0, [0, 2]], expected[[0, 2], 0])
            assert not out[0, 1].any()
    assert session.layers.cursors.committed[[2, 4]].tolist() == [4, 4]


def verify(session, kernel, kind, draft, parents=None):
    """One verify step of every layer through SGLang's call: inputs as the core takes them, by layer."""
    seen = []
    for index in range(len(LAYERS)):
        x = projections(kind, 3 * draft)
        q, k, v = (part[None].unflatten(-1, (-1, dim)) for part, dim in zip(
            x.mixed.split([GROUPS * K, GROUPS * K, HEADS * V], -1), (K, K, V), strict=True
        ))  # fmt: skip
        out = kernel.target_verify(
            x.A_log, x.dt_bias, q, k, v, x.a, x.b, ssm_states=session.states[index], cache_indices=SLOTS,
            query_start_loc=None, intermediate_states_buffer=None, intermediate_state_indices=None, cache_steps=draft,
            retrieve_parent_token=parents,
        )  # fmt: skip
        assert out.shape == (1, 3 * draft, HEADS, V)
        seen.append((as_inputs(kind, x, 3, draft), out.view(3, draft, HEADS, V)))
    return seen


class Linear:
    """The linear attention backend as the commit sees it."""

    def __init__(self, pool):
        self.forward_metadata = SimpleNamespace(mamba_cache_indices=SLOTS)
        self.req_to_token_pool = SimpleNamespace(get_speculative_mamba2_params_all_layers=lambda: pool.mamba_cache)


def scatter(monkeypatch):
    """The convolution's roll-back, noted instead of run."""
    calls = []
    monkeypatch.setattr(
        speculation, "_roll_back", lambda _, slots, steps: calls.append((slots.tolist(), steps.tolist()))
    )
    return calls


@pytest.mark.parametrize("kind", [LayerKind.GDN, LayerKind.KDA])
def test_delta_verify_and_commit_of_chains(kind, monkeypatch):
    calls = scatter(monkeypatch)
    session, pool = filled(kind, draft=3)
    kernel, ours = DeltaKernel(session), reference(session, 3)
    for accepted in ([3, 1, 2], [1, 1, 3], [2, 1, 1], [3, 1, 3]):
        for (inputs, out), layer in zip(verify(session, kernel, kind, 3), ours, strict=True):
            expected = layer.verify(inputs, torch.arange(3))
            torch.testing.assert_close(out[[0, 2]], expected[[0, 2]])
            layer.commit(accepted)
        speculation.note_acceptance(session, None, None, torch.tensor(accepted), torch.zeros(3, 3), 3)
        backend = SimpleNamespace(linear_attn_backend=Linear(pool))
        speculation.commit(session, backend, torch.tensor(accepted) - 1, None, None, None)
        assert calls[-1] == ([2, -1, 4], [a - 1 for a in accepted])
    assert session.layers.cursors.committed[[2, 4]].tolist() == ours[0].cursors.committed[[0, 2]].tolist()


def test_delta_verify_and_commit_of_trees_with_states_for_the_prefix_cache(monkeypatch):
    calls = scatter(monkeypatch)
    session, pool = filled(LayerKind.GDN, draft=4, tree=True)
    kernel, ours = DeltaKernel(session), reference(session, 3)
    parents = torch.tensor([[9, 0, 0, 2], [9, 0, 1, 2], [9, 0, 0, 1]])  # SGLang leaves the root's undefined
    for (inputs, out), layer in zip(verify(session, kernel, LayerKind.GDN, 4, parents), ours, strict=True):
        expected = layer.verify(inputs, torch.arange(3), parents=tree_parents(parents, 3))
        torch.testing.assert_close(out[[0, 2]], expected[[0, 2]])
        layer.commit_path([[0, 2, 3], [0, -1, -1], [0, 1, -1]])
    lengths = torch.tensor([3, 1, 2])
    index = torch.tensor([[0, 2, 3, -1], [4, -1, -1, -1], [8, 9, -1, -1]])
    speculation.note_acceptance(session, None, None, lengths, index, 4)
    assert session.path.tolist() == [[0, 2, 3, -1], [0, -1, -1, -1], [0, 1, -1, -1]]
    steps = torch.tensor([2, -1, -1])
    backend = SimpleNamespace(linear_attn_backend=Linear(pool))
    speculation.commit(session, backend, torch.tensor([3, 0, 1]), torch.tensor([5, 1, 1]), steps, None)
    for layer, expected in zip(session.layers, ours, strict=True):
        torch.testing.assert_close(layer.state([2, 4]), expected.state([0, 2]))
        # Token 2 is the second of the accepted path: its state went to slot 5.
        torch.testing.assert_close(layer.state([5]), expected.state([0], count=[2]))
    assert calls == [([2, -1, 4], [3, 0, 1]), ([5, -1, -1], [2, -1, -1])]


@pytest.mark.parametrize("draft", [1, 3])
def test_mamba2(draft, monkeypatch):
    scatter(monkeypatch)
    session, pool = filled(LayerKind.MAMBA2, draft=draft)
    ours = reference(session, 3)
    rows = (3,) if draft == 1 else (3, draft)
    bias, skip = torch.randn(HEADS), torch.randn(HEADS)
    for _ in range(7):
        for index in range(len(LAYERS)):
            x, dt = torch.randn(*rows, HEADS, V), torch.randn(*rows, HEADS)
            B, C = torch.randn(2, *rows, GROUPS, K)
            out = torch.full_like(x, 7.0)
            mamba2.selective_state_update(
                session, session.states[index], x, dt[..., None].expand(*rows, HEADS, V), None, B, C,
                skip[:, None].expand(-1, V), dt_bias=bias[:, None].expand(-1, V), dt_softplus=True,
                state_batch_indices=SLOTS, out=out, disable_state_update=draft > 1,
            )  # fmt: skip
            shaped = [t.reshape(3, draft, *t.shape[len(rows) :]) for t in (C, B, x, dt)]
            inputs = TokenInputs(
                q=shaped[0], k=shaped[1], v=shaped[2], gate=shaped[3], raw=RawGate(dt_bias=bias), D=skip
            )
            expected = ours[index].verify(inputs, torch.arange(3)).reshape(out.shape)
            torch.testing.assert_close(out[[0, 2]], expected[[0, 2]])
            ours[index].commit(1)
        if draft > 1:
            backend = SimpleNamespace(linear_attn_backend=Linear(pool))
            speculation.commit(session, backend, torch.zeros(3, dtype=torch.long), None, None, None)


def test_decay_rates_are_the_models_own_weights():
    class Mixer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.A = torch.nn.Parameter(-torch.rand(2))

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(Mixer() if i != 1 else torch.nn.Identity() for i in range(3))
    rates = mamba2.decay_rates(model, Mixer, [0, 2])
    assert [r.data_ptr() for r in rates] == [model.layers[i].A.data_ptr() for i in (0, 2)]
    with pytest.raises(UnsupportedError, match=r"layers \[0, 1\]"):
        mamba2.decay_rates(model, Mixer, [0, 1])
    model.layers[2].A.data[0] = 0.0
    with pytest.raises(UnsupportedError, match=r"layers \[2\] are not all below 0, as --load-format dummy"):
        mamba2.decay_rates(model, Mixer, [0, 2])


def test_a_layer_out_of_order_is_refused():
    session, _ = filled(LayerKind.GDN)
    kernel, x = DeltaKernel(session), projections(LayerKind.GDN, 3)
    with pytest.raises(StepError, match="before layer 0"):
        kernel.packed_decode(
            x.mixed, x.a, x.b, A_log=x.A_log, dt_bias=x.dt_bias, ssm_states=session.states[1], cache_indices=SLOTS
        )
