"""The Mamba-2 mixer's operator, for ordinary decode and for verification: one attribute of the instance."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from replayssm import RawGate, TokenInputs, UnsupportedError
from replayssm_trtllm.router import Router, deliver

ATTRIBUTE = "selective_state_update_func"
SNAPSHOT_ARGUMENTS = frozenset(
    ("disable_state_update", "intermediate_states_buffer", "cache_steps", "intermediate_state_indices")
)
"""How the engine asks for snapshots of drafts; a ring needs none."""


def reroute(mixer: Any, router: Router) -> None:  # noqa: ANN401  the engine's module
    """Bring one mixer's decode to the router."""
    setattr(mixer, ATTRIBUTE, _Operator(int(mixer.layer_idx), router))


def constant(mixer: Any) -> Tensor:  # noqa: ANN401
    """`A [H]` fp32, below 0."""
    rates: Tensor = mixer.A.detach().float()
    return rates


class _Operator:
    """Called as the engine calls `selective_state_update`.

    x and dt are `[B, H, P]`, or `[B, T, H, P]` for drafts, dt constant along P; B and C `[B, (T,) G, N]`; A `[H, P, N]`,
    D and dt_bias `[H, P]`, expanded.
    """

    def __init__(self, layer_id: int, router: Router) -> None:
        self.layer_id, self.router = layer_id, router

    def __call__(
        self,
        state: Tensor,  # noqa: ARG002  known by layer
        x: Tensor,
        dt: Tensor,
        A: Tensor,  # noqa: ARG002  known by layer
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        z: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        state_batch_indices: Tensor | None = None,
        out: Tensor | None = None,
        **rest: Any,  # noqa: ANN401
    ) -> Tensor:
        unknown = sorted(set(rest) - SNAPSHOT_ARGUMENTS)
        if unknown:
            raise UnsupportedError(f"mixer {self.layer_id} passes {', '.join(unknown)}, which the plugin does not know")
        if state_batch_indices is None or not dt_softplus:
            raise UnsupportedError(f"mixer {self.layer_id} decodes without slots, or without softplus on dt")
        standard = x.dim() == 3
        tokens = [t[:, None] if standard else t for t in (x, dt, B, C)]
        inputs = TokenInputs(
            q=tokens[3],
            k=tokens[2],
            v=tokens[0],
            gate=tokens[1][..., 0],
            raw=RawGate(dt_bias=None if dt_bias is None else dt_bias[:, 0]),
            D=None if D is None else D[:, 0],
            z=None if z is None else (z[:, None] if standard else z),
        )
        result = self.router.step(self.layer_id, inputs, state_batch_indices, standard=standard)
        return deliver(result, out, x.shape)
