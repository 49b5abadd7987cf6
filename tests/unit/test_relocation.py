# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moving a location: which stage is reached, what is refused, what moves along, and what names the old path."""

from __future__ import annotations

import os
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stowage_core import records
from stowage_core.errors import Refusal, StowageError
from stowage_core.mounts import FilesystemId, parse
from stowage_core.own_files import HEADER
from stowage_core.places import Places
from stowage_core.relocation import backup, recorded
from stowage_core.relocation.old_path import OldPath, kept_disk, kept_path
from stowage_core.relocation.plan import (
    Content,
    Request,
    check_earlier,
    check_not_kept,
    check_room,
    check_sharing,
    former_paths,
    new_overrides,
)
from stowage_core.relocation.recorded import Identity, Relocation, State
from stowage_core.relocation.references import Looked, named_below, named_in, references
from stowage_core.relocation.stages import (
    CLOSED,
    COPIED,
    FINISHED,
    FOREIGN,
    FORGOTTEN,
    GIVEN_UP,
    HELD,
    LOST,
    RETIRED,
    STAGES,
    SWITCHED,
    UNDONE,
    VERIFIED,
    Found,
    reached,
    standing,
)
from stowage_core.relocation.users import wait_until_unused
from stowage_core.sizes import Space

OPEN, CLOSED_NOW, BOUND = Found(), Found(closed=True), Found(bound=True)


@pytest.mark.parametrize(
    ("stage", "doing", "found", "reached_stage"),
    [
        (HELD, CLOSED, OPEN, HELD),
        (HELD, CLOSED, CLOSED_NOW, HELD),
        (CLOSED, COPIED, CLOSED_NOW, CLOSED),
        (COPIED, VERIFIED, CLOSED_NOW, COPIED),
        (VERIFIED, "", CLOSED_NOW, VERIFIED),
        # The host was started anew, and somebody may have written.
        (CLOSED, "", OPEN, HELD),
        (COPIED, "", OPEN, HELD),
        (VERIFIED, SWITCHED, OPEN, HELD),
        # Killed between the mount and its record.
        (VERIFIED, SWITCHED, BOUND, SWITCHED),
        (VERIFIED, "", BOUND, FOREIGN),
        (HELD, "", BOUND, FOREIGN),
        (GIVEN_UP, "", BOUND, FOREIGN),
        (SWITCHED, "", BOUND, SWITCHED),
        (FINISHED, "", BOUND, FINISHED),
        (RETIRED, "", BOUND, RETIRED),
        # Never back to copying over what may have been written to since.
        (SWITCHED, "", OPEN, LOST),
        (SWITCHED, "", CLOSED_NOW, LOST),
        (FINISHED, "", OPEN, LOST),
        (RETIRED, "", OPEN, LOST),
        (RETIRED, RETIRED, OPEN, LOST),
        (RETIRED, FORGOTTEN, OPEN, RETIRED),
        (RETIRED, FORGOTTEN, BOUND, RETIRED),
        (FINISHED, FORGOTTEN, OPEN, LOST),
        (SWITCHED, UNDONE, BOUND, SWITCHED),
        (SWITCHED, UNDONE, CLOSED_NOW, UNDONE),
        (UNDONE, "", OPEN, UNDONE),
        (GIVEN_UP, "", OPEN, GIVEN_UP),
        (FORGOTTEN, "", OPEN, FORGOTTEN),
    ],
)
def test_what_is_mounted_decides(stage: str, doing: str, found: Found, reached_stage: str) -> None:
    assert standing(stage, doing, found) == reached_stage


def test_stages_have_an_order() -> None:
    assert [stage for stage in STAGES if reached(stage, VERIFIED)] == [
        VERIFIED,
        SWITCHED,
        FINISHED,
        RETIRED,
        FORGOTTEN,
    ]
    assert not any(reached(stage, HELD) for stage in (GIVEN_UP, UNDONE, LOST, FOREIGN))


# -- Records


def identity(inode: int = 7, uuid: str = "u", birth: int | None = 1) -> Identity:
    return Identity(FilesystemId("ext4", uuid, "/dev/vdb"), inode, birth, None)


def relocation(stage: str = FINISHED, **changes: Any) -> Relocation:
    values: dict[str, Any] = {
        "location": "runs",
        "identity": "0123",
        "path": "/srv/runs",
        "real": "/srv/runs",
        "to": "/mnt/new/runs",
        "to_real": "/mnt/new/runs",
        "old": identity(),
        "new": identity(8),
        "moves": {"runs": ("/srv/runs", "/mnt/new/runs")},
        "before": {"runs": ""},
        "after": {"runs": {"path": "/mnt/new/runs", "mount_point": "/mnt/new"}},
        "copy": True,
        "here": True,
        "stage": stage,
        "was": State(3, "4", "5"),
    }
    return Relocation(**{**values, **changes})


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    one = relocation()
    recorded.save(places, one)
    assert recorded.load(places, "runs") == one and recorded.load_all(places) == [one]
    assert recorded.load(places, "cache") is None


@pytest.mark.parametrize("value", [{}, {"location": "runs"}, {"old": 7}])
def test_a_record_that_is_none_is_an_error(tmp_path: Path, value: dict[str, Any]) -> None:
    places = Places.under(str(tmp_path))
    records.write(recorded.path_of(places, "runs"), value)
    with pytest.raises(StowageError, match="not the record of a moved location"):
        recorded.load_all(places)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (identity(), True),
        (identity(birth=None), True),
        (identity(birth=2), False),
        (identity(inode=9), False),
        (identity(uuid="v"), False),
    ],
)
def test_a_directory_is_known_again(other: Identity, same: bool) -> None:
    assert identity().matches(other) is same


@pytest.mark.parametrize(
    ("stage", "path", "refused"),
    [
        (HELD, "/srv/runs", ""),
        (HELD, "/mnt/new/runs", "is being moved from /srv/runs to /mnt/new/runs; run stowage.host.relocate"),
        (VERIFIED, "/elsewhere", "is being moved"),
        (SWITCHED, "/mnt/new/runs", ""),
        (FINISHED, "/srv/runs", "put this into host_storage_overrides: runs: {path: /mnt/new/runs, mount_point"),
        (FORGOTTEN, "/srv/runs", "is where it was before it was moved to /mnt/new/runs"),
        (FORGOTTEN, "/first/runs", "is where it was before it was moved to /mnt/new/runs"),
        (FORGOTTEN, "/elsewhere", ""),
        (GIVEN_UP, "/srv/runs", ""),
        (UNDONE, "/srv/runs", ""),
    ],
)
def test_an_old_inventory_does_not_switch_back(stage: str, path: str, refused: str) -> None:
    moves = [relocation(stage, former=("/first/runs",))]
    if not refused:
        recorded.check_layout(moves, {"runs": path})
        return
    with pytest.raises(Refusal) as refusal:
        recorded.check_layout(moves, {"runs": path})
    assert refused in str(refusal.value)


@pytest.mark.parametrize("stage", [GIVEN_UP, UNDONE])
def test_no_layout_begins_with_what_is_left_of_a_move(tmp_path: Path, stage: str) -> None:
    new = str(tmp_path)
    move = relocation(stage, to=new, to_real=new, moves={"runs": ("/srv/runs", new)})
    sign = tmp_path / ".stowage-copy-4567"  # of the host that made it
    sign.touch()
    recorded.check_layout([move], {"runs": new})
    sign.unlink()
    sign.mkdir(mode=0o755)
    recorded.check_layout([move], {"runs": new})
    os.chmod(sign, 0o700)
    if os.geteuid() == 0:
        with pytest.raises(Refusal, match=f"^runs: {new} holds the copy of a move from /srv/runs that was {stage}; "):
            recorded.check_layout([move], {"runs": new})
    recorded.check_layout([move], {"runs": "/srv/runs"})
    recorded.check_layout([replace(move, to_real="/none")], {"runs": new})


def test_of_a_move_it_is_not_told_that_files_stay_behind() -> None:
    moves = [relocation(SWITCHED)]
    assert recorded.is_told(moves, {"runs": "/srv/runs"}, {"runs": "/mnt/new/runs"}) == {"runs"}
    assert recorded.is_told(moves, {"runs": "/mnt/new/runs"}, {"runs": "/srv/runs"}) == {"runs"}
    assert recorded.is_told(moves, {"runs": "/mnt/new/runs"}, {"runs": "/elsewhere"}) == set()


@pytest.mark.parametrize(
    ("stage", "there", "back"),
    [(COPIED, False, False), (GIVEN_UP, False, False), (UNDONE, False, True), (FINISHED, True, True)],
)
def test_what_was_not_moved_stays_behind(stage: str, there: bool, back: bool) -> None:
    old, new = {"runs": "/srv/runs"}, {"runs": "/mnt/new/runs"}
    assert bool(recorded.is_told([relocation(stage)], old, new)) is there
    assert bool(recorded.is_told([relocation(stage)], new, old)) is back


def test_the_lines_for_the_inventory() -> None:
    after = {"cache": {"mount_point": "/mnt", "path": "/n"}, "hub_cache": "/n/hub"}
    assert recorded.lines_of(after) == [
        "host_storage_overrides:",
        "  cache: {path: /n, mount_point: /mnt}",
        "  hub_cache: /n/hub",
    ]


# -- The plan


def layout(**overrides: str) -> dict[str, Any]:
    paths = {"runs": "/srv/runs", "cache": "/srv/cache", "hf_hub_cache": "/srv/cache/hf/hub", **overrides}
    return {
        "locations": {
            name: {"path": path, "override": name in overrides, "require_mount": name in overrides}
            for name, path in paths.items()
        }
    }


@pytest.mark.parametrize(
    ("overrides", "location", "moves", "before", "after"),
    [
        ({}, "runs", {"runs": ("/srv/runs", "/n")}, {"runs": ""}, {"runs": {"path": "/n", "mount_point": "/mnt"}}),
        (
            {},
            "cache",
            {"cache": ("/srv/cache", "/n"), "hf_hub_cache": ("/srv/cache/hf/hub", "/n/hf/hub")},
            {"cache": ""},
            {"cache": {"path": "/n", "mount_point": "/mnt"}},
        ),
        (
            {"hf_hub_cache": "/srv/cache/special"},
            "cache",
            {"cache": ("/srv/cache", "/n"), "hf_hub_cache": ("/srv/cache/special", "/n/special")},
            {"cache": "", "hf_hub_cache": {"path": "/srv/cache/special", "require_mount": True}},
            {
                "cache": {"path": "/n", "mount_point": "/mnt"},
                "hf_hub_cache": {"path": "/n/special", "mount_point": "/mnt"},
            },
        ),
        (
            {"hf_hub_cache": "/other/hub"},
            "cache",
            {"cache": ("/srv/cache", "/n")},
            {"cache": ""},
            {"cache": {"path": "/n", "mount_point": "/mnt"}},
        ),
    ],
)
def test_what_moves_along(
    overrides: dict[str, str],
    location: str,
    moves: dict[str, Any],
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    recorded_layout = layout(**overrides)
    reals = {name: one["path"] for name, one in recorded_layout["locations"].items()}
    assert new_overrides(recorded_layout, reals, location, "/n", "/mnt") == (moves, before, after)


def test_on_the_root_filesystem_there_is_no_mount_to_ask_for() -> None:
    reals = {name: one["path"] for name, one in layout()["locations"].items()}
    assert new_overrides(layout(), reals, "runs", "/n", "/")[2] == {"runs": "/n"}


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        (Content(100, 10), ""),
        (Content(101, 10), "are to be copied"),
        (Content(100, 11), "has 10 inodes free, and 11 are needed"),
    ],
)
def test_room(content: Content, refused: str) -> None:
    space = Space(1000, 100, 100, 20, 10)
    if not refused:
        check_room("runs", "/n", content, space)
        check_room("runs", "/n", Content(1, 1000), Space(1000, 100, 100, 0, 0))
        return
    with pytest.raises(Refusal, match=refused):
        check_room("runs", "/n", content, space)


@pytest.mark.parametrize(
    ("old", "new", "together", "refused"),
    [
        ("ext4", "xfs", False, ""),
        ("ext4", "nfs4", False, ""),
        ("nfs4", "nfs4", True, ""),
        ("nfs4", "nfs4", False, "for all hosts of its runs group"),
        ("lustre", "xfs", True, "is of this host only"),
    ],
)
def test_what_hosts_share_is_moved_by_all_of_them(old: str, new: str, together: bool, refused: str) -> None:
    request = Request("runs", "/n", together=together)
    if not refused:
        check_sharing(request, old, new)
        return
    with pytest.raises(Refusal, match=refused):
        check_sharing(request, old, new)


@pytest.mark.parametrize(
    ("one", "others", "to", "copy", "refused"),
    [
        (None, [], "/n", True, ""),
        (
            None,
            [relocation(COPIED, location="state")],
            "/n",
            True,
            "the move of state to /mnt/new/runs is not finished",
        ),
        (None, [relocation(FINISHED, location="state")], "/n", True, ""),
        (relocation(COPIED), [], "/mnt/new/runs", True, ""),
        (relocation(COPIED), [], "/n", True, "it is being moved to /mnt/new/runs; finish that, or give it up"),
        (relocation(COPIED), [], "/mnt/new/runs", False, "cannot be changed"),
        (relocation(FINISHED), [], "/n", True, "its old path /srv/runs is still kept; retire that"),
        (relocation(RETIRED), [], "/n", True, "its old path /srv/runs is still kept; retire that"),
        (relocation(FORGOTTEN), [], "/n", True, ""),
        (relocation(GIVEN_UP), [], "/n", True, ""),
        (relocation(UNDONE), [], "/n", True, ""),
    ],
)
def test_earlier_moves(one: Relocation | None, others: list[Relocation], to: str, copy: bool, refused: str) -> None:
    moves = [*others, *([one] if one else [])]
    if not refused:
        check_earlier(one, moves, Request("runs", to, copy), to)
        return
    with pytest.raises(Refusal, match=refused):
        check_earlier(one, moves, Request("runs", to, copy), to)


@pytest.mark.parametrize(
    ("earlier", "to", "former"),
    [
        (None, "/n", ()),
        (relocation(GIVEN_UP), "/n", ()),
        (relocation(UNDONE), "/n", ()),
        (relocation(FORGOTTEN, former=("/first",)), "/n", ("/first", "/srv/runs")),
        (relocation(FORGOTTEN, former=("/first",)), "/srv/runs", ("/first",)),
        (relocation(GIVEN_UP, former=("/first",)), "/n", ("/first",)),
    ],
)
def test_where_it_was_before(earlier: Relocation | None, to: str, former: tuple[str, ...]) -> None:
    assert former_paths(earlier, to) == former


# -- The old path

TABLE = b"""1 0 8:1 / / rw - ext4 /dev/vda1 rw
2 1 8:17 / /mnt/new rw - xfs /dev/vdb rw
"""
ON_ITSELF = b"3 1 8:1 /srv/runs /srv/runs ro,nosuid,nodev - ext4 /dev/vda1 rw\n"
WRITABLE = b"3 1 8:1 /srv/runs /srv/runs rw,nosuid,nodev - ext4 /dev/vda1 rw\n"
ON_OLD = b"4 3 8:17 /runs /srv/runs rw,nosuid,nodev - xfs /dev/vdb rw\n"
OTHER = b"4 1 8:17 /other /srv/runs rw,nosuid,nodev - xfs /dev/vdb rw\n"


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        (b"", OPEN),
        (ON_ITSELF, CLOSED_NOW),
        (WRITABLE, OPEN),
        (ON_ITSELF + ON_OLD, BOUND),
        (ON_OLD, BOUND),
        (OTHER, OPEN),
    ],
)
def test_what_is_over_the_old_path(mounts: bytes, found: Found) -> None:
    assert OldPath("/srv/runs", "/mnt/new/runs").found(parse(TABLE + mounts)) == found


DISK = b"5 1 8:33 / /srv/runs rw - ext4 /dev/vdc rw\n"
DISK_ASIDE = b"6 1 8:33 / /aside rw - ext4 /dev/vdc rw\n"
DISK_CLOSED = b"7 5 8:33 / /srv/runs ro - ext4 /dev/vdc rw\n"
OVER_DISK = b"8 7 8:17 /runs /srv/runs rw - xfs /dev/vdb rw\n"


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        (DISK, OPEN),
        (DISK + DISK_ASIDE, OPEN),
        (DISK + DISK_ASIDE + DISK_CLOSED, CLOSED_NOW),
        (DISK + DISK_ASIDE + DISK_CLOSED + OVER_DISK, BOUND),
        # After a boot, when the unit of the old path has taken the place of the disk's.
        (DISK_ASIDE + ON_OLD, BOUND),
        (ON_OLD, BOUND),
        (DISK_ASIDE + OTHER, OPEN),
    ],
)
def test_what_is_over_a_disk(mounts: bytes, found: Found) -> None:
    old = OldPath("/srv/runs", "/mnt/new/runs", "/aside")
    table = parse(TABLE + mounts)
    assert old.found(table) == found
    if mounts != ON_OLD:
        assert old.beneath(table) == ("8:33", "/")


def test_the_old_path_is_kept_by_a_unit(tmp_path: Path) -> None:
    kept = kept_path("runs", OldPath("/srv/my runs", "/mnt/new/100%"), parse(TABLE))
    assert kept.name == "srv-my\\x20runs.mount"
    lines = kept.content.decode().splitlines()
    assert lines[0] == HEADER
    for line in (
        'RequiresMountsFor="/mnt/new/100%%"',
        "What=/mnt/new/100%%",
        "Where=/srv/my runs",
        "Options=bind,nosuid,nodev",
        "WantedBy=local-fs.target",
    ):
        assert line in lines
    Path(kept.path(str(tmp_path))).write_text("[Mount]\n")
    with pytest.raises(Refusal, match="was not written by Stowage"):
        kept.check("runs", str(tmp_path))
    with pytest.raises(Refusal, match="the longest has 255"):
        kept_path("runs", OldPath("/srv/" + "-" * 80, "/n"), parse(TABLE)).check("runs", str(tmp_path))


def test_an_old_disk_comes_back_at_its_second_place() -> None:
    disk = kept_disk("runs", OldPath("/srv/runs", "/n", "/var/aside"), FilesystemId("xfs", "0d1b", "/dev/vdb"))
    lines = disk.content.decode().splitlines()
    for line in ("What=/dev/disk/by-uuid/0d1b", "Where=/var/aside", "Type=xfs", "Options=nosuid,nodev,nofail"):
        assert line in lines


# -- Waiting, references, the backup


def test_waiting_for_users_ends(tmp_path: Path) -> None:
    answers = [["a process"], ["a process"], []]
    told: list[str] = []
    wait_until_unused(lambda: answers.pop(0), 60, told.append, clock=lambda: 0.0, sleep=lambda _s: None)
    assert not answers and told == ["waits for its users: a process"] * 2
    now = iter(range(0, 1000, 40))
    with pytest.raises(StowageError, match=r"^in use after 60 s: a; b; c \(and 1 more\)$"):
        wait_until_unused(lambda: list("abcd"), 60, clock=lambda: float(next(now)), sleep=lambda _s: None)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("/srv/runs", True),
        ("ReadWritePaths=-/srv/runs/ann /x", True),
        ('"path": "/srv/runs"', True),
        ("/srv/runs 10.0.0.0/24(rw)", True),
        ("RUNS=/srv/runs:/x", True),
        ("Everything is in /srv/runs.", True),
        ("file:///srv/runs/ann", True),
        ("https://host//srv/runs/ann", True),
        ("docker run -v/srv/runs:/r", True),
        (r'{"path": "\/srv\/runs\/ann"}', True),
        ("Requires=srv-runs.mount", True),
        ("run7/srv/runs/ann", True),
        ("/x\0run7/srv/runs/ann", True),
        ("/x/run7/srv/runs2\0", True),
        ("/srv/runs2", False),
        ("/srv/runs-old", False),
        ("/srv/runs.bak", False),
        ("/mnt/srv/runs", False),
        ("# /srv/runs", False),
        ("/srv", False),
    ],
)
def test_which_lines_name_a_path(line: str, named: bool) -> None:
    assert bool(list(named_in(line.encode(), ["/srv/runs"]))) is named


def test_spaces_in_fstab() -> None:
    assert list(named_in(b"/dev/x /srv/my\\040runs/a ext4\n", ["/srv/my runs"])) == ["1: /srv/my\\040runs/a"]
    assert list(named_in(b"file:///srv/my%20runs/a\n", ["/srv/my runs"])) == ["1: /srv/my%20runs/a"]


def test_nothing_else_of_a_line_is_told() -> None:
    line = b'Environment="TOKEN=hf_secret DIR=/srv/runs/a" MORE=/srv/runs/b'
    assert list(named_in(line, ["/srv/runs"])) == ["1: /srv/runs/a"]
    assert list(named_in(b"\0secret/srv/runs/a\0secret", ["/srv/runs"])) == ["/srv/runs/a"]


def test_references_are_found_where_paths_are_named(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    unit, ours = tmp_path / "units/a.service", tmp_path / "units/srv-runs.mount"
    unit.parent.mkdir()
    unit.write_text("[Service]\nWorkingDirectory=/srv/runs\n")
    ours.write_text("Where=/srv/runs\n")
    records.write(os.path.join(places.drives_dir, "ml.json"), {"path": "/srv/runs/x"})
    records.write(places.layout_json, {"path": "/srv/runs"})
    Path(places.environment).write_text("RUNS_ROOT=/srv/runs\n")
    found = references(places, ["/srv/runs"], [str(ours), places.environment], [f"{tmp_path}/units/**"])
    assert not found.unseen
    assert [text.replace(str(tmp_path), "") for text in found.named] == [
        "/etc/stowage/drives/ml.json:2: /srv/runs/x",
        "/units/a.service:2: /srv/runs",
    ]


def test_links_in_the_content_that_lead_to_the_old_path(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/latest").symlink_to("/srv/runs/b")
    (tmp_path / "a/other").symlink_to("/srv/runs2")
    (tmp_path / "a/relative").symlink_to("../b")
    (tmp_path / "a/job.json").write_text('{\n "ckpt": "/srv/runs/b"}')
    assert named_below(str(tmp_path), ["/srv/runs"]) == Looked([f"the link {tmp_path}/a/latest -> /srv/runs/b"], [])


def test_the_files_of_a_location_that_name_the_old_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/job.json").write_text('{\n "ckpt": "/srv/runs/b"}')
    (tmp_path / "a/large.db").write_text("/srv/runs" + "x" * (1 << 20))
    os.mkfifo(tmp_path / "a/fifo")
    looked = named_below(str(tmp_path), ["/srv/runs"], contents=True)
    assert looked.named == [f"{tmp_path}/a/job.json:2: /srv/runs/b"]
    assert len(looked.unseen) == 1 and ": 1 files that are larger than 1.0" in looked.unseen[0]
    for number in range(30):
        (tmp_path / f"l{number}").symlink_to("/srv/runs")
    looked = named_below(str(tmp_path), ["/srv/runs"])
    assert len(looked.named) == 20 and looked.unseen == [f"{tmp_path}: 10 more links and lines that name it"]
    (missing,) = named_below(f"{tmp_path}/none", ["/srv/runs"]).unseen
    assert missing.startswith(f"{tmp_path}/none: ")


def test_a_large_file_that_was_not_looked_at_is_told(tmp_path: Path) -> None:
    (tmp_path / "fstab").write_text("x" * ((1 << 20) + 1))
    looked = references(Places.under(str(tmp_path)), ["/srv/runs"], files=[f"{tmp_path}/fstab"])
    assert not looked.named and looked.unseen == [f"{tmp_path}/fstab, which is larger than 1.0 MB"]


def test_the_backup_is_whole_and_roots_only(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    records.write(places.layout_json, {"root": "/srv"})
    records.write(os.path.join(places.relocations_dir, "runs.json"), {"a": 1})
    for name in ("runs-0123456789abcdef.tar.gz", "cache-0123456789abcdef.tar.gz", ".mine"):
        Path(places.relocations_dir, name).touch()
    archive = os.path.join(places.relocations_dir, "runs-1.tar.gz")
    backup.back_up(places, archive)
    assert os.stat(archive).st_mode & 0o777 == 0o600
    with tarfile.open(archive) as content:
        names = {name.rpartition("stowage/")[2] for name in content.getnames()}
    assert {"layout.json", "relocations/runs.json", "relocations/.mine"} <= names
    assert not {name for name in names if ".gz" in name}
    Path(places.relocations_dir, ".runs-0123456789abcdef.tar.gz.half").touch()
    backup.remove_all(places, "runs")
    left = {"runs.json", "runs-1.tar.gz", "cache-0123456789abcdef.tar.gz", ".mine"}
    assert set(os.listdir(places.relocations_dir)) == left


@pytest.mark.parametrize("stage", [SWITCHED, FINISHED, RETIRED])
def test_what_the_old_path_of_another_leads_to_is_not_moved(stage: str) -> None:
    moved = relocation(stage, location="cache", path="/srv/cache", to="/n", to_real="/n")
    with pytest.raises(Refusal, match="the old path of cache, /srv/cache, leads as well; retire and forget that first"):
        check_not_kept([moved], "hf_hub_cache", "/n/hf/hub")
    check_not_kept([moved], "cache", "/n")
    check_not_kept([moved], "runs", "/nn")
    check_not_kept([replace(moved, stage=FORGOTTEN)], "hf_hub_cache", "/n/hf/hub")
