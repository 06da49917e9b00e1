"""What Triton's interpreter lacks for SGLang's kernels."""

import sys
import types

import triton.language as tl
import triton.language.extra.libdevice as libdevice
from triton.runtime import autotuner

_COMPILE_ONLY = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
_MATH = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt")


def complete() -> None:
    """Add it, for this process."""
    autotuner.Autotuner.run = _first_config
    _complete_libdevice()
    _unalias()


def _first_config(self, *args, **kwargs):
    """Tuning needs a GPU driver; any configuration computes the same."""
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    chosen = self.configs[0].all_kwargs().items()
    return self.fn.run(*args, **kwargs, **{name: value for name, value in chosen if name not in _COMPILE_ONLY})


def _complete_libdevice() -> None:
    """Interpreted, libdevice's functions return None."""
    for name in _MATH:
        setattr(libdevice, name, _late(name))
    for fast, name in (("fast_expf", "exp"), ("fast_logf", "log"), ("fast_exp2f", "exp2"), ("fast_log2f", "log2")):
        setattr(libdevice, fast, _late(name))
    libdevice.tanh = lambda x: 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


def _unalias() -> None:
    """A module's `exp = tl.exp` was bound before the interpreter put its own in `tl`: look it up at each call instead."""
    from sglang.kernels.ops.attention.fla import op

    for name in ("exp", "exp2", "log", "log2"):
        bound = getattr(op, name)
        for module in list(sys.modules.values()):
            if isinstance(module, types.ModuleType) and vars(module).get(name) is bound and "sglang" in module.__name__:
                setattr(module, name, _late(name))


def _late(name):
    return lambda x: getattr(tl, name)(x)
