# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Owner and mode of sources and copies, given as root in directories that a worker has prepared against that."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from copies_lab import Lab

from stowage_core import owner as marks
from stowage_core import records, syscalls
from stowage_core.differences import Differences
from stowage_core.drives import grants, permissions
from stowage_core.drives import host as drives_host
from stowage_core.drives import recorded as drive_records
from stowage_core.drives import refs as drive_refs
from stowage_core.drives.declared import check_drives, check_lists
from stowage_core.drives.permissions import Missing, Permissions
from stowage_core.drives.refs import DriveRef
from stowage_core.errors import Refusal, StowageError
from stowage_core.places import Places
from stowage_core.runs import pinning
from stowage_core.runs.drives import Source

OWNER = Permissions(uid=1000, gid=1001, mode=0o2750, apply=True, recursive=True)
SECRET = "root's own"


def owner(path: Path | bytes) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_uid, status.st_gid


def claim(path: Path, host: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        marks.claim(fd, "data-location", str(path), "1", host)
    finally:
        os.close(fd)


def apply(path: Path, wanted: Permissions = OWNER, predict: bool = False) -> permissions.Applied:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return permissions.apply(fd, wanted, str(path), predict=predict)
    finally:
        os.close(fd)


class Tree:
    """A source, with something of root's beside it on the same filesystem."""

    def __init__(self, disk: Path) -> None:
        self.path = disk / "source"
        self.path.mkdir()
        self.secret = disk / "shadow"
        self.secret.write_text(SECRET)
        self.secret.chmod(0o600)
        self.apart = disk / "apart"
        self.apart.mkdir(mode=0o700)
        (self.apart / "file").touch()

    def untouched(self) -> bool:
        kept = [self.secret, self.apart, self.apart / "file"]
        return all(owner(path) == (0, 0) for path in kept) and stat.S_IMODE(self.apart.stat().st_mode) == 0o700


@pytest.fixture
def tree(disk: Path) -> Tree:
    return Tree(disk)


def test_everything_below_by_descriptor(tree: Tree) -> None:
    names = [b"plain", b"\xff\xfe not text", b"line\nfeed", b"-rf", b"sp ace"]
    deep = tree.path
    for _level in range(80):
        deep = deep / "d"
        deep.mkdir()
    for directory in (os.fsencode(tree.path), os.fsencode(deep)):
        for name in names:
            os.close(os.open(os.path.join(directory, name), os.O_CREAT | os.O_WRONLY, 0o640))
            os.mkdir(os.path.join(directory, name + b".d"), 0o700)
    os.mkfifo(tree.path / "fifo")  # opening it would wait for a writer for ever
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tree.path / "socket"))
    predicted = apply(tree.path, predict=True)
    assert owner(tree.path) == (0, 0)
    done = apply(tree.path)
    assert predicted == done
    assert (done.top, done.below, done.left) == (True, 80 + 2 * 2 * len(names) + 2, ())
    for top, directories, files in os.walk(os.fsencode(tree.path)):
        assert owner(top) == (1000, 1001)
        assert stat.S_IMODE(os.stat(top).st_mode) == 0o2750
        assert {owner(os.path.join(top, name)) for name in files + directories} <= {(1000, 1001)}
    assert stat.S_IMODE((tree.path / "plain").stat().st_mode) == 0o640, "files keep their modes"
    assert apply(tree.path) == permissions.Applied()


def test_links_are_never_followed(tree: Tree) -> None:
    (tree.path / "file").symlink_to(tree.secret)
    (tree.path / "directory").symlink_to(tree.apart)
    (tree.path / "up").symlink_to("..")
    done = apply(tree.path)
    assert tree.untouched()
    assert done.below == 3 and owner(tree.path / "file") == (1000, 1001), "the link itself is the worker's"


def test_a_hard_link_gives_nothing_away(tree: Tree) -> None:
    """What a worker can do where fs.protected_hardlinks is off, or with CAP_FOWNER in a container."""
    os.link(tree.secret, tree.path / "mine")
    (tree.path / "own").touch()
    os.link(tree.path / "own", tree.path / "own too")
    done = apply(tree.path)
    assert tree.untouched()
    why = "keeps its owner: it has 2 hard links, which may be elsewhere too"
    assert set(done.left) == {f"{tree.path}/{name}: {why}" for name in ("mine", "own", "own too")}
    assert done.below == 0


def test_a_file_linked_after_it_was_listed_is_looked_at_again(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree.path / "bait").touch()
    real = permissions.open_beneath

    def swapped(dir_fd: int, name: bytes, flags: int) -> int:
        if flags == os.O_PATH:
            os.unlink(tree.path / "bait")
            os.link(tree.secret, tree.path / "bait")
        return real(dir_fd, name, flags)

    monkeypatch.setattr(permissions, "open_beneath", swapped)
    done = apply(tree.path)
    assert tree.untouched() and len(done.left) == 1


@pytest.mark.parametrize("again", [False, True], ids=["unlinked", "linked again"])
def test_a_link_that_is_gone_when_links_are_counted_gives_nothing_away(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """A worker unlinks root's file between root's opening it by the worker's name and root's counting its names."""
    link = tree.path / "bait"
    os.link(tree.secret, link)
    link_that_comes_and_goes(monkeypatch, tree, link, again)
    done = apply(tree.path)
    assert tree.untouched() and done.below == 0


def link_that_comes_and_goes(monkeypatch: pytest.MonkeyPatch, tree: Tree, link: Path, again: bool) -> None:
    """Have *link* unlinked once it is open, and there only while it is looked up by its name."""
    real_open, real_stat = permissions.open_beneath, os.stat

    def opened(dir_fd: int, name: bytes, flags: int) -> int:
        fd = real_open(dir_fd, name, flags)
        if flags == os.O_PATH:
            link.unlink()
            time.sleep(0.05)  # beyond the tick, as if it had been unlinked before
        return fd

    def named(path: Any, **how: Any) -> os.stat_result:
        if path != "bait":
            return real_stat(path, **how)
        if again:
            os.link(tree.secret, link)
        try:
            return real_stat(path, **how)
        finally:
            link.unlink(missing_ok=True)

    monkeypatch.setattr(permissions, "open_beneath", opened)
    monkeypatch.setattr(os, "stat", named)


def test_times_in_whole_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem that keeps no fractions: a link comes and goes within one of its ticks."""
    image, point = tmp_path / "image", tmp_path / "point"
    point.mkdir()
    with open(image, "wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-I", "128", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
    try:
        tree = Tree(point)
        link = tree.path / "bait"
        os.link(tree.secret, link)
        with monkeypatch.context() as patch:
            link_that_comes_and_goes(patch, tree, link, again=True)
            done = apply(tree.path)
        assert tree.untouched() and done.below == 0
        (tree.path / "own").touch()
        assert apply(tree.path).left == () and owner(tree.path / "own") == (1000, 1001), "it is waited for"
    finally:
        subprocess.run(["umount", str(point)], check=True)


def test_a_clock_that_was_ahead(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree.path / "file").touch()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * 10**9)
    monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("it does not wait for that hour"))
    assert apply(tree.path).left == () and owner(tree.path / "file") == (1000, 1001)


def test_files_of_a_shared_filesystem_keep_their_owner(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel that tests has one for sure: the disk's type passes for it."""
    (tree.path / "below").mkdir()
    (tree.path / "below" / "file").touch()
    monkeypatch.setattr(permissions, "is_shared", lambda fstype: True)
    done = apply(tree.path)
    assert owner(tree.path / "below") == (1000, 1001) and owner(tree.path / "below" / "file") == (0, 0)
    (left,) = done.left
    assert left.startswith(f"{tree.path}: files keep their owners: which are links cannot be proven on ")


def test_a_file_that_is_changed_all_the_time_is_told(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tree.path / "log"
    log.touch()
    real = time.sleep

    def changed(seconds: float) -> None:
        real(seconds)
        log.chmod(0o600)

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", changed)
        done = apply(tree.path)
    why = "keeps its owner: it goes on being changed, and may be a link to what is elsewhere; run again"
    assert done.left == (f"{log}: {why}",) and owner(log) == (0, 0)
    real(0.03)
    assert apply(tree.path).left == () and owner(log) == (1000, 1001)


def test_set_id_bits_go_with_the_owner(tree: Tree) -> None:
    program = tree.path / "program"
    program.write_bytes(b"#!/bin/sh\n")
    os.chown(program, 1005, 1005)
    program.chmod(0o6755)
    apply(tree.path, Permissions(uid=0, gid=0, apply=True, recursive=True))
    assert owner(program) == (0, 0) and stat.S_IMODE(program.stat().st_mode) == 0o755


def test_devices_keep_their_owner(tree: Tree) -> None:
    os.mknod(tree.path / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    done = apply(tree.path)
    assert done.left == (f"{tree.path}/disk: a device keeps its owner",) and owner(tree.path / "disk") == (0, 0)


def test_mounts_below_are_not_entered(tree: Tree) -> None:
    (tree.path / "below").mkdir()
    (tree.path / "file").touch()
    (tree.path / "later").touch()
    subprocess.run(["mount", "--bind", str(tree.apart), str(tree.path / "below")], check=True)
    subprocess.run(["mount", "--bind", str(tree.secret), str(tree.path / "file")], check=True)
    done = apply(tree.path)
    assert tree.untouched()
    assert sorted(done.left) == [
        f"{tree.path}/{name}: another filesystem is mounted there" for name in ("below", "file")
    ]
    assert owner(tree.path / "later") == (1000, 1001)


def test_what_cannot_be_changed_is_told(tree: Tree) -> None:
    (tree.path / "kept").touch()
    subprocess.run(["chattr", "+i", str(tree.path / "kept")], check=True)
    try:
        assert apply(tree.path).left == (f"{tree.path}/kept: Operation not permitted",)
    finally:
        subprocess.run(["chattr", "-i", str(tree.path / "kept")], check=True)


def test_a_directory_that_cannot_be_given_away_is_refused(tree: Tree) -> None:
    subprocess.run(["chattr", "+i", str(tree.path)], check=True)
    try:
        with pytest.raises(
            Refusal, match=r"/source: its owner and mode cannot be set \(Operation not permitted\); its"
        ):
            apply(tree.path)
    finally:
        subprocess.run(["chattr", "-i", str(tree.path)], check=True)


def test_a_tree_that_a_worker_moves_meanwhile(tree: Tree) -> None:
    """A worker goes on swapping a directory, a link and a hard link for each other; nothing outside is given away."""
    code = f"""
import os
os.chdir({str(tree.path)!r})
while True:
    for make in (lambda: os.mkdir("x"), lambda: os.symlink({str(tree.apart)!r}, "x"),
                 lambda: os.link({str(tree.secret)!r}, "x"), lambda: open("x", "w").close()):
        try:
            make()
            os.rename("x", "y") if os.path.isdir("x") and not os.path.islink("x") else None
        except OSError:
            pass
        for gone in ("x", "y"):
            try:
                os.rmdir(gone)
            except OSError:
                try:
                    os.unlink(gone)
                except OSError:
                    pass
"""
    for number in range(200):
        (tree.path / str(number)).mkdir()
    with subprocess.Popen(["python3", "-c", code]) as worker:
        try:
            end = time.monotonic() + 3
            while time.monotonic() < end:
                apply(tree.path, Permissions(uid=1000, gid=1000, mode=0o755, apply=True, recursive=True))
                apply(tree.path, Permissions(uid=1001, gid=1001, mode=0o750, apply=True, recursive=True))
        finally:
            worker.kill()
    assert tree.untouched()


# -- Sources


class Host:
    """A host whose drives name directories of a disk; every declaration is predicted, done, and done again."""

    def __init__(self, places: Places, disk: Path) -> None:
        self.places = places
        self.granted = disk / "granted"
        self.granted.mkdir()

    def declare(
        self, path: Path, *, scope: str = "local-any", **declared: Any
    ) -> tuple[drives_host.Outcome, Differences]:
        source = {"node_scope": scope, "path": str(path), "node": "gpu-01" if scope == "" else None}
        spec = {"sources": [source], "permissions": declared}
        lists = check_lists([{"name": "vision", "drives": [{"metadata": {"name": "d"}, "spec": spec}]}])
        runs = []
        for check_mode in (True, False, False):
            differences = Differences(check_mode)
            grant = {"vision": [str(self.granted)]}
            outcome = drives_host.declare(self.places, "gpu-01", lists, "", differences, grant)
            runs.append((outcome, differences))
        (_first, predicted), (outcome, done), (_again, repeated) = runs
        assert (predicted.diff(), predicted.actions) == (done.diff(), done.actions)
        assert not repeated.changed and not repeated.actions
        return outcome, done

    @property
    def drive(self) -> drive_records.Drive:
        (drive,) = drive_records.load(self.places, "vision") or []
        return drive


@pytest.fixture
def host(tmp_path: Path, disk: Path) -> Host:
    return Host(Places.under(str(tmp_path)), disk)


def test_a_source_is_made_as_it_is_declared(host: Host) -> None:
    path = host.granted / "team" / "scratch"
    umask = os.umask(0o077)
    try:
        _outcome, done = host.declare(path, create=True, owner_uid=1000, owner_gid=1001, dir_mode="2770")
    finally:
        os.umask(umask)
    assert done.actions[-1] == f"make {path}"
    assert owner(path) == (1000, 1001) and stat.S_IMODE(path.stat().st_mode) == 0o2770
    assert owner(path.parent) == (0, 0) and stat.S_IMODE(path.parent.stat().st_mode) == 0o755


def test_a_source_gets_back_what_is_declared(host: Host) -> None:
    path = host.granted / "scratch"
    path.mkdir(mode=0o700)
    (path / "file").touch()
    os.link(path / "file", path / "link")
    outcome, done = host.declare(path, owner_uid=1000, dir_mode="0750", apply=True, recursive=True)
    assert done.diff()["before"][f"vision/d {path}"] == {"owner_uid": "0", "dir_mode": "0700"}
    assert done.diff()["after"][f"vision/d {path}"] == {"owner_uid": "1000", "dir_mode": "0750"}
    (warning,) = outcome.warnings
    assert warning.startswith(f"drive vision/d: left as it is below {path}: {path}/")
    os.chown(path, 5, -1)
    (path / "link").unlink()
    _outcome, done = host.declare(path, owner_uid=1000, dir_mode="0750", apply=True, recursive=True)
    assert done.actions == [f"set owner and mode of {path} and of 1 below it"]
    assert owner(path / "file")[0] == 1000


def test_a_worker_s_link_does_not_lead_root(host: Host, disk: Path) -> None:
    outside = disk / "outside"
    outside.mkdir()
    writable = host.granted / "writable"
    writable.mkdir()
    (writable / "link").symlink_to(outside)
    for who in (1000, 0):
        os.chown(writable, who, -1)
        with pytest.raises(Refusal, match="HOST_ACCESS_FORBIDDEN|others than root could have put there"):
            host.declare(writable / "link" / "new", create=True)
    assert os.listdir(outside) == [] and owner(outside) == (0, 0)
    with pytest.raises(Refusal) as refused:
        host.declare(writable / "link", apply=True, owner_uid=1000)
    assert str(refused.value) == (
        f'HOST_ACCESS_FORBIDDEN: spec.sources[].path "{writable}/link": this namespace may not use that path on the'
        f" machines; drive vision/d: it leads to '{outside}': grant it in host_paths of workspace vision, or choose"
        " another path"
    )


def test_a_link_of_root_s_within_the_grant(host: Host) -> None:
    (host.granted / "real").mkdir()
    (host.granted / "link").symlink_to("real")
    host.declare(host.granted / "link" / "new", create=True, owner_uid=7)
    assert owner(host.granted / "real" / "new") == (7, 0)


def test_a_marked_directory_is_not_entered(tree: Tree) -> None:
    """A disk of another host, or a copy of one: whose it is, is not asked."""
    for name in ("before", "marked/inner", "later"):
        (tree.path / name).mkdir(parents=True)
    (tree.path / "marked/file").touch()
    claim(tree.path / "marked", "gpu-02")
    done = apply(tree.path)
    assert done.below == 2 and done.left == (f"{tree.path}/marked: bears {done.marked.split(' bears ')[1]}",)
    assert done.marked == f"{tree.path}/marked bears the owner mark of data-location {tree.path}/marked of host gpu-02"
    assert {owner(tree.path / name) for name in ("marked", "marked/inner", "marked/file")} == {(0, 0)}
    assert owner(tree.path / "before") == owner(tree.path / "later") == (1000, 1001)
    os.setxattr(tree.path / "before", marks.XATTR, b"not JSON")
    assert len(apply(tree.path, Permissions(uid=5, apply=True, recursive=True)).left) == 2
    assert owner(tree.path / "before") == (1000, 1001)


def test_another_host_s_data_location_below_a_source_is_refused(host: Host) -> None:
    path = host.granted / "moved"
    location = path / "stowage"
    (location / "drives" / "ml.x").mkdir(parents=True)
    (location / "drives" / "ml.x" / "secret").write_text(SECRET)
    claim(location, "gpu-02")
    declared = {"owner_uid": 1000, "dir_mode": "0755", "apply": True}
    with pytest.raises(Refusal) as refused:
        host.declare(path, recursive=True, **declared)
    assert str(refused.value) == (
        f"drive vision/d: all that is below its source {path} is to have an owner and a mode, and {location} bears the"
        f" owner mark of data-location {location} of host gpu-02; choose a directory apart from it, or take recursive"
        " out"
    )
    assert owner(path) == owner(location / "drives" / "ml.x" / "secret") == (0, 0)
    host.declare(path, **declared)
    assert owner(path) == (1000, 0) and owner(location) == (0, 0)


NEW = {"create": True, "owner_uid": 1000, "owner_gid": 1000, "dir_mode": "0755"}


@pytest.fixture
def workers(host: Host) -> Path:
    """A granted directory that belongs to a worker, with something of root's in it."""
    path = host.granted / "workers"
    path.mkdir()
    os.chown(path, 1000, 1000)
    (path / "secret").mkdir(mode=0o700)
    (path / "secret" / "file").write_text(SECRET)
    return path


@pytest.mark.parametrize("recursive", [False, True])
def test_what_a_worker_can_have_put_there_is_not_given_to_it(host: Host, workers: Path, recursive: bool) -> None:
    """It moves a directory of root's, which it may not even enter, to the name of the drive's source."""
    mine, declared = workers / "mine", {"apply": True, "owner_uid": 1000, "recursive": recursive}
    mine.mkdir()
    os.chown(mine, 1000, -1)
    host.declare(mine, **declared, dir_mode="0750")
    mine.rename(workers / "away")
    (workers / "secret").rename(mine)
    rule = (
        f"drive vision/d: its source {mine}, which is user 0's, is to have another owner or mode, and others could have"
        f" put it there, who may write {workers}; look at it, and change it yourself; or let root alone write {workers}"
    )
    for attempt in (
        lambda: host.declare(mine, **declared),
        lambda: taken(host).__enter__(),
    ):
        with pytest.raises(Refusal) as refused:
            attempt()
        assert str(refused.value) == rule
    assert owner(mine) == owner(mine / "file") == (0, 0)
    # Its own it may have given to whomever, and root's is given where root alone can have put it.
    os.chown(mine, 1000, -1)
    host.declare(mine, apply=True, owner_uid=1001)
    os.chown(workers, 0, 0)
    host.declare(mine, apply=True, owner_uid=1002)
    for mode, given in ((0o1777, True), (0o777, False), (0o775, False)):
        os.chown(mine, 0, -1)
        workers.chmod(mode)
        if given:
            host.declare(mine, **declared)
        else:
            with pytest.raises(Refusal, match=f"others could have put it there, who may write {workers};"):
                host.declare(mine, **declared)


def test_whoever_may_write_further_up_can_have_put_it_there_too(host: Host, workers: Path) -> None:
    inner = workers / "secret" / "inner"
    inner.mkdir()
    with pytest.raises(Refusal, match=f"which is user 0's, .* who may write {workers};"):
        host.declare(inner, apply=True, owner_uid=1000)


def make_new(host: Host, path: Path) -> None:
    spec = {"sources": [{"node_scope": "local-any", "path": str(path)}], "permissions": NEW}
    entries = check_drives([{"metadata": {"name": "d"}, "spec": spec}])
    (drive,) = drive_records.merge("vision", entries, [], drive_records.Holdings())
    wanted = Permissions.of(drive.spec or {}).of_new
    with permissions.opened_source(drive, str(path), [str(host.granted)], wanted) as (_fd, made):
        assert made


@pytest.mark.parametrize("below", ["new", "new/inner"])
@pytest.mark.parametrize("swapped", ["secret", "empty"])
def test_what_is_made_is_not_swapped_by_its_parent_s_owner(
    host: Host, workers: Path, monkeypatch: pytest.MonkeyPatch, swapped: str, below: str
) -> None:
    """A worker moves a directory of root's to whatever name is made, between root's making and opening it."""
    (workers / "empty").mkdir(mode=0o700)
    real, moved = os.mkdir, []

    def mkdir(name: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real(name, mode, dir_fd=dir_fd)
        shown = os.fsdecode(name)
        code = "import os, sys; os.rename(sys.argv[1], 'gone'); os.rename(sys.argv[2], sys.argv[1])"
        worker = ["python3", "-c", code, shown, swapped]
        who = {"user": 1000, "group": 1000, "extra_groups": []}
        ended = subprocess.run(worker, cwd=workers, capture_output=True, check=False, **who)
        moved.append(ended.returncode == 0)

    monkeypatch.setattr(os, "mkdir", mkdir)
    if swapped == "secret":
        with pytest.raises(Refusal, match="is not an empty directory of root's alone; its filesystem must let root"):
            make_new(host, workers / below)
    else:  # as good as what was made: nobody but root can reach into it
        make_new(host, workers / below)
        assert owner(workers / below) == (1000, 1000)
    assert moved[0] and not any(moved[1:])
    kept = [path for path in workers.rglob("*") if path.name != Path(below).name]
    assert {owner(path) for path in kept} == {(0, 0)}
    assert [path.read_text() for path in workers.rglob("file")] == [SECRET]
    assert [stat.S_IMODE(path.parent.stat().st_mode) for path in workers.rglob("file")] == [0o700]


def test_what_is_made_is_not_swapped_by_one_who_keeps_trying(host: Host, workers: Path) -> None:
    code = """
import os
print(flush=True)
while True:
    for name in os.listdir("."):
        if name not in ("secret", "gone"):
            try:
                os.rename(name, "gone")
                os.rename("secret", name)
            except OSError:
                pass
"""
    for _try in range(40):
        subprocess.run(["rm", "-rf", *workers.iterdir()], check=True)
        (workers / "secret").mkdir(mode=0o700)
        (workers / "secret" / "file").write_text(SECRET)
        worker = ["python3", "-c", code]
        with subprocess.Popen(worker, cwd=workers, user=1000, group=1000, extra_groups=[], stdout=-1) as trying:
            try:
                assert trying.stdout is not None and trying.stdout.readline()
                with suppress(StowageError, OSError):
                    make_new(host, workers / "new")
            finally:
                trying.kill()
        (kept,) = workers.rglob("file")
        assert owner(kept.parent) == (0, 0) and stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


def test_what_is_made_leaves_nothing_beside_it(host: Host, workers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host.declare(workers / "new" / "inner", **NEW)
    assert sorted(os.listdir(workers)) == ["new", "secret"] and os.listdir(workers / "new") == ["inner"]
    assert owner(workers / "new") == (0, 0) and owner(workers / "new" / "inner") == (1000, 1000)

    def fails(*_arguments: Any) -> None:
        raise OSError(errno.EINVAL, "as NFS does")

    monkeypatch.setattr(syscalls, "rename_noreplace", fails)
    host.declare(workers / "other" / "inner", **NEW)
    assert sorted(os.listdir(workers)) == ["new", "other", "secret"]
    real = permissions._chain

    def beaten(*arguments: Any) -> int:
        (workers / "third").mkdir()
        (workers / "third" / "file").touch()
        return real(*arguments)

    monkeypatch.setattr(permissions, "_chain", beaten)
    with pytest.raises(Refusal, match="/third/inner was made by somebody else meanwhile; run again"):
        host.declare(workers / "third" / "inner", **NEW)
    assert sorted(os.listdir(workers)) == ["new", "other", "secret", "third"]
    assert os.listdir(workers / "third") == ["file"]


@contextmanager
def taken(host: Host) -> Iterator[Path]:
    """Mount source 0 for a worker, as a run does, and release it again."""
    (ref,) = drive_refs.resolve([DriveRef("d", "/data")], [host.drive.declared])
    pin = Source(host.places, "gpu-01", host.drive, ref.ref).take("r", "w0", 60)
    try:
        yield Path(pin.path(host.places))
    finally:
        pinning.release(host.places, pin.run, pin.number)


def test_preparing_checks_the_grant_again(host: Host) -> None:
    path = host.granted / "scratch"
    host.declare(path)
    assert not path.exists()
    with taken(host) as mounted:
        assert mounted.samefile(path)
    assert owner(path) == (0, 0) and stat.S_IMODE(path.stat().st_mode) == 0o755
    record = drive_records.record_path(host.places, "vision")
    value = records.read(record) or {}
    records.write(record, {**value, "host_paths": []})
    assert grants.load(host.places, "vision") == []
    for there in (True, False):
        if not there:
            path.rmdir()
        with pytest.raises(Refusal, match="HOST_ACCESS_FORBIDDEN"), taken(host):
            pass
        assert path.exists() == there


def test_a_missing_source_on_one_host_is_not_made_unasked(host: Host) -> None:
    host.declare(host.granted / "data", scope="")
    with pytest.raises(Missing) as refused, taken(host):
        pass
    assert str(refused.value) == (
        f"drive vision/d: its source {host.granted}/data is not there; make it, or have it made with"
        " spec.permissions.create"
    )


def test_a_disk_that_is_not_mounted_is_not_filled_underneath(small_disk: Callable[..., Any], tmp_path: Path) -> None:
    new = small_disk("ext4")
    host = Host(Places.under(str(tmp_path)), new.path)
    host.granted = new.path / "team" / "data"
    (new.path / "team").mkdir()
    host.declare(host.granted / "scratch", create=True)
    new.unmount()
    with pytest.raises(Missing, match=f"there is no {new.path}/team, which is above what is granted; mount its disk"):
        host.declare(host.granted / "scratch", create=True)
    assert os.listdir(new.path) == []


# -- Copies


def test_a_copy_gets_what_is_declared_when_it_is_leased(disk: Path, tmp_path: Path) -> None:
    lab = Lab(disk, tmp_path)
    copy = lab.copy("ml.a", permissions={"owner_uid": 1000, "dir_mode": "0750", "apply": True, "recursive": True})
    assert owner(copy / "data" / "file") == (0, 0)
    pin = pinning.take(lab.places, lab.location, "ml.a", run="r", read_only=True, seconds=60)
    try:
        assert owner(copy) == owner(copy / "data" / "file") == (1000, 0)
        assert stat.S_IMODE((copy / "data").stat().st_mode) == 0o750
    finally:
        pinning.release(lab.places, pin.run, pin.number)


def test_a_mode_alone_exposes_nothing_that_others_put_there(host: Host) -> None:
    workers = host.granted / "workers"
    workers.mkdir()
    workers.chmod(0o775)
    mine, alice = workers / "mine", workers / "alice"
    for path, user in ((mine, 1005), (alice, 1001), (alice / "ssh", 1001)):
        path.mkdir(mode=0o700)
        os.chown(path, user, user)
    mine.rename(workers / "away")
    alice.rename(mine)
    with pytest.raises(Refusal, match="is to have another owner or mode, and others could have put it there"):
        host.declare(mine, apply=True, dir_mode="0777", recursive=True)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (mine, mine / "ssh")} == {0o700}


def test_what_is_below_is_looked_at_before_it_is_given_away(host: Host) -> None:
    """The directory itself has its owner already."""
    workers = host.granted / "workers"
    workers.mkdir()
    workers.chmod(0o775)
    mine = workers / "mine"
    mine.mkdir()
    os.chown(mine, 1000, 1000)
    host.declare(mine, apply=True, owner_uid=1000, recursive=True)
    (mine / "secret").touch(mode=0o600)
    time.sleep(0.03)
    with pytest.raises(Refusal, match="is to have another owner or mode, and others could have put it there"):
        host.declare(mine, apply=True, owner_uid=1000, recursive=True)
    assert owner(mine / "secret") == (0, 0)
