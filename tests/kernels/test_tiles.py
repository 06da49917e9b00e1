"""The choice of launch shapes: pure, from tables of any content, and the tables that are shipped."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace

import pytest
import torch

from replayssm import PrecisionPolicy, Recurrence, StateLayout
from replayssm.bench.geometry import GEOMETRIES
from replayssm.bench.tuning import Entry, Search, shape, table_facts
from replayssm.cli.tune import parse_search
from replayssm.errors import InputError
from replayssm.kernels import tiles as module
from replayssm.kernels.tiles import (
    ENVIRONMENT,
    PROGRAMS,
    QUIET,
    Gpu,
    Operation,
    Table,
    Tiles,
    choose_tiles,
    default_tiles,
    entry_of,
    forced,
    gpu_of,
    load_tables,
    select,
    table_folder,
)

H200 = Gpu("NVIDIA H200", 90)
BASE = Operation("mamba2", 128, 64, 128, "fp32", None, 1, 256)
A, B, C = Tiles(16, 1), Tiles(32, 2), Tiles(64, 4)
CPU = torch.device("cpu")
FILL = list(zip(PROGRAMS, QUIET, strict=True))


def table(*entries: tuple[Operation, Tiles], gpu: Gpu = H200) -> Table:
    return Table(gpu, entries)


def test_exact_entry_wins():
    found = table((BASE, A), (replace(BASE, batch=32), B), (replace(BASE, draft=4), C))
    assert select([found], H200, BASE) == A
    assert select([found], H200, replace(BASE, batch=32)) == B
    assert select([found], H200, replace(BASE, draft=4)) == C


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (replace(BASE, batch=200), A),
        (replace(BASE, batch=3), B),
        # Half of the heads, as a rank of two has them, and twice the rows: the same work.
        (replace(BASE, heads=64, batch=512), A),
        (replace(BASE, heads=32, batch=32), B),
    ],
)
def test_nearest_work(wanted, expected):
    assert select([table((BASE, A), (replace(BASE, batch=8), B))], H200, wanted) == expected


def test_drafts_come_before_checkpoints_before_work():
    draft = replace(BASE, draft=4)
    found = table((BASE, A), (replace(draft, checkpoint="fp16"), B), (replace(draft, batch=100), C))
    assert select([found], H200, replace(BASE, draft=2)) == C
    assert select([found], H200, replace(BASE, draft=3, checkpoint="fp16-sr")) == B
    assert select([found], H200, replace(BASE, checkpoint="fp16")) == A


def test_what_one_token_or_a_short_draft_needs_says_nothing_about_long_drafts():
    long, found = replace(BASE, draft=8), table((BASE, A), (replace(BASE, draft=4), B))
    assert select([found], H200, long) == default_tiles(long)
    assert select([table((long, C))], H200, replace(BASE, draft=16)) == C
    assert select([table((long, C))], H200, BASE) == default_tiles(BASE)


@pytest.mark.parametrize(
    "change",
    [
        {"layer": "gdn"},
        {"value_dim": 128},
        {"key_dim": 64},
        {"read_copy": "nvfp4"},
        {"checkpoint": "nvfp4"},
        {"batch": 32},
        {"heads": 64, "batch": 4096},
    ],
)
def test_other_shapes_say_nothing(change):
    wanted = replace(BASE, **change)
    assert select([table((BASE, C))], H200, wanted) == default_tiles(wanted)


def test_another_gpu_of_the_same_capability_serves_and_others_do_not():
    mine, sibling = table((BASE, A)), table((BASE, B), gpu=Gpu("NVIDIA H100", 90))
    assert select([sibling, mine], H200, BASE) == A
    assert select([sibling], H200, BASE) == B
    assert select([mine, sibling], Gpu("NVIDIA A100", 80), BASE) == default_tiles(BASE)
    assert select([mine], None, BASE) == default_tiles(BASE)


@pytest.mark.parametrize("value_dim", [16, 24, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("batch", [1, 3, 8, 256])
@pytest.mark.parametrize(("draft", "fill", "quiet"), [(1, *FILL[0]), (4, *FILL[1])])
def test_the_rule_covers_a_head_and_fills_the_gpu(value_dim, batch, draft, fill, quiet):
    tiles, heads = default_tiles(replace(BASE, value_dim=value_dim, batch=batch, draft=draft)), batch * BASE.heads
    parts, count = tiles.parts(value_dim)
    assert (parts - 1) * count * tiles.value < value_dim <= parts * count * tiles.value
    assert parts == 1 or heads < fill
    assert count == 1 or 2 * parts * heads >= fill
    assert tiles.shares == (heads >= quiet)


@pytest.mark.parametrize(
    ("tiles", "value_dim", "expected"),
    [
        (Tiles(16, count=1, shares=0), 128, 1),
        (Tiles(16, count=4, shares=0), 128, 4),
        (Tiles(64, shares=0), 80, 5),
        (Tiles(16, shares=2), 128, 2),
        (Tiles(16, shares=9), 24, 2),
        (Tiles(16), 128, 1),
    ],
)
def test_folds_are_shared_by_a_program_each_or_fewer(tiles, value_dim, expected):
    shares, rows = tiles.sharing(value_dim, 32, 1, 16)
    assert shares == expected
    assert rows == (4 if shares > 1 else 0)


@pytest.mark.parametrize(("rows", "draft", "expected"), [(1, 1, 1), (33, 1, 5), (32, 4, 10), (32, 16, 32)])
def test_more_rows_share_their_folds_than_flush(rows, draft, expected):
    assert Tiles(16, shares=0).sharing(64, rows, draft, 16) == (4, expected)


def test_operation_of_a_layout():
    recurrence = Recurrence.mamba2(heads=128, head_dim=64, state_size=128, groups=8)
    layout = StateLayout(recurrence, 4, precision=PrecisionPolicy("fp16", stochastic_rounding=True))
    assert Operation.of(layout, 1, 256) == replace(BASE, checkpoint="fp16-sr")
    assert choose_tiles(layout, 1, 256, CPU) == default_tiles(replace(BASE, checkpoint="fp16-sr"))
    with forced(C), forced(B):
        assert choose_tiles(layout, 1, 256, CPU) == B
    assert gpu_of(CPU) is None


def test_shipped_tables_parse_and_suit():
    paths = list(table_folder().glob("*.json"))
    assert H200.file_name in [path.name for path in paths]
    for path in paths:
        facts = json.loads(path.read_text(encoding="utf-8"))
        found = Table.parse(facts, str(path))
        assert path.name == found.gpu.file_name
        for operation, tiles in found.entries:
            assert found.nearest(operation) == tiles
        assert all(set(entry["tiles"]) <= {f.name for f in fields(Tiles)} for entry in facts["entries"])


def test_own_table_is_asked_first(tmp_path, monkeypatch):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(table_facts(H200, None, [Entry(BASE, C, 1.0)], {})), encoding="utf-8")
    monkeypatch.setenv(ENVIRONMENT, str(path))
    load_tables.cache_clear()
    try:
        assert select(load_tables(), H200, BASE) == C
        path.write_text("[]", encoding="utf-8")
        load_tables.cache_clear()
        with pytest.raises(InputError, match=r"mine\.json holds a list"):
            load_tables()
    finally:
        monkeypatch.undo()
        load_tables.cache_clear()
        module._chosen.cache_clear()


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"gpu": "x", "capability": 90, "entries": [{}]},
        {"gpu": "x", "capability": 90, "entries": 1},
        {"gpu": "x", "capability": 90, "entries": {}},
        {"gpu": "x", "capability": "90", "entries": []},
        {"gpu": None, "capability": 90, "entries": []},
    ],
)
def test_what_is_no_table(facts):
    with pytest.raises(InputError, match="here is not a table of launch shapes"):
        Table.parse(facts, "here")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checkpoint": "fp33"}, "checkpoint='fp33' of an operation is unknown"),
        ({"draft": 0}, "draft=0 of an operation must be a whole number"),
        ({"tiles": {"value": 24}}, "value=24 of a launch shape must be a power of two"),
        ({"tiles": {"value": "a"}}, "value='a' of a launch shape"),
        ({"tiles": {"value": 16, "warps": 3}}, "warps=3 of a launch shape must be 1, 2, 4 or 8"),
        ({"tiles": {"value": 16, "registers": 8}}, "registers=8 of a launch shape"),
        ({"tiles": {"value": 16, "regsters": 168}}, "tiles have unknown regsters"),
    ],
)
def test_a_table_with_an_impossible_entry(change, words):
    entry = {**entry_of(BASE, A), **change}
    with pytest.raises(InputError, match=f"here is not a table of launch shapes: InputError: {words}"):
        Table.parse({"gpu": "x", "capability": 90, "entries": [entry]}, "here")


def test_tables_merge():
    first = table_facts(H200, None, [Entry(BASE, A, 2.0), Entry(replace(BASE, batch=1), B, 1.0)], {"git": "a"})
    second = table_facts(H200, first, [Entry(BASE, C, 1.5)], {"git": "b"})
    assert [entry["batch"] for entry in second["entries"]] == [1, 256]
    assert second["entries"][1] == {**entry_of(BASE, C), "us": 1.5}
    assert second["meta"] == {"git": "b"}
    with pytest.raises(InputError, match="is of NVIDIA H200; this is NVIDIA H100"):
        table_facts(Gpu("NVIDIA H100", 90), first, [], {})


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=list(GEOMETRIES))
def test_candidates_suit_every_geometry(geometry):
    r = geometry.recurrence
    found = Search().candidates(r.value_dim, r.key_dim)
    assert 12 <= len(found) <= 32
    assert len(set(found)) == len(found)
    rule = default_tiles(replace(BASE, layer=str(r.kind), heads=r.heads, value_dim=r.value_dim, key_dim=r.key_dim))
    assert rule in found


def test_search_as_typed():
    search = parse_search(["value=16", "warps=1,2"])
    assert search.values["value"] == (16,)
    assert {tiles.warps for tiles in search.candidates(64, 128)} == {1, 2}
    for text in ("value", "value=", "value=x", "rows=1"):
        with pytest.raises(InputError, match=r"must be FIELD=N,N with a field of value, warps"):
            parse_search([text])
    assert shape(Tiles(16, 2)) == "value=16 warps=2"
    assert asdict(Tiles(16, 2))["count"] == 0
