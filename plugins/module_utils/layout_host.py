# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directories of a storage layout on a host: where a path leads, who may use it, and how one is made."""

from __future__ import annotations

import errno
import grp
import json
import os
import pwd
import select
import signal
import stat
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Callable, NoReturn

from . import mounts as mount_table
from .errors import Refusal, StowageError, printable
from .layout import NAMES, Layout, check_apart
from .mounts import FilesystemId, Mount
from .paths import check_path, is_within

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATIENCE = 20.0
_PERMISSIONS = ((os.R_OK, "read"), (os.W_OK, "write"), (os.X_OK, "enter"))
_READ_AND_ENTER = os.R_OK | os.X_OK
_ALL = os.R_OK | os.W_OK | os.X_OK


@dataclass(frozen=True)
class Place:
    """Where an absolute path leads: *real* has no symlinks, and *existing* is as much of it as there is."""

    path: str
    real: str
    existing: str
    mount: Mount
    filesystem: FilesystemId

    @property
    def exists(self) -> bool:
        return self.real == self.existing


def find(path: str, name: str, table: Sequence[Mount]) -> Place:
    """Follow *path* component by component, symlinks included.

    :raises Refusal: when something on the way is no directory, or lies where everybody may put something else instead
    """
    parts = deque(path.strip("/").split("/"))
    links = 0
    here = "/"
    fd = os.open("/", _STEP)
    try:
        while parts:
            part = parts.popleft()
            _check_kept(os.fstat(fd), here, part, name)
            try:
                entry = os.stat(part, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                parts.appendleft(part)
                break
            if stat.S_ISLNK(entry.st_mode):
                links += 1
                if links > 40:
                    raise Refusal(name, f"{path} has too many levels of symbolic links", "name the directory itself")
                target = os.readlink(part, dir_fd=fd)
                parts.extendleft(reversed([step for step in target.split("/") if step not in ("", ".")]))
                if target.startswith("/"):
                    here, fd = "/", _instead(fd, os.open("/", _STEP))
                continue
            if part == "..":
                here = os.path.dirname(here)
                fd = _instead(fd, os.open(here, _STEP))
                continue
            there = os.path.join(here, part)
            if not stat.S_ISDIR(entry.st_mode):
                raise Refusal(name, f"{there} is not a directory", "name a directory")
            here, fd = there, _instead(fd, os.open(part, _STEP, dir_fd=fd))
        real = os.path.normpath(os.path.join(here, *parts))
        return Place(path, real, here, mount_table.of_fd(fd, table), _identify(fd, table))
    finally:
        os.close(fd)


def find_all(layout: Layout, table: Sequence[Mount]) -> dict[str, Place]:
    """Return where every path of *layout* leads, by name.

    :raises Refusal: when one that must exist does not, when symlinks make two of them overlap, or when a default is one
    """
    named = layout.named()
    check_answers(list(named.items()))
    places = {name: find(path, name, table) for name, path in named.items()}
    for name in (*NAMES, "volume_root"):
        if (name in layout.overridden or name == "volume_root") and name in places and not places[name].exists:
            rule = f"{named[name]} does not exist, and an explicit path is never made"
            raise Refusal(name, rule, "make or mount it first")
    check_apart(layout, {place.path: place.real for place in places.values()}.__getitem__)
    for name in layout.defaults:
        parent = places[layout.parent(name)]
        if places[name].real != parent.real + named[name][len(parent.path) :]:
            raise Refusal(
                name,
                f"{named[name]} leads to {places[name].real} through a symbolic link",
                "name that directory as its override",
            )
    return places


@dataclass(frozen=True)
class MountRule:
    """What a location asks of the mount that it lies on: an existing empty directory proves no mount."""

    required: bool = False
    point: str | None = None

    @classmethod
    def of(cls, name: str, required: bool, point: str | None) -> MountRule:
        checked = check_path(point, f"{name}: mount_point") if point else None
        return cls(required or checked is not None, checked)

    def check(self, name: str, place: Place) -> None:
        mounted = place.mount.point
        if self.point is not None and mounted != self.point:
            rule = f"{place.path} is on the mount at {mounted}, and not at {self.point}"
            raise Refusal(name, rule, "mount its disk, or correct mount_point")
        if self.required and mounted == "/":
            raise Refusal(name, f"{place.path} is on the root filesystem, nothing is mounted there", "mount its disk")


def check_same_filesystem(name: str, place: Place, former: Mapping[str, Any]) -> None:
    """Refuse a location whose disk seems to have gone since its *former* record was written."""
    if former["path"] != place.path or former["mount_point"] == "/":
        return
    recorded = FilesystemId.from_json(former["filesystem"])
    if not recorded.matches(place.filesystem):
        raise Refusal(
            name,
            f"{place.path} was on {_named(recorded)} mounted at {former['mount_point']}, "
            f"and is now on {_named(place.filesystem)} mounted at {place.mount.point}",
            "mount the right one, or set accept_new_filesystem when the change is meant",
        )


def _named(filesystem: FilesystemId) -> str:
    return f"{filesystem.fstype} {filesystem.uuid or filesystem.source}"


def _identify(fd: int, table: Sequence[Mount]) -> FilesystemId:
    try:
        readable = os.open(".", _DIRECTORY, dir_fd=fd)
    except PermissionError:
        return mount_table.identify(fd, table)  # a network filesystem that keeps root out: its source identifies it
    try:
        return mount_table.identify(readable, table)
    finally:
        os.close(readable)


def _instead(fd: int, new: int) -> int:
    os.close(fd)
    return new


def _check_kept(directory: os.stat_result, path: str, part: str, name: str) -> None:
    if directory.st_mode & stat.S_IWOTH and not directory.st_mode & stat.S_ISVTX:
        raise Refusal(
            name,
            f"everybody may write to {path}, and so replace {printable(part)} in it",
            f"take that away (chmod o-w {path}) or choose another directory",
        )


def _in_child(work: Callable[[Callable[[object], None]], None], described: Callable[[int], str]) -> list[object]:
    """Run *work* in a child and return what it told: a child can drop its ids, and a dead server holds only it.

    :param described: given how often the child has told something, what it was busy with when it stopped answering
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(work, reading, writing)
    os.close(writing)
    text = b""
    deadline = time.monotonic() + _PATIENCE
    with open(reading, "rb", buffering=0) as pipe:
        while True:
            ready, _writing, _failed = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)  # a process that waits for a dead server may outlive us; init reaps it
                busy = described(text.count(b"\n"))
                raise StowageError(f"{busy} does not answer within {_PATIENCE:.0f} s; see whether its server is up")
            piece = pipe.read(65536)
            if not piece:
                break
            text += piece
    _pid, status = os.waitpid(pid, 0)
    told = [json.loads(line) for line in text.splitlines()]
    if status != 0:
        raise StowageError(str(told[-1]) if told else "a child process ended without an answer")
    return told


def _child(work: Callable[[Callable[[object], None]], None], reading: int, writing: int) -> NoReturn:
    status = 1
    try:
        os.close(reading)

        def tell(value: object) -> None:
            os.write(writing, json.dumps(value).encode("ascii") + b"\n")

        try:
            work(tell)
            status = 0
        except BaseException as error:
            tell(str(error))
    finally:
        os._exit(status)


def check_answers(named: Sequence[tuple[str, str]]) -> None:
    """Refuse the first of (name, path) whose filesystem does not answer; a missing path is an answer."""

    def work(tell: Callable[[object], None]) -> None:
        for _name, path in named:
            try:
                os.stat(path)
            except OSError as error:
                if error.errno in (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EHOSTDOWN):
                    tell(error.strerror)
                    continue
            tell(None)

    problems = _in_child(work, lambda count: "{}: {}".format(*named[count]))
    for (name, path), problem in zip(named, problems):
        if problem is not None:
            raise Refusal(name, f"{path}: {problem}", "mount it anew")


@dataclass(frozen=True)
class User:
    """Somebody who works in the locations."""

    name: str
    uid: int
    groups: tuple[int, ...]


def find_user(name: str) -> User | None:
    """Return the user with its groups, or None when there is none of that name or number."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        return None
    return User(entry.pw_name, entry.pw_uid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def find_group(name: str) -> int | None:
    """Return a group's number, or None when there is none of that name."""
    if name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def find_owner(name: str) -> int | None:
    """Return a user's number, or None when there is none of that name."""
    if name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def owner_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@dataclass(frozen=True)
class Need:
    """A location, and what its users must be allowed to do there."""

    name: str
    path: str
    permissions: int = _ALL


def check_access(users: Sequence[User], needs: Sequence[Need]) -> None:
    """Refuse the first location that a user cannot use, found out as that user.

    Asking the kernel as the user is the only way that knows access lists, read-only mounts and root squash.
    """
    for user in users:

        def work(tell: Callable[[object], None], user: User = user) -> None:
            os.setgroups(user.groups)
            gid = pwd.getpwuid(user.uid).pw_gid
            os.setresgid(gid, gid, gid)
            os.setresuid(user.uid, user.uid, user.uid)
            for need in needs:
                tell(_missing(need))

        problems = _in_child(work, lambda count: f"{needs[count].name}: {needs[count].path}")
        for need, problem in zip(needs, problems):
            if isinstance(problem, list):
                rule, remedy = map(str, problem)
                raise Refusal(need.name, f"user {user.name} cannot use {need.path}: {rule}", remedy)


def _missing(need: Need) -> tuple[str, str] | None:
    parts = need.path.strip("/").split("/")
    for length in range(1, len(parts)):
        above = "/" + "/".join(parts[:length])
        if not os.access(above, os.X_OK):
            return f"may not pass through {above}{_described(above)}", f"let the user enter {above}"
    if need.permissions & os.W_OK and os.statvfs(need.path).f_flag & os.ST_RDONLY:
        return "its filesystem is mounted read-only", "mount it for writing"
    wanted = [word for bit, word in _PERMISSIONS if need.permissions & bit and not os.access(need.path, bit)]
    if not wanted:
        return None
    return f"may not {' or '.join(wanted)}{_described(need.path)}", _remedy(need)


def _remedy(need: Need) -> str:
    wanted = "read and enter" if need.permissions == _READ_AND_ENTER else "read, write and enter"
    return f"give the user permission to {wanted} it, by owner, group or access list"


def _described(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError as error:
        return f" ({error.strerror})"
    return f" (mode {stat.S_IMODE(status.st_mode):04o}, owner {owner_name(status.st_uid)}:{group_name(status.st_gid)})"


@dataclass(frozen=True)
class Ownership:
    """Owner, group and mode of a directory; a number is None while there is no such user or group yet."""

    owner: str
    group: str
    mode: int
    uid: int | None
    gid: int | None

    @classmethod
    def of(cls, status: os.stat_result) -> Ownership:
        return cls(
            owner_name(status.st_uid),
            group_name(status.st_gid),
            stat.S_IMODE(status.st_mode),
            status.st_uid,
            status.st_gid,
        )

    def to_json(self) -> dict[str, str]:
        return {"owner": self.owner, "group": self.group, "mode": f"{self.mode:04o}"}


@dataclass(frozen=True)
class Wanted:
    """What was asked for of the directories that are ours to make; None is as it is, and root's 0755 when made."""

    owner: str | None = None
    group: str | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None

    def onto(self, present: Ownership | None) -> Ownership:
        base = _ROOTS if present is None else present
        return Ownership(
            base.owner if self.owner is None else self.owner,
            base.group if self.group is None else self.group,
            base.mode if self.mode is None else self.mode,
            base.uid if self.owner is None else self.uid,
            base.gid if self.group is None else self.gid,
        )


_ROOTS = Ownership("root", "root", 0o755, 0, 0)


def check_will_have_access(users: Sequence[User], name: str, place: Place, wanted: Ownership) -> None:
    """Refuse a directory that is still to be made when its users would not be able to use it."""
    if wanted.uid is None or wanted.gid is None or _has_default_access_list(place.existing):
        return  # only the kernel will know, once the directory is there and has inherited the access list
    for user in users:
        if user.uid == wanted.uid:
            granted = wanted.mode >> 6
        elif wanted.gid in user.groups:
            granted = wanted.mode >> 3
        else:
            granted = wanted.mode
        missing = [word for bit, word in _PERMISSIONS if not granted & bit]
        if missing and user.uid != 0:
            described = f"mode {wanted.mode:04o}, owner {wanted.owner}:{wanted.group}"
            raise Refusal(
                name,
                f"user {user.name} could not use {place.path}: may not {' or '.join(missing)} ({described})",
                "choose an owner, group and mode that let the user in",
            )


def _has_default_access_list(path: str) -> bool:
    try:
        return bool(os.getxattr(path, "system.posix_acl_default"))
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return False
        raise


def ownership(path: str) -> Ownership | None:
    """Return who owns the directory at *path*, which has no symlinks, or None when there is nothing."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        raise Refusal(path, "is not a directory", "move it away")
    return Ownership.of(status)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """Open a path that has no symlinks, component by component, so that one put there meanwhile is not followed."""
    fd = os.open("/", _STEP)
    try:
        for part in path.strip("/").split("/"):
            if part:
                fd = _instead(fd, os.open(part, _STEP, dir_fd=fd))
        yield fd
    finally:
        os.close(fd)


def make(path: str, wanted: Ownership) -> None:
    """Make the directory *path*, or give an existing one its owner, group and mode; never what is in it."""
    if wanted.uid is None or wanted.gid is None:
        raise StowageError(f"{path}: there is no {wanted.owner}:{wanted.group} on this host; make them first")
    parent, name = os.path.split(path)
    with _opened(parent) as parent_fd:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent_fd)
        fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
        try:
            os.fchown(fd, wanted.uid, wanted.gid)
            os.fchmod(fd, wanted.mode)
        finally:
            os.close(fd)


def steps(parent: str, path: str) -> list[str]:
    """Return the directories from below *parent* down to *path*, outermost first."""
    below = path[len(parent.rstrip("/")) :].strip("/").split("/")
    return [parent.rstrip("/") + "/" + "/".join(below[:length]) for length in range(1, len(below) + 1)]


@dataclass(frozen=True)
class Directory:
    """A directory that is ours to make, as it is and as it is to be."""

    path: str
    present: Ownership | None
    wanted: Ownership

    @property
    def differs(self) -> bool:
        return self.present != self.wanted


def directories(layout: Layout, places: Mapping[str, Place], wanted: Wanted) -> list[Directory]:
    """Return the directories that are ours to make, outermost first.

    The root and those above it are made when they are missing, and else left: they may hold more than a layout.
    """
    root = places["root"]
    plan: dict[str, Directory] = {}
    for path in () if root.exists else steps(root.existing, root.real):
        plan[path] = Directory(path, None, (wanted if path == root.real else Wanted()).onto(None))
    for name in layout.defaults:
        for path in steps(places[layout.parent(name)].real, places[name].real):
            present = ownership(path)
            plan[path] = Directory(path, present, wanted.onto(present))
    return list(plan.values())


def check_users(
    users: Sequence[User], places: Mapping[str, Place], wanted: Wanted, changing: Sequence[str] = ()
) -> None:
    """Refuse what a user cannot use, as far as that is known before the directories *changing* get their owner."""
    needs = []
    for name, place in places.items():
        if name == "root":
            continue
        if not place.exists:
            check_will_have_access(users, name, place, wanted.onto(None))
        if not any(is_within(place.existing, path) for path in changing):
            permissions = _READ_AND_ENTER if name == "volume_root" else _ALL
            needs.append(Need(name, place.existing, permissions if place.exists else os.X_OK))
    check_access(users, needs)
