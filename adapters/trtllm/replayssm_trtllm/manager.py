"""The cache manager's side: a mixin for generations C and D, put before the engine's own V2 manager.

The subclass stays an instance of every class that the engine asks for. It overrides hooks and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import new_class
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from replayssm import LayerKind, UnsupportedError
from replayssm_trtllm.config import ReplaySSMConfig
from replayssm_trtllm.kinds import GDN
from replayssm_trtllm.runtime_checks import check_manager_arguments
from replayssm_trtllm.sizing import bytes_per_rank
from replayssm_trtllm.slots import SlotOwners
from replayssm_trtllm.state import ReplaySSMState

if TYPE_CHECKING:
    from replayssm_trtllm.compat import Engine


class ReplaySSMManager:
    """What every extended manager has, whatever its generation.

    Attributes:
        replayssm_config: as the rank received it.
        replayssm_kind: of the model's recurrent layers.
        replayssm_engine: the engine's symbols.
    """

    replayssm_config: ClassVar[ReplaySSMConfig]
    replayssm_kind: ClassVar[LayerKind]
    replayssm_engine: ClassVar[Engine]

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  the engine's arguments
        check_manager_arguments(kwargs)
        self.replayssm_owners = SlotOwners()
        # Requests whose slots the engine is about to move, in its order.
        self.replayssm_moving: list[int] = []
        super().__init__(*args, **kwargs)

    def replayssm_make_state(self) -> ReplaySSMState:
        """A state of the engine's own payload types."""
        engine = self.replayssm_engine
        return ReplaySSMState(self.replayssm_config, self.replayssm_kind, engine.payload, engine.metadata)

    def replayssm_state(self) -> ReplaySSMState:
        """The state that this manager drives."""
        raise NotImplementedError

    def replayssm_dummies(self) -> Tensor | None:
        """`[rows]` bool, rows of padding."""
        raise NotImplementedError

    @property
    def use_replay_state_update(self) -> bool:
        """Whether the engine's mixers verify drafts on their replay path, which for GDN the plugin takes over."""
        return self.replayssm_kind is GDN and getattr(self, "spec_config", None) is not None

    def mamba_layer_cache(self, layer_idx: int) -> Any:  # noqa: ANN401  the engine's payload
        """See the engine's manager."""
        engine: Any = self
        return self.replayssm_state().make_layer_cache(
            engine.mamba_layer_offsets[layer_idx], engine.get_conv_states(layer_idx), engine.get_ssm_states(layer_idx)
        )

    def get_replay_state_update_metadata(self) -> Any:  # noqa: ANN401
        """See the engine's manager."""
        return self.replayssm_state().get_replay_metadata()

    def on_state_transfer_complete(self, request_ids: Sequence[int]) -> None:
        """See the engine's manager."""
        super().on_state_transfer_complete(request_ids)  # type: ignore[misc]
        known: dict[int, int] = getattr(self, "_request_id_to_state_index", {})
        self.replayssm_state().on_transfer([known[request] for request in request_ids if request in known])

    def _setup_state_indices(self, requests: Sequence[Any], num_contexts: int = 0) -> None:
        self.replayssm_moving[:] = [request.py_request_id for request in requests[num_contexts:]]
        super()._setup_state_indices(requests, num_contexts=num_contexts)  # type: ignore[misc]
        known: dict[int, int] = getattr(self, "_request_id_to_state_index", {})
        ids = [request.py_request_id for request in requests if request.py_request_id in known]
        self.replayssm_owners.claim(ids, [known[request] for request in ids])


class ReplaySSMManagerMixin(ReplaySSMManager):
    """Hooks of generations C and D."""

    _speculative_state: Any

    def _initialize_model_state(self) -> ReplaySSMState:
        state = self.replayssm_make_state()
        state.validate(self._layout())
        self._speculative_state = state
        return state

    def _initialize_spec_state(self) -> ReplaySSMState:
        return self._initialize_model_state()

    def _setup_model_state(self) -> None:
        engine: Any = self
        self._speculative_state.bind(self._layout(), engine.all_ssm_states, engine.all_conv_states)

    def _reset_model_slots(self, slots: Tensor, host_slots: Sequence[int]) -> None:
        self._speculative_state.reset_slots(slots, host_slots)

    def _on_state_slots_relocated(self, old_slots: Sequence[int], new_slots: Sequence[int]) -> None:
        self.replayssm_owners.check_moves(self.replayssm_moving, old_slots, new_slots)
        self._speculative_state.relocate_slots(old_slots, new_slots)

    def _update_speculative_state(self, batch: Any) -> None:  # noqa: ANN401
        self._speculative_state.update(batch)

    def _extra_scratch_bytes_per_slot(self) -> int:
        layout: Any = self._layout()
        state = self.replayssm_make_state()
        ours = sum(state.bytes_per_slot(layout, layer) for layer in layout.mamba_pp_layers)
        return ours + int(getattr(super(), "_extra_scratch_bytes_per_slot")())  # noqa: B009  of the engine's class

    @classmethod
    def _extra_state_bytes_per_rank(cls, model_config: Any, mapping: Any, **kwargs: Any) -> int:  # noqa: ANN401
        theirs = getattr(super(), "_extra_state_bytes_per_rank")  # noqa: B009  of the engine's class
        ours = bytes_per_rank(
            cls.replayssm_engine, cls.replayssm_config, cls.replayssm_kind, model_config, mapping, **kwargs
        )
        return ours + int(theirs(model_config, mapping, **kwargs))

    def get_mamba_ssm_rand_seed(self) -> None:
        """TensorRT-LLM's own rounding seeds: the plugin has its own."""

    def replayssm_state(self) -> ReplaySSMState:
        """See `ReplaySSMManager`."""
        state: ReplaySSMState = self._speculative_state
        return state

    def replayssm_dummies(self) -> Tensor | None:
        """See `ReplaySSMManager`."""
        return getattr(self, "_dummy_request_mask", None)

    def _shutdown_model_state(self) -> None:
        self._speculative_state.shutdown()

    def shutdown(self) -> None:
        """See the engine's manager; the rings go first, before the pool that they borrow from."""
        self._speculative_state.shutdown()
        super().shutdown()  # type: ignore[misc]

    def _layout(self) -> Any:  # noqa: ANN401  the engine's layout
        return getattr(self, "_state_layout")  # noqa: B009  of the engine's class


def state_of(manager: Any) -> ReplaySSMState:  # noqa: ANN401
    """The state of an extended manager.

    Raises:
        UnsupportedError: a manager that the plugin did not extend.
    """
    if not isinstance(manager, ReplaySSMManager):
        raise UnsupportedError(
            f"this model replays and its forward uses {type(manager).__name__}, which the plugin did not extend; "
            "use_kv_cache_manager_v2 must be true, and no other code may choose the manager"
        )
    return manager.replayssm_state()


@functools.lru_cache(maxsize=64)
def make_manager_class(base: type, engine: Engine, kind: LayerKind, config: ReplaySSMConfig) -> type:
    """The engine's manager class with replay, one class for the same arguments.

    Raises:
        UnsupportedError: not a V2 manager.
    """
    if not issubclass(base, engine.manager):
        raise UnsupportedError(
            f"{base.__name__} is not a {engine.manager.__name__}; set kv_cache_config.use_kv_cache_manager_v2=true"
        )
    attributes = {"replayssm_config": config, "replayssm_kind": kind, "replayssm_engine": engine}
    return new_class(f"ReplaySSM{base.__name__}", (engine.mixin, base), exec_body=lambda body: body.update(attributes))
