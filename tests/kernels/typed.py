"""Every kernel of a layer, typed for a GPU of compute capability 9.0 without one: python typed.py LAYER

The interpreter never sees what a compiler refuses: types that differ between branches or rounds of a loop. A state goes
through its life on the CPU; each launch is brought to Triton's own representation in place of being run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction

# A triton backend on a CPU is the interpreter's.
os.environ["TRITON_INTERPRET"] = "1"
import_module("replayssm.capability")
del os.environ["TRITON_INTERPRET"]
shapes = import_module("small_shapes")

TARGET = GPUTarget("cuda", 90, 32)
NAMES = {
    torch.bool: "i1", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.float8_e4m3fn: "fp8e4nv", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32",
    torch.float64: "fp64",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg")
typed: set[tuple[str, str]] = set()


def kind_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + NAMES[value.dtype]
    return {bool: "i1", int: "i32", float: "fp32"}[type(value)]


def source_of(kernel: JITFunction[Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[ASTSource, dict]:
    """What a launch would compile, without specialisation, and its options."""
    named = {name: value for name, value in named.items() if name not in ("grid", "warmup")}
    options = {name: named.pop(name) for name in OPTIONS if name in named}
    values = {**dict(zip(kernel.arg_names, arguments, strict=False)), **named}
    constant = {p.name for p in kernel.params if p.is_constexpr}
    signature = {name: "constexpr" if name in constant else kind_of(values[name]) for name in kernel.arg_names}
    constants = {(kernel.arg_names.index(name),): values[name] for name in constant}
    return ASTSource(kernel, signature, constants), options


def type_launch(kernel: JITFunction[Any], *arguments: Any, **named: Any) -> None:
    source, options = source_of(kernel, arguments, named)
    key = kernel.__name__, f"{source.signature} {source.constants}"
    if key in typed:
        return
    typed.add(key)
    backend = make_backend(TARGET)
    parsed = backend.parse_options(options)
    context = triton._C.libtriton.ir.context()
    triton._C.libtriton.ir.load_dialects(context)
    backend.load_dialects(context)
    source.make_ir(TARGET, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context)


def instead_of_launches(run: Callable[..., None]) -> None:
    """From now on `run(kernel, *arguments, **named)` is what a launch does."""
    JITFunction.run = run
    # What no kernel has written is at least an index.
    torch.empty, torch.empty_like, torch.Tensor.new_empty = torch.zeros, torch.zeros_like, torch.Tensor.new_zeros


def main(layer: str) -> None:
    instead_of_launches(type_launch)
    for policy in shapes.PRECISIONS.values():
        for draft in shapes.SHAPES:
            shapes.live(shapes.LayerKind(layer), policy, draft, torch.device("cpu"), run=False)
    sys.stdout.write(f"{layer}: {len(typed)} kernels typed\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
