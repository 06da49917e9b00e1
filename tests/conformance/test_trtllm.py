"""The TensorRT-LLM adapter passes the kit, with its state object and mixers' operators in place of `ReplayState`."""

from __future__ import annotations

import pytest
import torch

from replayssm import InputError
from replayssm.conformance import Dims, Feature
from replayssm.conformance.suite import BackendConformance
from replayssm_trtllm.conformance import TrtllmSubject
from replayssm_trtllm.kinds import SERVED


class TrtllmCases(BackendConformance):
    __test__ = False

    @pytest.mark.parametrize("window", [4, 7, 16, 40])
    def test_every_window_that_is_served(self, layer, seed, window):
        driver = self.drive(self.layout(layer, window=window), seed)
        driver.load([0, 5])
        for _ in range(12):
            driver.random_step([0, 5])
        driver.check()

    def test_a_draft_as_long_as_the_window_poorly_accepted(self, layer, seed):
        driver = self.drive(self.layout(layer, window=16, draft=16), seed)
        driver.load([0, 1])
        for accepted in [1] * 8 + [16, 0, 16, 1]:
            driver.step([0, 1], 16)
            driver.commit(accepted)
        driver.check()

    def test_a_window_below_the_draft_is_refused(self, layer, seed):
        with pytest.raises(InputError, match="below the 4 tokens"):
            self.drive(self.layout(layer, window=3, draft=4), seed)


class TestTrtllm(TrtllmCases):
    __test__ = True
    subject = TrtllmSubject()


class Unchecked(TrtllmSubject):
    """Runs on a CPU with values unchecked, as on a GPU."""

    features = TrtllmSubject(device=torch.device("cuda")).features

    def make(self, layout, options):
        state = super().make(layout, options)
        for layer in state._layers._states:
            layer.check_inputs = False
        return state


@pytest.mark.parametrize("layer", SERVED)
def test_what_a_gpu_leaves_unchecked(layer):
    suite = type("Suite", (TrtllmCases,), {"subject": Unchecked()})()
    suite.test_commit_of_more_than_was_drafted(layer=layer, seed=1)
    assert TrtllmSubject().features - Unchecked.features == {Feature.CHECKS}


# Not a skip: the kit lets no claimed capability skip, so a machine without a GPU has no such class.
if torch.cuda.is_available():

    @pytest.mark.gpu
    class TestTrtllmOnCuda(TrtllmCases):
        __test__ = True
        # Products round their operands to TF32, whose mantissa is float16's. NVFP4 needs 64 numbers a key.
        subject = TrtllmSubject("triton", device=torch.device("cuda"), rounds_to=torch.float16, dims=Dims(key_dim=64))
