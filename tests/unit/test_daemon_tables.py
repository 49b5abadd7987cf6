# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.spans import ago
from stowaged import status
from stowaged.tables import Column, percent, shortened, table, width_of, wrapped


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


def test_columns_go_where_shrinking_is_not_enough() -> None:
    columns = (Column("Name", shrinks=True), Column("Path", shrinks=True, goes=2), Column("Files", goes=1))
    rows = [["a" * 30, "/srv/" + "b" * 30, "12"]]
    assert table(columns, rows, 41)[0].split() == ["Name", "Path", "Files"]
    assert table(columns, rows, 40)[0].split() == ["Name", "Files"]
    assert table(columns, rows, 20)[0].split() == ["Name"] and len(table(columns, rows, 12)[1]) == 12
    assert table(columns, rows, None)[1] == f"{'a' * 30}  /srv/{'b' * 30}  12"


def test_sentences_are_wrapped_between_words() -> None:
    assert wrapped("! /a/very-long/path: is missing", 12) == ["!", "  /a/very-long/path:", "  is missing"]
    assert wrapped("! any length", None) == ["! any length"]


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


def location(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "location": name,
        "path": f"/srv/{name}",
        "available": True,
        "answers": True,
        "made": True,
        "elsewhere": False,
        "complete": True,
        "reason": "",
        "bytes": 5_000_000_000,
        "files": 12,
        "measured": 990.0,
        **changes,
    }


NEVER = {"bytes": None, "files": None, "measured": None, "complete": False}


@pytest.mark.parametrize(
    ("changes", "measured", "shown"),
    [
        ({}, "10 s ago", "ok"),
        ({"complete": False}, "10 s ago", "ok"),  # was started, or its disk came back, and is being measured
        ({"complete": False, "reason": "a: no"}, "10 s ago", "incomplete"),
        (NEVER, "never", "not measured yet"),
        ({**NEVER, "reason": "a: no"}, "never", "incomplete"),
        ({**NEVER, "elsewhere": True}, "elsewhere", "ok"),
        ({**NEVER, "made": False}, "never", "not made yet"),
        ({"available": False, "complete": False, "reason": "a: no"}, "10 s ago", "unavailable"),
        ({"available": False, "answers": False, "complete": False, "reason": "a: no"}, "10 s ago", "no answer"),
    ],
)
def test_states_in_words(changes: dict[str, Any], measured: str, shown: str) -> None:
    page = status.render(state(locations={"locations": [location("cache", **changes)]}), 80, now=1000.0)
    (row,) = [line for line in page if line.startswith("cache")]
    assert row.endswith(f"  {measured}  {shown}")
    reasons = [line for line in page if line.startswith("!")]
    assert reasons == ([f"! cache: {shown}: a: no"] if changes.get("reason") else [])


def test_one_reason_is_told_once() -> None:
    wrong = {"complete": False, "available": False, "reason": "/mnt: no"}
    page = status.render(state(locations={"locations": [location(n, **wrong) for n in ("runs", "cache")]}), 80, 1000.0)
    assert [line for line in page if line.startswith("!")] == ["! runs, cache: unavailable: /mnt: no"]


def test_the_largest_runs() -> None:
    runs = [
        {"run": f"alice/exp/{number}", "bytes": 10**9 - number, "files": 1, "complete": number > 1, "measured": 940.0}
        for number in range(1, 6)
    ]
    for count, text in ((12345, "12345 in all, the largest 5:"), (5, "5 in all")):
        one = location("runs", runs={"count": count, "largest": runs})
        page = status.render(state(locations={"locations": [one]}), 60, now=1000.0)
        start = page.index("Runs")
        assert page[start + 1] == text
        assert re.fullmatch(r"alice/exp/1 +1\.0 GB +1 +1 min ago +incomplete", page[start + 3])
        assert page[start + 7].endswith("ok") and page[start + 8] == ""
    none = location("runs", runs={"count": 0, "largest": []})
    assert "0 in all" in status.render(state(locations={"locations": [none]}), 60, now=1000.0)


def state(**changes: Any) -> status.State:
    measured = {"bytes": 5_000_000_000, "allocated": 5_000_000_000, "files": 12, "measured": 990.0}
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
        "locations": {"locations": [location("runs")]},
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
            "reason": "",
            "why": "",
            "plan": [],
            "waiting": {},
            "aside": [],
        },
        **changes,
    }


@pytest.mark.parametrize("width", [40, 60, 80, 120, None])
def test_the_status_page(width: int | None) -> None:
    lines = status.render(state(), width, now=1000.0)
    page = "\n".join(lines)
    assert " ".join(page.split()).startswith("stowaged 1.2.3 on gpu-01: last cycle 4 s ago, evict: plan Filesystems")
    assert width is None or all(len(line) <= width for line in lines)
    assert re.search(r"5\.0 GB (.*10 s ago)? +ok", page) and "unknown" in page and "never" in page
    assert ("/srv/runs" in page) == (width != 40)


def measured_by(mountpoint: str, **changes: Any) -> dict[str, Any]:
    one = {"mountpoint": mountpoint, "engine": "watch", "reason": "", "failed": False}
    return {**one, "trees": 3, "directories": 40, "unsteady": 17, "listed": 400.0, **changes}


@pytest.mark.parametrize(
    ("width", "shown"), [(40, ""), (50, " +40"), (60, " +40 +17"), (80, " +3 +40 +17"), (None, " +3 +40 +17")]
)
def test_how_it_is_measured(width: int | None, shown: str) -> None:
    unknown = {"trees": 0, "directories": 0, "unsteady": 0, "listed": None}
    filesystems = [
        measured_by("/mnt/nvme0"),
        measured_by("/nfs", engine="scan", reason="other hosts may write there too", **unknown),
        measured_by("/srv", engine="scan", reason="ended with signal 9", failed=True, **unknown),
    ]
    lines = status.render(state(measuring={"filesystems": filesystems}), width, now=1000.0)
    assert width is None or all(len(line) <= width for line in lines)
    start = lines.index("Measuring")
    assert re.fullmatch(f"/mnt/nvme0 +watch{shown} +10 min ago", lines[start + 2])
    assert re.fullmatch(r"/nfs +scan[ -]+", lines[start + 3])
    page = " ".join(" ".join(lines).split())
    assert "/nfs: scan: other hosts may write there too ! /srv: scan: ended with signal 9" in page
    assert "Measuring" not in status.render(state(), width, now=1000.0)


def network_mount(drive: str, **changes: Any) -> dict[str, Any]:
    return {
        "workspace": "ml",
        "drive": drive,
        "source": 0,
        "node": "gpu-01",
        "state": "Bound",
        "reason": "",
        "message": "",
        "path": f"/var/lib/stowage/datavolumes/mounts/ml.{drive}-0",
        "proto": "rdma",
        "answers": True,
        "trouble": "",
        "read_bytes": 5_000_000_000,
        "write_bytes": 0,
        **changes,
    }


@pytest.mark.parametrize("width", [40, 60, 80, 120, None])
def test_network_mounts(width: int | None) -> None:
    unknown = {"proto": "", "answers": None, "read_bytes": None, "write_bytes": None}
    mounts = [
        network_mount("imagenet"),
        network_mount("fallen", proto="tcp", source=2, message="mounted over TCP (RDMA did not work): timed out"),
        network_mount("hung", answers=False, trouble="its server does not answer; left alone for 5 minutes"),
        network_mount("wrong", state="Failed", reason="gpu-01 is down", **unknown),
    ]
    lines = status.render(state(network_mounts={"mounts": mounts, "error": "a.json: not valid JSON"}), width, 1000.0)
    assert width is None or all(len(line) <= width or "/var/lib" in line for line in lines)
    page = "\n".join(lines)
    rows = lines[lines.index("Network mounts") + 1 :][:5]
    if width in (80, 120, None):
        assert [row.split() for row in rows] == [
            ["Drive", "From", "Over", "State", "Answers", "Read", "Written"],
            ["ml/imagenet", "gpu-01", "RDMA", "Bound", "yes", "5.0", "GB", "0", "B"],
            ["ml/fallen", "[2]", "gpu-01", "TCP", "Bound", "yes", "5.0", "GB", "0", "B"],
            ["ml/hung", "gpu-01", "RDMA", "Unreachable", "no", "5.0", "GB", "0", "B"],
            ["ml/wrong", "gpu-01", "-", "Failed", "-", "-", "-"],
        ]
    else:
        assert rows[0].split()[:2] == ["Drive", "From"] and "State" in rows[0] and "Written" not in rows[0]
    text = " ".join(page.split())
    assert "! ml/fallen [2]: mounted over TCP (RDMA did not work): timed out" in text
    assert "ml.hung-0: its server does not answer; left alone for 5 minutes" in text
    assert "! ml/wrong: Failed: gpu-01 is down" in text and "! a.json: not valid JSON" in text
    assert "Network mounts" not in status.render(state(network_mounts={"mounts": [], "error": ""}), width, 1000.0)


def test_what_is_wrong_is_on_the_page() -> None:
    plan = [{"copy": "ml.hf", "allocated": 5, "reason": "full"}]
    changes: dict[str, Any] = {
        "config": {"successful": False, "error": "daemon.json: cycle_s: 0"},
        "evictions": {
            "mode": "plan",
            "removed": {},
            "removed_bytes": 0,
            "blocked": True,
            "reason": "failed",
            "why": "pin r/1: its record cannot be used",
            "plan": plan,
            "waiting": {"ml.dead": "held by pin r/2"},
            "aside": [{"copy": "ml.old", "location": "/mnt", "why": "kept aside, as a new copy has its name"}],
        },
    }
    page = "\n".join(status.render(state(**changes), 80, now=2000.0))
    assert "! The daemon has stopped" in page
    assert "! The configuration could not be loaded" in page and "cycle_s: 0" in page
    assert "! Copies cannot be removed: pin r/1: its record cannot be used" in page and "ml.hf" in page
    assert re.search("ml.dead +held by pin r/2", page) and re.search("ml.old +kept aside", page)
    assert status.render({}, 80, now=0.0)[0].startswith("The daemon has not finished a cycle")


@pytest.mark.parametrize(
    ("declared", "kept"), [(True, "the earlier one stays in force"), (False, "nothing is looked at until it can be")]
)
def test_no_earlier_configuration_is_said_to_be_in_force_when_there_is_none(declared: bool, kept: str) -> None:
    config = {"successful": False, "error": "layout.json: not valid JSON", "declared": declared}
    for shown in (state(config=config), {"config": config}):
        page = status.render(shown, None, now=1000.0)
        assert f"! The configuration could not be loaded, {kept}: layout.json: not valid JSON" in page


def accounts(**changes: Any) -> dict[str, Any]:
    users = {f"user-{number:02d}": user(number * 10**9) for number in range(1, 8)}
    users["a-rather-long-name-of-a-user@some.example.org"] = user(12_000_000_000, 10**10, 400.0)
    users["small"] = user(5, 2, 996.0)
    return {
        "measured": 990.0,
        "complete": True,
        "unavailable": [],
        "users": users,
        "teams": {"vision": {"bytes": 10**9, "runs": 2, "quota": None, "exceeded_since": None, "missing": ""}},
        "unmatched": {"users": [], "teams": []},
        "unproven": {"count": 0, "bytes": 0, "first": ""},
        "beyond": {"count": 0, "bytes": 0},
        "tracked": {"runs": 40 * 10**9, "reflow": 10**9, "caches": None, "other": 0},
        "tracked_bytes": 41 * 10**9,
        **changes,
    }


def user(size: int, quota: int | None = None, since: float | None = None) -> dict[str, Any]:
    quotas = {"quota": quota, "exceeded_since": since}
    return {"bytes": size, "runs": 3, "runs_bytes": size, "reflow_bytes": 0, **quotas, "missing": ""}


@pytest.mark.parametrize("width", [40, 60, 80, None])
def test_accounts(width: int | None) -> None:
    lines = status.render(state(accounts=accounts()), width, 1000.0)
    assert width is None or all(len(line) <= width or "some.example.org" in line for line in lines)
    start = lines.index("Accounts")
    part = lines[start + 1 : lines.index("", start)]
    if width != 40:
        assert part[0] == "41.0 GB in all: runs 40.0 GB, reflow 1.0 GB, other 0 B"[: width or 99]
    title = next(number for number, line in enumerate(part) if line.startswith("User "))
    assert part[title - 1] == "9 users in all, the largest 5:" and part[title + 1].startswith("a-rat")
    assert [line.split()[0] for line in part[title + 2 : title + 6]] == [f"user-{n:02d}" for n in (7, 6, 5, 4)]
    assert part[title + 6].startswith("Team ") and part[title + 7].startswith("vision ")
    text = " ".join(" ".join(part[title + 8 :]).split())
    assert text == (
        "! user a-rather-long-name-of-a-user@some.example.org uses 12.0 GB of 10.0 GB, for 10 min "
        "! user small uses 5 B of 2 B, for 4 s"
    )


def test_what_is_missing_in_accounts_is_told_once() -> None:
    gone = [{"location": name, "path": f"/{name}", "reason": "/mnt: no disk"} for name in ("runs", "reflow")]
    new = [{"location": "state", "path": "/state", "reason": "has not been measured yet"}]
    section = accounts(complete=False, unavailable=[*gone, *new])
    lines = status.render(state(accounts=section), None, 1000.0)
    assert "! Not complete, the last figures of runs, reflow count: /mnt: no disk" in lines
    assert "Not measured yet: state" in lines


def test_whose_figures_are_not_complete_and_quotas_of_nobody() -> None:
    users = {f"user-{number}": {**user(5), "missing": "runs/a: Permission denied"} for number in range(6)}
    section = accounts(
        users=users,
        unmatched={"users": ["anne"], "teams": ["visoin"]},
        unproven={"count": 2, "bytes": 10_000, "first": "x\ny"},
        beyond={"count": 7, "bytes": 3000},
    )
    lines = status.render(state(accounts=section), None, 1000.0)
    said = [line for line in lines if "is not complete" in line]
    assert said[0] == (
        "! user user-0 is not complete, the larger of the last and the present figures counts: "
        "runs/a: Permission denied"
    )
    assert len(said) == 5 and "! Likewise 1 more" in lines
    assert "Quotas of those who have nothing: user anne, team visoin" in lines
    (unproven,) = [line for line in lines if "count for nobody" in line]
    assert unproven.startswith("! In reflow 10.0 kB in directories, 2 of them, count for nobody")
    assert any(
        line.startswith("! Not complete, 7 users with 3.0 kB are only added up: only the 10000") for line in lines
    )
    assert unproven.endswith("the first: x\\ny")


def test_accounts_of_nothing() -> None:
    nothing = accounts(users={}, teams={}, tracked={"runs": None}, tracked_bytes=None)
    assert "Accounts" not in status.render(state(accounts=nothing), 80, 1000.0)
