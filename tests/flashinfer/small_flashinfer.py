"""A small FlashInfer in `sys.modules`, with the signatures of a recorded release."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

CONTRACT = json.loads(Path(__file__).with_name("contract.json").read_text(encoding="utf-8"))
RELEASES = CONTRACT["releases"]


def function(name, facts):
    """A function of those parameters that says whose it is."""
    words = [f"{parameter}=None" for parameter in facts["positional"]]
    words += ["*", *(f"{parameter}=None" for parameter in facts["keyword"])] if facts["keyword"] else []
    space: dict = {}
    exec(f"def {name}({', '.join(words)}):\n    return 'theirs'", space)
    return space[name]


def make(monkeypatch, release, **changes):
    """Install a release; `changes` replaces the facts of functions by name, None leaves a module out."""
    packages = ("flashinfer", "flashinfer.mamba", "flashinfer.gdn_kernels")
    for name in packages:
        package = ModuleType(name)
        package.__path__ = []
        monkeypatch.setitem(sys.modules, name, package)
    for label, facts in RELEASES[release].items():
        path, _, name = label.rpartition(".")
        facts = changes.get(name, facts)
        if facts is None:
            monkeypatch.delitem(sys.modules, path, raising=False)
            continue
        module = sys.modules.get(path) if path in sys.modules and hasattr(sys.modules[path], "__fake__") else None
        if module is None:
            module = ModuleType(path)
            module.__fake__ = True
            monkeypatch.setitem(sys.modules, path, module)
        setattr(module, name, function(name, facts))
        # As the real package does: the function hides the module of its name.
        setattr(sys.modules[path.rpartition(".")[0]], name, getattr(module, name))
