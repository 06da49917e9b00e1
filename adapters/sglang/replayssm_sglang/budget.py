"""How many slots fit: SGLang's own arithmetic with the price of our slots, and without snapshots of drafts."""

from __future__ import annotations

import copy
from types import SimpleNamespace

from replayssm_sglang.calls import Foreign, Original
from replayssm_sglang.session import Session

GIB = 1 << 30


def fit_slots(session: Session, original: Original, configurator: Foreign, total_rest_memory: float) -> float:
    """Around `KVCacheConfigurator._handle_max_mamba_cache`: GiB left for the KV cache, the number of slots decided.

    SGLang sees a model whose slots cost what ours do, and no speculation, for which it would set T states a request aside.
    What speculation does need, T convolution windows a running request, comes off first.
    """
    params = configurator.mambaish_config.mamba2_cache_params
    priced = copy.copy(configurator)
    priced.mambaish_config = SimpleNamespace(
        mamba2_cache_params=SimpleNamespace(layers=params.layers, mamba_cache_per_req=slot_bytes(session, params))
    )
    if session.draft == 1:
        return float(original(priced, total_rest_memory))
    priced.spec_algorithm = SimpleNamespace(is_none=lambda: True)
    windows = conv_bytes(params) * session.draft * (session.running_requests + 1)
    return float(original(priced, total_rest_memory - windows / GIB))


def slot_bytes(session: Session, params: Foreign) -> int:
    """Bytes of one slot in all layers: state, rings, read copy and convolution state."""
    return len(params.layers) * session.layout(slots=1).slot_bytes + conv_bytes(params)


def conv_bytes(params: Foreign) -> int:
    """Bytes of one slot's convolution states in all layers."""
    columns = sum(rows * width for rows, width in params.shape.conv)
    return int(len(params.layers) * columns * params.dtype.conv.itemsize)
