"""Philox-4x32 counter-based random bits in plain torch.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11. The same counters give the same bits as `tl.philox`,
so stochastic rounding is reproducible across backends and under CUDA-graph replay: the seed lives on the device and the
counter is made of facts (slot, number of the flush, element), not of a hidden generator state.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def _multiply(value: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    # int64 wraps modulo 2^64, which leaves both 32-bit halves of the unsigned product right.
    product = value * multiplier
    return (product >> 32) & _MASK, product & _MASK


def philox4x32(seed: Tensor, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four 32-bit words for each counter.

    Args:
        seed: `[1]` int64; low and high halves are the two key words.
        counter: four broadcastable int64 tensors of values below 2^32.

    Returns:
        four int64 tensors of values below 2^32.
    """
    key = [seed & _MASK, (seed >> 32) & _MASK]
    c0, c1, c2, c3 = counter
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ key[0], low1, high0 ^ c3 ^ key[1], low0
        key = [(word + weyl) & _MASK for word, weyl in zip(key, _WEYL, strict=True)]
    return c0, c1, c2, c3


def uniform(seed: Tensor, slots: Tensor, flushes: Tensor, elements: int) -> Tensor:
    """Uniform numbers in [0, 1) with 24 bits, for the elements of one state of each slot.

    Args:
        seed: `[1]` int64.
        slots: `[n]` slot numbers.
        flushes: `[n]` how many states were written to the slot before this one.
        elements: numbers per slot; element e takes word e % 4 of counter (e // 4, slot, flush, 0).

    Returns:
        `[n, elements]` fp32.
    """
    block = torch.arange((elements + 3) // 4, dtype=torch.int64, device=slots.device)[None, :]
    zero = torch.zeros_like(block)
    words = philox4x32(seed, (block, slots.long()[:, None], flushes.long()[:, None], zero))
    bits = torch.stack(torch.broadcast_tensors(*words), dim=-1).reshape(len(slots), -1)[:, :elements]
    return (bits >> 8).to(torch.float32) * 2.0**-24
