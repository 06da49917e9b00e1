"""The one recurrence, of which Mamba-2, Gated DeltaNet and Kimi Delta Attention are settings.

    S_t = S_{t-1} · Diag(a_t) + u_t k_tᵀ          o_t = S_t q_t

with `S [V, K]` per value head. Two switches tell the layers apart: whether `u_t` is the plain scaled value or the delta
rule's correction, and whether the decay `a_t` is one number per head or one per key channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from replayssm.errors import InputError


class LayerKind(StrEnum):
    """The name under which a layer is configured, reported and tabulated."""

    MAMBA2 = "mamba2"
    GDN = "gdn"
    KDA = "kda"


@dataclass(frozen=True)
class Recurrence:
    """Geometry and rule of one state-space layer.

    Attributes:
        kind: `mamba2` (u = Δ x), `gdn` or `kda` (u = β (v − S a k)).
        heads: H, value heads; the state is one `[V, K]` matrix for each.
        groups: G, key (and query) groups; G divides H, head h reads group h // (H / G).
        value_dim: V, head dimension of values and outputs.
        key_dim: K, state size (Mamba-2) or key head dimension.

    Raises:
        InputError: a dimension below 1, or G does not divide H.
    """

    kind: LayerKind
    heads: int
    groups: int
    value_dim: int
    key_dim: int

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "kind", LayerKind(self.kind))
        except ValueError:
            allowed = ", ".join(LayerKind)
            raise InputError(f"kind={self.kind!r} is not a known layer; expected one of {allowed}") from None
        for name in ("heads", "groups", "value_dim", "key_dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name}={value!r} must be an integer of at least 1")
        if self.heads % self.groups:
            raise InputError(f"groups={self.groups} must divide heads={self.heads}")

    @classmethod
    def mamba2(cls, *, heads: int, head_dim: int, state_size: int, groups: int = 1) -> Recurrence:
        """Mamba-2: `heads` of size `head_dim` over B and C of `groups` groups of `state_size`."""
        return cls(LayerKind.MAMBA2, heads, groups, head_dim, state_size)

    @classmethod
    def gdn(cls, *, value_heads: int, key_heads: int, value_dim: int, key_dim: int) -> Recurrence:
        """Gated DeltaNet: one decay per value head."""
        return cls(LayerKind.GDN, value_heads, key_heads, value_dim, key_dim)

    @classmethod
    def kda(cls, *, heads: int, value_dim: int, key_dim: int, key_heads: int | None = None) -> Recurrence:
        """Kimi Delta Attention: one decay per key channel."""
        return cls(LayerKind.KDA, heads, heads if key_heads is None else key_heads, value_dim, key_dim)

    @property
    def delta_rule(self) -> bool:
        """Whether u_t corrects what the state already predicts (GDN, KDA)."""
        return self.kind is not LayerKind.MAMBA2

    @property
    def channel_decay(self) -> bool:
        """Whether the decay is a vector over K (KDA)."""
        return self.kind is LayerKind.KDA

    @property
    def heads_per_group(self) -> int:
        """H / G, the value heads that share one key."""
        return self.heads // self.groups

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """`(H, V, K)`, the state of one slot."""
        return (self.heads, self.value_dim, self.key_dim)

    @property
    def gate_shape(self) -> tuple[int, ...]:
        """Trailing shape of one token's gate: `(H,)`, or `(H, K)` with a decay per channel."""
        return (self.heads, self.key_dim) if self.channel_decay else (self.heads,)
