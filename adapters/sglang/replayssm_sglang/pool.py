"""SGLang's pool of recurrent states with our rings beside them, and what happens to a slot.

A slot's ring stays with it for as long as nobody writes its state. So a finished request's slot may go to the prefix cache
as it is, and whoever copies it folds it first: recurrent and convolution state then belong to the same token, and no
cached prefix is ever stale.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from replayssm import StateLayout
from replayssm.cursors import PAD_SLOT
from replayssm_sglang.calls import Foreign
from replayssm_sglang.session import Session


def pool_class(base: Foreign, session: Session) -> type:
    """SGLang's `MambaPool` as it must be for a session."""

    class ReplayMambaPool(base):  # type: ignore[misc]
        """Convolution states and slots are SGLang's; states, rings and cursors are ours.

        No state snapshot is made for drafts: rejecting one moves a cursor.
        """

        def __init__(self, **options: Foreign) -> None:
            stateless = without_states(options["cache_params"])
            super().__init__(**{**options, "cache_params": stateless})
            params, count = options["cache_params"], len(options["mamba_layer_ids"])
            layout = session.layout(options["size"] + 1)
            states, rings = allocate(layout, count, params.dtype.temporal, torch.device(self.device))
            self.mamba_cache: Foreign = dataclasses.replace(self.mamba_cache, temporal=states)
            self.mem_usage += sum(x.nbytes for x in (states, *rings.values())) / 2**30
            session.place(states, rings)

        def clear_slots(self, indices: Tensor) -> None:
            """Zero state, empty ring."""
            super().clear_slots(indices)
            if session.ready:
                session.layers.adopt(indices.long())

        def copy_from(self, src_indices: Tensor, dst_indices: Tensor) -> None:
            """Copy on write, fork: the source is folded, then copied. Several requests may copy one cached prefix."""
            if session.ready:
                session.layers.flush(once(src_indices.long()))
            super().copy_from(src_indices, dst_indices)
            if session.ready:
                session.layers.adopt(dst_indices.long(), session.layers.cursors.read("position", src_indices.long()))

        def get_cpu_copy(self, indices: Tensor) -> Foreign:
            """Offload: folded first, so that state and convolution are all there is."""
            session.layers.flush(indices.long())
            return super().get_cpu_copy(indices)

        def load_cpu_copy(self, mamba_cache_cpu: Foreign, indices: Tensor) -> None:
            """And back, ring empty."""
            super().load_cpu_copy(mamba_cache_cpu, indices)
            session.layers.adopt(indices.long())

    return ReplayMambaPool


def once(slots: Tensor) -> Tensor:
    """Slots `[n]`, −1 in place of those that came before: a slot's records are folded once."""
    repeated = (slots[:, None] == slots).tril(-1).any(-1)
    return torch.where(repeated, PAD_SLOT, slots)


def without_states(cache_params: Foreign) -> Foreign:
    """SGLang's cache parameters with states of no bytes: it then allocates neither them nor snapshots of them."""
    heads, value_dim, _ = cache_params.shape.temporal
    shape = dataclasses.replace(cache_params.shape, temporal=(heads, value_dim, 0))
    return dataclasses.replace(cache_params, shape=shape)


def allocate(
    layout: StateLayout, layers: int, state_dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, dict[str, Tensor]]:
    """Zeroed memory of all layers: states `[layers, slots, H, V, K]`, and every other buffer by name."""
    states = torch.zeros(layers, layout.slots, *layout.recurrence.state_shape, dtype=state_dtype, device=device)
    rings = {
        spec.name: torch.zeros(layers, layout.slots, *spec.shape, dtype=spec.dtype, device=device)
        for spec in layout.buffers
        if spec.name != "checkpoint"
    }
    return states, rings
