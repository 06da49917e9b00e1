"""Calls that SGLang makes whatever the device, and that a CPU build of torch refuses."""

import contextlib
import functools

import torch


def pretend() -> None:
    """Make them do nothing."""
    if torch.cuda.is_available():
        return
    torch.cuda.synchronize = torch.cuda.empty_cache = _nothing
    if not hasattr(torch.cpu, "device"):
        torch.cpu.device = lambda *_: contextlib.nullcontext()
    torch.tensor = _unpinned(torch.tensor)
    torch.Tensor.pin_memory = lambda self, *_, **__: self


def _nothing(*_: object, **__: object) -> None:
    return None


def _unpinned(make):
    @functools.wraps(make)
    def made(*args, pin_memory=False, **kwargs):
        return make(*args, **kwargs)

    return made
