"""Generation B: the engine takes an update strategy as an argument of its manager. This one passes every call on to the
state of generations C and D.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from types import new_class
from typing import Any

import torch
from torch import Tensor

from replayssm import StepError
from replayssm_trtllm.manager import ReplaySSMManager
from replayssm_trtllm.slots import SlotOwners
from replayssm_trtllm.state import ReplaySSMState

KEY = "replayssm"


class StrategyCalls:
    """The strategy's methods; `make_strategy` puts them before the engine's abstract class."""

    state: ReplaySSMState
    owners: SlotOwners
    moving: list[int]
    _mask: Tensor | None = None
    _host_mask: Tensor | None = None

    @property
    def key(self) -> str:
        """Unique name among the manager's features."""
        return KEY

    @property
    def uses_replay(self) -> bool:
        """Whether history persists between steps."""
        return True

    def validate(self, context: Any) -> None:  # noqa: ANN401  the engine's context
        """See `ReplaySSMState.validate`."""
        self.state.validate(context)

    def bytes_per_slot(self, context: Any, layer_id: int) -> int:  # noqa: ANN401
        """See `ReplaySSMState.bytes_per_slot`."""
        return self.state.bytes_per_slot(context, layer_id)

    def bind(self, context: Any, manager: Any) -> None:  # noqa: ANN401
        """See `ReplaySSMState.bind`; publishes the attributes that the engine's kernels look for on the manager."""
        self.state.bind(context, manager.all_ssm_states, manager.all_conv_states)
        if self.state.layers is not None:
            device, rows = self.state.layers.device, context.state_index_capacity
            self._mask = torch.zeros(rows, dtype=torch.bool, device=device)
            self._host_mask = torch.zeros(rows, dtype=torch.bool, pin_memory=device.type == "cuda")
        self._publish(manager)

    def make_layer_cache(self, layer_offset: int, conv: Tensor, temporal: Tensor) -> Any:  # noqa: ANN401
        """See `ReplaySSMState.make_layer_cache`."""
        return self.state.make_layer_cache(layer_offset, conv, temporal)

    def reset_slots(self, slots: Tensor, host_slots: Sequence[int]) -> None:
        """See `ReplaySSMState.reset_slots`."""
        self.state.reset_slots(slots, host_slots)

    def relocate_slots(self, old_slots: Sequence[int], new_slots: Sequence[int]) -> None:
        """See `ReplaySSMState.relocate_slots`."""
        self.owners.check_moves(self.moving, old_slots, new_slots)
        self.state.relocate_slots(old_slots, new_slots)

    def refresh_dummy_request_mask(self, is_dummy: Sequence[bool]) -> None:
        """Mark the rows of the next batch that are padding."""
        if self._mask is None or self._host_mask is None:
            return
        if len(is_dummy) > len(self._host_mask):
            raise StepError(
                f"{len(is_dummy)} rows are more than the {len(self._host_mask)} that the cache was made for"
            )
        self._host_mask.zero_()
        self._host_mask[: len(is_dummy)] = torch.tensor(is_dummy, dtype=torch.bool)
        self._mask.copy_(self._host_mask, non_blocking=True)

    def dummy_request_mask(self, start: int, end: int) -> Tensor | None:
        """`[end − start]` bool."""
        return None if self._mask is None else self._mask[start:end]

    def source_state_indices(self, count: int) -> Tensor:
        """Rows of the convolution snapshots of a generation batch: `[count]` int32."""
        if self.state.intermediate_indices is None:
            raise StepError("drafts were verified and the cache was made without speculation")
        return self.state.intermediate_indices[:count]

    def update(self, batch: Any, manager: object) -> bool:  # noqa: ANN401, ARG002
        """See `ReplaySSMState.update`; True: the recurrent state needs nothing more."""
        self.state.update(batch)
        return True

    def get_replay_metadata(self) -> Any:  # noqa: ANN401
        """See `ReplaySSMState.get_replay_metadata`."""
        return self.state.get_replay_metadata()

    def on_state_transfer_complete(self, request_ids: Sequence[int], manager: Any) -> None:  # noqa: ANN401
        """The manager's own override restarts the slots."""

    def iter_buffers(self) -> Iterable[Tensor]:
        """None: rings hold whatever a dead row last held."""
        return ()

    def shutdown(self, manager: Any = None) -> None:  # noqa: ANN401
        """See `ReplaySSMState.shutdown`."""
        self.state.shutdown()
        self._mask = self._host_mask = None
        if manager is not None:
            self._publish(manager)

    def _publish(self, manager: Any) -> None:  # noqa: ANN401
        manager.intermediate_ssm_states = None
        manager.intermediate_conv_states = self.state.intermediate_conv
        manager.intermediate_state_indices = self.state.intermediate_indices
        manager.mamba_ssm_rand_seed = None


@functools.cache
def make_strategy_class(base: type) -> type:
    """The strategy as a subclass of the engine's abstract class."""
    return new_class("ReplaySSMStrategy", (StrategyCalls, base))


class ReplaySSMManagerShim(ReplaySSMManager):
    """Hands the strategy to a generation B manager."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  the engine's arguments
        strategy = make_strategy_class(self.replayssm_engine.strategy)()
        strategy.state = self.replayssm_make_state()
        strategy.owners, strategy.moving = SlotOwners(), []
        self._replayssm_strategy = strategy
        # The engine may have chosen one of its own, which it would have used.
        super().__init__(*args, **(kwargs | {"state_update_strategy": strategy}))
        self.replayssm_owners, self.replayssm_moving = strategy.owners, strategy.moving

    def replayssm_state(self) -> ReplaySSMState:
        """See `ReplaySSMManager`."""
        state: ReplaySSMState = self._replayssm_strategy.state
        return state

    def replayssm_dummies(self) -> Tensor | None:
        """See `ReplaySSMManager`."""
        mask: Tensor | None = self._replayssm_strategy.dummy_request_mask(0, 1 << 31)
        return mask
