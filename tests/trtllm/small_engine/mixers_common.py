"""The short convolution of a mixer, with states as the engine keeps them."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def conv_sequence(x, state, weight):
    """`x [n, C]` after `state [C, width − 1]` → outputs `[n, C]` and the state after each token `[n, C, width − 1]`."""
    width = weight.shape[1]
    window = torch.cat((state.T, x))
    out = sum(window[i : i + len(x)] * weight[:, i] for i in range(width))
    after = torch.stack([window[i + 1 : i + width].T for i in range(len(x))])
    return F.silu(out), after


def split_rows(attn_metadata):
    """Numbers of context requests, generation requests, context tokens."""
    contexts = attn_metadata.num_contexts
    return contexts, attn_metadata.num_seqs - contexts, int(attn_metadata.seq_lens[:contexts].sum())


def causal_conv1d_update(x, conv_states, weight, indices):
    """One token a row; rows whose slot is shared by padding write last."""
    rows = [conv_sequence(x[i : i + 1], conv_states[int(slot)], weight) for i, slot in enumerate(indices)]
    for (_, after), slot in zip(rows, indices, strict=True):
        conv_states[int(slot)] = after[0].to(conv_states.dtype)
    return torch.cat([out for out, _ in rows])


def causal_conv1d_verify(x, conv_states, weight, indices, window):
    """T tokens a row; states stay, the one after each token goes to `window [rows, ≥ T, C, width − 1]`."""
    rows = [conv_sequence(x[i], conv_states[int(slot)], weight) for i, slot in enumerate(indices)]
    for i, (_, after) in enumerate(rows):
        window[i, : len(after)] = after.to(window.dtype)
    return torch.stack([out for out, _ in rows])
