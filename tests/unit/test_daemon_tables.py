# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowaged import status
from stowaged.tables import Column, ago, percent, shortened, table, width_of


def test_a_table() -> None:
    columns = (Column("Name", shrinks=True), Column("Size", right=True))
    assert table(columns, [["runs", "5 GB"], ["cache", "120 MB"]], 80) == [
        "Name     Size",
        "runs     5 GB",
        "cache  120 MB",
    ]


def test_the_widest_column_that_may_shrink_does() -> None:
    columns = (Column("Name"), Column("Path", shrinks=True), Column("Size", right=True))
    lines = table(columns, [["runs", "/srv/" + "x" * 60 + "/runs", "5 GB"]], 40)
    assert [len(line) for line in lines] == [40, 40]
    assert "…" in lines[1] and lines[1].endswith("/runs  5 GB")


def test_what_may_not_shrink_stays_whole() -> None:
    assert table((Column("Name"),), [["a-very-long-name"]], 5) == ["Name", "a-very-long-name"]


@given(st.text(max_size=60), st.integers(min_value=4, max_value=40))
def test_shortened_text_fits(text: str, room: int) -> None:
    result = shortened(text, room)
    assert width_of(result) <= room
    assert result == text or "…" in result


def test_wide_characters_take_two_columns() -> None:
    lines = table((Column("Name"), Column("Size")), [["数据", "1"], ["abcd", "2"]], 80)
    assert [width_of(line) for line in lines[1:]] == [7, 7]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "never"),
        (-3.0, "0 s ago"),
        (59.0, "59 s ago"),
        (60.0, "1 min ago"),
        (7199.0, "119 min ago"),
        (7200.0, "2 h ago"),
        (172800.0, "2 d ago"),
    ],
)
def test_ago(seconds: float, text: str) -> None:
    assert ago(seconds) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, "0 %"), (0.001, "<1 %"), (0.096, "10 %"), (0.999, ">99 %"), (1, "100 %")]
)
def test_percent(fraction: float, text: str) -> None:
    assert percent(fraction) == text


def state(**changes: Any) -> status.State:
    measured = {"bytes": 5_000_000_000, "allocated": 5_000_000_000, "files": 12, "measured": 990.0}
    at = {"path": "/mnt/nvme0/a/rather/long/path/to/runs", "available": True, "answers": True, "reason": "", **measured}
    return {
        "cycle": {"time": 996.0, "cycle_s": 10, "version": "1.2.3", "host": "gpu-01", "evict": "plan"},
        "filesystems": {
            "filesystems": [
                {
                    "mountpoint": "/mnt/nvme0",
                    "fstype": "xfs",
                    "size": 100,
                    "free": 30,
                    "avail": 30,
                    "files": 0,
                    "files_free": 0,
                }
            ]
        },
        "locations": {"locations": [{"location": "runs", "complete": True, "elsewhere": False, **at}]},
        "drives": {"drives": []},
        "copies": {
            "copies": [
                {"workspace": "ml", "drive": "hf", "kind": "cache", "in_use": None, "last_used": None, **measured}
            ]
        },
        "evictions": {
            "mode": "plan",
            "removed": {"full": 2},
            "removed_bytes": 7,
            "blocked": False,
            "why": "",
            "plan": [],
        },
        **changes,
    }


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_status_page(width: int) -> None:
    lines = status.render(state(), width, now=1000.0)
    assert lines[0] == "stowaged 1.2.3 on gpu-01: last cycle 4 s ago, evict: plan"
    assert all(len(line) <= max(width, 66) for line in lines)
    page = "\n".join(lines)
    assert re.search(r"5\.0 GB +12 +10 s ago +ok", page) and "unknown" in page and "never" in page


def test_what_is_wrong_is_on_the_page() -> None:
    plan = [{"copy": "ml.hf", "allocated": 5, "reason": "full"}]
    changes: dict[str, Any] = {
        "config": {"successful": False, "error": "daemon.json: cycle_s: 0"},
        "evictions": {
            "mode": "plan",
            "removed": {},
            "removed_bytes": 0,
            "blocked": True,
            "why": "nothing can go",
            "plan": plan,
        },
    }
    page = "\n".join(status.render(state(**changes), 80, now=2000.0))
    assert "! The daemon has stopped" in page
    assert "! The configuration could not be loaded" in page and "cycle_s: 0" in page
    assert "nothing can go" in page and "ml.hf" in page
    assert status.render({}, 80, now=0.0)[0].startswith("The daemon has not finished a cycle")
