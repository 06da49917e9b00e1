"""FlashInfer's signatures, as recorded from its wheels and as installed, against the adapter's surface."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("triton")

import small_flashinfer

from replayssm_flashinfer import doctor, surface

SYMBOLS = {symbol.label: symbol for symbol in surface.SYMBOLS}
LATEST = next(reversed(small_flashinfer.RELEASES))
COPY = ["read_copy", "read_copy_block_scale", "read_copy_scale"]
EXTRA = {
    "checkpointing_ssu": ["long_window", *COPY],
    "gated_delta_rule_mtp_ucache_flush": ["v_cache", "beta_cache", *COPY],
    "gdn_prefix_materialize": ["v_cache", "beta_cache", *COPY],
}


@pytest.mark.parametrize("release", small_flashinfer.RELEASES)
@pytest.mark.parametrize("label", SYMBOLS)
def test_ours_takes_every_argument_of_a_release_in_its_order(release, label):
    facts = small_flashinfer.RELEASES[release][label]
    if facts is None:
        pytest.skip(f"{release} has no such function")
    ours = inspect.signature(SYMBOLS[label].ours).parameters
    positional = [name for name, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    # A later release may have added arguments at the end.
    assert positional[: len(facts["positional"])] == facts["positional"]
    extra = EXTRA.get(SYMBOLS[label].name, [])
    assert [name for name in ours if name not in positional] == [*facts["keyword"], *extra]


def test_ours_takes_nothing_that_the_newest_release_has_not():
    for label, facts in small_flashinfer.RELEASES[next(reversed(small_flashinfer.RELEASES))].items():
        ours = inspect.signature(SYMBOLS[label].ours).parameters
        assert set(ours) == {*facts["positional"], *facts["keyword"], *EXTRA.get(SYMBOLS[label].name, [])}


@pytest.mark.parametrize("release", small_flashinfer.RELEASES)
def test_a_recorded_release_is_accepted(monkeypatch, release):
    small_flashinfer.make(monkeypatch, release)
    for symbol in surface.SYMBOLS:
        found, reason = surface.find(symbol)
        if small_flashinfer.RELEASES[release][symbol.label] is None:
            assert found is None
            assert "cannot be imported" in reason
        else:
            assert surface.check(symbol, found) == (True, "")


def test_another_contract_is_refused_with_the_reason(monkeypatch):
    release = next(reversed(small_flashinfer.RELEASES))
    facts = small_flashinfer.RELEASES[release][surface.SYMBOLS[0].label]
    older = {**facts, "positional": [n for n in facts["positional"] if n != "ring_start"]}
    newer = {**facts, "keyword": ["new_switch"]}
    swapped = {**facts, "positional": [facts["positional"][1], facts["positional"][0], *facts["positional"][2:]]}
    for changed, said in ((older, "no parameter ring_start"), (newer, "new_switch"), (swapped, "another order")):
        small_flashinfer.make(monkeypatch, release, checkpointing_ssu=changed)
        ok, reason = surface.check(surface.SYMBOLS[0], surface.find(surface.SYMBOLS[0])[0])
        assert not ok
        assert said in reason


def test_the_installed_flashinfer_has_the_recorded_surface():
    pytest.importorskip("flashinfer.mamba.checkpointing_ssu", reason="needs FlashInfer")
    for symbol in surface.SYMBOLS:
        found, reason = surface.find(symbol)
        if found is None:
            assert not symbol.required, reason
            continue
        assert surface.check(symbol, found) == (True, "")


def test_doctor_reports_without_flashinfer_and_with_it(monkeypatch):
    lines = {name: (ok, detail) for name, ok, detail in doctor.report()}
    assert lines["functions"][0]
    small_flashinfer.make(monkeypatch, LATEST)
    older = {"positional": ["states"], "keyword": []}
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    lines = {name: (ok, detail) for name, ok, detail in doctor.report()}
    assert lines["surface checkpointing_ssu"] == (True, "ours can take its place")
    small_flashinfer.make(monkeypatch, LATEST, gdn_prefix_materialize=None, replayssm_materialize=older)
    lines = {name: (ok, detail) for name, ok, detail in doctor.report()}
    ok, detail = lines["surface gdn_prefix_materialize"]
    assert ok
    assert "left alone: " in detail
    ok, detail = lines["surface replayssm_materialize"]
    assert not ok
    assert "no parameter state_ptrs" in detail
    assert not lines["backend"][0]
    assert "CUDA" in lines["backend"][1]
