"""Products of reads with TF32's bits, where the interpreter's have fp32's: what each choice does to outputs and state.

Usage: TRITON_INTERPRET=1 python interpreted_products.py LAYER [STATE SIZE]; prints errors, exit 1 beyond a bound
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from triton.runtime import interpreter

from replayssm import LayerKind, PrecisionPolicy, Recurrence
from replayssm.cli import eval_state
from replayssm.drift.measure import Setup, drift, with_products

# Tensor cores leave out the last 13 bits of an operand.
KEPT = np.int32(-8192)
ONE = 2.0**-10
"""Most that an operand loses in one product, of itself."""
THREE = 2.0**-20
"""The same in three, with what fp32 sums lose; reach of bf16 values, in two bf16 numbers, is not among them here."""


def cut(x: np.ndarray) -> np.ndarray:
    """fp32 numbers as tensor cores take them."""
    return (np.ascontiguousarray(x).view(np.int32) & KEPT).view(np.float32)


def product(self, a, b, d, precision, imprecise):
    """`InterpreterBuilder.create_dot` for fp32 operands, rounded as `precision` says."""
    name, x, y = str(precision).rpartition(".")[2], a.data, b.data
    if x.dtype == np.float32 and name != "IEEE":
        high_x, high_y = cut(x), cut(y)
        out = np.matmul(high_x, high_y)
        if name == "TF32x3":
            out = np.matmul(cut(x - high_x), high_y) + np.matmul(high_x, cut(y - high_y)) + out
        return interpreter.TensorHandle(out + d.data, d.dtype.scalar)
    return exact(self, a, b, d, precision, imprecise)


exact = interpreter.InterpreterBuilder.create_dot


def command(kind: str) -> None:
    """`replayssm eval state` has a line for each choice."""
    parser = argparse.ArgumentParser()
    eval_state.configure(parser)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.json"
        sizes = [
            "--heads",
            "2",
            "--value-dim",
            "16",
            "--key-dim",
            "16",
            "--rows",
            "1",
            "--window",
            "4",
            "--steps",
            "4",
            "--draft",
            "1",
        ]
        choice = ["--backend", "triton", "--presets", "exact", "--dot", "tf32", "tf32x3", "--fp32-outputs"]
        assert eval_state.run(parser.parse_args(["--layer", kind, *sizes, *choice, "--json", str(file)])) == 0
        found = [row["policy"] for row in json.loads(file.read_text())["rows"]]
    assert {"exact, tf32", "exact, tf32x3"} <= set(found), found


def main(kind: str, key_dim: str = "64") -> int:
    """Errors after a few windows, of drafts and of single tokens."""
    interpreter.InterpreterBuilder.create_dot = product
    command(kind)
    recurrence = Recurrence(LayerKind(kind), heads=2, groups=1 + (kind == "kda"), value_dim=16, key_dim=int(key_dim))
    failed = 0
    for draft in (1, 0):
        # fp16 activations: rings of the delta rule round u to 11 bits, less than one product does.
        setup = Setup(recurrence, 2, 8, torch.float16, "triton", draft=draft, fp32_outputs=True)
        errors = {
            found.policy: found
            for found in drift(setup, with_products({"": PrecisionPolicy()}, ["tf32", "tf32x3"]), [32])
        }
        one, three = errors[", tf32"], errors[", tf32x3"]
        for name, found in errors.items():
            sys.stdout.write(
                f"{kind} K = {key_dim}, T = {draft}{name}: outputs {found.output:.1e}, state {found.state:.1e}\n"
            )
        ring = 2.0**-11 if recurrence.delta_rule else 0.0
        failed |= not THREE < one.output < ONE + ring or not three.output < min(THREE + ring, one.output)
        failed |= not max(one.state, three.state) < 1e-6
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
