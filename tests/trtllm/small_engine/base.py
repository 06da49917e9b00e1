"""What lies below the hybrid manager: requests, ranks, and a paged pool that may move a request's slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import torch


@dataclass
class Mapping:
    tp_size: int = 1
    tp_rank: int = 0
    pp_size: int = 1
    pp_rank: int = 0
    rank: int = 0
    enable_attention_dp: bool = False


@dataclass
class Request:
    py_request_id: int
    is_dummy: bool = False


@dataclass
class Batch:
    context_requests: list = field(default_factory=list)
    generation_requests: list = field(default_factory=list)


class KVCacheManagerV2:
    """Slots of one pool. A suspended request gives its slot away; its state waits on the host and comes back elsewhere."""

    def __init__(self, kv_cache_config, kv_cache_type, *, max_batch_size, mapping, spec_config=None, slots=8, **kwargs):
        self.kv_cache_config, self.max_batch_size, self.mapping = kv_cache_config, max_batch_size, mapping
        self.num_slots = slots
        self.free = list(range(slots))
        self.slot_of = {}
        self.host = {}
        self.extra_arguments = kwargs

    def pools(self):
        return [*self.all_ssm_states, *self.all_conv_states]

    def take(self, request):
        if request.py_request_id not in self.slot_of:
            slot = self.free.pop(0)
            self.slot_of[request.py_request_id] = slot
            saved = self.host.pop(request.py_request_id, None)
            for pool, state in zip(self.pools(), saved or (), strict=False):
                pool[slot] = state

    def suspend(self, request):
        slot = self.slot_of.pop(request.py_request_id)
        self.host[request.py_request_id] = [pool[slot].clone() for pool in self.pools()]
        self.free.append(slot)

    def move(self, request):
        """The pool is compacted: the request's state goes to another slot at once."""
        self.suspend(request)
        self.free.insert(0, self.free.pop(len(self.free) // 2))
        self.take(request)

    def prepare_resources(self, scheduled_batch):
        for request in (*scheduled_batch.context_requests, *scheduled_batch.generation_requests):
            self.take(request)

    def free_resources(self, request, pin_on_release=False):
        del pin_on_release
        self.free.append(self.slot_of.pop(request.py_request_id))

    def shutdown(self):
        self.slot_of.clear()


def effective_tp(mapping):
    return 1 if mapping.enable_attention_dp else mapping.tp_size


def local_layout(model_config, mapping, *, spec_config=None, is_draft=False, use_separate_draft_kv_cache=False):
    del mapping, spec_config, is_draft, use_separate_draft_kv_cache
    layers = sum(model_config.pretrained_config.recurrent_mask)
    return SimpleNamespace(), layers, 0


def interleaved(layers, slots, shape, dtype, device=None):
    """Views of one memory in which a slot's layers lie side by side, and the stride of slots is theirs together."""
    memory = torch.zeros(slots, layers, *shape, dtype=dtype, device=device)
    return [memory[:, layer] for layer in range(layers)]
