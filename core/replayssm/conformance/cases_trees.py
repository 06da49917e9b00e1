"""Draft trees: every path is a linear run, and any path can be accepted."""

from __future__ import annotations

import pytest

from replayssm.capability import TREE
from replayssm.conformance.base import Cases
from replayssm.conformance.driver import Driver, close
from replayssm.conformance.inputs import Source, select
from replayssm.conformance.memory import bits, differing, snapshot
from replayssm.conformance.subject import Feature
from replayssm.errors import InputError
from replayssm.recurrence import LayerKind


def random_tree(source: Source, tokens: int) -> list[int]:
    """A parent before each token, −1 for the history."""
    return [int(source.integers(-1, t - 1, ())) for t in range(tokens)]


def path_to(parents: list[int], token: int) -> list[int]:
    """Tokens from the history down to one of them."""
    path = []
    while token >= 0:
        path.append(token)
        token = parents[token]
    return path[::-1]


def step_random_trees(driver: Driver, slots: list[int]) -> None:
    """Another tree of up to the layout's draft in each row, and a random path of it accepted, sometimes none."""
    draft = driver.layout.max_draft
    lengths = driver.source.integers(1, draft, (len(slots),)).tolist()
    trees = [random_tree(driver.source, draft) for _ in slots]
    driver.step(slots, draft, lengths, trees)
    ends = [int(driver.source.integers(-1, n - 1, ())) for n in lengths]
    driver.commit_path([path_to(tree, end) for tree, end in zip(trees, ends, strict=True)])


class TreeCases(Cases):
    """Verification of draft trees."""

    def test_random_trees(self, layer: LayerKind, seed: int) -> None:
        """Another tree in each row and step, a random path accepted (sometimes none), through several windows."""
        self.claim_mode(TREE)
        driver = self.drive(self.layout(layer, draft=6, window=7), seed)
        slots = [3, 0, 2]
        driver.load(slots)
        for _ in range(12):
            step_random_trees(driver, slots)
            driver.check()

    def test_each_path_equals_its_linear_run(self, layer: LayerKind, seed: int) -> None:
        """Outputs along every path of a tree, and the state after its acceptance, against a chain of the same tokens."""
        self.claim_mode(TREE)
        tree = [-1, 0, 0, 1, -1, 2, 4]
        layout = self.layout(layer, draft=7, window=9)
        inputs = self.drive(layout, seed + 1).source.tokens(1, 7)
        for end in range(7):
            branching, chain = self.drive(layout, seed), self.drive(layout, seed)
            path = path_to(tree, end)
            for driver in (branching, chain):
                driver.load([1])
                driver.step([1], 3)
                driver.commit(3)
            out = branching.step([1], parents=[tree], inputs=inputs)
            linear = chain.step([1], inputs=select(inputs, slice(0, 1), branching.tensor(path)))
            close(out[:, path], linear, 2 * chain.tolerance.output, f"outputs of path {path}")
            branching.commit_path([path])
            chain.commit(len(path))
            branching.check()
            states = [driver.state.state(driver.tensor([1])) for driver in (branching, chain)]
            close(states[0], states[1], 2 * chain.tolerance.state, f"state after path {path}")

    def test_chain_given_as_tree(self, layer: LayerKind, seed: int) -> None:
        """Parents −1, 0, 1, … are the chain that no parents mean."""
        self.claim_mode(TREE)
        chain, tree = (self.drive(self.layout(layer), seed) for _ in range(2))
        for driver in (chain, tree):
            driver.load([0, 3])
        for i in range(8):
            linear = chain.step([0, 3], 4)
            out = tree.step([0, 3], 4, parents=[[-1, 0, 1, 2]] * 2)
            close(out, linear, 2 * chain.tolerance.output, "outputs of the chain")
            chain.commit([i % 5, 2])
            tree.commit_path([list(range(i % 5)), [0, 1]])
        chain.check()
        tree.check()

    def test_padded_rows_beside_trees(self, layer: LayerKind, seed: int) -> None:
        """A padded row has no tree: its parents may say anything valid."""
        self.claim_mode(TREE)
        self.claim(Feature.PADDING)
        driver = self.drive(self.layout(layer), seed)
        driver.load([2])
        for _ in range(6):
            tree = random_tree(driver.source, 4)
            driver.step([-1, 2], 4, parents=[[-1, -1, -1, -1], tree])
            driver.commit_path([[], path_to(tree, 3)])
        driver.check()

    def test_repeated_path_changes_nothing(self, layer: LayerKind, seed: int) -> None:
        """A path committed twice is compacted once."""
        self.claim_mode(TREE)
        self.claim(Feature.MEMORY)
        driver = self.drive(self.layout(layer), seed)
        driver.load([2, 1])
        for _ in range(5):
            driver.step([2, 1], 4, parents=[[-1, -1, 1, 2], [-1, 0, 0, 2]])
            driver.commit_path([[1, 2, 3], [0, 2]])
            before = snapshot(driver.state)
            driver.state.commit_path(driver.tensor([[1, 2, 3], [0, 2, -1]]))
            assert not differing(before, snapshot(driver.state))
        driver.check()

    def test_slot_reset_between_step_and_path(self, layer: LayerKind, seed: int) -> None:
        """A request that ends between verification and acceptance leaves the paths of the others alone."""
        self.claim_mode(TREE)
        driver = self.drive(self.layout(layer), seed)
        driver.load([2, 1])
        driver.step([2, 1], 4, parents=[[-1, -1, 1, 2], [-1, 0, 0, 2]])
        fresh = driver.load([2])
        driver.state.commit_path(driver.tensor([[1, 2, 3], [0, 2, -1]]))
        driver.model.commit(1, [0, 2])
        driver.check()
        assert bits(fresh.double()).equal(bits(driver.state.state(driver.tensor([2])).double()))

    def test_commit_after_a_tree_takes_a_path_only(self, layer: LayerKind, seed: int) -> None:
        """A count accepts the first tokens: right where they are a path; where not, refused or the row's own loss."""
        self.claim_mode(TREE)
        self.claim(Feature.MEMORY)
        driver: Driver = self.drive(self.layout(layer), seed)
        driver.load([1, 4])
        driver.step([1, 4], 4, parents=[[-1, 0, 0, 2], [-1, 0, 1, 0]])
        counts = driver.tensor([3, 3])
        if Feature.CHECKS in self.subject.features:
            before = snapshot(driver.state)
            with pytest.raises(InputError):
                driver.state.commit(counts)
            assert not differing(before, snapshot(driver.state))
            driver.commit([2, 3])
            driver.check()
        else:
            driver.state.commit(counts)
            driver.model.commit(4, [0, 1, 2])
            driver.check([4])
