"""What the GDN functions refuse: FlashInfer's contract, without the limits of its kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm import UnsupportedError
from replayssm.capture import capturing
from replayssm.inputs import TokenInputs
from replayssm_flashinfer.mamba_checks import check_state_size
from replayssm_flashinfer.refusals import refuse
from replayssm_flashinfer.tensor_checks import (
    ACTIVATIONS,
    check_apart,
    check_device,
    check_floating,
    check_tensors,
    required,
)


def check_flags(
    softplus_beta: float, softplus_threshold: float, recovery_steps: int, disable_output: bool, **others: object
) -> None:
    """Flags that FlashInfer's functions have and do not serve.

    Raises:
        RefusedError: another softplus. UnsupportedError: any other of them.
    """
    if softplus_beta != 1.0:
        refuse(f"softplus_beta={softplus_beta} is not served; expected 1")
    if softplus_threshold != 20.0:
        refuse(f"softplus_threshold={softplus_threshold} is not served; expected 20")
    given = [name for name, value in others.items() if value is not None]
    if recovery_steps:
        given.append("recovery_steps")
    if disable_output:
        given.append("disable_output")
    if given:
        raise UnsupportedError(f"{', '.join(given)}: not served, neither here nor by FlashInfer; leave it out")


def check_tokens(
    A_log: Tensor | None,
    a: Tensor | None,
    dt_bias: Tensor | None,
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    b: Tensor | None,
    channels: tuple[int, ...] = (),
) -> TokenInputs:
    """New tokens as they were given; `channels` is what gates have beside heads, `(K,)` for KDA.

    Raises:
        RefusedError: one is missing, or of another shape, dtype or device.
    """
    q, k, v = required("q", q), required("k", k), required("v", v)
    a, b = required("a", a), required("b", b)
    check_tensors((("A_log", A_log), ("dt_bias", dt_bias)), optional=True)
    if k.dim() != 4:
        refuse(f"k is {tuple(k.shape)}; expected [B, T, H, K]")
    if v.dim() != 4:
        refuse(f"v is {tuple(v.shape)}; expected [B, T, HV, V]")
    batch, draft, groups, key_dim = k.shape
    heads = v.shape[2]
    if q.shape != k.shape:
        refuse(f"q is {tuple(q.shape)} and k {tuple(k.shape)}; they must be alike")
    check_state_size("K", key_dim)
    if not 1 <= draft <= 16:
        refuse(f"T={draft} new tokens must be in [1, 16]")
    if not (groups > 0 and heads % groups == 0):
        refuse(f"HV={heads} must be a multiple of H={groups}")
    if tuple(v.shape[:2]) != (batch, draft):
        refuse(f"v is {tuple(v.shape)}; k has {batch} rows of {draft} tokens")
    weights = (("A_log", A_log, (heads,)), ("dt_bias", dt_bias, (heads, *channels)))
    gates = (("a", a, (batch, draft, heads, *channels)), ("b", b, (batch, draft, heads)))
    for name, tensor, shape in (*gates, *weights):
        if tensor is not None:
            if tuple(tensor.shape) != shape:
                refuse(f"{name} is {tuple(tensor.shape)}; expected {shape}")
            check_floating([(name, tensor)])
            check_device(v.device, [(name, tensor)])
    if not (v.dtype in ACTIVATIONS and all(x.dtype == v.dtype for x in (q, k))):
        refuse(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; expected one dtype of bf16, fp16 and fp32")
    check_device(v.device, [("q", q), ("k", k)])
    return TokenInputs(q=q, k=k, v=v, gate=a, beta=b)


def check_output(name: str, output: Tensor | None, v: Tensor) -> None:
    """A caller's own output.

    Raises:
        RefusedError: another shape, dtype or device than of v, or numbers that overlap in memory.
    """
    check_tensors([(name, output)], optional=True)
    if output is not None:
        alike = output.shape == v.shape and output.dtype == v.dtype
        if not alike:
            refuse(f"{name} is {tuple(output.shape)} {output.dtype}; expected {tuple(v.shape)} {v.dtype}, as v")
        check_device(v.device, [(name, output)])
        check_apart([(name, output)])


def check_cursors(
    hist_len: Tensor, base: Tensor, tokens: TokenInputs, window: int, rows: int, *, in_place: bool
) -> None:
    """Cursors by row of the batch; their values where they are to be moved in place, which waits for the device.

    Raises:
        RefusedError: another shape, dtype or device; moved in place also a value out of range, or a copy that would be lost.
    """
    batch = tokens.batch
    check_tensors([("hist_len", hist_len), ("cache_base", base)])
    for name, tensor, high in (("hist_len", hist_len, window), ("cache_base", base, rows - 1)):
        if not (tensor.dtype == torch.int32 and tuple(tensor.shape) == (batch,)):
            refuse(f"{name} is {tuple(tensor.shape)} {tensor.dtype}; expected ({batch},) int32")
        check_device(tokens.v.device, [(name, tensor)])
        if in_place:
            if not tensor.is_contiguous():
                refuse(f"{name} must be contiguous to be moved in place (restart_hist_on_flush=True)")
            if batch and not capturing(tensor.device):
                low, most = (int(x) for x in tensor.aminmax())
                if not (low >= 0 and most <= high):
                    refuse(f"{name} out of legal range [0, {high}]: min={low} max={most}")
