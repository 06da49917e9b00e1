"""The kit itself: it goes red for subjects that are wrong, skips only what is not claimed, and its gap files are strict."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap

import pytest
import torch

from replayssm.capability import DRAFT, STANDARD
from replayssm.conformance import ALL_FEATURES, CoreSubject, Feature
from replayssm.conformance.core_subject import CoreState
from replayssm.conformance.gaps import Gap, read_gaps
from replayssm.conformance.suite import BackendConformance
from replayssm.conformance.tolerances import ROUNDOFF, tolerance
from replayssm.layout import StateLayout
from replayssm.recurrence import LayerKind, Recurrence

pytest_plugins = ["pytester"]


class ForgetsACommit(CoreState):
    """Loses the accepted count of steps without drafts."""

    def commit(self, accepted):
        if self._open.draft > 1:
            super().commit(accepted)


class CountsTheBonusTwice(CoreState):
    """Takes "tokens accepted" for "drafts accepted"."""

    def commit(self, accepted):
        super().commit(torch.minimum(accepted + 1, torch.tensor(self._open.draft)))


class FoldsPadding(CoreState):
    """Lets padded rows fold slot 0."""

    def verify(self, inputs, slots, lengths=None, parents=None, drain=None):
        if bool((slots < 0).any()):
            self.flush([0])
        return super().verify(inputs, slots, lengths, parents, drain)


class MaterialisesEverything(CoreState):
    """Publishes all committed records whatever count was asked for."""

    def materialise(self, source, target, count=None):  # noqa: ARG002
        super().materialise(source, target)


class KeepsOldRecords(CoreState):
    """Loads a state without emptying the ring."""

    def load(self, slots, state, position=0):
        kept = self.cursors.committed[slots].clone()
        super().load(slots, state, position)
        self.cursors.committed[slots] = kept


class RoundsTheFold(CoreState):
    """Folds in bf16, as kernels that chase speed do."""

    def verify(self, inputs, slots, lengths=None, parents=None, drain=None):
        out = super().verify(inputs, slots, lengths, parents, drain)
        checkpoint = self.layer.buffers["checkpoint"]
        checkpoint.copy_(checkpoint.to(torch.bfloat16))
        return out


class ReadsTheCheckpoint(CoreState):
    """Serves dual precision without ever reading the copy."""

    def verify(self, inputs, slots, lengths=None, parents=None, drain=None):
        copy = {name: x.clone() for name, x in self.layer.buffers.items() if name.startswith("read_copy")}
        for name in copy:
            self.layer.buffers[name].zero_()
        out = super().verify(inputs, slots, lengths, parents, drain)
        for name, kept in copy.items():
            self.layer.buffers[name].copy_(kept)
        return out


class IgnoresTheTree(CoreState):
    """Verifies a tree as the chain of its tokens."""

    def verify(self, inputs, slots, lengths=None, parents=None, drain=None):
        chain = None if parents is None else torch.arange(-1, inputs.draft - 1).expand_as(parents)
        return super().verify(inputs, slots, lengths, chain, drain)


class ChecksNothing(CoreState):
    """Leaves values unchecked, as engines do that wait for no GPU."""

    def __init__(self, layout, **options):
        super().__init__(layout, check_inputs=False, **options)


class TakesAnyCount(ChecksNothing):
    """Neither checks nor cuts what was accepted."""

    def commit(self, accepted):
        self.cursors.pending[self._open.slots] = accepted.to(torch.int32)
        super().commit(accepted)


FAULTS = [
    (ForgetsACommit, "test_rows_and_steps_without_drafts"),
    (CountsTheBonusTwice, "test_acceptance_at_both_ends"),
    (FoldsPadding, "test_padded_rows_are_ignored_bit_for_bit"),
    (MaterialisesEverything, "test_materialise_every_prefix"),
    (KeepsOldRecords, "test_preemption_and_resume"),
    (RoundsTheFold, "test_random_steps"),
    (ReadsTheCheckpoint, "test_every_preset_follows_the_model"),
    (IgnoresTheTree, "test_each_path_equals_its_linear_run"),
    (ChecksNothing, "test_commit_of_more_than_was_drafted"),
    (ChecksNothing, "test_commit_after_a_tree_takes_a_path_only"),
]


@dataclasses.dataclass(frozen=True)
class Faulty(CoreSubject):
    state: type = CoreState

    def make(self, layout, options):
        return self.state(layout, A=options.A, backend=self.name, flush=options.flush, seed=options.seed)


@pytest.mark.parametrize(("fault", "case"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_wrong_subjects_fail(fault, case):
    suite = type("Suite", (BackendConformance,), {"subject": Faulty("torch", state=fault)})()
    extra = {"preset": "dual-fp8"} if "preset" in case else {}
    if case == "test_random_steps":
        extra["activation"] = torch.bfloat16
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        getattr(suite, case)(layer=LayerKind.GDN, seed=1, **extra)


CHECKED_CASES = (
    "test_commit_of_more_than_was_drafted",
    "test_slot_twice_in_a_batch",
    "test_commit_after_a_tree_takes_a_path_only",
)


def run_unchecked(case, state):
    subject = Faulty("torch", features=ALL_FEATURES - {Feature.CHECKS}, state=state)
    suite = type("Suite", (BackendConformance,), {"subject": subject})()
    getattr(suite, case)(layer=LayerKind.GDN, seed=1)


@pytest.mark.parametrize("case", CHECKED_CASES)
def test_subject_that_checks_no_values(case):
    run_unchecked(case, ChecksNothing)


def test_subject_that_neither_checks_nor_cuts_fails():
    with pytest.raises(AssertionError, match="state of slot 1"):
        run_unchecked("test_commit_of_more_than_was_drafted", TakesAnyCount)


MODULE = """
    import dataclasses
    import pytest
    from replayssm.conformance import CoreSubject, Feature, ALL_FEATURES
    from replayssm.conformance.core_subject import CoreState
    from replayssm.conformance.suite import BackendConformance
    from pathlib import Path

    class NoCopy(CoreState):
        def copy(self, source, target):
            {copy}

    class Subject(CoreSubject):
        def make(self, layout, options):
            return NoCopy(layout, A=options.A, backend=self.name, flush=options.flush, seed=options.seed)

    class TestSubject(BackendConformance):
        subject = Subject("torch", features=frozenset({features}), gaps={gaps})
"""


def run_copy_test(pytester, *, copy="pass", features="ALL_FEATURES", gaps=None):
    path = None
    if gaps is not None:
        path = pytester.path / "gaps.txt"
        path.write_text(gaps, encoding="utf-8")
    where = f"Path({str(path)!r})" if path else "None"
    pytester.makepyfile(textwrap.dedent(MODULE).format(copy=copy, features=features, gaps=where))
    pytester.makeconftest('pytest_plugins = ["replayssm.conformance.plugin"]')
    return pytester.runpytest("-q", "-rs", "-p", "no:xdist", "-k", "test_copy_is_a_clone and gdn")


def test_undeclared_feature_is_skipped_as_not_claimed(pytester):
    result = run_copy_test(pytester, features="ALL_FEATURES - {Feature.COPY}")
    result.assert_outcomes(skipped=1, deselected=pytest_any())
    result.stdout.fnmatch_lines(["*not claimed: copy a slot*"])


def test_claimed_feature_may_not_skip(pytester):
    result = run_copy_test(pytester, copy="pytest.skip('later')")
    result.assert_outcomes(failed=1, deselected=pytest_any())
    result.stdout.fnmatch_lines(["*skipped what its subject claims: *later*"])


def test_known_gap_is_an_expected_failure(pytester):
    result = run_copy_test(pytester, gaps="test_copy_is_a_clone[[]gdn]: copy does nothing yet\n".replace("[[]", "["))
    result.assert_outcomes(xfailed=1, deselected=pytest_any())


def test_gap_that_is_closed_fails(pytester):
    result = run_copy_test(pytester, copy="super().copy(source, target)", gaps="test_copy_is_a_clone: once broken\n")
    result.assert_outcomes(failed=1, deselected=pytest_any())
    result.stdout.fnmatch_lines(["*XPASS(strict)*once broken*"])


def test_gap_of_no_test_stops_the_run(pytester):
    result = run_copy_test(pytester, gaps="test_copies: gone\n")
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*no test is called 'test_copies'*"])


def pytest_any():
    """Equal to every number: how many other cases there are is not the point."""

    class Any:
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

    return Any()


def test_gap_lines(tmp_path):
    path = tmp_path / "gaps.txt"
    path.write_text("# none yet\n\ntest_a[gdn-*]: no mask  # later\ntest_b: see issue: 3\n", encoding="utf-8")
    assert read_gaps(path) == (Gap("test_a[gdn-*]", "no mask"), Gap("test_b", "see issue: 3"))
    assert read_gaps(None) == ()
    gap = read_gaps(path)[0]
    assert gap.matches("test_a[gdn-exact]")
    assert not gap.matches("test_a[kda-exact]")
    path.write_text("test_a\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"gaps\.txt:1: expected 'test: reason'"):
        read_gaps(path)


def test_subject_of_standard_decode_runs_no_draft_case():
    row = dataclasses.replace(CoreSubject("torch").capability, modes=(STANDARD,))

    class Standard(CoreSubject):
        capability = row

    suite = type("Suite", (BackendConformance,), {"subject": Standard("torch")})()
    assert suite.longest_draft == 1
    with pytest.raises(pytest.skip.Exception, match=f"not claimed: decode mode {DRAFT}"):
        suite.test_acceptance_at_both_ends(layer=LayerKind.GDN, seed=0)
    suite.test_random_steps(layer=LayerKind.GDN, activation=torch.float32, seed=0)


def test_subject_that_declares_little(pytester):
    """What is not declared is skipped as not claimed; only refusals fail, as this subject serves what it does not claim."""
    pytester.makepyfile(textwrap.dedent(SMALL))
    pytester.makeconftest('pytest_plugins = ["replayssm.conformance.plugin"]')
    result = pytester.runpytest("-q", "-p", "no:xdist", "-k", "TestSmall and not sequence and not sweep")
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 3
    result.stdout.fnmatch_lines(
        [f"FAILED*test_{what}_outside_the_capability*" for what in ("layers", "formats", "modes")]
    )
    assert outcomes["passed"] >= 15
    assert outcomes["skipped"] >= 20


SMALL = """
    import dataclasses, torch
    from replayssm.capability import STANDARD
    from replayssm.conformance import CoreSubject, Feature
    from replayssm.conformance.suite import BackendConformance
    from replayssm.recurrence import LayerKind

    class Small(CoreSubject):
        @property
        def capability(self):
            row = super().capability
            return dataclasses.replace(
                row, layers=(LayerKind.MAMBA2,), modes=(STANDARD,), checkpoints=("fp32",), read_copies=(None,),
                activations=(torch.bfloat16,),
            )

    class TestSmall(BackendConformance):
        subject = Small("torch", features=frozenset({Feature.MEMORY, Feature.CHECKS}))
"""


def test_kit_without_pytest():
    """What an engine imports to declare itself needs neither pytest nor Hypothesis."""
    program = "import sys, replayssm.conformance; print({'pytest', 'hypothesis'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_core_declares_every_feature():
    assert CoreSubject("torch").features == ALL_FEATURES == frozenset(Feature)


def test_tolerances_grow_with_what_they_are_derived_from():
    layout = StateLayout(Recurrence(LayerKind.GDN, 4, 2, 8, 16), 2, 5, 4, activation=torch.float32)
    base = tolerance(layout, torch.float32, 10)
    assert base.state < 1e-5
    assert tolerance(layout, torch.float32, 100).state > base.state
    assert tolerance(dataclasses.replace(layout, window=64), torch.float32, 10).state > base.state
    assert tolerance(layout, torch.bfloat16, 10).output > base.output
    # bf16 operands are allowed in outputs, never in the fold.
    assert tolerance(layout, torch.bfloat16, 10).state == base.state
    assert base.state < ROUNDOFF["bf16"] / 100
