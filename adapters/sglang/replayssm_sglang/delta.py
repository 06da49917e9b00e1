"""GDN and KDA: our step in place of SGLang's decode and verify kernels. The convolution before it stays SGLang's."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm import LayerKind, RawGate, Recurrence, TokenInputs, UnsupportedError
from replayssm_sglang.calls import Foreign
from replayssm_sglang.session import Session


class DeltaKernel:
    """Stands in for `decode_kernel` and `verify_kernel` of SGLang's dispatchers; has their calls and layouts.

    The layer that calls is known by the address of its state.
    """

    supports_packed_decode = True
    supports_packed_decode_safe_gate = True
    supports_safe_gate_verify = True
    supports_strided_target_verify_qkv = True
    supports_fused_chain_verify = False

    def __init__(self, session: Session) -> None:
        self.session = session

    def packed_decode(
        self,
        mixed_qkv: Tensor,
        a: Tensor,
        b: Tensor,
        *,
        A_log: Tensor,
        dt_bias: Tensor,
        ssm_states: Tensor,
        cache_indices: Tensor,
        lower_bound: float | None = None,
        **_options: Foreign,
    ) -> Tensor:
        """One token a row: `mixed_qkv [B, q + k + v]` after the convolution, raw gates `a`, `b` → `[1, B, H, V]`."""
        r = self.session.recurrence
        width = r.groups * r.key_dim
        q, k, v = torch.split(mixed_qkv[None], [width, width, r.heads * r.value_dim], dim=-1)
        own = {"A_log": A_log, "dt_bias": dt_bias, "ssm_states": ssm_states, "cache_indices": cache_indices}
        return self.decode(q, k, v, a, b, **own, lower_bound=lower_bound)

    def decode(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        a: Tensor,
        b: Tensor,
        *,
        A_log: Tensor,
        dt_bias: Tensor,
        ssm_states: Tensor,
        cache_indices: Tensor,
        lower_bound: float | None = None,
        **_options: Foreign,
    ) -> Tensor:
        """The same with q, k, v `[1, B, heads, dim]` taken apart."""
        r = self.session.recurrence
        inputs = _inputs(r, (q.shape[1], 1), q, k, v, a, b, _gate(r, A_log, dt_bias, lower_bound))
        out = self.session.steps.decode(self.session.layer_of(ssm_states), inputs, cache_indices)
        return out.transpose(0, 1)

    def target_verify(
        self,
        A_log: Tensor,
        dt_bias: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        a: Tensor,
        b: Tensor,
        *,
        ssm_states: Tensor,
        cache_indices: Tensor,
        cache_steps: int,
        retrieve_parent_token: Tensor | None = None,
        lower_bound: float | None = None,
        **_options: Foreign,
    ) -> Tensor:
        """T tokens a row, packed: q, k, v with B·T tokens → `[1, B·T, H, V]`, no state written.

        Args:
            cache_steps: T.
            retrieve_parent_token: `[B, T]` draft trees, None for chains.
        """
        r = self.session.recurrence
        rows = q.numel() // (r.groups * r.key_dim * cache_steps)
        inputs = _inputs(r, (rows, cache_steps), q, k, v, a, b, _gate(r, A_log, dt_bias, lower_bound))
        out = self.session.steps.verify(
            self.session.layer_of(ssm_states), inputs, cache_indices[:rows], tree_parents(retrieve_parent_token, rows)
        )
        return out.reshape(1, rows * cache_steps, r.heads, r.value_dim)

    def extend(self, *_args: Foreign, **_options: Foreign) -> None:
        """Never called: prefill keeps SGLang's kernel."""
        raise UnsupportedError("prefill runs SGLang's own kernel")


def tree_parents(parents: Tensor | None, rows: int) -> Tensor | None:
    """SGLang's parents `[≥ B, T]`, undefined for the root → the core's `[B, T]`, −1 for the root."""
    if parents is None:
        return None
    parents = parents[:rows]
    root = torch.arange(parents.shape[1], device=parents.device) == 0
    return torch.where(root, -1, parents)


def _inputs(
    r: Recurrence,
    shape: tuple[int, int],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    raw: RawGate,
) -> TokenInputs:
    return TokenInputs(
        q=_unpack(q, (*shape, r.groups, r.key_dim)),
        k=_unpack(k, (*shape, r.groups, r.key_dim)),
        v=_unpack(v, (*shape, r.heads, r.value_dim)),
        gate=a.reshape(*shape, *r.gate_shape),
        beta=b.reshape(*shape, r.heads),
        raw=raw,
        qk_l2norm=True,
        scale=r.key_dim**-0.5,
    )


def _unpack(x: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """`[(1,) B T, heads dim]` or `[1, B T, heads, dim]` → `[B, T, heads, dim]`, a view: only the tokens' stride is free."""
    rows, draft, heads, dim = shape
    flat = x.reshape(rows * draft, heads, dim) if x.dim() != 2 else x.view(rows * draft, heads, dim)
    return flat.view(rows, draft, heads, dim)


def _gate(r: Recurrence, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> RawGate:
    bias = dt_bias.reshape(r.heads, r.key_dim) if r.kind is LayerKind.KDA else dt_bias.reshape(-1)
    return RawGate(dt_bias=bias.detach(), A_log=A_log.detach().reshape(-1), lower_bound=lower_bound)
