"""The picture of llmcalc's rooms (packages and top-level modules) and of the imports between them.

`python -m tests.contracts.rooms` reads every import with `ast` and writes `docs/images/rooms.svg`. Rows are the layers
of the import contract in `pyproject.toml`, with the entry points above them. An arrow that follows from others is left
out. The order within a row and the bends of long arrows are those of Sugiyama, Tagawa and Toda (1981): a long arrow has
a point in every row that it crosses, and rooms and points are moved towards the mean of what they are joined to.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import TypeAlias

from tests.contracts.test_imports import package_graphs

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "llmcalc"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"

ENTRY_POINTS = ("__main__", "pytest_plugin", "__init__")
"""Top-level modules above the layers of the contract."""

Arrow: TypeAlias = tuple[str, str]
"""(room that imports, room that is imported)."""
Item: TypeAlias = str | tuple[str, str, int]
"""A room, or the point of a long arrow in a row that the arrow crosses."""

ROW_HEIGHT, BOX_HEIGHT, POINT_WIDTH, GAP = 58, 34, 24, 24
SWEEPS, STARTS = 40, 100


def layers() -> list[list[str]]:
    """The rows of the picture: the entry points, then the layers of the import contract from top to bottom."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    rows = [[room.strip().removeprefix("llmcalc.") for room in layer.split("|")] for layer in contract["layers"]]
    return [list(ENTRY_POINTS), *rows]


@cache
def read_rooms() -> tuple[dict[str, int], set[Arrow]]:
    """Lines of code of every room, and an arrow for each pair of rooms of which one imports the other."""
    room_of = {file: file.relative_to(PACKAGE).with_suffix("").parts[0] for file in sorted(PACKAGE.rglob("*.py"))}
    lines = dict.fromkeys(room_of.values(), 0)
    for file, room in room_of.items():
        lines[room] += len(file.read_text().splitlines())
    arrows = {
        (name.split(".")[1] if "." in name else "__init__", other.split(".")[1])
        for graph in package_graphs()
        for name, others in graph.items()
        for other in others
        if "." in other
    }
    return lines, {(room, other) for room, other in arrows if other != room}


def without_implied(arrows: set[Arrow]) -> list[Arrow]:
    """The arrows without those that follow from a longer way (the transitive reduction)."""

    @cache
    def reachable(start: str) -> frozenset[str]:
        direct = frozenset(end for room, end in arrows if room == start)
        return direct.union(*(reachable(room) for room in direct))

    return sorted(
        (room, end)
        for room, end in arrows
        if not any(end in reachable(other) for start, other in arrows if start == room)
    )


def box_width(item: Item) -> int:
    """Width of a room's box, which holds its name and its lines, or of the gap that a long arrow needs."""
    return max(104, 8 * len(item) + 30) if isinstance(item, str) else POINT_WIDTH


def spread(row: list[Item], wanted: dict[Item, float]) -> dict[Item, float]:
    """The middles of a row's items that are nearest to the wanted ones, by least squares, in order and not overlapping.

    Items that would overlap are joined to a block, and a block lies at the mean of what its items want.
    """
    offsets = [0.0]
    for item, following in pairwise(row):
        offsets.append(offsets[-1] + (box_width(item) + box_width(following)) / 2 + GAP)
    blocks: list[list[float]] = []
    for item, offset in zip(row, offsets, strict=True):
        blocks.append([wanted[item] - offset])
        while len(blocks) > 1 and fmean(blocks[-2]) >= fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    shifts = [fmean(block) for block in blocks for _ in block]
    return {item: shift + offset for item, shift, offset in zip(row, shifts, offsets, strict=True)}


def ways(rows: list[list[str]], arrows: list[Arrow]) -> dict[Arrow, list[Item]]:
    """For every arrow its items from top to bottom: a room, a point in each row that it crosses, a room."""
    row_of = {room: number for number, row in enumerate(rows) for room in row}
    return {
        (start, end): [start, *((start, end, row) for row in range(row_of[start] + 1, row_of[end])), end]
        for start, end in arrows
    }


def crossings(rows: list[list[Item]], below: dict[Item, list[Item]]) -> int:
    """The number of pairs of arrows that cross between two rows."""
    total = 0
    for upper, lower in pairwise(rows):
        index = {item: number for number, item in enumerate(lower)}
        ends = [[index[item] for item in below[start]] for start in upper]
        total += sum(a > b for left, right in combinations(ends, 2) for a in left for b in right)
    return total


def ordered(rows: list[list[Item]], above: dict[Item, list[Item]], below: dict[Item, list[Item]]) -> list[list[Item]]:
    """The rows, each in the order with the fewest crossings that many starts find."""
    best, fewest = rows, crossings(rows, below)
    for start in range(STARTS):
        shuffle = Random(start)
        trial = [shuffle.sample(row, len(row)) for row in rows]
        for sweep in range(8):
            neighbours = below if sweep % 2 else above
            index: dict[Item, float] = {}
            for row in reversed(trial) if sweep % 2 else trial:
                here = {item: (number + 0.5) / len(row) for number, item in enumerate(row)}
                row.sort(key=lambda item: fmean(index[x] for x in neighbours[item]) if neighbours[item] else here[item])
                index |= {item: (number + 0.5) / len(row) for number, item in enumerate(row)}
            if (count := crossings(trial, below)) < fewest:
                best, fewest = [list(row) for row in trial], count
    return best


def place(rows: list[list[str]], paths: Iterable[list[Item]]) -> dict[Item, tuple[float, float]]:
    """(x, y) of the middle of every room and of every point of a long arrow, from the left edge and from the top."""
    items: list[list[Item]] = [list(row) for row in rows]
    above: dict[Item, list[Item]] = defaultdict(list)
    below: dict[Item, list[Item]] = defaultdict(list)
    for path in paths:
        for upper, lower in pairwise(path):
            below[upper].append(lower)
            above[lower].append(upper)
        for point in path[1:-1]:
            assert not isinstance(point, str)
            items[point[2]].append(point)
    items = ordered(items, above, below)
    x: dict[Item, float] = {}
    for row in items:
        x |= spread(row, dict.fromkeys(row, 0.0))
    for _ in range(SWEEPS):
        for row in (*items, *reversed(items)):
            x |= spread(row, {item: fmean(x[other] for other in above[item] + below[item]) for item in row})
    left = min(x[item] - box_width(item) / 2 for item in x)
    heights = {item: ROW_HEIGHT * (number + 0.5) for number, row in enumerate(items) for item in row}
    return {item: (x[item] - left + 2, heights[item]) for item in x}


def drawn_arrow(path: list[Item], positions: dict[Item, tuple[float, float]]) -> str:
    """A curve that leaves its room at the bottom, stays upright where it crosses a row, and ends in an arrowhead."""
    half = BOX_HEIGHT / 2
    x, y = positions[path[0]]
    y += half
    curve = f"M{x:.0f} {y:.0f}"
    for item in path[1:]:
        to_x, middle = positions[item]
        top, bottom = middle - half, middle + half
        bend = (y + top) / 2
        last = item is path[-1]
        end = top - 5 if last else top
        curve += f"C{x:.0f} {bend:.0f} {to_x:.0f} {bend:.0f} {to_x:.0f} {end:.0f}" + ("" if last else f"V{bottom:.0f}")
        x, y = to_x, bottom
    return f'<path d="{curve}" marker-end="url(#head)"/>'


def draw() -> str:
    """The picture as SVG. Its colours are readable on a light and on a dark page."""
    lines, arrows = read_rooms()
    rows = layers()
    paths = ways(rows, without_implied(arrows))
    positions = place(rows, paths.values())
    height = ROW_HEIGHT * len(rows)
    width = max(positions[room][0] + box_width(room) / 2 for row in rows for room in row) + 2
    boxes = []
    for room in (room for row in rows for room in row):
        (x, y), side = positions[room], box_width(room)
        count = f"{rounded:,} lines" if (rounded := round(lines[room], -2)) else "under 50 lines"
        boxes.append(
            f'<rect x="{x - side / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{side}" height="{BOX_HEIGHT}" rx="5"/>'
            f'<text x="{x:.0f}" y="{y - 2:.0f}" font-weight="bold">{room}</text>'
            f'<text x="{x:.0f}" y="{y + 12:.0f}" font-size="11">{count}</text>'
        )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}"'
            f' viewBox="0 0 {width:.0f} {height}" role="img"'
            ' font-family="sans-serif" font-size="14" text-anchor="middle">',
            "<title>The rooms of llmcalc; an arrow is an import, and one that follows from others is left out</title>",
            '<marker id="head" viewBox="0 0 8 8" refX="3" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#6e7f96"/></marker>',
            '<g fill="none" stroke="#6e7f96" stroke-width="1.5">',
            *(drawn_arrow(path, positions) for path in paths.values()),
            "</g>",
            '<g fill="#1b2430">',
            *(box.replace("<rect", '<rect fill="#e9eff8" stroke="#6e7f96"') for box in boxes),
            "</g>",
            "</svg>\n",
        )
    )


if __name__ == "__main__":
    PICTURE.write_text(draw())
