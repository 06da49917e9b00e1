"""The few instructions of PTX that take NVFP4 apart and put it together, on tensors: for machine code without its GPU.

A register is a tensor of bits, int64. Written from the instruction set's own description, not from what kernels expect.
"""

from __future__ import annotations

import torch
from torch import Tensor

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
SIZES = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}


def number(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Bits → float64."""
    # To the signed range first: what does not fit is not cut off everywhere.
    width = 8 * dtype.itemsize
    signed = (bits & (1 << width) - 1) - ((bits >> width - 1 & 1) << width)
    return signed.to(SIZES[dtype]).view(dtype).double()


def bits_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A float64 number, rounded to nearest even, → bits."""
    return x.to(dtype).view(SIZES[dtype]).long() & (1 << 8 * dtype.itemsize) - 1


def joined(low: Tensor, high: Tensor, width: int) -> Tensor:
    return low | high << width


def from_e2m1(code: Tensor) -> Tensor:
    sign = torch.where((code & 8) != 0, -1.0, 1.0).double()
    return sign * E2M1[code & 7]


def to_e2m1(x: Tensor) -> Tensor:
    """Nearest, of two as near the even code; beyond the largest the largest."""
    distance = (x.abs().clamp(max=6.0)[..., None] - E2M1).abs()
    nearest = distance == distance.amin(-1, keepdim=True)
    code = (nearest * torch.tensor([2, 1] * 4)).argmax(-1)
    return code | torch.signbit(x).long() << 3


def permuted(a: Tensor, b: Tensor, selector: Tensor) -> Tensor:
    """Bytes of b, a, the highest first, by the nibbles of the selector."""
    source, out = joined(a, b, 32), torch.zeros_like(a)
    for i in range(4):
        out |= (source >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i
    return out


def pairwise(a: Tensor, b: Tensor, c: Tensor, dtype: torch.dtype) -> Tensor:
    """a b + c of both halves."""
    halves = [[number(x >> shift, dtype) for x in (a, b, c)] for shift in (0, 16)]
    return joined(*(bits_of(x * y + z, dtype) for x, y, z in halves), 16)


def unpacked(byte: Tensor) -> Tensor:
    return joined(*(bits_of(from_e2m1(byte >> shift), torch.float16) for shift in (0, 4)), 16)


def and_or(a: Tensor, b: Tensor, c: Tensor, table: Tensor) -> Tensor:
    assert bool((table == 0xEA).all()), "another function of three bits"
    return a & b | c


F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
OPERATIONS = {
    "mov.b32": lambda a: a,
    "mov.f32": lambda a: a,
    "prmt.b32": permuted,
    "shl.b32": lambda a, n: a << n & 0xFFFFFFFF,
    "shr.u32": lambda a, n: a >> n,
    "and.b32": lambda a, b: a & b,
    "lop3.b32": and_or,
    "fma.rn.bf16x2": lambda a, b, c: pairwise(a, b, c, BF16),
    "fma.rn.f32.f16": lambda a, b, c: bits_of(number(a, F16) * number(b, F16) + number(c, F32), F32),
    "cvt.rn.bf16x2.f32": lambda a, b: joined(bits_of(number(b, F32), BF16), bits_of(number(a, F32), BF16), 16),
    "cvt.rn.f16x2.e2m1x2": unpacked,
    "cvt.rn.satfinite.e2m1x2.f32": lambda a, b: joined(to_e2m1(number(b, F32)), to_e2m1(number(a, F32)), 4),
    "cvt.u32.u8": lambda a: a & 255,
}


def execute(assembly: str, *inputs: Tensor, outputs: int) -> list[Tensor]:
    """Inline assembly on its inputs, whose numbers follow those of the outputs."""
    registers = {f"${outputs + i}": x for i, x in enumerate(inputs)}

    def value(name: str) -> Tensor:
        if name in registers:
            return registers[name]
        literal = int(name[2:], 16) if name.startswith(("0x", "0f")) else int(name)
        return torch.full_like(inputs[0], literal)

    for line in assembly.removeprefix("{").removesuffix("}").split(";"):
        name, _, operands = line.strip().partition(" ")
        if name in ("", ".reg"):
            continue
        if operands.startswith("{"):
            targets, source = operands[1:].split("}, ")
            names = targets.split(", ")
            width = 32 // len(names)
            registers |= {x: value(source) >> width * i & (1 << width) - 1 for i, x in enumerate(names)}
        else:
            target, *sources = operands.split(", ")
            registers[target] = OPERATIONS[name](*map(value, sources))
    return [registers[f"${i}"] for i in range(outputs)]
