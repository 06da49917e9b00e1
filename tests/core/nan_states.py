"""What becomes of NaN in a state that nobody checked, in every preset: 0 as it is loaded, a number as it is folded.

Usage: TRITON_INTERPRET=1 python nan_states.py triton gdn
"""

from __future__ import annotations

import sys

import torch

from replayssm import PRESETS, LayerKind, Recurrence, ReplayState, StateLayout
from replayssm.conformance.inputs import Source
from replayssm.conformance.memory import bits


def check_nan(backend: str, kind: LayerKind) -> None:
    for preset, policy in PRESETS.items():
        layout = StateLayout(Recurrence(kind, 2, 1 if kind != "kda" else 2, 16, 64), 2, 4, 1, policy, torch.float32)
        source = Source(layout.recurrence, torch.float32, seed=5)
        loaded, zeroed = (ReplayState(layout, A=source.A, backend=backend, check_inputs=False) for _ in range(2))
        state = source.states(2)
        state[0, 0, 3, 5], state[0, 1, 2], state[1, 1] = torch.nan, torch.nan, torch.nan
        loaded.load([0, 1], state)
        zeroed.load([0, 1], state.nan_to_num(nan=0.0))
        for name, buffer in loaded.layer.buffers.items():
            if name.startswith(("checkpoint", "read_copy")):
                assert torch.equal(bits(buffer), bits(zeroed.layer.buffers[name])), f"{preset} {name}"
        loaded.decode(source.tokens(2, 1), [0, 1])
        loaded.flush([0, 1])
        # A limit that a NaN became would be seen.
        assert float(loaded.state([0, 1]).abs().max()) < 100, preset
        if policy.checkpoint == "fp32":
            loaded.decode(source.tokens(2, 1), [0, 1])
            loaded.layer.buffers["checkpoint"][0, 0, 3, 5] = torch.nan
            loaded.flush([0, 1])
            assert loaded.state([0, 1]).isfinite().all(), preset


if __name__ == "__main__":
    check_nan(sys.argv[1], LayerKind(sys.argv[2]))
