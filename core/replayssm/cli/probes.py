"""What `doctor` looks at. Standard library only; a probe that fails is a value, never an exception."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version

DOCTORS = "replayssm.doctors"

# Name on our command line → distribution, asked for its version without importing it.
ENGINES = {
    "flashinfer": "flashinfer-python",
    "sglang": "sglang",
    "transformers": "transformers",
    "trtllm": "tensorrt-llm",
    "vllm": "vllm",
}
_LIBRARIES = ("triton", "safetensors", "numpy")


@dataclass(frozen=True)
class Check:
    """One finding. `ok` is None where there is nothing to judge."""

    name: str
    ok: bool | None
    detail: str


def probe(name: str, look: Callable[[], str]) -> Check:
    """Run a probe; whatever it raises is its result."""
    try:
        return Check(name, True, look())
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}")


def platform_checks() -> Iterator[Check]:
    """Python and the operating system."""
    yield Check("python", None, f"{platform.python_version()} ({sys.executable})")
    yield Check("system", None, platform.platform())


def library_checks() -> Iterator[Check]:
    """torch with its device, then versions of what the core and its backends use."""
    yield probe("torch", _torch)
    yield from (_installed(name, name) for name in _LIBRARIES)


def core_check() -> Check:
    """Whether a token can be decoded."""
    return probe("core", _decode_one_token)


def backend_checks() -> Iterator[Check]:
    """What each backend serves on the devices of this machine."""
    try:
        rows = import_module("replayssm.capability").CAPABILITIES
        devices = ["cpu", *(["cuda"] if import_module("torch").cuda.is_available() else [])]
    except Exception as error:
        yield Check("backends", False, f"{type(error).__name__}: {error}")
        return
    for row in rows.values():
        here = [device for device in devices if device in row.devices]
        served = (
            f"{', '.join(row.layers)} on {', '.join(here)}" if here else f"nothing here; needs {', '.join(row.devices)}"
        )
        yield Check(f"backend {row.backend}", bool(here) or None, served)


def engine_checks() -> Iterator[Check]:
    """Versions of the engines, absent ones too."""
    return (_installed(name, distribution) for name, distribution in ENGINES.items())


def config_check() -> Check | None:
    """The configuration in the environment, None when there is none."""
    name = "REPLAYSSM_CONFIG"
    if not os.environ.get(name):
        return None
    return probe(name, lambda: str(import_module("replayssm.config").ReplayConfig.from_environment()))


def adapter_names() -> list[str]:
    """Adapters that report."""
    return sorted({point.name for point in entry_points(group=DOCTORS)})


def adapter_checks(only: str | None = None) -> Iterator[Check]:
    """The adapters' own reports, of all or of one."""
    for point in entry_points(group=DOCTORS):
        if only in (None, point.name):
            yield from _report(point.name, point.value)


def _report(name: str, module: str) -> list[Check]:
    try:
        return [Check(f"{name}: {item}", bool(ok), str(detail)) for item, ok, detail in import_module(module).report()]
    except Exception as error:
        return [Check(f"{name}: report", False, f"{type(error).__name__}: {error}")]


def _installed(name: str, distribution: str) -> Check:
    try:
        return Check(name, None, str(version(distribution)))
    except PackageNotFoundError:
        return Check(name, None, "absent")
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}")


def _torch() -> str:
    torch = import_module("torch")
    if not torch.cuda.is_available():
        return f"{torch.__version__}, CPU"
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.__version__}, {torch.cuda.get_device_name()} (capability {major}.{minor})"


def _decode_one_token() -> str:
    torch, replayssm = import_module("torch"), import_module("replayssm")
    geometry = replayssm.Recurrence.gdn(value_heads=1, key_heads=1, value_dim=4, key_dim=4)
    state = replayssm.ReplayState(replayssm.StateLayout(geometry, slots=1, activation=torch.float32))
    row, one = torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1)
    inputs = replayssm.TokenInputs(q=row, k=row / 2, v=row, gate=-one, beta=one)
    # From an empty state with β = 1 the correction is v itself: o = v (k · q) = 2.
    found = float(state.decode(inputs, [0]).mean())
    if abs(found - 2.0) > 1e-2:
        raise ArithmeticError(f"a decoded token is {found}; expected 2")
    return f"replayssm {replayssm.__version__} decodes"
