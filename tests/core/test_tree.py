"""Ancestor masks and paths of draft trees."""

from __future__ import annotations

import pytest
import torch

from replayssm.errors import InputError
from replayssm.tree import ancestor_mask, check_path, check_prefix


def test_mask_of_a_tree_by_hand():
    mask = ancestor_mask(torch.tensor([[-1, 0, 0, 1, -1]]))[0].int().tolist()
    assert mask == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]


def test_chain_is_the_causal_mask():
    assert torch.equal(ancestor_mask(torch.arange(-1, 7)[None])[0], torch.ones(8, 8).tril().bool())


def test_mask_of_random_trees_follows_the_parents():
    parents = torch.stack([torch.tensor([int(torch.randint(-1, t, ())) for t in range(9)]) for _ in range(20)])
    mask = ancestor_mask(parents)
    for row in range(20):
        for t in range(9):
            above, token = set(), t
            while token >= 0:
                above.add(token)
                token = int(parents[row, token])
            assert set(mask[row, t].nonzero()[:, 0].tolist()) == above


TREE = ancestor_mask(torch.tensor([[-1, 0, 0, 1, -1]]))
FIVE = torch.tensor([5])


@pytest.mark.parametrize(
    ("path", "count"), [([-1, -1], 0), ([0, -1, -1], 1), ([0, 1, 3], 3), ([4, -1, -1], 1), ([0, 2], 2)]
)
def test_good_paths(path, count):
    assert check_path(torch.tensor([path]), TREE, FIVE).tolist() == [count]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ([-1, 0], "padding"),
        ([1], "continues"),
        ([0, 3], "continues"),
        ([0, 1, 2], "continues"),
        ([4, 0], "continues"),
        ([0, 0], "continues"),
        ([5], "only 5 tokens"),
        ([2**40], "only 5 tokens"),
    ],
)
def test_bad_paths(path, message):
    with pytest.raises(InputError, match=message):
        check_path(torch.tensor([path]), TREE, FIVE)


def test_path_past_a_rows_length():
    with pytest.raises(InputError, match="only 2 tokens"):
        check_path(torch.tensor([[0, 1, 3]]), TREE, torch.tensor([2]))


def test_prefix_of_a_tree_must_be_a_path():
    check_prefix(torch.tensor([2]), TREE, FIVE)
    check_prefix(torch.tensor([99]), None, FIVE)
    with pytest.raises(InputError, match="continues"):
        check_prefix(torch.tensor([3]), TREE, FIVE)
