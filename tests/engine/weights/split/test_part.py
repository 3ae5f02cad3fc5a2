"""Which block of a part a block of the whole tensor is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.spec.slices import Slice
from blade_llm.weights.split import chunks
from blade_llm.weights.split.chunks import joined_chunks, part_chunks
from blade_llm.weights.split.part import Part, merged

ROWS, COLUMNS = 12, 10
WHOLE = np.arange(3 * ROWS * COLUMNS, dtype=np.uint32).reshape(3, ROWS, COLUMNS)


def taken(part: Part) -> np.ndarray:
    """What ``part`` has of :data:`WHOLE`."""
    rows = np.r_[tuple(slice(*run) for run in part.rows or ((0, ROWS),))]
    columns = np.r_[tuple(slice(*run) for run in part.columns or ((0, COLUMNS),))]
    return WHOLE[:, rows][:, :, columns]


def some_runs(size: int) -> st.SearchStrategy[tuple[tuple[int, int], ...] | None]:
    return st.sets(st.integers(0, size - 1), min_size=1).map(
        lambda rows: merged([(row, row + 1) for row in rows], size)
    )


parts = st.builds(lambda rows, columns: Part(rows, columns, True), some_runs(ROWS), some_runs(COLUMNS))


@given(parts, st.data())
def test_every_block_within_a_part_is_found_in_it(part: Part, data: st.DataObject) -> None:
    assert part.shape(WHOLE.shape) == taken(part).shape
    wanted = {}
    for name, runs in (("rows", part.rows), ("columns", part.columns)):
        if runs is not None:
            start, stop = data.draw(st.sampled_from(runs))
            first = data.draw(st.integers(start, stop - 1))
            wanted[name] = range(first, data.draw(st.integers(first + 1, stop)))
    block = Slice(1, **wanted)
    found = part.find(block)
    assert found is not None
    expected = WHOLE[1]
    if block.rows is not None:
        expected = expected[block.rows.start : block.rows.stop]
    if block.columns is not None:
        expected = expected[:, block.columns.start : block.columns.stop]
    own = taken(part)[found.index]
    own = own if found.rows is None else own[found.rows.start : found.rows.stop]
    own = own if found.columns is None else own[:, found.columns.start : found.columns.stop]
    assert np.array_equal(own, expected)


def test_exactly_the_part_is_all_of_it() -> None:
    assert Part(((4, 8),)).find(Slice(rows=range(4, 8))) is None
    assert Part(None, ((0, 2),)).find(Slice(columns=range(2))) is None
    assert Part(((4, 8),)).find(Slice(rows=range(5, 7))) == Slice(rows=range(1, 3))
    assert Part(((0, 2), (4, 8))).find(Slice(rows=range(4, 8))) == Slice(rows=range(2, 6))
    assert Part(((4, 8),)).find(Slice(rows=range(9, 9))) == Slice(rows=range(0))


@pytest.mark.parametrize(
    "block",
    [
        None,
        Slice(),
        Slice(rows=range(3, 6)),
        Slice(rows=range(7, 9)),
        Slice(rows=range(4, 13)),
        Slice(columns=range(2)),
    ],
)
def test_what_is_not_in_the_part_is_refused(block: Slice | None) -> None:
    with pytest.raises(ValueError, match="not there"):
        Part(((4, 8), (12, 16))).find(block)


@pytest.mark.parametrize("rows", [((0, 13),), ((4, 2),), ((0, 4), (4, 8)), ((5, 6), (1, 2)), (), ((-1, 2),)])
def test_a_part_that_cannot_be(rows: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="of dimension 0"):
        Part(rows).shape((12, 3))


@given(st.lists(parts, min_size=1, max_size=3), st.sampled_from([1, 60, 1 << 20]))
def test_parts_are_cut_and_joined_in_chunks_of_any_size(some: list[Part], chunk_bytes: int) -> None:
    flat = WHOLE.view(np.uint8).reshape(-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
        pieces = []
        for part in [*some, Part(((0, 5),), None, True), Part(((5, ROWS),), None, True)]:
            data = np.concatenate(list(part_chunks(flat, WHOLE.shape, part)))
            assert data.tobytes() == taken(part).tobytes()
            pieces.append((part, data))
        joined = list(joined_chunks(pieces, WHOLE.shape, len(flat)))
    assert np.concatenate(joined).tobytes() == flat.tobytes()
    assert max(map(len, joined)) <= max(chunk_bytes, COLUMNS * 4)
