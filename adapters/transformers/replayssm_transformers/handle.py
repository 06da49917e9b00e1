"""What stands in a cache where transformers keeps the recurrent state: a replay state and its uncommitted tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from replayssm import InputError, ReplayConfig, ReplayState, StateLayout, TokenInputs, UnsupportedError
from replayssm_transformers.meter import ModelMeter
from replayssm_transformers.operators import Call
from replayssm_transformers.tokens import join_tokens, slice_tokens


class ReplayHandle:
    """One layer's replay state, one slot for each row of the batch.

    While the cache records its past, new tokens are records that await `crop`; at most `max_draft` of them. When a
    later step brings more before a crop came, they are presented again with it, and the oldest are committed.

    Args:
        config: window, draft limit and precision.
        meter: counts the steps.
    """

    def __init__(self, config: ReplayConfig, meter: ModelMeter) -> None:
        self.config, self.meter = config, meter
        self.replay: ReplayState | None = None
        self.pending: TokenInputs | None = None
        self.seen = 0

    def to(self, *_: object, **__: object) -> ReplayHandle:
        """Mixers cast the state that an operator returned; this one keeps its own formats."""
        return self

    @property
    def awaiting(self) -> int:
        """Tokens that a crop can still remove."""
        return 0 if self.pending is None else self.pending.draft

    @property
    def slots(self) -> Tensor:
        """`[B]` slot of each row."""
        return torch.arange(self._state.layout.slots, device=self._state.device)

    def run(self, call: Call, initial: Tensor | None, recording: bool) -> Any:  # noqa: ANN401  what the operator returns
        """Serve one operator call.

        Args:
            initial: `[B, H, V, K]` state of an ordinary cache that was taken over, None when there is none.
            recording: whether the cache records its past, so that `crop` may follow.

        Raises:
            InputError: another batch size than the cache's, or values that the core refuses.
        """
        fresh = self.replay is None and initial is None
        total = call.inputs.draft
        if self.replay is None:
            self._open(call, initial)
        else:
            self.check_rows(call.inputs.batch)
        records = min(total, self.config.max_draft) if recording else int(total == 1 and not fresh)
        head = total - records
        parts = [self._prefill(call, head, fresh)] if head else []
        if records:
            tokens = call.inputs if head or fresh else call.drafts
            parts.append(self._record(slice_tokens(tokens, head), recording))
        self.seen += total
        return call.answer(torch.cat([part.to(parts[0].dtype) for part in parts], dim=1), self)

    def check_rows(self, rows: int) -> None:
        """Whether a batch fits the slots.

        Raises:
            InputError: another batch size than the cache's.
        """
        if self.replay is not None and rows != self.replay.layout.slots:
            raise InputError(f"the batch has {rows} rows, the cache holds {self.replay.layout.slots}")

    def check_crop(self, count: int) -> None:
        """Whether the last `count` tokens can be removed.

        Raises:
            InputError: they are committed already.
        """
        if count > self.awaiting:
            raise InputError(
                f"crop by {count} tokens, but only the last {self.awaiting} await acceptance; "
                f"raise ReplayConfig(max_draft={self.config.max_draft}) to at least {count + 1}"
            )

    def crop(self, count: int) -> None:
        """Remove the last `count` tokens and accept the others: a cursor moves, no state is touched."""
        self.check_crop(count)
        if self.pending is not None:
            self._state.commit(self.awaiting - count)
            self.pending = None
            self.seen -= count

    def state(self) -> Tensor:
        """Accept all tokens and fold them: `[B, H, V, K]` in fp32, from the checkpoint."""
        self.crop(0)
        return self._state.state()

    def select(self, rows: Tensor) -> None:
        """Keep the given rows `[n]` of the batch, which may repeat. Tokens that await acceptance are accepted."""
        self.crop(0)
        if self.replay is not None:
            self.replay = self.replay.select(rows.to(self.replay.device))

    @property
    def _state(self) -> ReplayState:
        if self.replay is None:
            raise UnsupportedError("the layer holds no state yet; run the prompt first")
        return self.replay

    def _open(self, call: Call, initial: Tensor | None) -> None:
        value = call.inputs.v
        layout = StateLayout(
            call.recurrence, len(value), self.config.window, self.config.max_draft, self.config.policy, value.dtype
        )
        self.replay = self._make(layout, call.decay_rates, value.device)
        if initial is None:
            self.replay.reset()
        else:
            self.replay.load(self.slots, initial)

    def _prefill(self, call: Call, count: int, fresh: bool) -> Tensor:
        """The original operator on the first tokens, from the checkpoint; its final state is loaded."""
        out, final = call.prefill(count, None if fresh else self.state())
        self._state.load(self.slots, final, self.seen + count)
        return out

    def _record(self, new: TokenInputs, recording: bool) -> Tensor:
        """Tokens as records: `[B, T, H, V]`. Outside a recording they are accepted at once."""
        if not recording:
            self.crop(0)
            return self._state.decode(new, self.slots)
        joined = new if self.pending is None else join_tokens(self._trim(new.draft), new)
        out = self._state.verify(joined, self.slots)
        self.meter.resubmitted((joined.draft - new.draft) * joined.batch)
        self.pending = replace(joined, z=None)
        return out[:, -new.draft :]

    def _trim(self, coming: int) -> TokenInputs:
        """Commit the oldest tokens that await acceptance, so that the coming ones fit beside the others."""
        pending = self.pending
        assert pending is not None
        surplus = max(0, pending.draft + coming - self.config.max_draft)
        if surplus:
            self._state.commit(surplus)
        return slice_tokens(pending, surplus)

    def _make(self, layout: StateLayout, decay_rates: Tensor | None, device: torch.device) -> ReplayState:
        config = self.config
        return ReplayState(
            layout,
            A=decay_rates,
            backend=config.backend,
            flush=config.flush,
            device=device,
            check_inputs=config.checks_values(device.type),
            seed=config.seed,
            meter=self.meter,
        )
