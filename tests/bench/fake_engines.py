"""Engines that are not here: modules with the calling conventions of theirs, in plain torch.

They stand in for what is read from each engine's signature and documentation: argument names, shapes, slots, snapshots.
"""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-6


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fakes where the benchmark looks for the real ones."""
    functions = {
        "mamba_ssm.ops.triton.selective_state_update": {"selective_state_update": mamba_ssm},
        "vllm.model_executor.layers.mamba.ops.mamba_ssm": {"selective_state_update": vllm_ssu},
        "vllm.third_party.flash_linear_attention.ops": {"fused_sigmoid_gating_delta_rule_update": vllm_sigmoid},
        "sglang.srt.layers.attention.mamba.ops.mamba_ssm": {"selective_state_update": snapshot_ssu},
        "sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent": {
            "fused_sigmoid_gating_delta_rule_update": sglang_sigmoid
        },
        "flashinfer.mamba": {"selective_state_update": flashinfer_ssu},
        "flashinfer.gdn_decode": {
            "gated_delta_rule_decode_pretranspose": flashinfer_one,
            "gated_delta_rule_mtp": flashinfer_drafts,
        },
        "fla.ops.gated_delta_rule": {"fused_recurrent_gated_delta_rule": fla_gdn},
        "fla.ops.kda": {"fused_recurrent_kda": fla_gdn},
        "fla.ops.kda.fused_recurrent": {"fused_recurrent_kda_fwd": fla_kda_slots},
    }
    for name, members in functions.items():
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            path = ".".join(parts[:count])
            if path not in sys.modules or not getattr(sys.modules[path], "fake", False):
                module = ModuleType(path)
                module.fake, module.__path__, module.__spec__ = True, [], _Spec()
                monkeypatch.setitem(sys.modules, path, module)
        for member, function in members.items():
            setattr(sys.modules[name], member, function)


class _Spec:
    """What `find_spec` returns for a module that is imported already."""

    parent = ""
    submodule_search_locations: tuple[str, ...] = ()


def _ssu_token(state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt_bias: Tensor):
    """`[B, H, V, K]` and one token → the next state and the output."""
    assert dt.stride(-1) == A.stride(-1) == D.stride(-1) == dt_bias.stride(-1) == 0, "one number serves a head"
    repeat = state.shape[1] // B.shape[1]
    step = F.softplus(dt.float() + dt_bias)
    keys, queries = (z.float().repeat_interleave(repeat, 1)[:, :, None] for z in (B, C))
    state = state * torch.exp(A * step[..., None]) + (step * x.float())[..., None] * keys
    return state, (state * queries).sum(-1) + D * x.float()


def mamba_ssm(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None):
    assert dt_softplus
    assert x.dim() == 3
    new, out = _ssu_token(state.float(), x, dt, A, B, C, D, dt_bias)
    state.copy_(new)
    return out.to(x.dtype)


def vllm_ssu(
    state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None,
    dst_state_batch_indices=None, null_block_id=0, out=None, num_accepted_tokens=None, cu_seqlens=None,
):  # fmt: skip
    assert dt_softplus
    source = state_batch_indices.reshape(len(state_batch_indices), -1)
    target = source if dst_state_batch_indices is None else dst_state_batch_indices
    starts = range(len(x)) if cu_seqlens is None else cu_seqlens[:-1].tolist()
    ends = range(1, len(x) + 1) if cu_seqlens is None else cu_seqlens[1:].tolist()
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        first = 0 if num_accepted_tokens is None else int(num_accepted_tokens[row]) - 1
        assert int(source[row, first]) != null_block_id
        current = state[source[row, first].long()].float()[None]
        for t, token in enumerate(range(start, end)):
            one = slice(token, token + 1)
            current, out[one] = _ssu_token(current, x[one], dt[one], A, B[one], C[one], D, dt_bias)
            assert int(target[row, t]) != null_block_id
            state[target[row, t].long()] = current[0].to(state.dtype)


def snapshot_ssu(
    state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None, pad_slot_id=-1,
    out=None, disable_state_update=False, intermediate_states_buffer=None, cache_steps=None,
    intermediate_state_indices=None,
):  # fmt: skip
    assert dt_softplus
    if x.dim() == 3:
        x, dt, B, C, out = (tensor[:, None] for tensor in (x, dt, B, C, out))
    current = state[state_batch_indices.long()].float()
    for t in range(x.shape[1]):
        current, out[:, t] = _ssu_token(current, x[:, t], dt[:, t], A, B[:, t], C[:, t], D, dt_bias)
        if intermediate_states_buffer is not None:
            assert cache_steps == x.shape[1]
            intermediate_states_buffer[intermediate_state_indices.long(), t] = current.to(state.dtype)
    if not disable_state_update:
        state[state_batch_indices.long()] = current.to(state.dtype)


def flashinfer_ssu(
    state, x, dt, A, B, C, D, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None, pad_slot_id=-1, out=None,
    disable_state_update=False, intermediate_states_buffer=None, intermediate_state_indices=None, cache_steps=0,
):  # fmt: skip
    assert dt.dtype == D.dtype == dt_bias.dtype
    snapshot_ssu(
        state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, state_batch_indices, pad_slot_id, out, disable_state_update,
        intermediate_states_buffer, cache_steps, intermediate_state_indices,
    )  # fmt: skip


def _delta_token(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float):
    """`[B, H, V, K]` and one token with processed gates, q and k to be normalised."""
    repeat = state.shape[1] // q.shape[1]
    q, k = (z.float() * torch.rsqrt((z.float() ** 2).sum(-1, keepdim=True) + EPS) for z in (q, k))
    q, k = q.repeat_interleave(repeat, 1) * scale, k.repeat_interleave(repeat, 1)
    state = state * (g[..., None, None] if g.dim() == 2 else g[:, :, None, :]).exp()
    u = beta[..., None] * (v.float() - (state * k[:, :, None]).sum(-1))
    state = state + u[..., None] * k[:, :, None]
    return state, (state * q[:, :, None]).sum(-1)


def _gates(a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None, key_dim: int):
    """Raw gates `[N, H]` or `[N, H·K]` of N tokens → log decays and β."""
    heads = len(A_log)
    raw, rate = a.float() + dt_bias, A_log.exp()
    if a.shape[1] == heads * key_dim and key_dim > 1:
        raw, rate = raw.reshape(-1, heads, key_dim), rate[:, None]
    g = -rate * F.softplus(raw) if lower_bound is None else lower_bound * torch.sigmoid(rate * raw)
    return g, torch.sigmoid(b.float())


def vllm_sigmoid(
    A_log, a, b, dt_bias, q, k, v, beta=1.0, threshold=20.0, scale=None, initial_state=None, inplace_final_state=True,
    cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None, use_qk_l2norm_in_kernel=False, is_kda=False,
    lower_bound=None,
):  # fmt: skip
    assert use_qk_l2norm_in_kernel
    assert inplace_final_state
    assert q.shape[0] == 1
    g, weight = _gates(a, b, A_log, dt_bias, lower_bound, q.shape[-1] if is_kda else 1)
    index = ssm_state_indices.reshape(len(ssm_state_indices), -1)
    out = torch.empty_like(v)
    for row, (start, end) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
        first = 0 if num_accepted_tokens is None else int(num_accepted_tokens[row]) - 1
        current = initial_state[index[row, first].long()].float()[None]
        for t in range(end - start):
            one = slice(start + t, start + t + 1)
            current, out[:, start + t] = _delta_token(
                current, q[0, one], k[0, one], v[0, one], g[one], weight[one], scale
            )
            initial_state[index[row, t].long()] = current[0].to(initial_state.dtype)
    return out, initial_state


def sglang_sigmoid(
    A_log, a, dt_bias, softplus_beta, softplus_threshold, q, k, v, b, initial_state_source, initial_state_indices,
    scale=None, use_qk_l2norm_in_kernel=False, cu_seqlens=None, is_kda=False, lower_bound=None,
    disable_state_update=False, intermediate_states_buffer=None, intermediate_state_indices=None, cache_steps=None,
):  # fmt: skip
    assert (softplus_beta, softplus_threshold) == (1.0, 20.0)
    g, weight = _gates(a, b, A_log, dt_bias, lower_bound, q.shape[-1] if is_kda else 1)
    batch = len(cu_seqlens) - 1
    q, k, v, g, weight = (z.reshape(batch, -1, *z.shape[1:]) for z in (q[0], k[0], v[0], g, weight))
    current = initial_state_source[initial_state_indices.long()].float()
    out = torch.empty_like(v)
    for t in range(q.shape[1]):
        current, out[:, t] = _delta_token(current, q[:, t], k[:, t], v[:, t], g[:, t], weight[:, t], scale)
        if intermediate_states_buffer is not None:
            intermediate_states_buffer[intermediate_state_indices.long(), t] = current.to(initial_state_source.dtype)
    if not disable_state_update:
        initial_state_source[initial_state_indices.long()] = current.to(initial_state_source.dtype)
    return out.reshape(1, -1, *out.shape[2:])


def flashinfer_one(
    q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True, initial_state=None
):  # fmt: skip
    g, weight = _gates(a[:, 0], b[:, 0], A_log, dt_bias, None, 1)
    new, output[:, 0] = _delta_token(state.float(), q[:, 0], k[:, 0], v[:, 0], g, weight, scale)
    state.copy_(new)
    return output, state


def flashinfer_drafts(
    q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale=None, output=None,
    intermediate_states_buffer=None, disable_state_update=None, use_qk_l2norm=True,
):  # fmt: skip
    current = initial_state[initial_state_indices.long()].float()
    for t in range(q.shape[1]):
        g, weight = _gates(a[:, t], b[:, t], A_log, dt_bias, None, 1)
        current, output[:, t] = _delta_token(current, q[:, t], k[:, t], v[:, t], g, weight, scale)
        intermediate_states_buffer[:, t] = current.to(initial_state.dtype)
    return output, initial_state


def fla_gdn(
    q, k, v, g=None, beta=None, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
):  # fmt: skip
    """An older one, that holds states as [K, V] alone."""
    assert q.shape[1] == 1
    state = initial_state.float().transpose(-1, -2)
    state, out = _delta_token(state, q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0], scale)
    return out[:, None].to(v.dtype), state.transpose(-1, -2).contiguous()


def fla_kda_slots(
    q, k, v, g, beta, scale=None, initial_state=None, inplace_final_state=True, state_v_first=False, cu_seqlens=None,
    ssm_state_indices=None, use_qk_l2norm_in_kernel=False, **kwargs,
):  # fmt: skip
    index = ssm_state_indices.reshape(len(ssm_state_indices), -1)
    out = torch.empty_like(v)
    for row, (start, end) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
        current = initial_state[index[row, 0].long()].float()[None]
        current = current if state_v_first else current.transpose(-1, -2)
        for t in range(end - start):
            one = slice(start + t, start + t + 1)
            current, out[:, start + t] = _delta_token(
                current, q[0, one], k[0, one], v[0, one], g[0, one], beta[0, one], scale
            )
            kept = current if state_v_first else current.transpose(-1, -2)
            initial_state[index[row, t].long()] = kept[0].to(initial_state.dtype)
    return out, initial_state
