"""Kernels that read and write an NVFP4 copy, assembled for a GPU that is not here: python compiled.py CAPABILITY

Prints a line of JSON for each: its name, the machine code it is for, and how often it converts from and to e2m1.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

typed = import_module("typed")
shapes = import_module("small_shapes")
tiles = import_module("replayssm.kernels.tiles")

READ, WRITE = "cvt.rn.f16x2.e2m1x2", "cvt.rn.satfinite.e2m1x2.f32"


class Driver:
    """Kernels ask the active driver for the GPU that they are compiled for."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target


def assemble(kernel: JITFunction[Any], *arguments: Any, **named: Any) -> None:
    if kernel.__name__ not in ("step_kernel", "fold_kernel"):
        return
    source, options = typed.source_of(kernel, arguments, named)
    code = triton.compile(source, target=driver.active.get_current_target(), options=options).asm
    ptx = code["ptx"]
    target = next(line.split()[1] for line in ptx.splitlines() if line.startswith(".target"))
    found = {"kernel": kernel.__name__, "target": target, "bytes": len(code["cubin"])}
    sys.stdout.write(json.dumps({**found, "reads": ptx.count(READ), "writes": ptx.count(WRITE)}) + "\n")


def main(capability: str) -> None:
    driver.set_active(Driver(int(capability)))
    typed.instead_of_launches(assemble)
    device = torch.device("cpu")
    recurrence = shapes.Recurrence(shapes.LayerKind("mamba2"), 4, 2, 16, 64)
    layout = shapes.StateLayout(recurrence, 2, 4, 1, shapes.PRECISIONS["nvfp4-copy"], torch.bfloat16)
    source = shapes.Source(recurrence, layout.activation, device, seed=0, raw=True)
    state = shapes.ReplayState(layout, A=source.A, backend="triton", device=device, check_inputs=False)
    state.load([0], source.states(1))
    with tiles.forced(tiles.Tiles(16)):
        state.verify(source.tokens(1, 1), [0])


if __name__ == "__main__":
    main(*sys.argv[1:])
