"""The Gated DeltaNet mixer: decode by a global of the module, verification by a method, mixed batches in one operator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from small_engine.mixers_common import causal_conv1d_update, causal_conv1d_verify, conv_sequence, split_rows


def scan(state, q, k, v, a, b, A_log, dt_bias, scale):
    """The ordinary recurrence over n tokens: q, k `[n, G, K]`, v `[n, H, V]`, a, b `[n, H]` → outputs and the state."""
    state, repeat = state.to(v.dtype), v.shape[1] // k.shape[1]
    q, k = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    g, beta = -A_log.exp() * F.softplus(a + dt_bias), b.sigmoid()
    outs = []
    for t in range(len(v)):
        key, query = (m[t].repeat_interleave(repeat, 0) for m in (k, q * scale))
        state = state * g[t].exp()[:, None, None]
        u = beta[t][:, None] * (v[t] - (state * key[:, None]).sum(-1))
        state = state + u[..., None] * key[:, None]
        outs.append((state * query[:, None]).sum(-1))
    return torch.stack(outs), state


def fused_sigmoid_gating_delta_rule_update(
    A_log,
    a,
    dt_bias,
    softplus_beta,
    softplus_threshold,
    q,
    k,
    v,
    b,
    initial_state_source,
    initial_state_indices,
    scale=None,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
    output=None,
):
    """One token a row, packed: q, k `[1, rows, G, K]`, v `[1, rows, H, V]`; states updated in place."""
    assert (softplus_beta, softplus_threshold, use_qk_l2norm_in_kernel) == (1.0, 20.0, True)
    assert cu_seqlens is not None
    out = torch.empty_like(v) if output is None else output
    for i, slot in enumerate(initial_state_indices.tolist()):
        row = slice(i, i + 1)
        y, state = scan(
            initial_state_source[slot],
            q[0, row],
            k[0, row],
            v[0, row],
            a[row],
            b[row],
            A_log,
            dt_bias,
            scale or k.shape[-1] ** -0.5,
        )
        initial_state_source[slot] = state.to(initial_state_source.dtype)
        out[0, i] = y[0]
    return out


def fused_recurrent_gated_delta_rule_cached_replay_update(**arguments):
    raise AssertionError(f"the engine's own replay ran: {sorted(arguments)}")


class Qwen3NextGatedDeltaNet(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.num_v_heads, self.num_k_heads = config.linear_num_value_heads, config.linear_num_key_heads
        self.head_v_dim, self.head_k_dim = config.linear_value_head_dim, config.linear_key_head_dim
        keys, values = self.num_k_heads * self.head_k_dim, self.num_v_heads * self.head_v_dim
        self.sizes = (keys, keys, values)
        dtype, width = config.torch_dtype, sum((keys, keys, values))
        self.in_proj = nn.Parameter(torch.randn(width + 2 * self.num_v_heads, config.hidden_size).to(dtype) / 4)
        self.conv = nn.Parameter(torch.randn(width, config.linear_conv_kernel_dim).to(dtype) / 2)
        self.out_proj = nn.Parameter(torch.randn(config.hidden_size, values).to(dtype) / 4)
        self.A_log = nn.Parameter(torch.rand(self.num_v_heads) - 1)
        self.dt_bias = nn.Parameter(torch.randn(self.num_v_heads))

    def project(self, hidden):
        packed = hidden @ self.in_proj.T
        width, heads = sum(self.sizes), self.num_v_heads
        return packed[:, :width], packed[:, width + heads :], packed[:, width : width + heads]

    def split(self, qkv):
        q, k, v = qkv.split(self.sizes, -1)
        keys = (*qkv.shape[:-1], self.num_k_heads, self.head_k_dim)
        return q.reshape(keys), k.reshape(keys), v.reshape(*qkv.shape[:-1], self.num_v_heads, self.head_v_dim)

    def forward(self, hidden_states, attn_metadata, mamba_metadata, spec_metadata=None):
        mixed_qkv, a, b = self.project(hidden_states)
        out = self.forward_core(mixed_qkv, a, b, attn_metadata, mamba_metadata, spec_metadata=spec_metadata)
        return out[0].flatten(1) @ self.out_proj.T

    def forward_core(self, mixed_qkv, a, b, attn_metadata, mamba_metadata, spec_metadata=None, output=None):
        contexts, rows, tokens = split_rows(attn_metadata)
        manager = attn_metadata.kv_cache_manager
        cache = manager.mamba_layer_cache(self.layer_idx)
        indices = mamba_metadata.state_indices[: contexts + rows]
        verify = rows > 0 and spec_metadata is not None and manager.is_speculative()
        use_replay = verify and getattr(manager, "use_replay_state_update", False)
        lengths = attn_metadata.seq_lens.long()
        starts = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0)))
        for slot in indices[:contexts][~mamba_metadata.has_initial_states[:contexts]].tolist():
            cache.temporal[slot] = 0
            cache.conv[slot] = 0
        kwargs = {
            "mixed_qkv": mixed_qkv,
            "a": a,
            "b": b,
            "has_initial_states": mamba_metadata.has_initial_states,
            "cache_indices": indices,
            "query_start_loc": starts.int(),
            "query_start_loc_long": starts,
            "batch_size": contexts + rows,
            "num_prefill_tokens": tokens,
            "num_decode_tokens": len(mixed_qkv) - tokens,
            "state_indices_p": indices[:contexts],
            "state_indices_d": indices[contexts:],
            "num_prefill": contexts,
            "num_decodes": rows,
            "use_replay": use_replay,
            "replay_metadata": manager.get_replay_state_update_metadata() if use_replay else None,
            "layer_cache": cache,
        }
        run = self.forward_extend if contexts else self.forward_decode
        return run(
            cache.conv,
            cache.temporal,
            spec_metadata=spec_metadata,
            intermediate_conv_states=cache.intermediate_conv_window if verify else None,
            intermediate_ssm_states=cache.intermediate_ssm if verify else None,
            is_target_verify=verify,
            output=output,
            **kwargs,
        )

    def forward_decode(
        self,
        conv_states,
        ssm_states,
        spec_metadata=None,
        intermediate_conv_states=None,
        intermediate_ssm_states=None,
        is_target_verify=False,
        output=None,
        **kwargs,
    ):
        del intermediate_ssm_states
        indices, a, b = kwargs["cache_indices"], kwargs["a"], kwargs["b"]
        if is_target_verify:
            out = self._verify(
                self._replay_verify_recurrent,
                conv_states,
                ssm_states,
                indices,
                kwargs["mixed_qkv"],
                a,
                b,
                spec_metadata,
                intermediate_conv_states,
                kwargs,
            )
            return out if output is None else output.copy_(out)
        mixed = causal_conv1d_update(kwargs["mixed_qkv"], conv_states, self.conv, indices)
        query, key, value = self.split(mixed[None])
        return fused_sigmoid_gating_delta_rule_update(
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            q=query,
            k=key,
            v=value,
            a=a,
            b=b,
            initial_state_source=ssm_states,
            initial_state_indices=indices,
            cu_seqlens=kwargs["query_start_loc_long"],
            use_qk_l2norm_in_kernel=True,
            softplus_beta=1.0,
            softplus_threshold=20.0,
            output=output,
        )

    def _verify(self, operator, conv_states, ssm_states, indices, mixed_qkv, a, b, spec_metadata, window, kwargs):
        rows, width = len(indices), spec_metadata.runtime_draft_len + 1
        mixed = causal_conv1d_verify(mixed_qkv.view(rows, width, -1), conv_states, self.conv, indices, window)
        query, key, value = self.split(mixed)
        assert kwargs["use_replay"], "without replay the engine needs snapshots, which this cache has none of"
        out = operator(
            query,
            key,
            value,
            a.reshape(rows, width, -1),
            b.reshape(rows, width, -1),
            ssm_states,
            indices,
            rows,
            width,
            kwargs.get("replay_metadata"),
            kwargs.get("layer_cache"),
            kwargs.get("replay_work_items"),
            kwargs.get("replay_n_writes"),
            None,
            packed_qkv=mixed,
        )
        return out.view(1, rows * width, self.num_v_heads, self.head_v_dim)

    def forward_extend(
        self,
        conv_states,
        ssm_states,
        spec_metadata=None,
        intermediate_conv_states=None,
        intermediate_ssm_states=None,
        is_target_verify=False,
        output=None,
        **kwargs,
    ):
        del intermediate_ssm_states
        tokens, contexts = kwargs["num_prefill_tokens"], kwargs["num_prefill"]
        mixed_qkv, a, b, starts = kwargs["mixed_qkv"], kwargs["a"], kwargs["b"], kwargs["query_start_loc_long"]
        chunked = contexts if is_target_verify else kwargs["batch_size"]
        slots = torch.cat((kwargs["state_indices_p"], kwargs["state_indices_d"]))[:chunked]
        out = torch.empty(1, len(mixed_qkv), self.num_v_heads, self.head_v_dim, dtype=mixed_qkv.dtype)
        for i, slot in enumerate(slots.tolist()):
            part = slice(int(starts[i]), int(starts[i + 1]))
            mixed, after = conv_sequence(mixed_qkv[part], conv_states[slot], self.conv)
            conv_states[slot] = after[-1].to(conv_states.dtype)
            y, state = scan(
                ssm_states[slot], *self.split(mixed), a[part], b[part], self.A_log, self.dt_bias, self.head_k_dim**-0.5
            )
            out[0, part], ssm_states[slot] = y, state.to(ssm_states.dtype)
        if is_target_verify and kwargs["num_decodes"]:
            out[:, tokens:] = self._verify(
                self._replay_verify_recurrent,
                conv_states,
                ssm_states,
                kwargs["state_indices_d"],
                mixed_qkv[tokens:],
                a[tokens:],
                b[tokens:],
                spec_metadata,
                intermediate_conv_states,
                kwargs,
            )
        return out if output is None else output.copy_(out)

    def _replay_verify_recurrent(
        self,
        query,
        key,
        value,
        a,
        b,
        ssm_states,
        state_indices_d,
        num_decodes,
        draft_token_num,
        replay_metadata,
        layer_cache,
        replay_work_items,
        replay_n_writes,
        output_d=None,
        packed_qkv=None,
        use_all_layer_commit=False,
    ):
        return fused_recurrent_gated_delta_rule_cached_replay_update(q=query, k=key, v=value, metadata=replay_metadata)
