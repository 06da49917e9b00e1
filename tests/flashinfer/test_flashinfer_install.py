"""`install` and `uninstall`: FlashInfer's modules, what was bound before and after, and what stays FlashInfer's."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

pytest.importorskip("triton")

import small_flashinfer

import replayssm_flashinfer
from replayssm import UnsupportedError
from replayssm_flashinfer.surface import SYMBOLS

LATEST = next(reversed(small_flashinfer.RELEASES))


@pytest.fixture
def flashinfer(monkeypatch):
    """A FlashInfer whose names are given back at the end."""
    small_flashinfer.make(monkeypatch, LATEST)
    yield sys.modules
    replayssm_flashinfer.uninstall()


def engine(monkeypatch, name):
    """A module that binds the function to a global of its own, as vLLM's dispatcher does."""
    module = ModuleType(name)
    code = (
        "_kernel = None\n"
        "def initialise():\n"
        "    global _kernel\n"
        "    from flashinfer.mamba.checkpointing_ssu import checkpointing_ssu\n"
        "    _kernel = checkpointing_ssu\n"
    )
    exec(code, vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_names_are_ours_and_come_back(flashinfer):
    theirs = {s.label: getattr(flashinfer[s.module], s.name) for s in SYMBOLS if s.module in flashinfer}
    report = replayssm_flashinfer.install()
    for symbol in SYMBOLS:
        if symbol.label not in theirs:
            assert "cannot be imported" in report.left[symbol.label]
            continue
        package = flashinfer[symbol.module.rpartition(".")[0]]
        assert getattr(flashinfer[symbol.module], symbol.name) is symbol.ours
        assert getattr(package, symbol.name) is symbol.ours
        assert symbol.label in report.bound
    replayssm_flashinfer.uninstall()
    replayssm_flashinfer.uninstall()
    for label, function in theirs.items():
        path, _, name = label.rpartition(".")
        assert getattr(flashinfer[path], name) is function
    assert not replayssm_flashinfer.installed().bound


@pytest.mark.usefixtures("flashinfer")
def test_a_global_bound_before_or_after_is_ours(monkeypatch):
    before, after = engine(monkeypatch, "engine_before"), engine(monkeypatch, "engine_after")
    before.initialise()
    theirs = before._kernel
    assert theirs() == "theirs"
    report = replayssm_flashinfer.install()
    after.initialise()
    assert before._kernel is after._kernel is replayssm_flashinfer.checkpointing_ssu
    assert "engine_before._kernel" in report.bound
    replayssm_flashinfer.uninstall()
    assert before._kernel is theirs
    # Where a module got it from cannot be told from a user's own import of ours.
    assert after._kernel is replayssm_flashinfer.checkpointing_ssu
    after.initialise()
    assert after._kernel is theirs


@pytest.mark.usefixtures("flashinfer")
def test_installing_again_finds_what_was_bound_since(monkeypatch):
    late = engine(monkeypatch, "engine_late")
    late.initialise()
    theirs = late._kernel
    first = replayssm_flashinfer.install()
    other = ModuleType("engine_other")
    other.kept = theirs
    monkeypatch.setitem(sys.modules, "engine_other", other)
    second = replayssm_flashinfer.install()
    assert set(second.bound) == {*first.bound, "engine_other.kept"}
    replayssm_flashinfer.uninstall()
    assert other.kept is late._kernel is theirs


def test_what_somebody_else_replaced_is_left_alone(flashinfer):
    replayssm_flashinfer.install()
    module = flashinfer[SYMBOLS[0].module]
    module.checkpointing_ssu = replacement = lambda: None
    replayssm_flashinfer.uninstall()
    assert module.checkpointing_ssu is replacement


def test_another_contract_is_refused_and_nothing_is_replaced(monkeypatch):
    facts = small_flashinfer.RELEASES[LATEST][SYMBOLS[0].label]
    older = {"positional": ["state", "old_x", "old_B", "old_dt", "old_cumAdt", "cache_buf_idx"], "keyword": []}
    assert facts != older
    small_flashinfer.make(monkeypatch, LATEST, checkpointing_ssu=older)
    kept = {s.label: getattr(sys.modules[s.module], s.name) for s in SYMBOLS if s.module in sys.modules}
    with pytest.raises(UnsupportedError, match=r"nothing is installed: .*ring_start"):
        replayssm_flashinfer.install()
    assert all(getattr(sys.modules[s.module], s.name) is kept[s.label] for s in SYMBOLS if s.label in kept)


def test_without_flashinfer_there_is_nothing_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(UnsupportedError, match="cannot be imported"):
        replayssm_flashinfer.install()


def test_a_module_that_cannot_be_changed_leaves_all_as_it_was(flashinfer, monkeypatch):
    class Frozen(ModuleType):
        def __setattr__(self, name, value):
            raise AttributeError(f"{name} is read-only")

    theirs = flashinfer[SYMBOLS[0].module].checkpointing_ssu
    frozen = Frozen("engine_frozen")
    vars(frozen)["kept"] = theirs
    monkeypatch.setitem(sys.modules, "engine_frozen", frozen)
    with pytest.raises(UnsupportedError, match="nothing is installed: AttributeError: kept is read-only"):
        replayssm_flashinfer.install()
    assert flashinfer[SYMBOLS[0].module].checkpointing_ssu is theirs
    assert not replayssm_flashinfer.installed().bound


def test_a_module_that_takes_nothing_back_is_named(flashinfer, monkeypatch):
    class Once(ModuleType):
        def __setattr__(self, name, value):
            if vars(self).get("changed"):
                raise AttributeError(f"{name} is read-only now")
            vars(self).update({"changed": True, name: value})

    theirs = flashinfer[SYMBOLS[0].module].checkpointing_ssu
    once = Once("engine_once")
    vars(once)["kept"] = theirs
    monkeypatch.setitem(sys.modules, "engine_once", once)
    replayssm_flashinfer.install()
    with pytest.raises(UnsupportedError, match=r"still ours, .*: engine_once\.kept$"):
        replayssm_flashinfer.uninstall()
    assert flashinfer[SYMBOLS[0].module].checkpointing_ssu is theirs
    assert replayssm_flashinfer.installed().bound == ("engine_once.kept",)
    vars(once)["kept"] = theirs
    replayssm_flashinfer.uninstall()


def test_an_optional_function_that_shows_no_parameters_is_left(flashinfer, monkeypatch):
    class Unhashable:
        __hash__ = None

        def __call__(self):
            return None

    symbol = next(s for s in SYMBOLS if not s.required and s.module in flashinfer)
    for odd in (Unhashable(), max):
        monkeypatch.setattr(flashinfer[symbol.module], symbol.name, odd)
        report = replayssm_flashinfer.install()
        assert "has parameters that cannot be looked at" in report.left[symbol.label]
        assert getattr(flashinfer[symbol.module], symbol.name) is odd
        replayssm_flashinfer.uninstall()
