# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What counts as use, directory by directory, and what does not."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from copies_lab import process

from stowage_core import mounts
from stowage_core.eviction import write_leases
from stowage_core.use import child as use_child
from stowage_core.use import look as use
from stowage_core.use.look import InUse, Subject


@pytest.fixture
def drives(disk: Path) -> Path:
    for name in ("ml.a", "ml.b"):
        (disk / "drives" / name / "data").mkdir(parents=True)
        (disk / "drives" / name / "data" / "file").write_text(name)
    return disk / "drives"


@pytest.fixture
def subjects(drives: Path) -> Iterator[list[Subject]]:
    with ExitStack() as stack:

        def opened(path: Path) -> int:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, fd)
            return fd

        parent = opened(drives)
        yield [Subject.of(name, opened(drives / name), parent, mounts.read()) for name in ("ml.a", "ml.b")]


def test_this_host_can_be_looked_at_as_a_whole(in_use: InUse, subjects: list[Subject]) -> None:
    """Where one process may not be looked at, nothing is ever proven unused: run these tests in a PID namespace."""
    assert in_use(subjects) == {"ml.a": [], "ml.b": []}


def test_one_look_for_all_tells_them_apart(in_use: InUse, drives: Path, subjects: list[Subject]) -> None:
    with process("os.chdir(copy); ready()", str(drives / "ml.b" / "data")) as holder:
        (text,) = in_use(subjects)["ml.b"]
        assert text.startswith(f"process {holder.pid} (python") and str(drives / "ml.b" / "data") in text
        assert in_use(subjects)["ml.a"] == []


def test_a_name_of_any_bytes_stays_one_line(in_use: InUse, drives: Path, subjects: list[Subject]) -> None:
    name = os.fsencode(drives) + b"/ml.a/\xff\n\x1b"
    os.mkdir(name)
    with process("os.chdir(os.fsencode(copy)); ready()", os.fsdecode(name)):
        (text,) = in_use(subjects)["ml.a"]
    assert text.isprintable() and text.endswith("\\xff\\n\\x1b")


def test_open_files_elsewhere_on_the_disk_are_no_use(in_use: InUse, disk: Path, subjects: list[Subject]) -> None:
    (disk / "other").mkdir()
    with process("os.chdir(copy); file = open('x', 'w'); ready()", str(disk / "other")):
        assert in_use(subjects) == {"ml.a": [], "ml.b": []}


def test_a_bind_mount_of_the_whole_disk_is_no_use(
    in_use: InUse, disk: Path, subjects: list[Subject], tmp_path: Path
) -> None:
    point = tmp_path / "point"
    point.mkdir()
    subprocess.run(["mount", "--bind", disk, point], check=True)
    try:
        assert in_use(subjects) == {"ml.a": [], "ml.b": []}
    finally:
        subprocess.run(["umount", point], check=True)


def test_another_subvolume_with_the_same_inode_numbers(in_use: InUse, small_disk: object, tmp_path: Path) -> None:
    assert callable(small_disk)
    disk = small_disk("btrfs")
    drives = disk.path / "drives"
    for parent in (drives / "ml.a", disk.path / "other"):
        parent.mkdir(parents=True)
        subprocess.run(["btrfs", "-q", "subvolume", "create", parent / "sub"], check=True)
        (parent / "sub" / "file").touch()
    numbers = [os.stat(parent / "sub" / "file").st_ino for parent in (drives / "ml.a", disk.path / "other")]
    assert numbers[0] == numbers[1]
    fds = [os.open(path, os.O_RDONLY) for path in (drives, drives / "ml.a")]
    try:
        subject = Subject.of("ml.a", fds[1], fds[0], mounts.read())
        with process("file = open(copy); ready()", str(disk.path / "other" / "sub" / "file")):
            assert in_use([subject])["ml.a"] == []
        for code in ("file = open(copy); ready()", "os.chdir(os.path.dirname(copy)); ready()"):
            with process(code, str(drives / "ml.a" / "sub" / "file")):
                assert len(in_use([subject])["ml.a"]) == 1
        with process(
            "import mmap; f = open(copy, 'r+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 0); ready()",
            str(drives / "ml.a" / "sub" / "file"),
        ):
            assert in_use([subject])["ml.a"]
            assert "write lease" in write_leases.open_file(fds[1])
    finally:
        for fd in fds:
            os.close(fd)


def test_a_disk_mounted_by_a_subvolume(in_use: InUse, small_disk: object, tmp_path: Path) -> None:
    assert callable(small_disk)
    disk = small_disk("btrfs")
    subprocess.run(["btrfs", "-q", "subvolume", "create", disk.path / "top"], check=True)
    (disk.path / "top" / "drives" / "ml.a").mkdir(parents=True)
    (tmp_path / "at").mkdir()
    disk.mount("subvol=top", at=tmp_path / "at")
    fds = [os.open(tmp_path / "at" / "drives" / name, os.O_RDONLY) for name in (".", "ml.a")]
    try:
        subject = Subject.of("ml.a", fds[1], fds[0], mounts.read())
        assert subject.place == "/top/drives/ml.a"
        with process("os.chdir(copy); ready()", str(disk.path / "top" / "drives" / "ml.a")):
            assert in_use([subject])["ml.a"]
        (tmp_path / "bound").mkdir()
        subprocess.run(["mount", "--bind", disk.path / "top" / "drives" / "ml.a", tmp_path / "bound"], check=True)
        try:
            assert f"mounted at {tmp_path}/bound" in in_use([subject])["ml.a"][0]
        finally:
            subprocess.run(["umount", tmp_path / "bound"], check=True)
    finally:
        for fd in fds:
            os.close(fd)
        subprocess.run(["umount", tmp_path / "at"], check=True)


def test_own_descriptors_are_no_use_but_those_of_others_are(
    in_use: InUse, drives: Path, subjects: list[Subject]
) -> None:
    assert in_use(subjects)["ml.a"] == []
    fd = os.open(drives / "ml.a", os.O_RDONLY)
    try:
        assert in_use(subjects)["ml.a"], "not one of those that were named"
    finally:
        os.close(fd)


def test_late_and_failing_looks_are_use(subjects: list[Subject], monkeypatch: pytest.MonkeyPatch) -> None:
    assert use.in_use(subjects, 0.0)["ml.a"] == ["could not be determined: no answer within 0 s"]

    def fails() -> list[str]:
        raise RuntimeError("broken")

    monkeypatch.setattr(use, "exported", fails)
    assert use.in_use(subjects)["ml.b"] == ["could not be determined: RuntimeError: broken"]
    monkeypatch.setattr(use, "exported", lambda: os._exit(3))
    assert use.in_use(subjects)["ml.b"] == ["could not be determined: the process that looked died"]


def test_whoever_waits_for_a_look_is_heard(subjects: list[Subject], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use, "exported", lambda: time.sleep(60))
    heard: list[str] = []
    use.in_use(subjects, 2.5, lambda: heard.append("alive"))
    assert heard[:2] == ["alive", "alive"]


def test_a_look_may_take_long_as_long_as_it_goes_on() -> None:
    def busy() -> str:
        for _step in range(10):
            time.sleep(0.25)
            use_child.progress()
        return "done"

    heard: list[int] = []
    assert use_child.answer_of(busy, 1.0, lambda: heard.append(1)) == "done"
    assert heard, "whoever waits is told that all is well, progress or not"

    def stuck() -> None:
        use_child.progress()
        time.sleep(60)

    with pytest.raises(use_child.NoAnswerError, match=r"no answer within 0\.5 s"):
        use_child.answer_of(stuck, 0.5)


def test_a_path_that_does_not_answer_holds_up_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped helper stands for one that waits for a dead server."""
    answers: dict[str, object] = {}
    resolver = use_child.Resolver()
    resolver.ask("/", lambda identity, number: answers.update(first=identity))
    (pid,) = resolver.pids
    os.kill(pid, 19)
    resolver.ask("/", lambda identity, number: answers.update(stopped=(identity, number)))
    resolver.ask("/etc", lambda identity, number: answers.update(second=identity))
    resolver.ask("/none", lambda identity, number: answers.update(missing=(identity, number)))
    resolver.finish(0.1)
    for pid in resolver.pids:
        os.waitpid(pid, 0)
    assert answers["first"] and answers["second"]
    assert answers["stopped"] == (None, 0) and answers["missing"] == (None, 2)


def test_a_file_leased_by_its_worker_is_open(drives: Path, subjects: list[Subject]) -> None:
    assert write_leases.open_file(subjects[0].fd) == ""
    os.mkfifo(drives / "ml.a" / "fifo")
    (drives / "ml.a" / "link").symlink_to("/dev/zero")
    os.mknod(drives / "ml.a" / "device", 0o20600, os.makedev(1, 3))
    assert write_leases.open_file(subjects[0].fd) == "", "only regular files are opened"
    with open(drives / "ml.a" / "data" / "file"):
        assert "data/file is open somewhere" in write_leases.open_file(subjects[0].fd)
    assert write_leases.open_file(subjects[1].fd) == ""
    assert "no answer" in write_leases.open_file(subjects[1].fd, 0.0)


LEASED = """
import fcntl, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
here, there = socket.socketpair()
fd = os.open(copy, os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
socket.send_fds(here, [b"x"], [fd])
os.close(fd)
ready()
"""


def test_a_lease_of_somebody_else_is_not_waited_for(drives: Path, subjects: list[Subject]) -> None:
    with process(LEASED, str(drives / "ml.a" / "data" / "file")):
        assert "another lease is held" in write_leases.open_file(subjects[0].fd, 5)


def test_a_file_opened_through_a_link_outside(in_use: InUse, disk: Path, drives: Path, subjects: list[Subject]) -> None:
    os.link(drives / "ml.a" / "data" / "file", disk / "link")
    with process("file = open(copy); ready()", str(disk / "link")):
        assert in_use(subjects)["ml.a"] and write_leases.open_file(subjects[0].fd)


OVERLAY = """
own_namespace()
mount("none", "/media", "tmpfs", 0)
for name in ("alias", "upper", "work", "at"):
    os.mkdir("/media/" + name)
"""
LAYER_OF_A_DETACHED_MOUNT = """
layer = check(libc.syscall(428, -100, copy.encode(), 1 | 0o2000000))  # open_tree, OPEN_TREE_CLONE
overlay = check(libc.syscall(430, b"overlay", 1))  # fsopen
for key, fd in (("lowerdir+", layer), ("upperdir", os.open("/media/upper", os.O_PATH)),
                ("workdir", os.open("/media/work", os.O_PATH))):
    check(libc.syscall(431, overlay, 5, key.encode(), None, fd))  # fsconfig, FSCONFIG_SET_FD
    if fd != layer:
        os.close(fd)
check(libc.syscall(431, overlay, 6, None, None, 0))
tree = check(libc.syscall(432, overlay, 1, 0))  # fsmount
check(libc.syscall(429, tree, b"", -100, b"/media/at", 4))  # move_mount
for fd in (layer, overlay, tree):
    os.close(fd)
assert os.listdir("/media/at") == ["data"]
ready()
"""
SEND = """
def send(link, *paths, flags=os.O_RDONLY):
    fds = [os.open(path, flags) for path in paths]
    socket.send_fds(link, [b"x"], fds)
    for fd in fds:
        os.close(fd)
here, there = socket.socketpair()
"""
HOLDS = {
    "a directory in flight": (SEND + "send(here, copy + '/data'); ready()", "has in flight, to its descriptor", False),
    "a path descriptor of a file in flight": (
        SEND + "send(here, copy + '/data/file', flags=os.O_PATH); ready()",
        "has in flight, to its descriptor",
        False,
    ),
    "one of many in flight, in a socket in flight": (
        SEND
        + """
inner, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
send(inner, "/etc", "/", copy + "/data", "/dev/null")
socket.send_fds(here, [b"x"], [other.fileno()])
inner.close(); other.close()
ready()
""",
        "has in flight, to its descriptor",
        False,
    ),
    "in the second message in flight": (
        SEND + "send(here, '/etc'); send(here, copy + '/data'); ready()",
        "could not be determined: 2 descriptors are in flight to descriptor",
        True,
    ),
    "in flight to a connection that nobody has accepted": (
        SEND
        + """
server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
server.bind("\\0stowage-test-" + str(os.getpid()))
server.listen()
client.connect(server.getsockname())
send(client, copy + "/data")
client.close()
ready()
""",
        "could not be determined: 1 descriptors are in flight to descriptor",
        True,
    ),
    "below a detached mount": (
        """
own_namespace()
mount("none", "/media", "tmpfs", 0)
os.mkdir("/media/here")
mount(copy, "/media/here", "", 4096)
fd = check(libc.syscall(428, -100, b"/media", 1 | 0o2000000 | 0x8000))  # open_tree, OPEN_TREE_CLONE, AT_RECURSIVE
check(libc.umount2(b"/media/here", 2))
check(libc.umount2(b"/media", 2))
assert os.listdir(f"/proc/self/fd/{fd}/here") == ["data"]
ready()
""",
        "which is on a mount that is attached nowhere: what is mounted below it cannot be seen",
        True,
    ),
    "an overlay over what was mounted in the place of its layer": (
        OVERLAY
        + """
mount(copy, "/media/alias", "", 4096)
mount("overlay", "/media/at", "overlay", 0, "lowerdir=/media/alias,upperdir=/media/upper,workdir=/media/work")
check(libc.umount2(b"/media/alias", 0))
assert os.listdir("/media/at") == ["data"]
ready()
""",
        "shows data, which is in none of the layers that its paths lead to now",
        True,
    ),
    "an overlay over a directory of a detached mount": (
        OVERLAY + LAYER_OF_A_DETACHED_MOUNT,
        "has the layer /, which is what the kernel shows for a directory that was mounted nowhere",
        True,
    ),
}


@pytest.mark.parametrize("name", HOLDS)
def test_what_neither_a_table_nor_a_descriptor_shows(
    in_use: InUse, drives: Path, subjects: list[Subject], name: str
) -> None:
    code, why, blocks_others = HOLDS[name]
    with process(code, str(drives / "ml.a")) as holder:
        found = in_use(subjects)
        assert why in found["ml.a"][0], found
        assert str(holder.pid) in found["ml.a"][0]
        assert bool(found["ml.b"]) is blocks_others, found
    assert in_use(subjects) == {"ml.a": [], "ml.b": []}


def test_an_overlay_without_proof_blocks_what_it_may_show(in_use: InUse, drives: Path, subjects: list[Subject]) -> None:
    """Its layer may be any directory that has a name which it shows, and no other."""
    (drives / "ml.b" / "data").rename(drives / "ml.b" / "weights")
    (drives / "ml.b" / "weights" / "file").rename(drives / "ml.b" / "weights" / "model")
    code, why, _blocks = HOLDS["an overlay over what was mounted in the place of its layer"]
    with process(code, str(drives / "ml.a")):
        found = in_use(subjects)
        assert why in found["ml.a"][0] and found["ml.b"] == []


ELSEWHERE = {
    "another namespace in flight": SEND + "send(here, '/proc/self/ns/ipc'); ready()",
    "a file of another disk in flight": SEND + "send(here, '/etc/passwd'); ready()",
    "memory named as a copy": "fd = os.memfd_create('/ml.a/'); ready()",
    "large pages named as a copy": "fd = os.memfd_create('/ml.a/', os.MFD_HUGETLB); ready()",
    "a carriage return in a mount point": (
        """
own_namespace()
mount("none", "/media", "tmpfs", 0)
os.mkdir("/media/a\\rb")
mount("none", "/media/a\\rb", "tmpfs", 0)
ready()
"""
    ),
    "a carriage return in the name of a mapped file": (
        """
with open(os.path.dirname(os.path.dirname(copy)) + "/x\\ry", "w+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
ready()
"""
    ),
    "an overlay that is written to": (
        OVERLAY
        + """
os.mkdir("/media/alias/data")
open("/media/alias/gone", "x").close()
mount("overlay", "/media/at", "overlay", 0, "lowerdir=/media/alias,upperdir=/media/upper,workdir=/media/work")
os.unlink("/media/at/gone")
open("/media/at/data/file", "x").close()
os.mkdir("/media/at/new")
ready()
"""
    ),
    "an overlay with relative layers, as container engines mount it": (
        OVERLAY
        + """
os.makedirs("/media/engine/l/ABC/usr")
os.makedirs("/media/engine/1/merged")
os.chdir("/media/engine")
mount("overlay", "1/merged", "overlay", 0, "lowerdir=l/ABC,upperdir=/media/upper,workdir=/media/work")
os.chdir("/")
ready()
"""
    ),
}


# FUSE: to whoever is not the user that mounted it, it refuses even to say what a directory is.
ELSEWHERE["a directory that is served to one user alone"] = """
import struct
own_namespace()
link = os.open("/dev/fuse", os.O_RDWR)
mount("none", "/media", "fuse", 0, f"fd={link},rootmode=40000,user_id=0,group_id=0")
def serve():
    while True:
        request = os.read(link, 1 << 20)
        kind, unique = struct.unpack_from("=4xIQ", request)
        answers = {
            26: struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0),  # FUSE_INIT
            3: struct.pack("=16xQ40x12xII20x", 1, 0o40700, 2),  # FUSE_GETATTR
        }
        data = answers.get(kind, b"")
        os.write(link, struct.pack("=IiQ", 16 + len(data), 0 if data else -38, unique) + data)
threading.Thread(target=serve, daemon=True).start()
os.chdir("/media")
assert os.stat(".").st_ino == 1
ready()
"""


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_no_use(in_use: InUse, drives: Path, subjects: list[Subject], name: str) -> None:
    with process(ELSEWHERE[name], str(drives / "ml.a")):
        assert in_use(subjects) == {"ml.a": [], "ml.b": []}


CHAIN = """
import signal
check(libc.prctl(36, 1))  # PR_SET_CHILD_SUBREAPER: those that end go at once, whatever the init of this host is
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.chdir(copy)
if os.fork() == 0:
    end = time.monotonic() + 300
    while not os.path.exists(sys.argv[2]) and time.monotonic() < end:
        if os.fork():
            os._exit(0)
        until = time.monotonic() + {life_s}
        while time.monotonic() < until:
            pass
    open(sys.argv[2] + "ped", "x").close()
    os._exit(0)
os.chdir("/")
ready()
"""


@pytest.mark.parametrize("life_s", [0.0, 0.001, 0.005, 0.014])
def test_processes_that_hand_over_to_each_other(
    in_use: InUse, drives: Path, subjects: list[Subject], tmp_path: Path, life_s: float
) -> None:
    """Each lives for less time than a look takes, and has forked the next one when it ends."""
    stop, stopped = tmp_path / "stop", tmp_path / "stopped"
    with process(CHAIN.format(life_s=life_s), str(drives / "ml.a"), str(stop)):
        try:
            looks = [in_use(subjects) for _one in range(6)]
            assert not stopped.exists()
        finally:
            stop.touch()
            while not stopped.exists():
                time.sleep(0.01)
    assert all(look["ml.a"] for look in looks), looks


def test_a_host_on_which_processes_come_and_go(in_use: InUse, subjects: list[Subject], tmp_path: Path) -> None:
    code = "ready_now = print('ready', flush=True)\nwhile True:\n    subprocess.run(['true'])\n    time.sleep(0.002)"
    with process(code), process(code):
        assert [in_use(subjects) for _one in range(5)] == [{"ml.a": [], "ml.b": []}] * 5
