"""Which request last used a slot. A ring that another request wrote over cannot follow its own one to a new slot."""

from __future__ import annotations

from collections.abc import Sequence

from replayssm import StepError


class SlotOwners:
    """Host-side record of slots and requests, updated once a step."""

    def __init__(self) -> None:
        self._owner: dict[int, int] = {}

    def claim(self, requests: Sequence[int], slots: Sequence[int]) -> None:
        """`requests[i]` uses `slots[i]` from now on."""
        self._owner.update(zip(slots, requests, strict=True))

    def check_moves(self, requests: Sequence[int], old: Sequence[int], new: Sequence[int]) -> None:
        """Check that each request that changes slots still owns the old one.

        Raises:
            StepError: its slot was used by another request meanwhile, so its ring is gone.
        """
        for request, source, target in zip(requests, old, new, strict=True):
            owner = self._owner.get(source)
            if source >= 0 and source != target and owner != request:
                raise StepError(
                    f"request {request} was suspended in slot {source}, which request {owner} used meanwhile: its records "
                    "since the last state write are lost. Give the cache more memory, or suspend by recomputation"
                )
