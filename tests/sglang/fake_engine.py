"""Small stand-ins for the parts of SGLang that the adapter meets, for tests without the engine."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import torch

from replayssm import LayerKind, Recurrence, ReplayConfig
from replayssm_sglang.facts import ModelFacts
from replayssm_sglang.pool import pool_class
from replayssm_sglang.session import Session

HEADS, GROUPS, V, K, WIDTH = 4, 2, 8, 16, 3
LAYERS = (0, 2)


@dataclasses.dataclass(frozen=True)
class Shape:
    temporal: tuple[int, int, int] = (HEADS, V, K)
    conv: tuple[tuple[int, int], ...] = ((HEADS * V + 2 * GROUPS * K, WIDTH),)
    num_k_heads_per_tp: int = GROUPS


@dataclasses.dataclass(frozen=True)
class CacheParams:
    shape: Shape = Shape()
    layers: tuple[int, ...] = LAYERS
    dtype: SimpleNamespace = dataclasses.field(
        default_factory=lambda: SimpleNamespace(conv=torch.float32, temporal=torch.float32)
    )


@dataclasses.dataclass(frozen=True)
class PoolState:
    conv: list
    temporal: torch.Tensor
    intermediate_conv_window: list | None = None


class MambaPool:
    """SGLang's pool as far as its subclass sees it."""

    def __init__(self, *, size, cache_params, mamba_layer_ids, device, draft=None) -> None:
        self.size, self.device, self.mem_usage = size, device, 0.0
        layers = len(mamba_layer_ids)
        conv = [torch.zeros(layers, size + 1, *shape) for shape in cache_params.shape.conv]
        windows = None
        if draft is not None:
            windows = [torch.zeros(layers, size + 1, draft, *shape) for shape in cache_params.shape.conv]
        self.mamba_cache = PoolState(conv, torch.zeros(layers, size + 1, *cache_params.shape.temporal), windows)

    def clear_slots(self, indices):
        self.mamba_cache.temporal[:, indices] = 0

    def copy_from(self, src_indices, dst_indices):
        for tensor in (self.mamba_cache.temporal, *self.mamba_cache.conv):
            tensor[:, dst_indices] = tensor[:, src_indices]

    def get_cpu_copy(self, indices):
        return [tensor[:, indices].clone() for tensor in (self.mamba_cache.temporal, *self.mamba_cache.conv)]

    def load_cpu_copy(self, mamba_cache_cpu, indices):
        for tensor, saved in zip((self.mamba_cache.temporal, *self.mamba_cache.conv), mamba_cache_cpu, strict=True):
            tensor[:, indices] = saved


def make_session(kind=LayerKind.GDN, slots=5, draft=1, tree=False, metrics=False, **config):
    """A session with its pool and layers on the CPU: `(session, pool)`; slot 0 is SGLang's padding."""
    session = Session(ReplayConfig(**{"window": 4, **config}), draft=draft, tree=tree, metrics=metrics)
    session.facts = ModelFacts(Recurrence(kind, HEADS, GROUPS, V, K), torch.float32)
    params = CacheParams()
    pool = pool_class(MambaPool, session)(
        size=slots, cache_params=params, mamba_layer_ids=list(LAYERS), device="cpu", draft=draft if draft > 1 else None
    )
    rates = [-torch.rand(HEADS) - 0.1 for _ in LAYERS] if kind is LayerKind.MAMBA2 else None
    session.build(rates)
    return session, pool
