# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an eviction removes, and above all what it leaves, on real filesystems."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from copies_lab import EVERYTHING, HOST, NOW, PRELUDE, Lab, process

from stowage_core import errors, events
from stowage_core.copies import present as copies
from stowage_core.data_location import locations as data_locations
from stowage_core.eviction import evict as eviction
from stowage_core.eviction import stop as eviction_stop
from stowage_core.eviction.plan import Settings
from stowage_core.runs import pinning, pins
from stowage_core.sizes import Space
from stowage_core.use import exports as use_exports
from stowage_core.use import look as use
from stowage_core.use.look import InUse


@pytest.fixture
def lab(disk: Path, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(disk, tmp_path)
    seen = use.in_use([])
    assert seen == {}
    yield made
    for pin in pins.all_pins(made.places):
        pinning.release(made.places, pin.run, pin.number)


@pytest.fixture
def pair(lab: Lab) -> Lab:
    """A copy to be held, which would go first, and one that nobody holds."""
    lab.copy("ml.held", last_used=None)
    lab.copy("ml.other", last_used=1.0)
    return lab


@pytest.fixture
def both(pair: Lab, in_use: InUse) -> Lab:
    """The same, looked at in both ways."""
    pair.in_use = in_use
    return pair


def assert_held_stays(lab: Lab, why: str, alone: bool = True, **more: Any) -> None:
    """Evict everything: the held copy stays whole where it is, and the other one goes.

    Unless the held one stays *alone*, the other one may stay, too: what was found may hide a use of any copy.
    """
    before = (lab.at("ml.held") / "data" / "file").read_bytes()
    result = lab.evict(**more)
    assert lab.names() == ["ml.held"] or (not alone and lab.names() == ["ml.held", "ml.other"]), result
    assert (lab.at("ml.held") / "data" / "file").read_bytes() == before
    assert why in result.kept["ml.held"]
    assert lab.trash() == []
    if not alone:
        return
    assert [one["copy"] for one in result.removed] == ["ml.other"]
    assert "nothing can go" in result.blocked


def take_pin(lab: Lab, **more: Any) -> pins.Pin:
    return pinning.take(lab.places, lab.location, "ml.held", run="run-1", read_only=False, seconds=600, **more)


# -- What keeps a copy


def test_without_use_everything_goes(both: Lab) -> None:
    result = both.evict()
    assert both.names() == [] and both.trash() == []
    assert [one["copy"] for one in result.removed] == ["ml.held", "ml.other"]
    assert result.blocked == ""
    texts = [(event["object"], event["message"]) for event in events.read(both.places)]
    assert texts == [
        (f"drive/ml/{name}", f"Copy removed from {HOST}: evicted: the machine's data location is over its limit")
        for name in ("held", "other")
    ]
    assert not os.listdir(both.places.copies_dir)


def test_a_pin_keeps(pair: Lab) -> None:
    take_pin(pair)
    result = pair.evict()
    assert pair.names() == ["ml.held"] and [one["copy"] for one in result.removed] == ["ml.other"]
    assert "leased" in result.blocked


def test_a_pin_without_its_record_keeps(both: Lab) -> None:
    pin = take_pin(both)
    os.unlink(pin.record_path(both.places))
    try:
        assert_held_stays(both, f"mounted at {pin.path(both.places)}")
    finally:
        assert pinning.release(both.places, pin.run, pin.number)


def test_a_pin_of_a_folder_inside_keeps(pair: Lab) -> None:
    pin = take_pin(pair, sub_path="data")
    os.unlink(pin.record_path(pair.places))
    try:
        assert_held_stays(pair, "mounted at")
    finally:
        assert pinning.release(pair.places, pin.run, pin.number)


def test_the_record_of_a_pin_keeps_even_unmounted(pair: Lab) -> None:
    pin = take_pin(pair)
    subprocess.run(["umount", pin.path(pair.places)], check=True)
    assert pair.evict().kept == {} and pair.names() == ["ml.held"]


def test_force_ignores_the_record_but_not_the_mount(pair: Lab) -> None:
    pin = take_pin(pair)
    pair.declare("ml.held", state="absent", force=True)
    assert "mounted at" in pair.evict(0).kept["ml.held"]
    subprocess.run(["umount", pin.path(pair.places)], check=True)
    assert pair.evict(0).removed[0]["reason"] == "deleted"
    assert pair.names() == ["ml.other"]
    assert events.read(pair.places)[-1]["message"] == f"Copy removed from {HOST}: its drive was deleted"


BIND_ELSEWHERE = """
own_namespace()
mount("none", "/media", "tmpfs", 0)
os.mkdir("/media/here")
mount(copy, "/media/here", "", 4096)
ready()
"""


def test_bound_into_another_mount_namespace(both: Lab) -> None:
    with process(BIND_ELSEWHERE, str(both.at("ml.held") / "data")):
        assert_held_stays(both, "mounted at /media/here in the mount namespace of process")


def test_bound_in_a_namespace_pinned_by_a_mount(both: Lab, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "--make-private", "none", private], check=True)
    (private / "ns").touch()
    try:
        # Linux 6.18 takes some namespaces made on another processor for older ones, and refuses to pin them.
        for _attempt in range(50):
            with process(BIND_ELSEWHERE, str(both.at("ml.held"))) as holder:
                done = subprocess.run(["mount", "--bind", f"/proc/{holder.pid}/ns/mnt", private / "ns"], check=False)
            if done.returncode == 0:
                break
        assert done.returncode == 0
        try:
            assert_held_stays(both, f"mounted at /media/here in the mount namespace of {private}/ns in")
        finally:
            subprocess.run(["umount", private / "ns"], check=True)
    finally:
        subprocess.run(["umount", private], check=True)


def test_bound_in_a_namespace_held_by_a_descriptor(both: Lab) -> None:
    with process(BIND_ELSEWHERE, str(both.at("ml.held"))) as holder:
        namespace = os.open(f"/proc/{holder.pid}/ns/mnt", os.O_RDONLY)
    try:
        assert_held_stays(both, "mounted at /media/here in the mount namespace of process")
    finally:
        os.close(namespace)


def test_the_directory_of_all_copies_bound_elsewhere(both: Lab) -> None:
    with process(BIND_ELSEWHERE, str(both.path / "drives")):
        result = both.evict()
    assert both.names() == ["ml.held", "ml.other"]
    assert "mounted at /media/here" in result.kept["ml.held"]


def test_something_mounted_inside_it_in_another_namespace(both: Lab) -> None:
    code = 'own_namespace()\nmount("none", copy + "/data", "tmpfs", 0)\nready()'
    with process(code, str(both.at("ml.held"))):
        assert_held_stays(both, "tmpfs is mounted inside it")


HOLDS = {
    "working directory": ("os.chdir(copy + '/data'); ready()", "working directory"),
    "root directory": ("os.chdir('/'); os.chroot(copy + '/data'); ready()", "root directory"),
    "open file": ("file = open(copy + '/data/file'); ready()", "holds"),
    "open directory": ("fd = os.open(copy, os.O_RDONLY); ready()", "holds"),
    "path descriptor": ("fd = os.open(copy + '/data', os.O_PATH); ready()", "holds"),
    "file in a thread's own table": (
        """
def hold():
    unshare(0x400)
    globals()["fd"] = os.open(copy + "/data/file", os.O_RDONLY)
    ready()
thread = threading.Thread(target=hold)
thread.start()
thread.join()
""",
        "holds",
    ),
    "working directory of one thread": (
        """
def hold():
    unshare(0x200)
    os.chdir(copy)
    ready()
thread = threading.Thread(target=hold)
thread.start()
thread.join()
""",
        "working directory",
    ),
    "file of a thread that outlives the first": (
        """
def hold():
    time.sleep(0.3)
    fd = os.open(copy + "/data/file", os.O_RDONLY)
    ready()
threading.Thread(target=hold).start()
libc.syscall(60 if os.uname().machine == "x86_64" else 93, 0)
""",
        "holds",
    ),
    "in flight over a socket": (
        """
here, there = socket.socketpair()
fd = os.open(copy + "/data/file", os.O_RDONLY)
socket.send_fds(here, [b"x"], [fd])
os.close(fd)
ready()
""",
        "data/file",
    ),
    "mapped after close": (
        """
fd = os.open(copy + "/data/file", os.O_RDONLY)
libc.mmap.restype = ctypes.c_void_p
# Python's own mmap would keep the file open.
assert libc.mmap(None, ctypes.c_size_t(4096), 1, 2, fd, ctypes.c_long(0)) not in (None, 2**64 - 1)
os.close(fd)
ready()
""",
        "maps",
    ),
    "running program": (
        """
import shutil
shutil.copy("/bin/sleep", copy + "/data/sleep")
child = subprocess.Popen([copy + "/data/sleep", "600"], preexec_fn=lambda: libc.prctl(1, 9))
ready()
""",
        "(sleep) maps",
    ),
    "removed file that can be linked in again": (
        """
fd = os.open(copy + "/data/file2", os.O_RDWR | os.O_CREAT)
os.unlink(copy + "/data/file2")
ready()
""",
        "holds",
    ),
}


@pytest.mark.parametrize("name", HOLDS)
def test_what_a_process_holds_keeps(both: Lab, name: str) -> None:
    code, why = HOLDS[name]
    with process(code, str(both.at("ml.held"))):
        assert_held_stays(both, why)


def assert_all_stay(lab: Lab, held: str, other: str) -> None:
    result = lab.evict()
    assert lab.names() == ["ml.held", "ml.other"] and lab.trash() == []
    assert held in result.kept["ml.held"] and other in result.kept["ml.other"], result


DETACHED = "could not be determined: process"
"""What is mounted below a mount that is attached nowhere cannot be seen: it may be any copy."""


def test_a_detached_mount(both: Lab) -> None:
    code = "fd = check(libc.syscall(428, -100, copy.encode(), 1 | 0o2000000)); ready()"  # open_tree, OPEN_TREE_CLONE
    with process(code, str(both.at("ml.held") / "data")):
        assert_all_stay(both, "attached nowhere", DETACHED)


def test_a_working_directory_in_a_lazily_unmounted_mount(both: Lab, tmp_path: Path) -> None:
    point = tmp_path / "point"
    point.mkdir()
    subprocess.run(["mount", "--bind", both.at("ml.held"), point], check=True)
    with process("os.chdir(copy); ready()", str(point)):
        subprocess.run(["umount", "--lazy", point], check=True)
        assert_all_stay(both, "has as its working directory", DETACHED)


def test_a_file_behind_a_loop_device(both: Lab) -> None:
    file = both.at("ml.held") / "data" / "file"
    done = subprocess.run(["losetup", "--find", "--show", file], check=True, capture_output=True, text=True)
    try:
        assert_held_stays(both, "loop device")
    finally:
        subprocess.run(["losetup", "--detach", done.stdout.strip()], check=True)


OVERLAY = """
own_namespace()
mount("none", "/media", "tmpfs", 0)
for name in ("lower", "upper", "work", "at"):
    os.mkdir("/media/" + name)
for name in ("over", "overwork"):
    os.makedirs(copy + "/" + name, exist_ok=True)
os.chdir(copy)
mount("overlay", "/media/at", "overlay", 0, sys.argv[2].format(copy=copy))
os.chdir("/")
ready()
"""
OVERLAYS = {
    "lower": "lowerdir={copy}/data:/media/lower,upperdir=/media/upper,workdir=/media/work",
    "upper": "lowerdir=/media/lower,upperdir={copy}/over,workdir={copy}/overwork",
    "relative": "lowerdir=data:/media/lower,upperdir=/media/upper,workdir=/media/work",
}


@pytest.mark.parametrize("layers", OVERLAYS)
def test_a_layer_of_an_overlay_in_another_namespace(both: Lab, layers: str) -> None:
    both.at("ml.other").joinpath("data").rename(both.at("ml.other") / "elsewhere")
    with process(OVERLAY, str(both.at("ml.held")), OVERLAYS[layers]):
        assert_held_stays(both, "overlay")


def test_a_layer_of_an_overlay_by_another_name(both: Lab, tmp_path: Path) -> None:
    """Nothing in the options names the copy: only the identity of what they lead to tells."""
    names = [tmp_path / name for name in ("alias", "upper", "work", "at")]
    for name in names:
        name.mkdir()
    alias, upper, work, at = names
    subprocess.run(["mount", "--bind", both.at("ml.held"), alias], check=True)
    options = f"lowerdir={alias},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, at], check=True)
    try:
        subprocess.run(["umount", alias], check=True)
        # The path is there and leads to an empty directory now, while the layer is the copy still.
        result = both.evict()
        assert both.names() == ["ml.held", "ml.other"] and "could not be determined" in result.kept["ml.held"]
        alias.rmdir()
        alias.symlink_to(both.at("ml.held"))
        assert_held_stays(both, "a layer of the overlay")
    finally:
        subprocess.run(["umount", at], check=True)


def test_an_overlay_elsewhere_keeps_nothing(both: Lab, tmp_path: Path) -> None:
    for name in ("low:er", "upper", "work", "at"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/low\\:er,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, tmp_path / "at"], check=True)
    try:
        assert both.evict().kept == {} and both.names() == []
    finally:
        subprocess.run(["umount", tmp_path / "at"], check=True)


@pytest.mark.parametrize("what", ["copy", "inside", "around"])
def test_an_nfs_export(pair: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    table = tmp_path / "etab"
    paths = {"copy": pair.at("ml.held"), "inside": pair.at("ml.held") / "data", "around": pair.path}
    table.write_text(f"{paths[what]}\t10.0.0.2(rw,sync)\n/\t*(ro,v4root,fsid=0)\n")
    monkeypatch.setattr(use_exports, "ALL_TABLE", str(table))
    if what == "around":
        assert "NFS export" in pair.evict().kept["ml.other"] and len(pair.names()) == 2
    else:
        assert_held_stays(pair, "NFS export")


def test_an_export_table_that_cannot_be_read(pair: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use_exports, "ALL_TABLE", str(tmp_path))
    assert "could not be determined" in pair.evict().kept["ml.held"] and len(pair.names()) == 2


def test_a_look_that_is_late(pair: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use, "exported", lambda: time.sleep(60))
    result = pair.evict(in_use=lambda victims, alive: use.in_use(victims, 0.2, alive))
    assert (
        len(pair.names()) == 2 and result.kept["ml.held"] == "in use: could not be determined: no answer within 0.2 s"
    )


def test_a_lock_that_is_held(pair: Lab) -> None:
    with open(pair.path / ".stowage" / "locks" / "ml.held", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert_held_stays(pair, "its lock is held")


def test_too_young(pair: Lab) -> None:
    result = pair.evict(settings=replace(NOW, minimum_age_s=600))
    assert len(pair.names()) == 2 and "it was made only now" in result.blocked


def test_in_the_grace_after_boot(pair: Lab) -> None:
    result = pair.evict(settings=replace(NOW, boot_grace_s=float("inf")))
    assert len(pair.names()) == 2 and "the host was started only now" in result.blocked


def test_being_filled(pair: Lab) -> None:
    pair.declare("ml.held", fill={"template": {"image": "x"}})
    result = pair.evict()
    assert pair.names() == ["ml.held"] and "being filled" in result.blocked
    (pair.at("ml.held") / ".astralyx-filled").touch()
    pair.evict()
    assert pair.names() == []


def test_an_unreadable_record_is_not_one_of_a_copy_never_used(pair: Lab) -> None:
    Path(copies.record_path(pair.places, "ml.held")).write_text("")
    kept = eviction.current_plan(pair.places, pair.limited(EVERYTHING), NOW).kept
    assert "not valid JSON" in kept["ml.held"]
    pair.evict()
    assert pair.names() == ["ml.held"]


def test_no_more_goes_than_the_sizes_of_now_ask_for(small_disk: Any, tmp_path: Path) -> None:
    """The last measurement is of when the copies were small still."""
    lab = Lab(small_disk("ext4", 64 << 20).path, tmp_path)
    for number in range(4):
        lab.copy(f"ml.c{number}", size=2 << 20, last_used=float(number))
        record = copies.load_record(lab.places, f"ml.c{number}")
        assert record is not None
        copies.write_record(lab.places, f"ml.c{number}", replace(record, allocated=64 << 10))
    os.sync()
    root = os.open(lab.path, os.O_RDONLY)
    try:
        space = Space.of(root)
    finally:
        os.close(root)
    mark = (space.avail + (3 << 20)) / space.usable  # by what is recorded, all of them together would not do
    result = lab.evict(0, settings=replace(NOW, start_free=mark, stop_free=mark))
    assert lab.names() == ["ml.c2", "ml.c3"] and result.blocked == ""
    assert all(2 << 20 <= one["allocated"] < (2 << 20) + 65536 for one in result.removed), "as large as they are"


def test_a_use_between_two_rounds_counts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        lab.copy(f"ml.c{number}", size=1 << 20, last_used=float(number + 1))
    monkeypatch.setattr(eviction, "BATCH", 1)
    figures = {name: copies.load_record(lab.places, name) for name in lab.names()}
    identity = lab.drives["ml"]["c1"]["identity"]
    step = at_step("emptied", "ml.c0", lambda: str(copies.touch_used(lab.places, "ml.c1", identity)))
    result = lab.evict(3 << 19, figures=figures, step=step)
    assert [one["copy"] for one in result.removed] == ["ml.c0", "ml.c2"]


def test_what_is_declared_anew_counts_from_the_next_round_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        lab.copy(f"ml.c{number}", last_used=float(number + 1))
    monkeypatch.setattr(eviction, "BATCH", 1)
    declared = [(lab.limited(1), NOW), (lab.limited(1), NOW), (lab.limited(0), NOW)]
    result = lab.evict(1, renew=lambda: declared.pop(0))
    assert [one["copy"] for one in result.removed] == ["ml.c0", "ml.c1"] and lab.names() == ["ml.c2", "ml.c3"]
    assert result.blocked == ""


def test_without_caches_only_copies_of_deleted_drives_go(lab: Lab, disk: Path) -> None:
    for name in ("ml.a", "ml.b"):
        lab.copy(name, last_used=1.0)
    lab.declare("ml.b", state="absent")
    result = lab.evict(1, settings=replace(NOW, caches=False, start_free=1.0, stop_free=1.0))
    assert [one["reason"] for one in result.removed] == ["deleted"]
    assert lab.names() == ["ml.a"] and result.blocked == ""


def test_not_a_cache_not_declared_and_not_marked(lab: Lab) -> None:
    lab.copy("ml.results", evictable=False)
    lab.copy("ml.orphan")
    lab.copy("ml.again")
    del lab.drives["ml"]["orphan"], lab.drives["ml"]["again"]
    lab.declare("ml.again")  # another drive of that name: the copy is not of this one
    lab.declare("ml.foreign")
    (lab.path / "drives" / "ml.foreign").mkdir()
    (lab.path / "drives" / "ml.link").symlink_to("/etc")
    lab.evict()
    assert lab.names() == ["ml.again", "ml.foreign", "ml.link", "ml.orphan", "ml.results"]


def test_a_deleted_drive_goes_without_a_trigger(pair: Lab) -> None:
    pair.declare("ml.held", state="absent")
    result = pair.evict(0)
    assert pair.names() == ["ml.other"] and result.removed[0]["reason"] == "deleted"


# -- The moments in between


def at_step(wanted: str, name: str, action: Callable[[], None]) -> Callable[[str, str], None]:
    def step(now: str, copy: str) -> None:
        if (now, copy) == (wanted, name):
            action()

    return step


def test_opened_between_the_look_and_the_move(pair: Lab) -> None:
    opened = []
    step = at_step("unused", "ml.held", lambda: opened.append(os.open(pair.at("ml.held") / "data", os.O_RDONLY)))
    try:
        assert_held_stays(pair, "holds", step=step)
    finally:
        os.close(opened[0])


def test_opened_after_the_last_look(pair: Lab) -> None:
    """Nobody can do that from outside; the write leases would still see it."""
    opened = []

    def action() -> None:
        (aside,) = [name for name in pair.trash() if "ml.held" in name]
        opened.append(os.open(pair.path / ".stowage-trash" / aside / "data" / "file", os.O_RDONLY))

    try:
        assert_held_stays(pair, "write lease", step=at_step("unused aside", "ml.held", action))
    finally:
        os.close(opened[0])


def test_a_pin_cannot_come_in_between(pair: Lab) -> None:
    """A lease waits for the copy's lock; once the copy is gone it says so instead of holding an empty directory."""
    refused = []

    def action() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("stowage_core.copies.present.LOCK_TIMEOUT_S", 0.1)
            code = f"""
import sys, time
from stowage_core.copies import present as copies
from stowage_core.data_location import locations as data_locations
from stowage_core.places import Places
from stowage_core.runs import pinning, pins
places = Places({pair.places.etc!r}, {pair.places.var!r}, {pair.places.run!r})
location = data_locations.DataLocation.from_json({pair.location.to_json()!r})
take = copies.take_lock
copies.take_lock = lambda fd, name: take(fd, name, 0.2)
pinning.take(places, location, "ml.held", run="r", read_only=True, seconds=60)
"""
            done = subprocess.run(["python3", "-c", code], capture_output=True, text=True, check=False)
            refused.append(done.stderr)

    pair.evict(step=at_step("unused", "ml.held", action))
    assert "held by another process" in refused[0]
    assert pair.names() == []


DECLARATIONS: dict[str, tuple[dict[str, Any] | None, str]] = {
    "no cache any more": ({"evictable": False}, "its drive is not a cache"),
    "no longer declared": (None, "no list of drives has its drive"),
    "another drive": ({"identity": "another"}, "no list of drives has its drive"),
}


@pytest.mark.parametrize("when", ["locked", "unused aside", "write leases"])
@pytest.mark.parametrize("what", DECLARATIONS)
def test_declared_otherwise_meanwhile(pair: Lab, what: str, when: str) -> None:
    changes, why = DECLARATIONS[what]

    def action() -> None:
        if changes is None:
            del pair.drives["ml"]["held"]
            pair.declare("ml.other")
        else:
            pair.declare("ml.held", **changes)

    assert_held_stays(pair, why, step=at_step(when, "ml.held", action))


def test_a_list_of_drives_that_cannot_be_read_meanwhile(pair: Lab) -> None:
    action = at_step("locked", "ml.held", lambda: write_text(Path(pair.places.drives_dir, "ml.json"), "{"))
    with pytest.raises(errors.StowageError, match="not valid JSON"):
        pair.evict(step=action)
    assert pair.names() == ["ml.held", "ml.other"] and pair.trash() == []


def write_text(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.parametrize("before", [{"state": "absent"}, {"state": "absent", "force": True}], ids=["deleted", "forced"])
def test_a_deletion_that_was_withdrawn_meanwhile(pair: Lab, before: dict[str, Any]) -> None:
    pair.declare("ml.held", **before)
    result = pair.evict(0, step=at_step("unused aside", "ml.held", lambda: str(pair.declare("ml.held"))))
    assert result.kept == {"ml.held": "its drive was declared otherwise meanwhile"}
    assert pair.names() == ["ml.held", "ml.other"] and pair.trash() == []


def test_each_copy_is_condemned_right_after_its_own_proof_and_let_go(lab: Lab) -> None:
    names = ["ml.c0", "ml.c1", "ml.c2"]
    for number, name in enumerate(names):
        lab.copy(name, last_used=float(number))
    steps = []
    free: dict[str, list[str]] = {}

    def step(now: str, copy: str) -> None:
        if now in ("write leases", "condemned"):
            steps.append((now, copy))
            free[f"{now} {copy}"] = [name for name in names if is_free(lab, name)]

    lab.evict(step=step)
    assert steps == [(step, name) for name in names for step in ("write leases", "condemned")]
    assert free["condemned ml.c0"] == []
    assert free["write leases ml.c1"] == free["condemned ml.c1"] == ["ml.c0"]
    assert free["condemned ml.c2"] == ["ml.c0", "ml.c1"]


def is_free(lab: Lab, name: str) -> bool:
    """Return whether nobody holds the lock of a copy."""
    with open(lab.path / ".stowage" / "locks" / name, "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_new_copy_of_the_same_name_does_not_hide_the_old(pair: Lab) -> None:
    """Whatever takes a copy's name while it is aside, neither is lost."""
    opened = []

    def action() -> None:
        opened.append(os.open(pair.path / ".stowage-trash" / pair.trash()[0] / "data", os.O_RDONLY))
        pair.at("ml.held").mkdir()

    try:
        result = pair.evict(step=at_step("aside", "ml.held", action))
        assert "kept aside" in result.kept["ml.held"]
        assert pair.names() == ["ml.held"] and len(pair.trash()) == 1
        assert eviction.recover(pair.places, pair.location, caches=True).removed == []
        assert len(pair.trash()) == 1, "in use, so it stays aside"
    finally:
        os.close(opened[0])
    result = eviction.recover(pair.places, pair.location, caches=False)
    assert len(pair.trash()) == 1 and "caches are not evicted here now" in result.kept["ml.held"]
    eviction.recover(pair.places, pair.location, caches=True)
    assert pair.trash() == [] and pair.names() == ["ml.held"]
    told = events.read(pair.places)[-1]["message"]
    assert told == f"Copy removed from {HOST}: evicted: it was put aside before, and a new copy has its name"


@pytest.mark.parametrize("caches", [True, False])
def test_the_copy_of_a_deleted_drive_goes_from_aside_too(pair: Lab, caches: bool) -> None:
    os.rename(pair.at("ml.held"), pair.path / ".stowage-trash" / "pending" / "ml.held.full-1-2")
    pair.at("ml.held").mkdir()
    pair.declare("ml.held", state="absent")
    eviction.recover(pair.places, pair.location, caches=caches)
    assert pair.trash() == [] and pair.names() == ["ml.held", "ml.other"]
    assert events.read(pair.places)[-1]["message"] == f"Copy removed from {HOST}: its drive was deleted"


def test_a_list_of_drives_that_cannot_be_read_keeps_what_is_aside_and_hinders_nothing(pair: Lab) -> None:
    for name in ("ml.held", "ml.other"):
        os.rename(pair.at(name), pair.path / ".stowage-trash" / "pending" / f"{name}.full-1-2")
    pair.at("ml.held").mkdir()
    Path(pair.places.drives_dir, "ml.json").write_text("{")
    result = eviction.recover(pair.places, pair.location, caches=True)
    assert pair.trash() == ["pending/ml.held.full-1-2"] and (pair.at("ml.other") / "data" / "file").exists()
    assert list(result.kept) == ["ml.held"] and "could not be determined: " in result.kept["ml.held"]


@pytest.mark.parametrize("caches", [True, False])
def test_a_copy_aside_goes_back_whenever_its_name_is_free(pair: Lab, caches: bool) -> None:
    os.rename(pair.at("ml.held"), pair.path / ".stowage-trash" / "pending" / "ml.held.full-1-2")
    pair.declare("ml.held", state="absent")
    result = eviction.recover(pair.places, pair.location, caches=caches)
    assert pair.trash() == [] and (pair.at("ml.held") / "data" / "file").exists() and result.kept == {}


def test_what_is_no_copy_in_the_trash_stays(lab: Lab) -> None:
    trash = lab.path / ".stowage-trash"
    for part in ("pending", "condemned"):
        (trash / part / "photos").mkdir()
        (trash / part / "ml.x.full-1-2").mkdir()
        (trash / part / "file").touch()
        (trash / part / "ml.y.full-1-2").symlink_to("/etc")
    before = lab.trash()
    lab.evict()
    assert lab.trash() == before


def test_what_has_come_since_the_first_look_is_seen(pair: Lab) -> None:
    """On btrfs a directory that is held open does not list it."""
    holders = contextlib.ExitStack()

    def action() -> None:
        code = "os.mkdir(copy + '/new'); os.chdir(copy + '/new'); ready()"
        holders.enter_context(process(code, str(pair.at("ml.held"))))

    with holders:
        assert_held_stays(pair, "working directory", step=at_step("unused", "ml.held", action))


def test_a_file_that_has_come_since_the_first_look_is_seen(pair: Lab) -> None:
    holders = contextlib.ExitStack()

    def action() -> None:
        code = """
fd = os.open(copy + "/new", os.O_RDWR | os.O_CREAT)
here, there = socket.socketpair()
socket.send_fds(here, [b"x"], [fd])
os.close(fd)
ready()
"""
        holders.enter_context(process(code, str(pair.at("ml.held"))))

    with holders:
        assert_held_stays(pair, "new", step=at_step("unused", "ml.held", action))


# -- What the copy's own user may have put there

HOSTILE = r"""
import fcntl, struct
os.chdir(copy + "/data")  # as through a lease: only root can come here by its path
os.setgroups([])
os.setgid(4242)
os.setuid(4242)
for size in (7 * 10**18, 2**44 - 2**16):  # the most that some filesystems hold
    try:
        with open("sparse", "wb") as file:
            os.truncate(file.fileno(), size)
        break
    except OSError:
        pass
else:
    raise SystemExit("no sparse file")
os.symlink(sys.argv[2], "link")
os.symlink(sys.argv[2] + "/file", "link to a file")
os.symlink("link", "link to a link")
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
for name in (b"\xff", b"a\nb", b"a\rb", b"-rf", b"*", b"...", b" ", b"x" * 255, b"\\040(deleted)", " ".encode()):
    open(name, "xb").close()
    os.mkdir(b"d" + name[:254])
open("setuid", "wb").close()
os.chmod("setuid", 0o6755)
os.link("setuid", "hard link")
os.mkdir("closed")
open("closed/file", "wb").close()
os.chmod("closed/file", 0)
os.chmod("closed", 0)
made = []
def vol(name):
    return bytearray(struct.pack("=q4088s", 0, name))
here = os.open(".", os.O_RDONLY)
try:
    fcntl.ioctl(here, 0x5000940E, vol(b"subvolume"))  # BTRFS_IOC_SUBVOL_CREATE
except OSError:
    made.append("none")
else:
    with open("subvolume/file", "wb") as file:
        file.write(b"x" * 10000)
    inside = os.open("subvolume", os.O_RDONLY)
    fcntl.ioctl(inside, 0x5000940E, vol(b"nested"))
    fcntl.ioctl(inside, 0x4008941A, struct.pack("=Q", 2))  # BTRFS_IOC_SUBVOL_SETFLAGS, read-only
    made.append("subvolume")
os.mkdir("deep")
os.chdir("deep")
for _level in range(20_000):
    os.mkdir("down")
    os.chdir("down")
open("file at the end", "wb").close()
print(made[0], flush=True)
"""


def test_whatever_its_own_user_put_there_goes_and_nothing_else(lab: Lab, disk: Path, fstype: str) -> None:
    outside = disk / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"stays")
    outside.chmod(0o777)
    before = os.stat(outside)
    path = lab.copy("ml.hostile", last_used=1.0)
    os.chown(path / "data", 4242, 4242)
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + HOSTILE, str(path), str(outside)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == ("subvolume" if fstype == "btrfs" else "none"), done.stderr
    lab.copy("ml.other", last_used=2.0)
    result = lab.evict()
    assert result.kept == {} and [one["copy"] for one in result.removed] == ["ml.hostile", "ml.other"]
    assert lab.names() == [] and lab.trash() == []
    assert (outside / "file").read_bytes() == b"stays" and os.listdir(outside) == ["file"]
    assert os.stat(outside).st_mode == before.st_mode


def test_a_mount_in_what_its_user_made_deep_down_keeps(pair: Lab) -> None:
    deep = pair.at("ml.held") / "data" / "/".join(["d"] * 500)
    deep.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "."], cwd=deep, check=True)
    try:
        assert_held_stays(pair, "tmpfs is mounted inside it")
    finally:
        subprocess.run(["umount", deep], check=True)


# -- The right one, in the right order, and no more


def test_oldest_first_and_not_one_more(lab: Lab) -> None:
    for number, used in enumerate((400.0, None, 100.0, 300.0, 200.0, None)):
        lab.copy(f"ml.c{number}", size=1 << 20, last_used=used)
    result = lab.evict(3 << 20)
    assert [one["copy"] for one in result.removed] == ["ml.c1", "ml.c5", "ml.c2"]
    assert lab.names() == ["ml.c0", "ml.c3", "ml.c4"] and result.blocked == ""


def test_one_in_use_makes_the_next_go(lab: Lab) -> None:
    for number in range(4):
        lab.copy(f"ml.c{number}", size=1 << 20, last_used=float(number))
    with process("os.chdir(copy); ready()", str(lab.at("ml.c0"))):
        result = lab.evict(3 << 20)
    assert [one["copy"] for one in result.removed] == ["ml.c1"] and result.blocked == ""


FILESYSTEMS = ["ext4", "xfs", "btrfs"]


def fill(path: Path, leave: float) -> None:
    """Fill the disk with what is no copy until only this fraction is free."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with open(path / "ballast", "wb") as stream:
            while True:
                os.fsync(stream.fileno())
                space = Space.of(fd)
                more = int(space.avail - leave * space.usable)
                if more < 4096:
                    return
                try:
                    os.posix_fallocate(stream.fileno(), stream.seek(0, 2), min(more, 16 << 20))
                except OSError:
                    return
    finally:
        os.close(fd)


@pytest.mark.parametrize("kind", FILESYSTEMS)
def test_a_nearly_full_disk_comes_back(small_disk: Any, tmp_path: Path, kind: str) -> None:
    disk = small_disk(kind, 1 << 30)
    lab = Lab(disk.path, tmp_path)
    size = 24 << 20
    for number in range(20):
        lab.copy(f"ml.c{number:02}", size=size, last_used=float(number))
    os.sync()
    fill(disk.path, 0.08)
    root = os.open(lab.path, os.O_RDONLY)
    try:
        began = time.monotonic()
        result = lab.evict(0)
        assert time.monotonic() - began < 30
        space = Space.of(root)
        assert space.free_fraction >= 0.15 and result.blocked == ""
        gone = [one["copy"] for one in result.removed]
        assert gone == [f"ml.c{number:02}" for number in range(len(gone))]
        assert (space.avail - size) / space.usable < 0.15, "one copy less would have done"
        assert all(one["reason"] == "full" for one in result.removed)
    finally:
        os.close(root)


@pytest.mark.parametrize("kind", FILESYSTEMS)
def test_a_disk_that_is_full_to_the_last_byte(small_disk: Any, kind: str) -> None:
    """The records of copies and events are on it, too."""
    disk = small_disk(kind, 320 << 20)
    lab = Lab(disk.path, disk.path / "host")
    names = [f"ml.c{number:02}" for number in range(20)]
    for number, name in enumerate(names):
        lab.copy(name, size=8 << 20, last_used=float(number))
    os.sync()
    fill(disk.path, 0.0)
    for size in (1 << 20, 1 << 12, 1):
        with contextlib.suppress(OSError), open(disk.path / f"last{size}", "wb", buffering=0) as stream:
            while stream.write(b"x" * size):
                pass
    root = os.open(lab.path, os.O_RDONLY)
    try:
        assert Space.of(root).free_fraction < 0.01
        result = lab.evict(0)
        space = Space.of(root)
    finally:
        os.close(root)
    gone = [one["copy"] for one in result.removed]
    assert result.blocked == "" and space.free_fraction >= 0.15
    assert gone == names[: len(gone)] and lab.names() == names[len(gone) :] and lab.trash() == []
    assert (space.avail - (10 << 20)) / space.usable < 0.15, "one copy less would have done"
    assert sorted(os.listdir(lab.places.copies_dir)) == [f"{name}.json" for name in lab.names()]
    assert all(copies.load_record(lab.places, name) is not None for name in lab.names())
    told = [event["object"] for event in events.read(lab.places)]
    assert told == [f"drive/ml/{name[3:]}" for name in gone][len(gone) - len(told) :], "none is told that did not go"


def test_few_inodes_are_pressure_too(small_disk: Any, tmp_path: Path) -> None:
    disk = small_disk("ext4")
    lab = Lab(disk.path, tmp_path)
    for number in range(4):
        path = lab.copy(f"ml.c{number}", size=1, last_used=float(number))
        for file in range(600):
            (path / f"f{file}").touch()
        record = lab.places.copies_dir + f"/ml.c{number}.json"
        Path(record).write_text(Path(record).read_text().replace('"inodes": 3', '"inodes": 603'))
    root = os.open(lab.path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="No space"):
            for file in range(10**6):
                (disk.path / f"x{file}").touch()
        for file in range(Space.of(root).files // 20):
            (disk.path / f"x{file}").unlink()
        result = lab.evict(0)
        assert Space.of(root).files_free_fraction >= 0.15
        assert [one["copy"] for one in result.removed] == ["ml.c0"]
    finally:
        os.close(root)


class Outrun(Lab):
    """A host on which a neighbor writes as much as becomes free, as soon as it does."""

    def __init__(self, disk: Path, home: Path) -> None:
        super().__init__(disk, home)
        self.writes = True
        self._ballast = disk / "neighbor"
        for number in range(4):
            self.copy(f"ml.c{number}", size=8 << 20, last_used=float(number))

    def evict(self, max_bytes: int = EVERYTHING, settings: Settings = NOW, **more: Any) -> eviction.Result:
        return super().evict(max_bytes, settings, step=self._step, **more)

    def _step(self, step: str, _copy: str) -> None:
        if step == "emptied" and self.writes:
            with open(self._ballast, "ab") as stream:
                os.posix_fallocate(stream.fileno(), stream.tell(), 8 << 20)
                os.fsync(stream.fileno())


@pytest.fixture
def outrun(disk: Path, tmp_path: Path) -> Outrun:
    """Four copies that do not help when they go."""
    return Outrun(disk, tmp_path)


def test_it_stops_when_removing_does_not_help(outrun: Outrun) -> None:
    limit = 28 << 20
    why = outrun.evict(limit).blocked
    assert outrun.names() == ["ml.c1", "ml.c2", "ml.c3"]
    assert why.startswith("stopped: the copies removed were to give back 8.4 MB") and "stowage evict --go-on" in why
    assert "one more copy is tried in 10 min" in why
    again = outrun.evict(16 << 20)
    assert outrun.names() == ["ml.c1", "ml.c2", "ml.c3"] and again.removed == [] and again.blocked == why
    shown = eviction.current_plan(outrun.places, outrun.limited(16 << 20), NOW)
    assert shown.victims == () and shown.blocked == why


def test_one_more_copy_is_tried_after_a_while_until_the_operator_is_asked(
    outrun: Outrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbor may have filled the disk as fast, and nothing tells that apart for sure."""
    monkeypatch.setattr(eviction_stop, "PAUSES_S", (0.0, 1000.0))
    assert "is tried in 0 s" in outrun.evict(28 << 20).blocked
    again = outrun.evict(2 << 20)
    assert [one["copy"] for one in again.removed] == ["ml.c1"], "one alone"
    assert "is tried in 16 min" in again.blocked and outrun.evict(2 << 20).removed == []
    monkeypatch.setattr(eviction_stop, "PAUSES_S", (0.0, 0.0))
    last = outrun.evict(2 << 20)
    assert [one["copy"] for one in last.removed] == ["ml.c2"] and "nothing more is evicted until" in last.blocked
    assert outrun.evict(2 << 20).removed == [] and outrun.names() == ["ml.c3"]


def test_a_try_that_helps_ends_the_stop(outrun: Outrun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction_stop, "PAUSES_S", (0.0, 1000.0))
    outrun.evict(28 << 20)
    outrun.writes = False
    result = outrun.evict(2 << 20)
    assert [one["copy"] for one in result.removed] == ["ml.c1", "ml.c2", "ml.c3"] and result.blocked == ""
    assert not eviction_stop.lift(outrun.places)


def test_a_stop_does_not_keep_the_copies_of_deleted_drives(outrun: Outrun) -> None:
    outrun.evict(28 << 20)
    outrun.declare("ml.c3", state="absent")
    result = outrun.evict(16 << 20)
    assert [one["copy"] for one in result.removed] == ["ml.c3"]
    assert outrun.names() == ["ml.c1", "ml.c2"] and result.blocked.startswith("stopped: ")


def test_it_goes_on_when_it_is_told_to(outrun: Outrun) -> None:
    outrun.evict(28 << 20)
    assert eviction_stop.lift(outrun.places)
    assert outrun.evict(16 << 20).removed
    assert outrun.names() != ["ml.c1", "ml.c2", "ml.c3"]


def test_it_goes_on_when_more_is_free(outrun: Outrun, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(disk / "ballast", "wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, 64 << 20)
        os.fsync(stream.fileno())
    outrun.evict(28 << 20)
    assert outrun.evict(16 << 20).removed == []
    (disk / "ballast").unlink()
    os.sync()
    root = os.open(disk, os.O_RDONLY)
    try:
        eviction._settled(root, 2**62)
    finally:
        os.close(root)
    assert outrun.evict(16 << 20).removed


def test_a_neighbor_that_writes_and_removes_does_not_hold_it_up(disk: Path) -> None:
    """Free space that goes up and down is no sign of more to come."""
    over = threading.Event()

    def write_and_remove() -> None:
        with open(disk / "neighbor", "wb") as stream:
            while not over.is_set():
                os.posix_fallocate(stream.fileno(), 0, 8 << 20)
                time.sleep(0.07)
                os.ftruncate(stream.fileno(), 0)
                os.fsync(stream.fileno())
                time.sleep(0.07)

    neighbor = threading.Thread(target=write_and_remove)
    root = os.open(disk, os.O_RDONLY)
    settled = threading.Thread(target=eviction._settled, args=(root, 2**62))
    neighbor.start()
    try:
        settled.start()
        settled.join(30)
        assert not settled.is_alive()
    finally:
        over.set()
        neighbor.join()
        settled.join()
        os.close(root)


# -- Only looking


def test_a_look_holds_each_lock_and_says_what_would_stay(pair: Lab) -> None:
    locked = []

    def watched(victims: Any, **more: Any) -> dict[str, list[str]]:
        locked.append([not is_free(pair, victim.name) for victim in victims])
        return use.in_use(victims, **more)

    victims = eviction.current_plan(pair.places, pair.limited(EVERYTHING), NOW).victims
    with process("os.chdir(copy); ready()", str(pair.at("ml.held"))):
        kept = eviction.look(pair.places, pair.location, victims, watched)
    assert list(kept) == ["ml.held"] and "working directory" in kept["ml.held"]
    assert locked == [[True, True]] and is_free(pair, "ml.held") and is_free(pair, "ml.other")
    assert pair.names() == ["ml.held", "ml.other"]


def test_a_look_does_not_wait_for_a_lock(pair: Lab) -> None:
    victims = eviction.current_plan(pair.places, pair.limited(EVERYTHING), NOW).victims
    with open(pair.path / ".stowage" / "locks" / "ml.held", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = eviction.look(pair.places, pair.location, victims)
    assert kept == {"ml.held": "its lock is held by another process"}


def test_a_look_at_many_needs_few_descriptors(lab: Lab) -> None:
    for number in range(150):
        lab.copy(f"ml.c{number}", size=2)
    victims = eviction.current_plan(lab.places, lab.limited(EVERYTHING), NOW).victims
    assert len(victims) == 150
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        assert eviction.look(lab.places, lab.location, victims) == {}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# -- Another filesystem, or none


def test_an_unmounted_data_location(small_disk: Any, tmp_path: Path) -> None:
    disk = small_disk("ext4")
    lab = Lab(disk.path, tmp_path)
    lab.copy("ml.a")
    disk.unmount()
    with pytest.raises(data_locations.NotThere, match="cannot be opened"):
        lab.evict()
    (disk.path / "stowage" / "drives" / "ml.a").mkdir(parents=True)
    with pytest.raises(data_locations.NotThere):
        lab.evict()
    assert (disk.path / "stowage" / "drives" / "ml.a").is_dir()
    (disk.path / "stowage" / "drives" / "ml.a").rmdir()
    (disk.path / "stowage" / "drives").rmdir()
    (disk.path / "stowage").rmdir()
    disk.mount()
    assert lab.names() == ["ml.a"]
    lab.evict()
    assert lab.names() == []


def test_another_filesystem_in_its_place(small_disk: Any, tmp_path: Path) -> None:
    disk, other = small_disk("ext4"), small_disk("ext4")
    lab = Lab(disk.path, tmp_path / "a")
    lab.copy("ml.a")
    stranger = Lab(other.path, tmp_path / "b")
    stranger.copy("ml.a")
    disk.unmount()
    other.mount(at=disk.path)
    with pytest.raises(data_locations.NotThere, match="is not mounted here"):
        lab.evict()
    assert stranger.names() == ["ml.a"]


def test_a_snapshot_in_its_place(small_disk: Any, tmp_path: Path) -> None:
    """A backup of the copies, mounted to look into it, is not the data location."""
    top = small_disk("btrfs")
    subprocess.run(["btrfs", "-q", "subvolume", "create", top.path / "a"], check=True)
    at = tmp_path / "at"
    at.mkdir()
    top.mount("subvol=a", at)
    lab = Lab(at, tmp_path)
    lab.copy("ml.a", last_used=1.0)
    subprocess.run(["btrfs", "-q", "subvolume", "snapshot", top.path / "a", top.path / "backup"], check=True)
    subprocess.run(["umount", at], check=True)
    top.mount("subvol=backup", at)
    try:
        for work in (lab.evict, lambda: eviction.recover(lab.places, lab.location, caches=True)):
            with pytest.raises(data_locations.NotThere, match="its owner mark is another directory's"):
                work()
        assert lab.names() == ["ml.a"]
    finally:
        subprocess.run(["umount", at], check=True)
    top.mount("subvol=a", at)
    try:
        lab.evict()
        assert lab.names() == [] and os.listdir(top.path / "backup" / "stowage" / "drives") == ["ml.a"]
    finally:
        subprocess.run(["umount", at], check=True)


PARTS = [
    "drives",
    ".stowage",
    ".stowage/locks",
    ".stowage-trash",
    *(f".stowage-trash/{p}" for p in ("pending", "condemned")),
]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("uid", "mode"), [(0, 0o755), (0, 0o710), (0, 0o777), (4242, 0o700)])
def test_parts_that_others_can_enter(pair: Lab, part: str, uid: int, mode: int) -> None:
    (pair.path / part).chmod(mode)
    os.chown(pair.path / part, uid, 0)
    for work in (pair.evict, lambda: eviction.recover(pair.places, pair.location, caches=True)):
        with pytest.raises(errors.Refusal, match=f"{part}: must be root's alone"):
            work()
    assert pair.names() == ["ml.held", "ml.other"] and pair.trash() == []
    (pair.path / part).chmod(0o700)
    os.chown(pair.path / part, 0, 0)
    pair.evict()
    assert pair.names() == []


def test_a_missing_mark(pair: Lab) -> None:
    os.removexattr(pair.path, "trusted.stowage.owner")
    with pytest.raises(data_locations.NotThere, match="no owner mark"):
        pair.evict()
    with pytest.raises(data_locations.NotThere, match="no owner mark"):
        eviction.recover(pair.places, pair.location, caches=True)
    assert len(pair.names()) == 2


def test_a_filesystem_mounted_over_it_meanwhile(pair: Lab) -> None:
    """The round that has begun goes on with what it holds open; the next one finds that the location is gone."""
    drives = pair.path / "drives"
    subprocess.run(["mount", "-t", "tmpfs", "none", pair.path], check=True)
    try:
        with pytest.raises(data_locations.NotThere):
            pair.evict()
    finally:
        subprocess.run(["umount", pair.path], check=True)
    assert sorted(os.listdir(drives)) == ["ml.held", "ml.other"]


def test_the_disk_can_be_unmounted_afterwards(small_disk: Any, tmp_path: Path) -> None:
    disk = small_disk("ext4")
    lab = Lab(disk.path, tmp_path)
    lab.copy("ml.a")
    lab.evict()
    disk.unmount()
    disk.mount()


def test_an_unreadable_pin_stops_everything(pair: Lab) -> None:
    pin = take_pin(pair)
    Path(pin.record_path(pair.places)).write_text("{")
    with pytest.raises(errors.StowageError, match="not valid JSON"):
        pair.evict()
    assert len(pair.names()) == 2
    Path(pin.record_path(pair.places)).unlink()
    assert pinning.release(pair.places, pin.run, pin.number)


def test_events_that_cannot_be_recorded_do_not_block(pair: Lab) -> None:
    os.makedirs(pair.places.events)
    said: list[Any] = []
    pair.evict(report=said.append)
    assert pair.names() == [] and any(one.get("step") == "not recorded" for one in said)


def test_defaults_are_those_of_the_specification() -> None:
    assert Settings() == Settings(0.10, 0.15, 600, 600)
    assert EVERYTHING == 1
