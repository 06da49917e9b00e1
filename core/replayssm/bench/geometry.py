"""Layers of published models by name, as the benchmark and the tuner measure them."""

from __future__ import annotations

from dataclasses import dataclass

from replayssm.recurrence import Recurrence


@dataclass(frozen=True)
class Geometry:
    """One layer of a published model, whole (no tensor parallelism)."""

    name: str
    model: str
    recurrence: Recurrence

    @property
    def layer(self) -> str:
        """mamba2, gdn or kda."""
        return str(self.recurrence.kind)


_ALL = (
    Geometry("super", "Nemotron-3-Super-120B", Recurrence.mamba2(heads=128, head_dim=64, state_size=128, groups=8)),
    Geometry("nano4b", "Nemotron-3-Nano-4B", Recurrence.mamba2(heads=96, head_dim=80, state_size=128, groups=8)),
    Geometry("qwen122b", "Qwen3.5-122B", Recurrence.gdn(value_heads=64, key_heads=16, value_dim=128, key_dim=128)),
    Geometry("qwen4b", "Qwen3.5-4B", Recurrence.gdn(value_heads=32, key_heads=16, value_dim=128, key_dim=128)),
    Geometry("kimi", "Kimi-Linear-48B", Recurrence.kda(heads=32, value_dim=128, key_dim=128)),
)

GEOMETRIES: dict[str, Geometry] = {geometry.name: geometry for geometry in _ALL}
"""Name → geometry."""
