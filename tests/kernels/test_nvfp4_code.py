"""Machine code that takes NVFP4 apart and packs it: the numbers it gives, and which GPUs convert by themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from ptx import BF16, F32, bits_of, execute, from_e2m1, number, to_e2m1

from replayssm.formats import E2M1_GRID, round_to_grid

triton = pytest.importorskip("triton")
copies, unpack = (import_module(f"replayssm.kernels.{name}") for name in ("copies", "unpack"))

ASSEMBLERS = Path(triton.__file__).parent / "backends/nvidia/bin"


def test_words_apart_are_the_same_numbers_by_bits_and_by_conversion():
    # Every code at every place of both words, with every scale there is: none is negative or NaN.
    codes, byte = torch.arange(16)[:, None], torch.arange(127)[None, :]
    words = [sum((codes + step * i) % 16 << 4 * i for i in range(8)).expand(16, 127) for step in (1, 3)]
    byte = byte.expand(16, 127)
    unit = byte.to(torch.uint8).view(torch.float8_e4m3fn).double() / unpack.NVFP4_REST.value
    [lifted] = execute(unpack.SCALE_ASSEMBLY.value, byte * 0x00100010, outputs=1)
    by_bits = execute(unpack.NVFP4_ASSEMBLY.value, *words, lifted, lifted, outputs=8)
    by_conversion = execute(unpack.NVFP4_CONVERSIONS.value, *words, byte, byte, outputs=8)
    for place in range(8):
        exact = [from_e2m1(word >> 4 * place) * unit for word in words]
        low, high = (bits_of(x, BF16) for x in exact)
        assert torch.equal(number(low, BF16), exact[0])
        assert torch.equal(by_bits[place], low | high << 16)
        assert torch.equal(by_conversion[place], low | high << 16)


def test_pairs_are_packed_in_their_order():
    # Every code, every tie between two, and beyond.
    numbers = torch.arange(-32, 33).double() / 4
    numbers = torch.cat((numbers, torch.tensor([-0.0, 1e-40, -1e-40, 1e30]).double()))
    low, high = (x.flatten() for x in torch.meshgrid(numbers, numbers, indexing="ij"))
    [pair] = execute(copies.E2M1_CONVERSION.value, bits_of(low, F32), bits_of(high, F32), outputs=1)
    for nibble, wanted in ((pair & 15, low), (pair >> 4, high)):
        expected = round_to_grid(wanted, E2M1_GRID)
        assert torch.equal(nibble, to_e2m1(expected))


@pytest.mark.skipif(not (ASSEMBLERS / "ptxas-blackwell").exists(), reason="this Triton has no assembler for Blackwell")
@pytest.mark.parametrize("capability", [90, 100, 120])
def test_gpus_convert_where_they_can(capability, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, str(Path(__file__).with_name("compiled.py")), str(capability)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    found = {kernel.pop("kernel"): kernel for kernel in map(json.loads, done.stdout.splitlines())}
    assert set(found) == {"fold_kernel", "step_kernel"}
    converts = capability >= 100
    for kernel in found.values():
        assert kernel["target"] == f"sm_{capability}a"
        assert kernel["bytes"] > 0
        assert (kernel["writes"] > 0) == converts
    assert (found["step_kernel"]["reads"] > 0) == converts
