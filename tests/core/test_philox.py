"""Philox against the known-answer vectors published with Random123, and against Triton's own."""

from __future__ import annotations

import pytest
import torch

from replayssm.philox import philox4x32, uniform

KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN, ids=["zeros", "ones", "pi"])
def test_known_answers(counter, key, expected):
    seed = key[0] | key[1] << 32
    seed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed])
    words = philox4x32(seed, tuple(torch.tensor([word]) for word in counter))
    assert [int(word) for word in words] == expected


def test_uniform_numbers_are_words_of_documented_counters():
    seed = torch.tensor([12345])
    numbers = uniform(seed, torch.tensor([7]), torch.tensor([3]), 10)[0]
    for e in range(10):
        counter = tuple(torch.tensor([word]) for word in (e // 4, 7, 3, 0))
        word = int(philox4x32(seed, counter)[e % 4])
        assert float(numbers[e]) == (word >> 8) / 2**24


def test_uniform_range_and_mean():
    numbers = uniform(torch.tensor([1]), torch.arange(8), torch.arange(8), 50_000).double()
    assert float(numbers.min()) >= 0.0
    assert float(numbers.max()) < 1.0
    # The mean of n uniform numbers has a deviation of 1 / √(12 n); 6 of them are passed once in 5e8 seeds.
    assert abs(float(numbers.mean()) - 0.5) < 6 / (12 * numbers.numel()) ** 0.5


def test_slots_flushes_and_seeds_have_streams_of_their_own():
    base = uniform(torch.tensor([1]), torch.tensor([1]), torch.tensor([1]), 64)
    for seed, slot, flush in ((2, 1, 1), (1, 2, 1), (1, 1, 2), (1 + 2**32, 1, 1)):
        other = uniform(torch.tensor([seed]), torch.tensor([slot]), torch.tensor([flush]), 64)
        assert float((base == other).float().mean()) < 0.1
