"""Calls of the drop-in functions on random memory, and the float64 recurrence of the same records and tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F

QUANTISED = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
# Relative L2 error of a state that was rounded once, by half a step of its format at most (a whole one, stochastically).
STORED = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3, torch.int8: 2e-2, torch.float8_e4m3fn: 6e-2}


def stored(state, dtype):
    """A state in a format: numbers, and scales of rows or None."""
    if dtype not in QUANTISED:
        return state.to(dtype), None
    most = QUANTISED[dtype]
    scale = state.abs().amax(-1) / most
    units = (state / scale[..., None]).clamp(-most, most)
    return (units.round() if dtype is torch.int8 else units).to(dtype), scale


def decoded(state, scale):
    """Its numbers in float64."""
    return state.double() if scale is None else state.double() * scale.double()[..., None]


def bits(x):
    """What is stored, comparable whatever the dtype."""
    return torch.atleast_1d(x.contiguous()).view(torch.uint8)


def relative(found, truth):
    """Relative L2 error."""
    return float((found.double() - truth).norm() / truth.norm())


class MambaCall:
    """One call of `checkpointing_ssu`: B rows on S slots, strided cursors, rings that hold NaN in dead rows."""

    def __init__(
        self,
        dtype,
        draft,
        window,
        lengths,
        *,
        slots=7,
        groups=1,
        dim=20,
        dstate=32,
        activation=torch.float32,
        gaps=False,
    ):
        self.slots, self.heads, self.groups, self.dim, self.dstate = slots, 2 * groups, groups, dim, dstate
        self.draft, self.window, self.rows, self.lengths = draft, window, window + draft, lengths
        S, H, G, P, N, L = self.slots, self.heads, self.groups, self.dim, self.dstate, self.rows
        self.state, self.scale = stored(torch.randn(S, H, P, N), dtype)
        self.x, self.B, self.dt = (torch.full(shape, float("nan")) for shape in ((S, H, L, P), (S, G, L, N), (S, H, L)))
        self.start = torch.randint(0, L, (S, 3), dtype=torch.int32)[:, 1]
        self.live = torch.randint(0, window + 1, (S, 2), dtype=torch.int32)[:, 0]
        self.live[0] = window
        for slot in range(S):
            rows = (int(self.start[slot]) + torch.arange(int(self.live[slot]))) % L
            self.x[slot, :, rows], self.B[slot, :, rows] = torch.randn(H, len(rows), P), torch.randn(G, len(rows), N)
            self.dt[slot, :, rows] = torch.rand(H, len(rows))
        self.x, self.B = self.x.to(activation), self.B.to(activation)
        if gaps:
            self.x = F.pad(self.x, (0, 0, 0, 3))[:, :, :L]
        self.A = -torch.rand(H) - 0.1
        self.bias, self.D = torch.randn(H).to(activation), torch.randn(H).to(activation)
        shape = (len(lengths), draft)
        self.tokens = {
            name: torch.randn(*shape, *rest).to(activation)
            for name, rest in (("x", (H, P)), ("B", (G, N)), ("C", (G, N)), ("z", (H, P)), ("dt", (H,)))
        }

    def arguments(self, slots, *, packed=False):
        """Keyword arguments of the call for `slots [B]`."""
        tokens = self.tokens
        extra = {}
        if packed:
            keep = torch.arange(self.draft) < torch.tensor(self.lengths)[:, None]
            tokens = {name: x[keep][None] for name, x in tokens.items()}
            starts = F.pad(torch.tensor(self.lengths).cumsum(0), (1, 0)).to(torch.int32)
            extra = {"cu_seqlens": starts, "max_seqlen": self.draft}
        shape, H, P, N = tokens["x"].shape, self.heads, self.dim, self.dstate
        return {
            "state": self.state, "x_cache": self.x, "B_cache": self.B, "dt_cache": self.dt,
            "ring_start": self.start, "prev_num_accepted_tokens": self.live,
            "x": tokens["x"], "dt": tokens["dt"][..., None].expand(shape), "A": self.A[:, None, None].expand(H, P, N),
            "B": tokens["B"], "C": tokens["C"], "z": tokens["z"], "out": torch.full_like(tokens["x"], 7.0),
            "D": self.D[:, None].expand(H, P), "dt_bias": self.bias[:, None].expand(H, P), "dt_softplus": True,
            "state_batch_indices": slots, "state_scale": self.scale, **extra,
        }  # fmt: skip

    def snapshot(self):
        """Everything that a call may write, as it is."""
        scale = None if self.scale is None else self.scale.clone()
        return {
            "state": self.state.clone(),
            "scale": scale,
            "x": self.x.clone(),
            "B": self.B.clone(),
            "dt": self.dt.clone(),
        }

    def replayed(self, before, slot):
        """The state of a slot after its records, float64."""
        state = decoded(before["state"], before["scale"])[slot]
        for j in range(int(self.live[slot])):
            row = (int(self.start[slot]) + j) % self.rows
            state = self.step(state, before["x"][slot, :, row], before["B"][slot, :, row], before["dt"][slot, :, row])
        return state

    def step(self, state, x, B, delta):
        """One token."""
        delta = delta.double()
        decay = torch.exp(self.A.double() * delta)[:, None, None]
        return state * decay + (delta[:, None] * x.double())[..., None] * self.spread(B)[:, None]

    def spread(self, B):
        """`[G, N]` to `[H, N]`."""
        return B.double().repeat_interleave(self.heads // self.groups, 0)

    def outputs(self, state, row):
        """Outputs of a row's tokens, float64."""
        out = []
        for t in range(self.lengths[row]):
            x, B, C, z, dt = (self.tokens[name][row, t] for name in ("x", "B", "C", "z", "dt"))
            state = self.step(state, x, B, F.softplus(dt.double() + self.bias.double()))
            y = torch.einsum("hpn,hn->hp", state, self.spread(C)) + self.D.double()[:, None] * x.double()
            out.append(y * F.silu(z.double()))
        return torch.stack(out)

    def folds(self, row, slot):
        """Whether a row must fold."""
        return int(self.live[slot]) > 0 and int(self.live[slot]) + self.lengths[row] > self.window


class DeltaRecurrence:
    """GDN and KDA, one row, token after token in float64."""

    def __init__(self, A_log, dt_bias, scale, lower_bound=None):
        self.A_log, self.dt_bias, self.scale, self.lower_bound = A_log.double(), dt_bias.double(), scale, lower_bound

    def __call__(self, state, q, k, v, a, b):
        """Tokens `[T, …]` from `state [HV, V, K]`; outputs and the state after them."""
        repeat, outs = v.shape[1] // k.shape[1], []
        for t in range(k.shape[0]):
            key, query = (F.normalize(x[t].double(), dim=-1).repeat_interleave(repeat, 0) for x in (k, q))
            rate, gate = self.A_log.exp(), a[t].double() + self.dt_bias
            rate = rate[:, None] if gate.dim() == 2 else rate
            gate = (
                -rate * F.softplus(gate) if self.lower_bound is None else self.lower_bound * torch.sigmoid(rate * gate)
            )
            state = state * torch.exp(gate)[(..., None, slice(None)) if gate.dim() == 2 else (..., None, None)]
            u = torch.sigmoid(b[t].double())[:, None] * (v[t].double() - torch.einsum("hvk,hk->hv", state, key))
            state = state + u[..., None] * key[:, None]
            outs.append(torch.einsum("hvk,hk->hv", state, query) * self.scale)
        return torch.stack(outs), state
