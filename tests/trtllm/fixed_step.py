"""A forward of two recurrent layers at fixed addresses, as a CUDA graph replays it, beside one that runs eagerly."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import torch
from small_engine.base import interleaved

from replayssm import Recurrence
from replayssm.conformance.inputs import Source, overwrite
from replayssm.recurrence import LayerKind
from replayssm_trtllm import ReplaySSMConfig
from replayssm_trtllm.state import ReplaySSMState

SLOTS, ROWS, LAYERS = 7, 5, (4, 9)


@dataclass(frozen=True)
class Setting:
    """Geometry, dtypes and the way of decoding: T = `tokens` to verify, or ordinary decode where it is 1."""

    value_dim: int = 16
    key_dim: int = 32
    window: int = 8
    tokens: int = 3
    activation: torch.dtype = torch.float32
    ssm: torch.dtype = torch.float32
    fields: dict = field(default_factory=dict)


class FixedStep:
    """A state of two layers, and every tensor that its forward reads."""

    def __init__(self, kind, setting, backend, device, seed):
        recurrence = Recurrence(kind, 4, 2, setting.value_dim, setting.key_dim)
        self.device, self.speculative = device, setting.tokens > 1
        config = ReplaySSMConfig(mode="plugin", window=setting.window, decode=True, backend=backend, **setting.fields)
        self.pools = interleaved(len(LAYERS), SLOTS, recurrence.state_shape, setting.ssm, device)
        self.convolutions = interleaved(len(LAYERS), SLOTS, (6, 3), setting.activation, device)
        context = SimpleNamespace(
            mamba_pp_layers=LAYERS,
            ssm_state_shape=recurrence.state_shape,
            conv_state_shape=(6, 3),
            ssm_state_dtype=setting.ssm,
            conv_state_dtype=setting.activation,
            n_groups_per_rank=2,
            max_batch_size=ROWS,
            slot_capacity=SLOTS,
            spec_config=SimpleNamespace(tokens_per_gen_step=setting.tokens) if self.speculative else None,
            stochastic_rounding=False,
            seed_rank_offset=0,
        )
        self.state = ReplaySSMState(config, kind, SimpleNamespace, SimpleNamespace)
        self.state.bind(context, self.pools, self.convolutions)
        self.source = Source(recurrence, setting.activation, device, seed=seed)
        self.state.attach(dict.fromkeys(LAYERS, self.source.A))
        self.inputs = [packed(self.source.tokens(ROWS, setting.tokens)) for _ in LAYERS]
        self.slots = torch.zeros(ROWS, dtype=torch.int32, device=device)
        self.dummies = torch.ones(ROWS, dtype=torch.bool, device=device)
        self.accepted = torch.ones(ROWS, dtype=torch.int32, device=device)
        self.none = torch.zeros(0, dtype=torch.int32, device=device)
        self.batch = SimpleNamespace(
            num_generations=ROWS,
            num_accepted_tokens=self.accepted,
            accepted_positions=torch.zeros(ROWS, dtype=torch.int32, device=device),
            source_state_indices=torch.arange(ROWS, device=device),
            destination_state_indices=self.slots,
            is_dummy_request=self.dummies,
        )

    def forward(self):
        self.state.begin(0, self.dummies)
        outs = [
            self.state.step(layer, x, self.slots, standard=not self.speculative)
            for layer, x in zip(LAYERS, self.inputs, strict=True)
        ]
        if self.speculative:
            self.state.update(self.batch)
        self.state.finish(self.none)
        return outs

    def prefill(self, slots, states):
        for pool in self.pools:
            pool[slots] = states.to(pool.dtype)
        self.state.reset_slots(slots, slots.tolist())

    def rows(self, inputs, slots, accepted):
        """New values at the old addresses; rows beyond them are padding, and name a slot that is alive."""
        for fixed, given in zip(self.inputs, inputs, strict=True):
            overwrite(fixed, given)
        count = len(slots)
        self.slots.fill_(int(slots[0]))
        self.slots[:count] = slots
        self.dummies.fill_(True)
        self.dummies[:count] = False
        self.accepted[:count] = accepted
        self.batch.accepted_positions.copy_(self.accepted - 1)

    def replayable(self):
        """The forward as a captured graph on a GPU, as itself elsewhere."""
        if self.device.type != "cuda":
            return self.forward
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.forward()  # compiles; every row is padding
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs = self.forward()

        def replay():
            graph.replay()
            return outs

        return replay


def packed(inputs):
    """q, k and v as views of one memory, as a convolution leaves them."""
    parts = [inputs.q, inputs.k, inputs.v]
    memory = torch.cat([part.flatten(2) for part in parts], -1)
    views = memory.split([part.shape[2] * part.shape[3] for part in parts], -1)
    q, k, v = (view.unflatten(2, part.shape[2:]) for view, part in zip(views, parts, strict=True))
    return replace(inputs, q=q, k=k, v=v)


def check(kind, setting, backend, device, steps=30, models=None):
    """Replays give, bit for bit, what the eager forward of a twin gives.

    Args:
        models: called with the first of the two, gives `LayerModels` that judge each step.
    """
    kind = LayerKind(kind)
    one, twin = (FixedStep(kind, setting, backend, device, seed=4) for _ in range(2))
    judge = None if models is None else models(one)
    run = one.replayable()
    slots = torch.arange(SLOTS, device=device)
    prefill((one, twin), judge, slots, one.source.states(SLOTS))
    generator = torch.Generator("cpu").manual_seed(2)
    for number in range(steps):
        count = int(torch.randint(1, ROWS + 1, (), generator=generator))
        chosen = torch.randperm(SLOTS, generator=generator)[:count].to(device)
        accepted = torch.randint(1, setting.tokens + 1, (count,), generator=generator).to(device, torch.int32)
        inputs = [one.source.tokens(ROWS, setting.tokens) for _ in LAYERS]
        for step in (one, twin):
            step.rows(inputs, chosen, accepted)
        outs, expected = [out.clone() for out in run()], twin.forward()
        for out, wanted in zip(outs, expected, strict=True):
            assert torch.equal(out, wanted), f"step {number}"
            assert not bool(out[count:].any()), "padding has outputs"
        if judge is not None:
            judge.step(list(zip(one.inputs, outs, strict=True)), chosen.tolist(), accepted.tolist())
        if number % 9 == 8:  # a new request in a used slot, between two replays
            prefill((one, twin), judge, chosen[:1].long(), one.source.states(1))
    if judge is not None:
        judge.check(slots.tolist())
        assert any(judge.written(slot) for slot in slots.tolist()), "no window was ever full"
    compare_at_the_end(one, twin, slots)


def prefill(pair, judge, slots, states):
    for step in pair:
        step.prefill(slots, states)
    for slot in slots.tolist() if judge is not None else ():
        judge.load(slot)


def compare_at_the_end(one, twin, slots):
    for layer in range(len(LAYERS)):
        found, wanted = (step.state.layers.state(layer, slots) for step in (one, twin))
        assert torch.equal(found, wanted)
    for name in one.state.layers.cursors.NAMES:
        found, wanted = (getattr(step.state.layers.cursors, name) for step in (one, twin))
        assert torch.equal(found, wanted), name
