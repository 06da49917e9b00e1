"""The conformance kit's float64 model beside every recurrent layer, on the inputs that the layer itself was given.

A whole model in bf16 rounds before and after its recurrence by more than the recurrence may cost. Layer by layer the
kit's own bounds hold, which follow a fold in fp32 and what a read copy stores.
"""

from __future__ import annotations

import torch

from replayssm.conformance.driver import close
from replayssm.conformance.inputs import LARGEST_DECAY
from replayssm.conformance.model import Model
from replayssm.conformance.tolerances import AMPLIFICATION, tolerance
from replayssm.schedule import FlushPolicy


class LayerModels:
    """Models of the layers of a bound `ReplaySSMState`, by request.

    Args:
        constants: `A [H]` of each layer, None for GDN.
        operand: dtype that the backend rounds operands of output products to.
        row: request → its slot now, which stochastic rounding draws by.
    """

    def __init__(self, state, constants, operand, row=int):
        self.layers, self.operand, self.row, self.steps = state.layers, operand, row, 0
        layout = state.layers.layout
        self.models = [
            Model(layout, A, FlushPolicy(), seed, row, state.layers.device)
            for A, seed in zip(constants, state.layers._seeds, strict=True)
        ]

    def load(self, request):
        """The engine wrote the request's states."""
        for model, buffers in zip(self.models, self.layers.buffers, strict=True):
            model.load(request, buffers["checkpoint"][self.row(request)].double())

    @torch.no_grad()
    def step(self, taps, requests, accepted):
        """A step's inputs and outputs a layer, for `requests` and then padding; so many tokens of each are accepted."""
        self.steps += 1
        bound = self.tolerance.output
        for index, (model, (inputs, out)) in enumerate(zip(self.models, taps, strict=True)):
            rows = [*requests, *[-1] * (inputs.batch - len(requests))]
            expected = model.step(inputs, rows, [inputs.draft] * len(rows), None, [False] * len(rows))
            for row, request in enumerate(requests):
                floor = float(expected.magnitude[row].norm()) / AMPLIFICATION
                what = f"request {request}, layer {index}, step {self.steps}"
                close(out[row], expected.out[row], bound, what, floor)
                model.commit(request, list(range(accepted[row])))
            assert not bool(out[len(requests) :].any()), "padding has outputs"

    def check(self, requests):
        """States of all layers."""
        slots = torch.tensor([self.row(request) for request in requests], device=self.layers.device)
        for index, model in enumerate(self.models):
            for request, state in zip(requests, self.layers.state(index, slots), strict=True):
                close(state, model.state(request), self.tolerance.state, f"state of request {request}, layer {index}")

    def written(self, request):
        """Whether the request's states were written since its prompt."""
        return all(model.slots[request].flushes > 1 for model in self.models)

    @property
    def tolerance(self):
        layout = self.layers.layout
        return tolerance(layout, self.operand or layout.compute_dtype, self.steps, LARGEST_DECAY * layout.rows)
