"""The window algebra, vectorised: folding records and reading outputs without intermediate states.

Notation: g log decay with its K axis last, size 1 (per head) or K (per channel); G running sums of g. Every exponent is a
difference taken so that it is ≤ 0, and a decay multiplies keys and queries, never values. Sums of g are kept in float64:
after one strong decay a running fp32 sum has lost the small ones that follow.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class NewTokens(NamedTuple):
    """T new tokens: q, k `[n, H, T, K]`; v `[n, H, T, V]`; g `[n, H, T, D]`; weight `[n, H, T]` (β, or Δ)."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    weight: Tensor


def pair_scores(x: Tensor, y: Tensor, gx: Tensor, gy: Tensor, mask: Tensor) -> Tensor:
    """Σ_k x_k y_k exp(gx_k − gy_k) for pairs where `mask` holds, 0 elsewhere.

    Args:
        x: `[n, H, I, K]`. y: `[n, H, J, K]`.
        gx: `[n, H, I, D]`, gy: `[n, H, J, D]` with D = 1 or K; gx − gy ≤ 0 where the mask holds.
        mask: bool, broadcastable to `[n, H, I, J]`.

    Returns:
        `[n, H, I, J]`.
    """
    if gx.shape[-1] == 1:
        exponent = gx - gy.transpose(-1, -2)
        decay = torch.where(mask, exponent, -torch.inf).exp().to(x.dtype)
        products: Tensor = x @ y.transpose(-1, -2)
        return products * decay
    mask = mask.expand(*x.shape[:-1], y.shape[-2])
    # One query at a time: all pairs at once would hold I · J · K numbers a head.
    columns: list[Tensor] = []
    for i in range(x.shape[-2]):
        exponent = gx[..., i, None, :] - gy
        decay = torch.where(mask[..., i, :, None], exponent, -torch.inf).exp().to(x.dtype)
        columns.append((decay * y) @ x[..., i, :, None])
    scores: Tensor = torch.cat(columns, dim=-1).transpose(-1, -2)
    return scores


def solve_corrections(a: Tensor, rhs: Tensor) -> Tensor:
    """U of `(I + a) U = rhs`, `a [.., T, T]` strictly lower triangular, `rhs [.., T, V]`."""
    if a.shape[-1] == 1:
        return rhs
    solution: Tensor = torch.linalg.solve_triangular(a, rhs, upper=False, unitriangular=True)
    return solution


def lower(size: int, device: torch.device, strict: bool) -> Tensor:
    """`[size, size]` bool: row i may see column j < i (strict) or j ≤ i."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril(-1 if strict else 0)


def decay_after(g: Tensor) -> Tensor:
    """Log decay `[n, H, J, D]` in float64 from just after each record to the end of the window."""
    g = g.double()
    return g.flip(-2).cumsum(-2).flip(-2) - g


def fold_window(state: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor | None) -> Tensor:
    """Checkpoint and J records → the state after them.

    S_J = S_0 e^{G_J} + Σ_j u_j (k_j e^{G_J − G_j})ᵀ, where for the delta rule u solves
    (I + A) U = β (V − S_0 K̂), A_ij = β_i e^{G_i − G_j} k_i·k_j, i > j.

    Args:
        state: `[n, H, V, K]`. key: `[n, H, J, K]`. g: `[n, H, J, D]`.
        value: `[n, H, J, V]`: u, or with `beta` the raw values.
        beta: `[n, H, J]` to solve for u, or None when `value` is u already.
    """
    if key.shape[-2] == 0:
        return state.clone()
    running = g.double().cumsum(dim=-2)
    u = value
    if beta is not None:
        predicted = (key * running.exp().to(key.dtype)) @ state.transpose(-1, -2)
        a = beta[..., None] * pair_scores(key, key, running, running, lower(key.shape[-2], key.device, strict=True))
        u = solve_corrections(a, beta[..., None] * (value - predicted))
    to_end = decay_after(g).exp().to(key.dtype)
    return state * running[..., -1:, :].exp().to(state.dtype) + u.transpose(-1, -2) @ (key * to_end)


def read_window(
    state: Tensor,
    history: tuple[Tensor, Tensor, Tensor],
    new: NewTokens,
    ancestors: Tensor,
    delta_rule: bool,
) -> tuple[Tensor, Tensor]:
    """Outputs and corrections of T new tokens after J records.

    O = S_0 Q̂ + U_hist (K̃ᵀ Q̂) + U (W ∘ KᵀQ), with every decay folded into K̃, Q̂ and W. For a draft tree the ancestor
    mask takes the place of the causal one and path sums that of prefix sums; in topological order the system stays unit
    lower triangular.

    Args:
        state: `[n, H, V, K]`, checkpoint or read copy.
        history: key `[n, H, J, K]`, u `[n, H, J, V]`, g `[n, H, J, D]`.
        new: the tokens; those past a row's length hold zeros.
        ancestors: `[n, 1, T, T]` bool, self included.

    Returns:
        outputs `[n, H, T, V]`, u `[n, H, T, V]`.
    """
    old_key, old_u, old_g = history
    q, k, v, g, weight = new
    path = ancestors.double() @ g.double()
    whole = old_g.double().sum(dim=-2, keepdim=True)
    from_state = (path + whole).exp().to(q.dtype)
    from_end = path.exp().to(q.dtype)
    aged_key = old_key * decay_after(old_g).exp().to(old_key.dtype)

    def before(x: Tensor) -> Tensor:
        """What x reads from the state at the end of the history."""
        return (x * from_state) @ state.transpose(-1, -2) + ((x * from_end) @ aged_key.transpose(-1, -2)) @ old_u

    u = weight[..., None] * v
    if delta_rule:
        itself = torch.eye(k.shape[-2], dtype=torch.bool, device=k.device)
        a = weight[..., None] * pair_scores(k, k, path, path, ancestors & ~itself)
        u = solve_corrections(a, weight[..., None] * (v - before(k)))
    return before(q) + pair_scores(q, k, path, path, ancestors) @ u, u
