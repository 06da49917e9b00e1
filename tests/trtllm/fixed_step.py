"""A forward of two recurrent layers at fixed addresses, as a CUDA graph replays it, beside one that runs eagerly."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from replayssm import Recurrence
from replayssm.conformance.inputs import Source, overwrite
from replayssm.recurrence import LayerKind
from replayssm_trtllm import ReplaySSMConfig
from replayssm_trtllm.state import ReplaySSMState

SLOTS, ROWS, DRAFT, LAYERS, WINDOW = 7, 5, 3, (4, 9), 8


class FixedStep:
    """A state of two layers, and every tensor that its forward reads."""

    def __init__(self, kind, backend, device, seed):
        recurrence = Recurrence(kind, 4, 2, 16, 32)
        self.device = device
        config = ReplaySSMConfig(mode="plugin", window=WINDOW, decode=True, backend=backend)
        self.pools = [torch.zeros(SLOTS, *recurrence.state_shape, device=device) for _ in LAYERS]
        self.convolutions = [torch.zeros(SLOTS, 6, 3, device=device) for _ in LAYERS]
        context = SimpleNamespace(
            mamba_pp_layers=LAYERS,
            ssm_state_shape=recurrence.state_shape,
            conv_state_shape=(6, 3),
            ssm_state_dtype=torch.float32,
            conv_state_dtype=torch.float32,
            n_groups_per_rank=2,
            max_batch_size=ROWS,
            slot_capacity=SLOTS,
            spec_config=SimpleNamespace(tokens_per_gen_step=DRAFT),
            stochastic_rounding=False,
            seed_rank_offset=0,
        )
        self.state = ReplaySSMState(config, kind, SimpleNamespace, SimpleNamespace)
        self.state.bind(context, self.pools, self.convolutions)
        self.source = Source(recurrence, torch.float32, device, seed=seed)
        self.state.attach(dict.fromkeys(LAYERS, self.source.A))
        self.inputs = [self.source.tokens(ROWS, DRAFT) for _ in LAYERS]
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
            self.state.step(layer, x, self.slots, standard=False) for layer, x in zip(LAYERS, self.inputs, strict=True)
        ]
        self.state.update(self.batch)
        self.state.finish(self.none)
        return outs

    def prefill(self, slots, states):
        for pool in self.pools:
            pool[slots] = states
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


def check(kind, backend, device, steps=30):
    """Replays give, bit for bit, what the eager forward of a twin gives."""
    kind = LayerKind(kind)
    one, twin = (FixedStep(kind, backend, device, seed=4) for _ in range(2))
    run = one.replayable()
    slots = torch.arange(SLOTS, device=device)
    states = one.source.states(SLOTS)
    for step in (one, twin):
        step.prefill(slots, states)
    generator = torch.Generator("cpu").manual_seed(2)
    for number in range(steps):
        count = int(torch.randint(1, ROWS + 1, (), generator=generator))
        chosen = torch.randperm(SLOTS, generator=generator)[:count].to(device)
        accepted = torch.randint(1, DRAFT + 1, (count,), generator=generator).to(device, torch.int32)
        inputs = [one.source.tokens(ROWS, DRAFT) for _ in LAYERS]
        for step in (one, twin):
            step.rows(inputs, chosen, accepted)
        outs, expected = [out.clone() for out in run()], twin.forward()
        for out, wanted in zip(outs, expected, strict=True):
            assert torch.equal(out, wanted), f"step {number}"
            assert not bool(out[count:].any()), "padding has outputs"
        if number % 9 == 8:  # a new request in a used slot, between two replays
            fresh = one.source.states(1)
            for step in (one, twin):
                step.prefill(chosen[:1].long(), fresh)
    for layer in range(len(LAYERS)):
        found, wanted = (step.state.layers.state(layer, slots) for step in (one, twin))
        assert torch.equal(found, wanted)
    for name in one.state.layers.cursors.NAMES:
        found, wanted = (getattr(step.state.layers.cursors, name) for step in (one, twin))
        assert torch.equal(found, wanted), name
