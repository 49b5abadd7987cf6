# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of text that fit a terminal, a narrow one too, and a job's log."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_GAP = 2
_READABLE = 16
"""Columns are left out before a name or path becomes shorter than this."""
_LEAST = 8


@dataclass(frozen=True)
class Column:
    title: str
    right: bool = False
    shrinks: bool = False
    """Whether its middle may be left out where there is not enough room."""
    goes: int = 0
    """Where that is not enough columns are left out, the one with the highest number first; 0 always stays."""


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return the lines of a table at most *width* columns wide, as far as its columns may shrink or go."""
    shown = [[column.title for column in columns], *(list(row) for row in rows)]
    widths = [max(width_of(row[number]) for row in shown) for number in range(len(columns))]
    if width is not None:
        room = width - _GAP * (len(columns) - 1)
        _shrink(columns, widths, room, _READABLE)
        least = max(range(len(columns)), key=lambda n: columns[n].goes)
        if sum(widths) > room and columns[least].goes:
            kept = [n for n in range(len(columns)) if n != least]
            return table([columns[n] for n in kept], [[row[n] for n in kept] for row in rows], width)
        _shrink(columns, widths, room, _LEAST)
    return [
        (" " * _GAP).join(_cell(text, room, column) for text, room, column in zip(row, widths, columns)).rstrip()
        for row in shown
    ]


def _shrink(columns: Sequence[Column], widths: list[int], room: int, least: int) -> None:
    """Take from the widest column that may shrink and is wider than *least*, until all have room."""
    while sum(widths) > room:
        candidates = [n for n, column in enumerate(columns) if column.shrinks and widths[n] > least]
        if not candidates:
            return
        widths[max(candidates, key=lambda n: widths[n])] -= 1


def width_of(text: str) -> int:
    """Return how many columns of a terminal *text* takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def shortened(text: str, room: int) -> str:
    """Return *text* with its middle left out where it is wider than *room*."""
    if width_of(text) <= room:
        return text
    end = text[len(text) - (room - 1) * 2 // 3 :]
    while width_of(end) > (room - 1) * 2 // 3:
        end = end[1:]
    start = ""
    for char in text:
        if width_of(start + char) + 1 + width_of(end) > room:
            break
        start += char
    return f"{start}…{end}"


def _cell(text: str, room: int, column: Column) -> str:
    text = shortened(text, room) if column.shrinks else text
    padding = " " * (room - width_of(text))
    return padding + text if column.right else text + padding


def wrapped(text: str, width: int | None) -> list[str]:
    """Return the lines of a sentence; words stay whole, for they may be paths."""
    if width is None:
        return [text]
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def copies(number: int) -> str:
    return "1 copy" if number == 1 else f"{number} copies"


def percent(fraction: float) -> str:
    """Return a fraction as a whole percentage that never says 0 or 100 unless it is."""
    if 0 < fraction < 0.01:
        return "<1 %"
    if 0.99 < fraction < 1:
        return ">99 %"
    return f"{fraction * 100:.0f} %"
