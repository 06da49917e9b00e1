"""Data that passes between managers, states and mixers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch


class ReplayStateUpdateMetadata(NamedTuple):
    prev_num_accepted_tokens: torch.Tensor
    cache_buf_idx: torch.Tensor
    replay_step_width: int
    replay_history_size: int


@dataclass(frozen=True, kw_only=True)
class MambaLayerCache:
    conv: torch.Tensor
    temporal: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class IntermediateLayerCache(MambaLayerCache):
    intermediate_conv_window: torch.Tensor | None = None
    intermediate_ssm: torch.Tensor | None = None
    mamba_ssm_rand_seed: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class MambaStateLayout:
    layer_mask: tuple
    pp_layers: tuple
    mamba_pp_layers: tuple
    mapping: object
    conv_state_shape: tuple
    ssm_state_shape: tuple
    conv_state_dtype: torch.dtype
    ssm_state_dtype: torch.dtype
    n_groups_per_rank: int
    max_batch_size: int
    state_index_capacity: int
    slot_capacity: int | None
    spec_config: object
    stochastic_rounding: bool = False
    seed_rank_offset: int = 0

    def with_slot_capacity(self, slot_capacity):
        return replace(self, slot_capacity=slot_capacity)


@dataclass(frozen=True, kw_only=True)
class MambaCacheBuildContext(MambaStateLayout):
    backend: str = "v2"


@dataclass(frozen=True, kw_only=True)
class MambaAcceptanceBatch:
    attention_metadata: object
    num_contexts: int
    num_generations: int
    num_accepted_tokens: torch.Tensor
    accepted_positions: torch.Tensor
    source_state_indices: torch.Tensor
    destination_state_indices: torch.Tensor
    is_dummy_request: torch.Tensor | None


class MambaState(Protocol):
    """A model's recurrent state."""

    def bind(self, context, ssm_states, conv_states): ...

    def reset_slots(self, slots, host_slots): ...

    def update(self, batch): ...
