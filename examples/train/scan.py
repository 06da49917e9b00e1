"""Training versions of what transformers' torch code does slowly, or wrongly, in a backward pass.

Its chunked delta rule indexes a tensor of all chunks once a chunk, whose gradient is a tensor of that
size for every chunk, and KDA's pairwise decay holds 64 key vectors a token. Here chunks are unbound
once and decays are paired in blocks. Its KDA gate selects between x and log(1 + exp(x)) after computing
both, so from x = 89 on the gradient is 0 times infinity: not a number. Same mathematics here, fp32
throughout, every exponent at most 0.
"""

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.qwen3_5 import modeling_qwen3_5

CHUNK, BLOCK = 64, 16
ATTENTION = "memory_light"


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _chunks(x: torch.Tensor, heads: int) -> torch.Tensor:
    """`[batch, tokens, heads', ...]` to fp32 `[batch, heads, chunks, CHUNK, ...]`, padded with zeros."""
    x = x.repeat_interleave(heads // x.shape[2], dim=2).transpose(1, 2).float()
    padding = [0, 0] * (x.ndim - 3) + [0, -x.shape[2] % CHUNK]
    return F.pad(x, padding).unflatten(2, (-1, CHUNK))


def _masked_decay(total: torch.Tensor, size: int) -> torch.Tensor:
    """exp(total_i - total_j) for i >= j, else 0: `[..., size, K]` to `[..., size, size, K]`."""
    later = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    difference = total.unsqueeze(-2) - total.unsqueeze(-3)
    return difference.masked_fill(later[..., None], float("-inf")).exp()


def pair_by_head(rows: list[torch.Tensor], key: torch.Tensor, total: torch.Tensor) -> list[torch.Tensor]:
    """Return row_i · key_j · exp(total_i - total_j) for i >= j, `[..., CHUNK, CHUNK]`, one decay a head."""
    decay = _masked_decay(total, CHUNK)[..., 0]
    return [(row @ key.mT) * decay for row in rows]


def pair_by_channel(rows: list[torch.Tensor], key: torch.Tensor, total: torch.Tensor) -> list[torch.Tensor]:
    """The same with one decay a key channel: exact inside blocks, factored at block borders outside."""
    blocks = [x.unflatten(-2, (-1, BLOCK)) for x in (key, total, *rows)]
    weighted = blocks[0].unsqueeze(-3) * _masked_decay(blocks[1], BLOCK)
    own = (weighted @ torch.stack(blocks[2:], -1)).unbind(-1)  # each [..., blocks, BLOCK, BLOCK]
    result = []
    for row, diagonal in zip(rows, own, strict=True):
        bands = []
        for first in range(0, CHUNK, BLOCK):
            band = diagonal[..., first // BLOCK, :, :]
            if first:
                border = total[..., first - 1 : first, :]
                near = row[..., first : first + BLOCK, :] * (total[..., first : first + BLOCK, :] - border).exp()
                far = key[..., :first, :] * (border - total[..., :first, :]).exp()
                band = torch.cat([near @ far.mT, band], -1)
            bands.append(F.pad(band, (0, CHUNK - band.shape[-1])))
        result.append(torch.cat(bands, -2))
    return result


def chunk_delta_rule(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, **_ignored: object
) -> tuple[torch.Tensor, None]:
    """Gated delta rule from an empty state, for GDN and KDA.

    query, key `[batch, tokens, key heads, K]`, value `[batch, tokens, heads, V]`, beta `[batch, tokens, heads]`,
    log decay g `[batch, tokens, heads]` (GDN) or `[batch, tokens, heads, K]` (KDA). Returns
    `[batch, tokens, heads, V]` in the dtype of `query`, and no final state.
    """
    tokens, heads, per_channel = query.shape[1], value.shape[2], g.ndim == 4
    scale = query.shape[-1] ** -0.5
    query, key = (_unit(_chunks(x, heads)) for x in (query, key))
    value_, total = _chunks(value, heads), _chunks(g if per_channel else g[..., None], heads).cumsum(-2)
    strength = _chunks(beta[..., None], heads)
    query, key_beta = query * scale, key * strength
    pair = pair_by_channel if per_channel else pair_by_head
    attention, system = pair([query, key_beta], key, total)
    solved = torch.linalg.solve_triangular(
        system, torch.cat([value_ * strength, key_beta * total.exp()], -1), upper=False, unitriangular=True
    )
    fresh, read = solved.split([value_.shape[-1], key.shape[-1]], -1)
    last = total[..., -1:, :]
    parts = (fresh, read, attention, query * total.exp(), (key * (last - total).exp()).mT, last.exp().mT)
    out = _scan([part.unbind(2) for part in parts])
    return out.flatten(2, 3)[:, :, :tokens].transpose(1, 2).to(value.dtype), None


def _scan(parts: list[tuple[torch.Tensor, ...]]) -> torch.Tensor:
    """Carry the state over the chunks; returns `[batch, heads, chunks, CHUNK, V]`."""
    state, outputs = None, []
    for fresh, read, attention, query, key, decay in zip(*parts, strict=True):
        if state is None:
            outputs.append(attention @ fresh)
            state = key @ fresh
            continue
        new = fresh - read @ state
        outputs.append(attention @ new + query @ state)
        state = state * decay + key @ new
    return torch.stack(outputs, 2)


def stable_forget_gate(gate: nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    """KDA's log decay of hidden states `[batch, tokens, hidden]`: `[batch, tokens, heads, K]`, fp32."""
    raw = gate.f_b_proj(gate.f_a_proj(hidden_states)).float() + gate.dt_bias.float()
    steps = F.softplus(raw).unflatten(-1, (gate.num_heads, gate.head_dim))
    return -gate.A_log.float().exp() * steps


def light_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_ignored: object,
) -> tuple[torch.Tensor, None]:
    """Causal attention that never holds a score matrix: key heads repeated, bf16 while training on a GPU.

    query `[batch, heads, tokens, D]`, key and value with their own head count; returns
    `[batch, tokens, heads, D]`. PyTorch's fp32 grouped-query path would hold all scores.
    """
    dtype = query.dtype
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    if module.training and query.is_cuda:
        query, key, value = query.bfloat16(), key.bfloat16(), value.bfloat16()
    causal = attention_mask is None and query.shape[2] > 1
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, is_causal=causal, scale=scaling)
    return out.transpose(1, 2).to(dtype), None


def register_attention() -> None:
    """Make `light_attention` known to transformers under the name ATTENTION."""
    AttentionInterface.register(ATTENTION, light_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@contextlib.contextmanager
def fast_training() -> Iterator[None]:
    """Let transformers' layers use `chunk_delta_rule` and `stable_forget_gate` while this context is open."""
    with (
        mock.patch.object(modeling_kimi_linear, "chunk_kimi_delta_attention", chunk_delta_rule),
        mock.patch.object(modeling_kimi_linear.KimiLinearForgetGate, "forward", stable_forget_gate),
        mock.patch.object(modeling_qwen3_5, "torch_chunk_gated_delta_rule", chunk_delta_rule),
    ):
        yield
