"""Generation B: the V2 manager takes a strategy, and calls it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from small_engine.hybrid import Hybrid
from small_engine.payloads import IntermediateLayerCache, MambaCacheBuildContext


@dataclass(frozen=True, kw_only=True)
class SpeculativeMambaLayerCache(IntermediateLayerCache):
    pass


class MambaStateUpdateStrategy(ABC):
    @property
    @abstractmethod
    def key(self): ...

    @property
    def uses_replay(self):
        return False

    def validate(self, context): ...

    def bytes_per_slot(self, context, layer_id):
        del context, layer_id
        return 0

    def bind(self, context, manager): ...

    def make_layer_cache(self, layer_offset, conv, temporal):
        del layer_offset
        return SpeculativeMambaLayerCache(conv=conv, temporal=temporal)

    def reset_slots(self, slots, host_slots): ...

    def relocate_slots(self, old_slots, new_slots): ...

    def refresh_dummy_request_mask(self, is_dummy): ...

    def dummy_request_mask(self, start, end):
        del start, end

    def source_state_indices(self, count):
        raise RuntimeError(f"not bound for {count} rows")

    def update(self, batch, manager):
        del batch, manager
        return False

    def get_replay_metadata(self):
        return None

    def on_state_transfer_complete(self, request_ids, manager): ...

    def iter_buffers(self):
        return ()

    def shutdown(self, manager=None): ...


class Plain(MambaStateUpdateStrategy):
    key = "plain"


class MambaHybridCacheManagerV2(Hybrid):
    layout_class = MambaCacheBuildContext

    def __init__(
        self,
        mamba_d_state,
        mamba_d_conv,
        mamba_num_heads,
        mamba_n_groups,
        mamba_head_dim,
        mamba_num_layers,
        mamba_layer_mask,
        mamba_cache_dtype,
        mamba_ssm_cache_dtype,
        kv_cache_config,
        kv_cache_type,
        *,
        max_batch_size,
        mapping,
        spec_config=None,
        is_draft=False,
        mamba_ssm_stochastic_rounding=False,
        state_update_strategy=None,
        **kwargs,
    ):
        del mamba_num_layers, is_draft
        self.strategy = state_update_strategy or Plain()
        context = self._geometry(
            mamba_d_state, mamba_d_conv, mamba_num_heads, mamba_n_groups, mamba_head_dim, mamba_layer_mask,
            mamba_cache_dtype, mamba_ssm_cache_dtype, max_batch_size, mapping, spec_config, mamba_ssm_stochastic_rounding,
        )  # fmt: skip
        self.strategy.validate(context)
        self.scratch_seen = sum(self.strategy.bytes_per_slot(context, layer) for layer in self.mamba_pp_layers)
        super().__init__(kv_cache_config, kv_cache_type, max_batch_size=max_batch_size, mapping=mapping, **kwargs)
        self._make_pools(context)
        self.strategy.bind(context.with_slot_capacity(self.num_slots if self.local_num_mamba_layers else 0), self)

    def _setup_state_indices(self, requests, num_contexts=0):
        generation_requests = requests[num_contexts:]
        old = [self._request_id_to_state_index.get(r.py_request_id, -1) for r in generation_requests]
        self._fill_indices(requests)
        self.strategy.refresh_dummy_request_mask([request.is_dummy for request in requests])
        new = self._slots_of(generation_requests)
        self.strategy.relocate_slots(old, new)
        fresh = [n for o, n in zip(old, new, strict=True) if o < 0]
        if fresh:
            self.strategy.reset_slots(torch.tensor(fresh), fresh)

    def _restart(self, slots, host_slots):
        self.strategy.reset_slots(slots, host_slots)

    def update_mamba_states(self, attn_metadata, num_accepted_tokens, state_indices=None, accepted_leaf_positions=None):
        del accepted_leaf_positions
        indices = self.cuda_state_indices if state_indices is None else state_indices
        rows = attn_metadata.num_seqs - attn_metadata.num_contexts
        source = self.strategy.source_state_indices(rows)
        dummies = self.strategy.dummy_request_mask(attn_metadata.num_contexts, attn_metadata.num_seqs)
        self.strategy.update(self.acceptance(attn_metadata, num_accepted_tokens, indices, source, dummies), self)

    def on_state_transfer_complete(self, request_ids):
        self.strategy.on_state_transfer_complete(request_ids, self)

    def get_ssm_states(self, layer_idx):
        return self.all_ssm_states[self.mamba_layer_offsets[layer_idx]]

    def get_conv_states(self, layer_idx):
        return self.all_conv_states[self.mamba_layer_offsets[layer_idx]]

    def shutdown(self):
        self.strategy.shutdown(self)
        self.all_ssm_states, self.all_conv_states = [], []
        super().shutdown()


ESTIMATORS = {}


def register_mamba_aux_cache_estimator(key, estimator):
    if ESTIMATORS.setdefault(key, estimator) is not estimator:
        raise ValueError(f"estimator {key!r} is taken")
