"""The float64 reference against loops over single numbers, and raw gates against their published formulas."""

from __future__ import annotations

import math

import pytest
import torch

from replayssm import LayerKind, Recurrence
from replayssm.conformance.inputs import Source
from replayssm.reference.recurrence import run_recurrence

KINDS = list(LayerKind)


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def decay_of(r: Recurrence, x, A, b: int, t: int, h: int, k: int) -> tuple[float, float]:
    """(decay of channel k, Δ) from the inputs as given, raw or processed."""
    gate = float(x.gate[b, t, h, k] if r.channel_decay else x.gate[b, t, h])
    if x.raw is not None:
        bias = x.raw.dt_bias
        gate += float(bias[h, k] if r.channel_decay else bias[h])
        if r.kind is LayerKind.MAMBA2:
            low, high = x.raw.dt_limit
            gate = min(max(softplus(gate), low), high)
        elif x.raw.lower_bound is not None:
            gate = x.raw.lower_bound * sigmoid(math.exp(float(x.raw.A_log[h])) * gate)
        else:
            gate = -math.exp(float(x.raw.A_log[h])) * softplus(gate)
    return math.exp(gate * float(A[h])) if A is not None else math.exp(gate), gate


def unit(vector: list[float], wanted: bool) -> list[float]:
    norm = math.sqrt(sum(c * c for c in vector) + 1e-6)
    return [c / norm for c in vector] if wanted else vector


def by_hand(r: Recurrence, state, x, A):
    """The formulas of the layer, one number at a time."""
    batch, draft = x.v.shape[:2]
    state = state.tolist()
    out = torch.zeros(batch, draft, r.heads, r.value_dim, dtype=torch.float64)
    for b in range(batch):
        for t in range(draft):
            for h in range(r.heads):
                group = h // (r.heads // r.groups)
                key = unit(x.k[b, t, group].tolist(), x.qk_l2norm)
                query = unit(x.q[b, t, group].tolist(), x.qk_l2norm)
                decays = [decay_of(r, x, A, b, t, h, k)[0] for k in range(r.key_dim)]
                for v in range(r.value_dim):
                    row = [s * a for s, a in zip(state[b][h][v], decays, strict=True)]
                    value = float(x.v[b, t, h, v])
                    if r.delta_rule:
                        beta = float(x.beta[b, t, h])
                        beta = sigmoid(beta) if x.raw is not None else beta
                        u = beta * (value - sum(s * k for s, k in zip(row, key, strict=True)))
                    else:
                        u = decay_of(r, x, A, b, t, h, 0)[1] * value
                    row = [s + u * k for s, k in zip(row, key, strict=True)]
                    state[b][h][v] = row
                    y = sum(s * q for s, q in zip(row, query, strict=True)) * x.scale
                    if x.D is not None:
                        y += float(x.D[h]) * value
                    if x.z is not None:
                        z = float(x.z[b, t, h, v])
                        y *= z * sigmoid(z)
                    out[b, t, h, v] = y
    return out, torch.tensor(state, dtype=torch.float64)


@pytest.mark.parametrize("raw", [False, True], ids=["processed", "raw"])
@pytest.mark.parametrize("kind", KINDS)
def test_reference_equals_loops_over_numbers(kind, raw):
    r = Recurrence(kind, heads=4, groups=2, value_dim=3, key_dim=5)
    source = Source(r, torch.float64, seed=3, raw=raw, extras=True)
    state, inputs = source.states(2), source.tokens(2, 4)
    out, final = run_recurrence(r, state, inputs, source.A)
    expected_out, expected_final = by_hand(r, state, inputs, source.A)
    torch.testing.assert_close(out, expected_out, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(final, expected_final, rtol=1e-13, atol=1e-14)
