"""The Mamba-2 mixer: one operator attribute serves ordinary decode and, with snapshots, verification."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from small_engine.mixers_common import causal_conv1d_update, causal_conv1d_verify, conv_sequence, split_rows


def selective_state_update(
    state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None, out=None
):
    """One token a row, states updated in place."""
    del z
    for i, slot in enumerate(state_batch_indices.tolist()):
        step, new = scan(
            state[slot],
            x[i : i + 1],
            dt[i : i + 1, :, 0],
            A[:, 0, 0],
            B[i : i + 1],
            C[i : i + 1],
            D[:, 0],
            dt_bias[:, 0],
        )
        assert dt_softplus
        state[slot] = new.to(state.dtype)
        out[i] = step[0].to(out.dtype)
    return out


def scan(state, x, dt, A, B, C, D, dt_bias):
    """The ordinary recurrence over n tokens: x `[n, H, P]`, dt `[n, H]`, B, C `[n, G, N]` → outputs and the state."""
    state, repeat = state.to(x.dtype), x.shape[1] // B.shape[1]
    delta = F.softplus(dt + dt_bias)
    outs = []
    for t in range(len(x)):
        key, query = (m[t].repeat_interleave(repeat, 0) for m in (B, C))
        decay = (A * delta[t]).exp()
        state = state * decay[:, None, None] + (delta[t][:, None] * x[t])[..., None] * key[:, None]
        outs.append((state * query[:, None]).sum(-1) + D[:, None] * x[t])
    return torch.stack(outs), state


class Mamba2Mixer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx, self.nheads, self.head_dim = layer_idx, config.mamba_num_heads, config.mamba_head_dim
        self.n_groups, self.d_state = config.n_groups, config.ssm_state_size
        inner, keys = self.nheads * self.head_dim, self.n_groups * self.d_state
        self.sizes = (inner, keys, keys)
        dtype = config.torch_dtype
        self.in_proj = nn.Parameter(torch.randn(sum(self.sizes) + self.nheads, config.hidden_size).to(dtype) / 4)
        self.conv = nn.Parameter(torch.randn(sum(self.sizes), config.conv_kernel).to(dtype) / 2)
        self.out_proj = nn.Parameter(torch.randn(config.hidden_size, inner).to(dtype) / 4)
        self.A = nn.Parameter(-torch.rand(self.nheads) - 0.05)
        self.D = nn.Parameter(torch.randn(self.nheads))
        self.dt_bias = nn.Parameter(torch.randn(self.nheads) - 1)
        self.selective_state_update_func = selective_state_update

    def project(self, hidden):
        packed = hidden @ self.in_proj.T
        return packed[:, : sum(self.sizes)], packed[:, sum(self.sizes) :]

    def split(self, xbc):
        x, B, C = xbc.split(self.sizes, -1)
        groups = (*xbc.shape[:-1], self.n_groups, self.d_state)
        return x.reshape(*xbc.shape[:-1], self.nheads, self.head_dim), B.reshape(groups), C.reshape(groups)

    def forward(self, hidden_states, attn_metadata, mamba_metadata, spec_metadata=None):
        contexts, rows, tokens = split_rows(attn_metadata)
        cache = attn_metadata.kv_cache_manager.mamba_layer_cache(self.layer_idx)
        slots = mamba_metadata.state_indices[: contexts + rows]
        xbc, dt = self.project(hidden_states)
        out = torch.empty(len(hidden_states), self.nheads, self.head_dim, dtype=hidden_states.dtype)
        start = 0
        for i in range(contexts):
            part = slice(start, start + int(attn_metadata.seq_lens[i]))
            start, slot = part.stop, int(slots[i])
            fresh = not bool(mamba_metadata.has_initial_states[i])
            conv, state = (torch.zeros_like(t[slot]) if fresh else t[slot] for t in (cache.conv, cache.temporal))
            mixed, after = conv_sequence(xbc[part], conv, self.conv)
            y, state = scan(state, *self._scanned(mixed, dt[part]))
            out[part], cache.conv[slot], cache.temporal[slot] = y, after[-1], state.to(cache.temporal.dtype)
        if rows:
            verify = attn_metadata.kv_cache_manager.is_speculative() and spec_metadata is not None
            self._decode(
                self.selective_state_update_func,
                cache,
                slots[contexts:],
                xbc[tokens:],
                dt[tokens:],
                out[tokens:],
                spec_metadata if verify else None,
            )
        return out.flatten(1) @ self.out_proj.T

    def _scanned(self, mixed, dt):
        x, B, C = self.split(mixed)
        return x, dt, self.A, B, C, self.D, self.dt_bias

    def _decode(self, operator, cache, slots, xbc, dt, out, spec_metadata):
        rows = len(slots)
        if spec_metadata is None:
            mixed, extra, shape = causal_conv1d_update(xbc, cache.conv, self.conv, slots), {}, (rows,)
        else:
            width = spec_metadata.runtime_draft_len + 1
            shape = (rows, width)
            mixed = causal_conv1d_verify(
                xbc.view(rows, width, -1), cache.conv, self.conv, slots, cache.intermediate_conv_window
            )
            extra = {
                "disable_state_update": True,
                "intermediate_states_buffer": cache.intermediate_ssm,
                "cache_steps": width,
                "intermediate_state_indices": torch.arange(rows),
            }
        x, B, C = self.split(mixed.view(*shape, -1))
        H, P, N = self.nheads, self.head_dim, self.d_state
        steps = dt.to(torch.promote_types(dt.dtype, torch.float32)).view(*shape, H)
        operator(
            cache.temporal,
            x,
            steps[..., None].expand(*shape, H, P),
            self.A[:, None, None].expand(H, P, N),
            B,
            C,
            self.D[:, None].expand(H, P),
            z=None,
            dt_bias=self.dt_bias[:, None].expand(H, P),
            dt_softplus=True,
            state_batch_indices=slots,
            out=out.view(*shape, H, P),
            **extra,
        )
