"""The same counters give the same bits in Triton, so kernels and torch round alike."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("triton")

PROGRAM = """
    import torch, triton
    import triton.language as tl
    from replayssm.philox import philox4x32

    @triton.jit
    def kernel(out, seed, slot, flush, BLOCK: tl.constexpr):
        block = tl.arange(0, BLOCK)
        zero = block * 0
        w0, w1, w2, w3 = tl.philox(tl.load(seed), block, zero + slot, zero + flush, zero)
        tl.store(out + 4 * block, w0)
        tl.store(out + 4 * block + 1, w1)
        tl.store(out + 4 * block + 2, w2)
        tl.store(out + 4 * block + 3, w3)

    for seed in (0, 1, 2**31, 2**40 + 5, 2**63 - 1):
        out = torch.zeros(32, dtype=torch.int32)
        kernel[(1,)](out, torch.tensor([seed]), 5, 9, BLOCK=8)
        block = torch.arange(8)
        ours = torch.stack(philox4x32(torch.tensor([seed]), (block, block * 0 + 5, block * 0 + 9, block * 0)), -1)
        theirs = out.long().reshape(8, 4) & 0xFFFFFFFF
        assert torch.equal(ours, theirs), (seed, ours, theirs)
    print("equal")
"""


def test_same_bits_as_triton(tmp_path):
    # The interpreter is chosen when Triton is imported, and Triton reads a kernel's source from its file.
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "equal", run.stderr
