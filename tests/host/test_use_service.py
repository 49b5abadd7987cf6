# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The look by the service: what it may, and what comes of it when it is missing, dies, hangs or is left alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from copies_lab import Lab, process
from daemon_lab import Daemon, wait_for
from use_lab import Service, as_who_looks

from stowage_core import mounts
from stowage_core.use.look import InUse, Subject
from stowaged import use_service

MIB = 1 << 20


@pytest.fixture
def copies(disk: Path) -> Iterator[Callable[[int], list[Subject]]]:
    """A factory of copies with a file each, as subjects."""
    with ExitStack() as stack:

        def make(count: int) -> list[Subject]:
            def opened(path: Path) -> int:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, fd)
                return fd

            names = [f"ml.c{number}" for number in range(count)]
            for name in names:
                (disk / "drives" / name).mkdir(parents=True)
                (disk / "drives" / name / "file").touch()
            drives, table = opened(disk / "drives"), mounts.read()
            return [Subject.of(name, opened(disk / "drives" / name), drives, table) for name in names]

        yield make


@pytest.fixture
def served(program: Path, tmp_path: Path) -> Iterator[Service]:
    service = Service.of(program, tmp_path / "use")
    yield service
    service.close()


@pytest.fixture
def answered_by(tmp_path: Path) -> Iterator[Callable[[str], InUse]]:
    """A factory of services that run some Python code instead."""
    started: list[Service] = []

    def make(code: str) -> InUse:
        started.append(Service(tmp_path / "use", [sys.executable, "-c", code]))
        return use_service.asking(str(started[0].path))

    yield make
    for service in started:
        service.close()


CHANGES = """
import os, sys
copy = sys.argv[1]
assert sorted(os.listdir(copy + "/private")) == ["empty", "file"] and open(copy + "/private/file").read() == "secret"
tries = {
    "unlink": lambda path: os.unlink(path),
    "rmdir": lambda path: os.rmdir(os.path.dirname(path) + "/empty"),
    "rename": lambda path: os.rename(path, path + "2"),
    "truncate": lambda path: os.truncate(path, 0),
    "write": lambda path: open(path, "r+"),
    "make": lambda path: open(path + "3", "x"),
    "link": lambda path: os.link(path, path + "4"),
    "chmod": lambda path: os.chmod(path, 0o777),
    "chown": lambda path: os.chown(path, os.getuid(), -1),
    "setxattr": lambda path: os.setxattr(path, "user.x", b"x"),
    "utime": lambda path: os.utime(path, (0, 0)),
}
for owner in ("private", "others"):
    for name, do in tries.items():
        try:
            do(f"{copy}/{owner}/file")
        except PermissionError:
            continue
        sys.exit(f"{name} in {owner} is allowed")
for path, flags in (("/etc/passwd", os.O_RDWR), (f"/proc/{os.getppid()}/mem", os.O_RDWR)):
    try:
        os.open(path, flags)
    except PermissionError:
        continue
    sys.exit(f"{path} can be opened for writing")
"""


def test_it_can_read_everything_and_change_nothing(disk: Path) -> None:
    """By its user and capabilities alone: the filter of system calls is the service manager's."""
    for name, uid in (("private", 0), ("others", 1000)):
        (disk / name / "empty").mkdir(parents=True)
        (disk / name / "file").write_text("secret")
        for path in (disk / name, disk / name / "empty", disk / name / "file"):
            os.chown(path, uid, uid)
        (disk / name / "file").chmod(0o600)
        (disk / name).chmod(0o700)
    program = [*as_who_looks(), sys.executable, "-I", "-c", CHANGES, str(disk)]
    done = subprocess.run(program, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_as_many_copies_as_anybody_asks_for(copies: Callable[[int], list[Subject]], served: Service) -> None:
    """More than can come with one message."""
    subjects = copies(300)
    found = use_service.asking(str(served.path))(subjects)
    assert found == {subject.name: [] for subject in subjects}
    with process("os.chdir(copy); ready()", subjects[299].paths[0]):
        found = use_service.asking(str(served.path))(subjects)
    assert [name for name, texts in found.items() if texts] == ["ml.c299"]


def test_more_copies_than_it_can_hold(copies: Callable[[int], list[Subject]], tmp_path: Path, program: Path) -> None:
    subjects = copies(300)
    limited = f"ulimit -n 64; exec {sys.executable} -I {program} use"
    service = Service(tmp_path / "use", ["sh", "-c", limited])
    try:
        found = use_service.asking(str(service.path))(subjects)
    finally:
        service.close()
    for texts in found.values():
        (text,) = texts
        assert text.startswith("could not be determined: only ") and text.endswith("; raise LimitNOFILE=")


def test_without_the_service_every_copy_is_in_use(copies: Callable[[int], list[Subject]], tmp_path: Path) -> None:
    look = use_service.asking(str(tmp_path / "use"))
    why = f"could not be determined: {tmp_path}/use: {{}}; systemctl restart stowage-use.socket"
    assert look(copies(2)) == dict.fromkeys(("ml.c0", "ml.c1"), [why.format("No such file or directory")])
    assert look([]) == {}


def test_a_socket_on_which_nobody_listens(copies: Callable[[int], list[Subject]], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "use"))
        (text,) = use_service.asking(str(tmp_path / "use"))(copies(1))["ml.c0"]
    assert text.endswith("/use: Connection refused; systemctl restart stowage-use.socket")


DEATHS = {
    "at once": "pass",
    "after the request": "import os\nheard = b''\nwhile heard[-2:] != b'\\n\\n':\n    heard += os.read(0, 65536)",
    "in the middle of the answer": "import os\nos.read(0, 65536); os.write(0, b'..{\"ans')",
    "after another answer": "import os\nos.read(0, 65536); os.write(0, b'\\xff\\n')",
}


@pytest.mark.parametrize("when", DEATHS)
def test_a_service_that_dies(
    copies: Callable[[int], list[Subject]], answered_by: Callable[[str], InUse], when: str
) -> None:
    for texts in answered_by(DEATHS[when])(copies(2)).values():
        (text,) = texts
        assert text.startswith("could not be determined: ") and text.endswith("; see journalctl -u 'stowage-use*'")


def test_an_answer_about_other_copies(
    copies: Callable[[int], list[Subject]], answered_by: Callable[[str], InUse]
) -> None:
    answer = '{"answer": {"ml.c0": []}}\n'
    found = answered_by(f"import os, time\nos.read(0, 65536); os.write(0, {answer!r}.encode()); time.sleep(1)")(
        copies(2)
    )
    assert all("the answer is not about the copies" in texts[0] for texts in found.values())


def test_a_service_that_hangs_and_one_that_goes_on(
    copies: Callable[[int], list[Subject]], answered_by: Callable[[str], InUse]
) -> None:
    code = """
import os, time
os.read(0, 65536)
for step in range(10):
    os.write(0, b".")
    time.sleep(0.25)
time.sleep(60)
"""
    heard: list[str] = []
    began = time.monotonic()
    found = answered_by(code)(copies(1), 1.0, lambda: heard.append("alive"))
    assert found == {
        "ml.c0": ["could not be determined: no answer within 1 s; see journalctl -u 'stowage-use*'"],
    }
    assert 3.0 < time.monotonic() - began < 6.0, "as long as there is progress it may go on"
    assert len(heard) >= 2, "whoever waits is told that all is well"


def ask_and_leave(path: Path, subjects: list[Subject]) -> int:
    """Ask in a child, which can be killed."""
    pid = os.fork()
    if pid == 0:
        try:
            use_service.asking(str(path))(subjects)
        finally:
            os._exit(0)
    return pid


def test_it_ends_when_the_asker_is_gone_even_when_it_is_stuck(
    copies: Callable[[int], list[Subject]], program: Path, tmp_path: Path
) -> None:
    stuck = f"""
import sys, time
sys.argv[1:] = ["use"]
sys.path.insert(0, {str(program)!r})
from stowaged import use_service
use_service.use.look = lambda *anything: time.sleep(600)
use_service.main()
"""
    service = Service(tmp_path / "use", [sys.executable, "-I", "-c", stuck])
    try:
        pid = ask_and_leave(service.path, copies(1))
        (looks,) = wait_for(service.looks)
        time.sleep(2.5)
        assert service.looks() == [looks], "it goes on while the asker waits"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        began = time.monotonic()
        wait_for(lambda: not service.looks(), 5)
        assert time.monotonic() - began < 3
    finally:
        service.close()


def test_what_is_asked_from_a_terminal(program: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(program), "use"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "stowage use: standard input: Socket operation on non-socket; stowage-use.socket starts it when it is needed\n"
    )


def test_the_daemon_keeps_every_copy_without_the_service_and_says_what_to_do(
    small_disk: Callable[..., object], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    lab = Lab(small_disk("ext4", 64 * MIB).path, tmp_path)  # type: ignore[attr-defined]
    lab.copy("ml.cache", MIB)
    lab.location = lab.limited(1)
    daemon = start(lab, evict="on")
    daemon.service.path.rename(tmp_path / "aside")
    daemon.start()
    wait_for(lambda: "ml.cache: stays: " in daemon.logged())
    assert "use: No such file or directory; systemctl restart stowage-use.socket\n" in daemon.logged()
    daemon.cycle()
    assert lab.names() == ["ml.cache"] and lab.trash() == []
    (tmp_path / "aside").rename(daemon.service.path)
    daemon.stop()
    daemon.start()
    wait_for(lambda: lab.names() == [])
