"""What the GDN ring functions refuse of a layer's memory: FlashInfer's contract, and what a read copy needs beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm.inputs import TokenInputs
from replayssm_flashinfer.copy_checks import NO_COPY, Copy, absent, check_copy_tensors
from replayssm_flashinfer.mamba_checks import check_pool
from replayssm_flashinfer.refusals import refuse
from replayssm_flashinfer.tensor_checks import ACTIVATIONS, check_device, check_inner, check_tensors, required
from replayssm_flashinfer.ucache import UCache

STATES = (torch.float32, torch.bfloat16, torch.float16)
Exact = tuple[Tensor | None, Tensor | None]
"""Rings of raw values and of β, which FlashInfer has not."""


def check_ucache(
    tokens: TokenInputs | None,
    state: Tensor | None,
    k: Tensor | None,
    u: Tensor | None,
    g: Tensor | None,
    exact: Exact = (None, None),
    copy: Copy = NO_COPY,
) -> UCache:
    """State, rings and read copy as they were given.

    Raises:
        RefusedError: one is missing, or of another shape, dtype, stride or device; or a read copy has no rings to fold from.
    """
    state, k = required("the state", state), required("k_cache", k)
    u, g = required("u_cache", u), required("g_cache", g)
    check_tensors((("v_cache", exact[0]), ("beta_cache", exact[1])), optional=True)
    check_copy_tensors(copy, state.device)
    check_pool("the state", state, "S, HV, V, K")
    if k.dim() != 4:
        refuse(f"k_cache is {tuple(k.shape)}; expected [S, H, R, K]")
    if state.dtype not in STATES:
        refuse(f"the state is {state.dtype}; expected float32, bfloat16 or float16")
    slots, heads, value_dim, key_dim = state.shape
    groups, rows = k.shape[1:3]
    if not (groups > 0 and heads % groups == 0):
        refuse(f"HV={heads} must be a multiple of H={groups}")
    _check_ring("k_cache", k, (slots, groups, rows, key_dim), ACTIVATIONS, state)
    _check_ring("u_cache", u, (slots, heads, rows, value_dim), ACTIVATIONS, state)
    _check_ring("g_cache", g, (slots, heads, rows), (torch.float32,), state)
    check_inner([("the state", state)])
    if tokens is not None:
        ours, theirs = (heads, value_dim, groups, key_dim), (*tokens.v.shape[2:], *tokens.k.shape[2:])
        if ours != theirs:
            refuse(f"the state and rings are of (HV, V, H, K) = {ours}; the tokens are of {theirs}")
        check_device(state.device, [("v", tokens.v)])
    memory = UCache(state, k, u, g, *exact, copy)
    _check_exact(memory, tokens)
    return memory


def _check_exact(memory: UCache, tokens: TokenInputs | None) -> None:
    state, raw, beta = memory.state, memory.v, memory.beta
    if (raw is None) != (beta is None):
        refuse("v_cache and beta_cache belong together: a fold solves from raw values and β, or adds u_cache as it is")
    if raw is not None and beta is not None:
        shape = tuple(memory.u.shape)
        _check_ring("v_cache", raw, shape, ACTIVATIONS if tokens is None else (tokens.v.dtype,), state)
        _check_ring("beta_cache", beta, shape[:3], (torch.float32,), state)
    if raw is None and not absent(memory.read_copy):
        refuse(
            "a read copy needs v_cache and beta_cache: u_cache is solved from the copy, and a fold that adds it would carry "
            "the copy's error into the state; pass both rings in every step, or leave the copy out"
        )


def _check_ring(
    name: str, ring: Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...], state: Tensor
) -> None:
    if tuple(ring.shape) != shape:
        refuse(f"{name} is {tuple(ring.shape)}; expected {shape}")
    if ring.dtype not in dtypes:
        refuse(f"{name} is {ring.dtype}; expected {', '.join(map(str, dtypes))}")
    check_device(state.device, [(name, ring)])
    check_inner([(name, ring)])
