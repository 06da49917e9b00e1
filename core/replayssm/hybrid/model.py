"""The description of a hybrid model that planning needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from replayssm.errors import InputError
from replayssm.recurrence import Recurrence


@dataclass(frozen=True)
class HybridModel:
    """A model's recurrent layers, which all have one geometry, and what stands beside them.

    Attributes:
        source: the file it was read from.
        model_type: as the config names it.
        recurrence: geometry of each recurrent layer.
        recurrent_layers, attention_layers: a layer that is both counts in both.
        layers: all layers, with those that are only an MLP or experts.
        conv_kernel: width of the short convolution before the recurrence.
        kv_heads, kv_elements: what an attention layer caches for a token: heads × elements each.
        activation: dtype of activations, rings, convolution state and KV cache.
    """

    source: str
    model_type: str
    recurrence: Recurrence
    recurrent_layers: int
    attention_layers: int
    layers: int
    conv_kernel: int
    kv_heads: int
    kv_elements: int
    activation: torch.dtype

    @property
    def state_bytes(self) -> int:
        """Bytes of the ordinary fp32 state of one slot and layer."""
        return 4 * math.prod(self.recurrence.state_shape)

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution: values and both key-sized inputs."""
        r = self.recurrence
        return r.heads * r.value_dim + 2 * r.groups * r.key_dim

    def conv_bytes(self, draft: int = 1) -> int:
        """Bytes of the convolution's past inputs for one slot and layer, with room to take back `draft` − 1 of them."""
        return (self.conv_kernel - 1 + draft - 1) * self.conv_channels * self.activation.itemsize

    @property
    def kv_token_bytes(self) -> int:
        """Bytes that one attention layer caches for one token."""
        return self.kv_heads * self.kv_elements * self.activation.itemsize

    def shard(self, tp: int) -> HybridModel:
        """One of `tp` tensor-parallel ranks: heads are divided; key groups and KV heads are divided, then replicated.

        Raises:
            InputError: the heads or groups cannot be divided.
        """
        r = self.recurrence
        if tp < 1 or r.heads % tp:
            raise InputError(f"tp={tp} must divide the {r.heads} heads of {self.source}")
        if r.groups % tp and tp % r.groups:
            raise InputError(
                f"tp={tp} must divide the {r.groups} key groups of {self.source}, or be a multiple of them"
            )
        part = replace(r, heads=r.heads // tp, groups=max(1, r.groups // tp))
        return replace(self, recurrence=part, kv_heads=math.ceil(self.kv_heads / tp))
