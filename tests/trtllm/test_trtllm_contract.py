"""The recorded facts, the small engine that follows them, and the adapter's surface: each against the others."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from small_engine import installed, models

from replayssm import UnsupportedError
from replayssm_trtllm import compat, doctor, llm_fields, surface
from replayssm_trtllm.architectures import ARCHITECTURES
from replayssm_trtllm.speculation import tokens_per_step
from replayssm_trtllm.surface import COMMON, SYMBOLS, V2, V2_MODULE, find

CONTRACT = json.loads(Path(__file__).with_name("contract.json").read_text(encoding="utf-8"))
GENERATION = {"B": "B", "C": "C", "C-early": "C", "D": "D"}
each_variant = pytest.mark.parametrize("variant", installed.SERVED)


def recorded(generation):
    """Symbols of a generation in the contract: label → parameters."""
    return {
        label: names
        for key, group in CONTRACT["symbols"].items()
        if generation in key
        for label, names in group.items()
    }


def located(label):
    """Where the adapter looks for a label."""
    return next(symbol for symbol in SYMBOLS if symbol.label == label)


@each_variant
def test_the_small_engine_has_what_was_recorded(monkeypatch, variant):
    installed.install(monkeypatch, variant)
    for label, names in recorded(GENERATION[variant]).items():
        symbol = located(label)
        found = find(symbol.module, symbol.name)
        assert found is not None, label
        found = found.fget if isinstance(found, property) else found
        assert set(names) <= surface._parameters(found), label


@pytest.mark.parametrize("generation", surface.SERVED)
def test_the_surface_asks_for_nothing_that_was_not_recorded(generation):
    facts = recorded(generation)
    for symbol in SYMBOLS:
        if generation in symbol.generations:
            assert set(symbol.parameters) <= set(facts[symbol.label]), symbol.label
    assert set(facts) == {symbol.label for symbol in SYMBOLS if generation in symbol.generations}


def test_configuration_names_are_those_recorded():
    assert set(CONTRACT["config"]["kv_cache_config"]) <= llm_fields.KV_CACHE_FIELDS
    assert set(CONTRACT["config"]["mamba_ssm_cache_dtype"]) == set(llm_fields.STATE_DTYPES)
    assert set(CONTRACT["config"]["speculative_config"]) <= llm_fields.SPECULATIVE_FIELDS
    known = {value for name, value in vars(llm_fields).items() if name.startswith("ENV_")}
    assert set(CONTRACT["config"]["env"]) <= known


@pytest.mark.parametrize("kind", CONTRACT["config"]["tokens_per_gen_step"])
def test_tokens_of_a_step_are_those_recorded(kind):
    rule = CONTRACT["config"]["tokens_per_gen_step"][kind]
    for drafts in (1, 3, 8):
        expected = 2 * drafts if rule == "2 * max_draft_len" else 1 + drafts
        assert tokens_per_step({"decoding_type": kind, "max_draft_len": drafts}) == expected


@each_variant
def test_a_generation_is_found_and_the_models_registered(monkeypatch, variant):
    installed.install(monkeypatch, variant)
    found = compat.examine()
    assert (found.generation, found.reason) == (GENERATION[variant], "")
    registered = importlib.import_module("replayssm_trtllm.models").REGISTERED
    assert set(registered) == {entry.name for entry in ARCHITECTURES}
    assert registered == models.REGISTRY
    lines = {name: (ok, detail) for name, ok, detail in doctor.report()}
    assert lines["plugin"][0]
    assert "contract-checked, not executed" in lines["plugin"][1]
    assert f"generation {GENERATION[variant]}" in lines["engine"][1]


@pytest.mark.parametrize("variant", ["A", "A-package"])
def test_generation_a_is_refused(monkeypatch, variant):
    installed.install(monkeypatch, variant)
    assert compat.examine().generation == "A"
    with pytest.raises(UnsupportedError, match="mode='native'"):
        importlib.import_module("replayssm_trtllm.models")
    lines = {name: (ok, detail) for name, ok, detail in doctor.report()}
    assert lines["plugin"][0] is False
    assert "generation A" in lines["plugin"][1]


def test_an_unknown_generation_is_refused(monkeypatch):
    modules = installed.install(monkeypatch, "C")
    monkeypatch.delattr(modules[COMMON], "MambaState")
    assert compat.examine().generation is None
    with pytest.raises(UnsupportedError, match="neither MambaStateUpdateStrategy nor MambaState"):
        compat.probe()


def test_two_generations_at_once_are_none(monkeypatch):
    modules = installed.install(monkeypatch, "C")
    modules[COMMON].MambaStateUpdateStrategy = type("MambaStateUpdateStrategy", (), {})
    with pytest.raises(UnsupportedError, match="generations B and C at once"):
        compat.probe()


def test_no_engine_that_is_known(monkeypatch):
    modules = installed.install(monkeypatch, "A")
    monkeypatch.setattr("replayssm_trtllm.compat.find", lambda *_: None)
    monkeypatch.setattr("replayssm_trtllm.compat._is_package", lambda _: False)
    assert modules
    with pytest.raises(UnsupportedError, match="not a generation that is known"):
        compat.probe()


CASES = [
    (variant, symbol) for variant in ("B", "C", "D") for symbol in SYMBOLS if GENERATION[variant] in symbol.generations
]


def owner_of(symbol):
    *path, name = symbol.name.split(".")
    return find(symbol.module, ".".join(path)) if path else importlib.import_module(symbol.module), name


MARKS = {f"{V2}._initialize_model_state", f"{V2}._initialize_spec_state", "MambaState"}


def remove(monkeypatch, symbol):
    """Take a symbol away, from the classes it is inherited from, too."""
    owner, name = owner_of(symbol)
    for holder in (owner, *(owner.__mro__[1:-1] if isinstance(owner, type) else ())):
        if name in vars(holder):
            monkeypatch.delattr(holder, name)


# Every class has a constructor; its body is checked below.
REMOVED = [(variant, symbol) for variant, symbol in CASES if not symbol.name.endswith("__init__")]


@pytest.mark.parametrize(("variant", "symbol"), REMOVED, ids=[f"{v}-{s.label}" for v, s in REMOVED])
def test_a_missing_symbol_is_refused_by_name(monkeypatch, variant, symbol):
    installed.install(monkeypatch, variant)
    remove(monkeypatch, symbol)
    with pytest.raises(UnsupportedError, match="cannot be extended") as error:
        compat.probe()
    name = symbol.name.rpartition(".")[2]
    assert name in str(error.value) or symbol.name in MARKS
    with pytest.raises(UnsupportedError):
        importlib.import_module("replayssm_trtllm.models")


def without(names, uses, constants):
    """A function with these parameters, that uses these names and strings."""
    body = "".join(f"    self.{name}\n" for name in uses) + f"    return {tuple(constants)!r}\n"
    scope = {}
    exec(f"def changed({', '.join(['self=None', *(f'{name}=None' for name in names)])}):\n{body}", scope)
    return scope["changed"]


def data(names):
    """A class with these fields."""
    return type("Changed", (), {"__dataclass_fields__": dict.fromkeys(names)})


CHANGES = [
    (variant, symbol, what, value)
    for variant, symbol in CASES
    for what in ("parameters", "uses", "constants")
    for value in getattr(symbol, what)
]


@pytest.mark.parametrize(
    ("variant", "symbol", "what", "value"), CHANGES, ids=[f"{v}-{s.label}-{value}" for v, s, _, value in CHANGES]
)
def test_a_changed_symbol_is_refused_by_name(monkeypatch, variant, symbol, what, value):
    installed.install(monkeypatch, variant)
    fields = ("parameters", "uses", "constants")
    kept = {field: [v for v in getattr(symbol, field) if (field, v) != (what, value)] for field in fields}
    owner, name = owner_of(symbol)
    found = getattr(owner, name)
    is_data = hasattr(found, "__dataclass_fields__") or hasattr(found, "_fields")
    changed = data(kept["parameters"]) if is_data else without(kept["parameters"], kept["uses"], kept["constants"])
    monkeypatch.setattr(owner, name, changed)
    with pytest.raises(UnsupportedError, match="does not match") as error:
        compat.probe()
    assert value in str(error.value)


@pytest.mark.parametrize("entry", ARCHITECTURES, ids=[entry.name for entry in ARCHITECTURES])
def test_a_missing_model_is_refused_by_name(monkeypatch, entry):
    modules = installed.install(monkeypatch, "C")
    monkeypatch.delattr(modules[entry.module], entry.cls)
    with pytest.raises(UnsupportedError, match=entry.cls):
        compat.probe()


def test_nothing_is_patched_when_the_engine_does_not_match(monkeypatch):
    modules = installed.install(monkeypatch, "C")
    monkeypatch.delattr(find(V2_MODULE, V2), "_setup_model_state")
    before = {name: dict(vars(module)) for name, module in modules.items()}
    with pytest.raises(UnsupportedError):
        importlib.import_module("replayssm_trtllm.models")
    for name, module in modules.items():
        changed = {key for key, value in vars(module).items() if before[name].get(key) is not value}
        assert changed <= {"__builtins__"} | {child.rpartition(".")[2] for child in modules}
