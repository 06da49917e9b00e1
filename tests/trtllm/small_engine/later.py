"""Generations C and D: a model's manager overrides hooks of the V2 manager."""

from __future__ import annotations

import torch

from small_engine.hybrid import Hybrid
from small_engine.payloads import MambaStateLayout


def make_later(generation: str, keeps_state: bool):
    """The V2 manager. `keeps_state`: whether the base keeps what the hook returns and binds it, as later C does."""

    class MambaHybridCacheManagerV2(Hybrid):
        layout_class = MambaStateLayout

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
            **kwargs,
        ):
            del mamba_num_layers, is_draft
            self._state_layout = self._geometry(
                mamba_d_state, mamba_d_conv, mamba_num_heads, mamba_n_groups, mamba_head_dim, mamba_layer_mask,
                mamba_cache_dtype, mamba_ssm_cache_dtype, max_batch_size, mapping, spec_config,
                mamba_ssm_stochastic_rounding,
            )  # fmt: skip
            self.scratch_seen = self._extra_scratch_bytes_per_slot()
            state = self._initialize_spec_state() if generation == "D" else self._initialize_model_state()
            if keeps_state:
                self._speculative_state = state
            super().__init__(kv_cache_config, kv_cache_type, max_batch_size=max_batch_size, mapping=mapping, **kwargs)
            self._make_pools(self._state_layout)
            self._dummy_request_mask = torch.zeros(len(self.cuda_state_indices), dtype=torch.bool)
            self._generation_state_indices = torch.arange(max_batch_size, dtype=torch.int32)
            self._state_layout = self._state_layout.with_slot_capacity(
                self.num_slots if self.local_num_mamba_layers else 0
            )
            self._setup_model_state()

        def _setup_model_state(self):
            pass

        def _extra_scratch_bytes_per_slot(self):
            return 0

        @classmethod
        def _extra_state_bytes_per_rank(cls, model_config, mapping, **kwargs):
            del model_config, mapping, kwargs
            return 0

        def _setup_state_indices(self, requests, num_contexts=0):
            generation_requests = requests[num_contexts:]
            old = [self._request_id_to_state_index.get(r.py_request_id, -1) for r in generation_requests]
            self._fill_indices(requests)
            self._refresh_dummy_request_mask([request.is_dummy for request in requests])
            self._on_state_slots_relocated(old, self._slots_of(generation_requests))

        def _on_state_slots_relocated(self, old_slots, new_slots):
            pass

        def _restart(self, slots, host_slots):
            self._reset_model_slots(slots, host_slots)

        def _reset_model_slots(self, slots, host_slots):
            pass

        def _refresh_dummy_request_mask(self, is_dummy):
            self._dummy_request_mask.zero_()
            self._dummy_request_mask[: len(is_dummy)] = torch.tensor(is_dummy, dtype=torch.bool)

        def update_mamba_states(
            self, attn_metadata, num_accepted_tokens, state_indices=None, accepted_leaf_positions=None
        ):
            del accepted_leaf_positions
            indices = self.cuda_state_indices if state_indices is None else state_indices
            first = attn_metadata.num_contexts
            dummies = self._dummy_request_mask[first : attn_metadata.num_seqs]
            self._update_speculative_state(
                self.acceptance(attn_metadata, num_accepted_tokens, indices, self._generation_state_indices, dummies)
            )

        def _update_speculative_state(self, batch):
            raise NotImplementedError("a model's manager implements it")

        def on_state_transfer_complete(self, request_ids):
            self.notified = list(request_ids)

        def get_ssm_states(self, layer_idx):
            return self.all_ssm_states[self.mamba_layer_offsets[layer_idx]]

        def get_conv_states(self, layer_idx):
            return self.all_conv_states[self.mamba_layer_offsets[layer_idx]]

        def shutdown(self):
            self.all_ssm_states, self.all_conv_states = [], []
            super().shutdown()

    def hook(self):
        if self.spec_config is not None:
            raise NotImplementedError("speculation needs a model's manager")

    name = "_initialize_spec_state" if generation == "D" else "_initialize_model_state"
    setattr(MambaHybridCacheManagerV2, name, hook)
    return MambaHybridCacheManagerV2
