"""The part of the hybrid manager that all generations share: geometry, pools, slot numbers of a batch, acceptance."""

from __future__ import annotations

import torch

from small_engine.base import KVCacheManagerV2, interleaved
from small_engine.payloads import MambaAcceptanceBatch, MambaLayerCache


class Hybrid(KVCacheManagerV2):
    layout_class = None

    def _geometry(
        self, d_state, d_conv, heads, groups, head_dim, mask, conv_dtype, ssm_dtype, max_batch, mapping, spec, sr
    ):
        self.spec_config = spec
        self.mamba_pp_layers = [layer for layer, recurrent in enumerate(mask) if recurrent]
        self.local_num_mamba_layers = len(self.mamba_pp_layers)
        self.mamba_layer_offsets = {layer: offset for offset, layer in enumerate(self.mamba_pp_layers)}
        tp = 1 if mapping.enable_attention_dp else mapping.tp_size
        channels = (heads * head_dim + 2 * groups * d_state) // tp
        self.reserved = 1
        return self.layout_class(
            layer_mask=tuple(mask),
            pp_layers=tuple(range(len(mask))),
            mamba_pp_layers=tuple(self.mamba_pp_layers),
            mapping=mapping,
            conv_state_shape=(channels, d_conv - 1),
            ssm_state_shape=(heads // tp, head_dim, d_state),
            conv_state_dtype=conv_dtype,
            ssm_state_dtype=ssm_dtype or conv_dtype,
            n_groups_per_rank=groups // tp,
            max_batch_size=max_batch,
            state_index_capacity=max_batch + self.reserved,
            slot_capacity=None,
            spec_config=spec,
            stochastic_rounding=sr,
            seed_rank_offset=mapping.tp_rank * 1_000_003 + mapping.rank,
        )

    def _make_pools(self, layout):
        layers = len(self.mamba_pp_layers)
        shapes = ((layout.ssm_state_shape, layout.ssm_state_dtype), (layout.conv_state_shape, layout.conv_state_dtype))
        pools = [interleaved(layers, self.num_slots, shape, dtype) for shape, dtype in shapes]
        self.all_ssm_states, self.all_conv_states = pools if layers else ([], [])
        for pool in self.all_ssm_states:
            pool.fill_(torch.nan)  # a page holds whatever it held
        self._request_id_to_state_index = {}
        self._request_id_to_is_dummy = {}
        rows = self.max_batch_size + self.reserved
        self.cuda_state_indices = torch.zeros(rows, dtype=torch.int32)
        self._host_state_indices = torch.zeros(rows, dtype=torch.int32)

    def _fill_indices(self, requests):
        self._host_state_indices.zero_()
        for row, request in enumerate(requests):
            self._host_state_indices[row] = self.slot_of[request.py_request_id]
        self.cuda_state_indices.copy_(self._host_state_indices)
        for row, request in enumerate(requests):
            self._request_id_to_state_index[request.py_request_id] = int(self._host_state_indices[row])
            self._request_id_to_is_dummy[request.py_request_id] = request.is_dummy

    def _slots_of(self, requests):
        return [self._request_id_to_state_index.get(request.py_request_id, -1) for request in requests]

    def prepare_resources(self, scheduled_batch):
        super().prepare_resources(scheduled_batch)
        contexts = scheduled_batch.context_requests
        self._setup_state_indices([*contexts, *scheduled_batch.generation_requests], num_contexts=len(contexts))
        if contexts:
            self._restart(
                self.cuda_state_indices[: len(contexts)].long(), self._host_state_indices[: len(contexts)].tolist()
            )

    def free_resources(self, request, pin_on_release=False):
        self._request_id_to_state_index.pop(request.py_request_id, None)
        self._request_id_to_is_dummy.pop(request.py_request_id, None)
        super().free_resources(request, pin_on_release)

    def is_speculative(self):
        return self.spec_config is not None

    def get_ssm_states(self, layer_idx):
        return self.all_ssm_states[self.mamba_layer_offsets[layer_idx]]

    def get_conv_states(self, layer_idx):
        return self.all_conv_states[self.mamba_layer_offsets[layer_idx]]

    def mamba_layer_cache(self, layer_idx):
        return MambaLayerCache(conv=self.get_conv_states(layer_idx), temporal=self.get_ssm_states(layer_idx))

    def get_replay_state_update_metadata(self):
        return None

    def get_max_resource_count(self):
        return self.max_batch_size

    def acceptance(self, attn_metadata, accepted, indices, source, dummies):
        first, rows = attn_metadata.num_contexts, attn_metadata.num_seqs - attn_metadata.num_contexts
        part = slice(first, first + rows)
        return MambaAcceptanceBatch(
            attention_metadata=attn_metadata,
            num_contexts=first,
            num_generations=rows,
            num_accepted_tokens=accepted[part],
            accepted_positions=(accepted[part] - 1).to(torch.int32),
            source_state_indices=source[:rows],
            destination_state_indices=indices[part].to(torch.int32),
            is_dummy_request=dummies,
        )
