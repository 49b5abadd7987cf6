# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``spec.permissions`` of a drive: making a source's directory, and giving it, or all below it, an owner and a mode.

Everything goes by descriptors, as root in directories that workers write to: no symbolic link is followed, no mount
entered, and nothing but directories is opened. What a descriptor is, is looked at before its owner is changed, never
what a name was a moment ago. Left as they are, and told:

- what has several hard links, for the others may be outside: whoever can make links could have any file of the
  filesystem given away. That all are inside cannot be proven while workers can move them. That a file has one name
  alone, and which, is proven by the time of its last change, see ``_why_kept``;
- devices, which would give their new owner a disk;
- directories that bear an owner mark, of whatever host, and all that is in them.

A source whose owner would change is refused where others than root and that owner could have put it there: they could
have moved somebody else's directory to its name. What is moved into a source is its content, and goes with it.

What is made is made where nobody else can reach it, and moved to its name when it is what it is to be: by its name
root could open another one, which a worker has moved there meanwhile.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ..errors import Refusal, printable
from ..mounts import is_shared, of_fd
from ..mounts import read as read_mounts
from ..owner import borne_by
from ..paths import is_within, resolve
from ..services.lasting_mounts import LastingMounts
from ..syscalls import DIRECTORY, NO_DIRECTORY, change_owner, open_beneath, rename_directory
from ..trees.tally import FirstProblems
from ..trees.walk import Directory, Problem, Walk
from . import grants, host_paths
from .declared import is_placed
from .recorded import Drive

_NEW_MODE = 0o755
_TICK_NS = 20_000_000
"""Longer than the clock of a kernel's filesystems stands still, which is 10 ms at most."""
_SECONDS_NS = 2_500_000_000
"""The same for filesystems that keep whole seconds, as ext4 with small inodes, or keep times on a server."""
_TRIES = 5


@dataclass(frozen=True)
class Permissions:
    """What a drive's spec says; None is as it is, and root's 0755 when a directory is made."""

    create: bool = False
    uid: int | None = None
    gid: int | None = None
    mode: int | None = None
    apply: bool = False
    """Whether a directory that is there gets them too, and not only one that is made."""
    recursive: bool = False
    """Whether that goes for everything below: the owner, and of directories the mode."""

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Permissions:
        """Return the permissions in a checked *spec*."""
        value = spec.get("permissions") or {}
        mode = value.get("dir_mode")
        return cls(
            bool(value.get("create")),
            value.get("owner_uid"),
            value.get("owner_gid"),
            None if mode is None else int(mode, 8),
            bool(value.get("apply")),
            bool(value.get("recursive")),
        )

    @property
    def of_new(self) -> Permissions:
        """The same for a directory that is made."""
        uid, gid = self.uid or 0, self.gid or 0
        return Permissions(True, uid, gid, _NEW_MODE if self.mode is None else self.mode, True, False)

    @property
    def owner_named(self) -> bool:
        return self.uid is not None or self.gid is not None

    def owner_differs(self, status: os.stat_result) -> bool:
        return self.uid not in (None, status.st_uid) or self.gid not in (None, status.st_gid)

    def mode_differs(self, status: os.stat_result) -> bool:
        return self.mode not in (None, stat.S_IMODE(status.st_mode))

    def shown(self, status: os.stat_result | None = None) -> dict[str, str]:
        """Return what is declared of owner and mode or, of the same, what *status* has."""
        uid, gid, mode = self.uid, self.gid, self.mode
        if status is not None:
            uid, gid, mode = status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)
        found = {}
        if self.uid is not None:
            found["owner_uid"] = str(uid)
        if self.gid is not None:
            found["owner_gid"] = str(gid)
        if self.mode is not None:
            found["dir_mode"] = f"{mode:04o}"
        return found

    def compared(self, found: Applied) -> tuple[dict[str, str], dict[str, str]]:
        """Return what is declared of a directory that is there, and what there was of it."""
        wanted, actual = dict(self.shown()), dict(found.before)
        if found.below:
            wanted["below"], actual["below"] = "the same", f"{found.below} with another owner or mode"
        return wanted, actual


@dataclass(frozen=True)
class Applied:
    """What had another owner or mode, and was changed unless that was only to be predicted."""

    top: bool = False
    below: int = 0
    left: tuple[str, ...] = ()
    """What is left as it is below, and why; one line each."""
    marked: str = ""
    """The first directory below that bears an owner mark, and whose; empty for none."""
    before: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What the directory itself had of what is declared."""

    def action(self, path: str) -> str:
        """Return what was done, in words."""
        return f"set owner and mode of {path}" + (f" and of {self.below} below it" if self.below else "")


def apply(fd: int, wanted: Permissions, shown: str, *, predict: bool = False) -> Applied:
    """Give the directory open at *fd*, and what is below it where that is wanted, its owner and mode.

    :param shown: the directory's path, for messages
    :raises Refusal: when the directory itself cannot be given them
    """
    try:
        status = os.fstat(fd)
        top = _directory(fd, status, wanted, predict)
    except OSError as error:
        rule = f"its owner and mode cannot be set ({error.strerror})"
        raise Refusal(shown, rule, "its filesystem must let root do that, or take apply out") from error
    before = wanted.shown(status)
    if not wanted.recursive:
        return Applied(top, before=before)
    problems = FirstProblems()
    walk = Walk(fd, problems.add, prefix=shown)
    below, marked = 0, ""
    fstype = of_fd(fd, read_mounts()).fstype
    if is_shared(fstype) and wanted.owner_named:
        # Names and times come from elsewhere there, and are not of one moment.
        problems.add(Problem(shown, f"files keep their owners: which are links cannot be proven on {fstype}"))
    for directory in walk:
        if walk.depth:
            try:
                mark = borne_by(directory.fd)
                if mark:
                    marked = marked or f"{walk.path()} bears {mark}"
                    problems.add(Problem(walk.path(), f"bears {mark}"))
                    directory.leave_out()
                    continue
                below += _directory(directory.fd, directory.status, wanted, predict)
            except OSError as error:
                walk.problem(error)
        if not is_shared(fstype):
            below += _files(directory, walk, wanted, problems, predict)
    return Applied(top, below, problems.texts(), marked, before)


def apply_declared(fd: int, drive: Drive, shown: str, *, predict: bool = False) -> Applied | None:
    """Give the directory open at *fd*, a source or copy of *drive*, what is declared for one that is there already.

    :returns: None when nothing is
    :raises Refusal: when it cannot be given them, or a source may be somebody else's
    """
    wanted = Permissions.of(drive.spec or {})
    if not wanted.apply:
        return None
    doubt = None if is_placed(drive.spec) else _put_there_by_others(fd, drive, shown)
    found = apply(fd, wanted, shown, predict=predict or doubt is not None)
    if doubt is not None and (found.top or found.below):
        raise doubt
    return found


def _put_there_by_others(fd: int, drive: Drive, path: str) -> Refusal | None:
    """Return why what is at source *path* may be somebody else's: others than root and its owner could put it there."""
    status = os.fstat(fd)
    above = os.readlink(f"/proc/self/fd/{fd}").split("/")[1:-1]
    # From the top: where root alone could put what was looked at before, nobody moves the next one away.
    for depth in range(len(above) + 1):
        directory = "/" + "/".join(above[:depth])
        found = os.lstat(directory)
        shared = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
        if shared or found.st_uid not in (0, status.st_uid):
            return Refusal(
                f"drive {drive.workspace}/{drive.name}",
                f"its source {printable(path)}, which is user {status.st_uid}'s, is to have another owner or mode, and"
                f" others could have put it there, who may write {printable(directory)}",
                f"look at it, and change it yourself; or let root alone write {printable(directory)}",
            )
    return None


def check_unmarked(drive: Drive, path: str, found: Applied) -> None:
    """Refuse source *path* with a marked directory below, which is another host's or another team's."""
    if found.marked:
        raise Refusal(
            f"drive {drive.workspace}/{drive.name}",
            f"all that is below its source {printable(path)} is to have an owner and a mode, and {found.marked}",
            "choose a directory apart from it, or take recursive out",
        )


def _directory(fd: int, status: os.stat_result, wanted: Permissions, predict: bool) -> bool:
    owner, mode = wanted.owner_differs(status), wanted.mode_differs(status)
    if owner and not predict:
        os.fchown(fd, _id(wanted.uid), _id(wanted.gid))
    if (mode or owner) and wanted.mode is not None and not predict:
        os.fchmod(fd, wanted.mode)  # after the owner, whose change may take bits away
    return owner or mode


def _files(directory: Directory, walk: Walk, wanted: Permissions, problems: FirstProblems, predict: bool) -> int:
    changed = 0
    for entry in directory.files():
        try:
            if wanted.owner_differs(entry.stat(follow_symlinks=False)):
                changed += _file(directory.fd, entry.name, walk, wanted, problems, predict)
        except FileNotFoundError:
            continue
        except OSError as error:
            walk.problem(error, entry.name)
    return changed


def _file(dir_fd: int, name: str, walk: Walk, wanted: Permissions, problems: FirstProblems, predict: bool) -> bool:
    try:
        fd = open_beneath(dir_fd, os.fsencode(name), os.O_PATH)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        walk.skipped(name)
        return False
    try:
        why = _why_kept(dir_fd, name, fd)
        if why:
            problems.add(Problem(walk.path(name), why))
        if why or not wanted.owner_differs(os.fstat(fd)):
            return False
        if not predict:
            change_owner(fd, _id(wanted.uid), _id(wanted.gid))
        return True
    finally:
        os.close(fd)


def _why_kept(dir_fd: int, name: str, fd: int) -> str:
    """Return why the file open at *fd*, which *name* led to, keeps its owner; empty when *name* is its only name.

    A worker may have linked a file from outside here, and unlink it again before its links are counted. Each link made
    or removed changes the time of the file's last change, unless that was just now: the clock of filesystems goes in
    ticks. So nothing was linked or unlinked between two looks that find the same time and one link, when that time is
    not of the present tick; and in between, *name* has to lead to the file.

    :raises FileNotFoundError: when the name is gone meanwhile
    """
    for _try in range(_TRIES):
        now = time.time_ns()
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            return "was replaced by a directory while it was visited"
        if stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode):
            return "a device keeps its owner"
        if status.st_nlink > 1:
            return f"keeps its owner: it has {status.st_nlink} hard links, which may be elsewhere too"
        # Of the future is as good as of the past: no change of now would have that time.
        if abs(now - status.st_ctime_ns) < _tick(status):
            time.sleep(_tick(status) / 1e9)
            continue
        named = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        again = os.fstat(fd)
        if (again.st_ctime_ns, again.st_nlink) == (status.st_ctime_ns, 1):
            return "" if os.path.samestat(named, status) else "was replaced while it was visited"
    return "keeps its owner: it goes on being changed, and may be a link to what is elsewhere; run again"


def _tick(status: os.stat_result) -> int:
    """Return for how long two changes may have one time, in ns: where it has no fraction, the filesystem keeps none."""
    return _SECONDS_NS if status.st_ctime_ns % 1_000_000_000 == 0 else _TICK_NS


def _id(value: int | None) -> int:
    return -1 if value is None else value


# -- Sources


class MadeMeanwhile(Refusal):
    """A source's directory was missing, and somebody else has made it."""


class Missing(Refusal):
    """A source's directory is not there, and is not to be made, or not where it would be."""


@contextmanager
def opened_source(
    drive: Drive, path: str, granted: Sequence[str], make: Permissions | None = None
) -> Iterator[tuple[int, bool]]:
    """Open the directory that source *path* of *drive* leads to, within *granted*, and say whether it was made now.

    :param make: with which owner and mode it is made when it is missing; None: not at all
    :raises Missing: when it is not there, or is not to be made where it would be
    """
    with host_paths.opened(path, f"drive {drive.workspace}/{drive.name}") as found:
        grants.check_place(drive, path, granted, found.path)
        _check_mounted(drive, found)
        if not found.missing:
            fd = os.open(".", DIRECTORY, dir_fd=found.fd)
        else:
            check_makeable(drive, path, granted, found, make)
            fd = _made(f"drive {drive.workspace}/{drive.name}", found, make or Permissions())
        try:
            grants.check_opened(drive, path, granted, fd)
            yield fd, bool(found.missing)
        finally:
            os.close(fd)


def check_source(drive: Drive, path: str, granted: Sequence[str], make: Permissions | None) -> None:
    """Refuse a source that is missing, unless it could be made; nothing is made."""
    with host_paths.opened(path, f"drive {drive.workspace}/{drive.name}") as found:
        grants.check_place(drive, path, granted, found.path)
        _check_mounted(drive, found)
        if found.missing:
            check_makeable(drive, path, granted, found, make)


def _check_mounted(drive: Drive, found: host_paths.Found) -> None:
    for one in LastingMounts.read().missing(found.path, read_mounts()):
        raise Missing(f"drive {drive.workspace}/{drive.name}", one.missing, one.remedy)


def check_makeable(
    drive: Drive, path: str, granted: Sequence[str], found: host_paths.Found, make: Permissions | None
) -> None:
    """Refuse a missing source, unless it may be made: in what is granted, or in the directory that has just that.

    When more than that is missing, a disk is not mounted.
    """
    shown, rule = f"drive {drive.workspace}/{drive.name}", f"its source {printable(path)} is not there"
    if make is None:
        raise Missing(shown, rule, "make it, or have it made with spec.permissions.create")
    there = os.readlink(f"/proc/self/fd/{found.fd}")
    floors = [os.path.dirname(resolve(one)) for one in granted if is_within(path, one)]
    if not any(is_within(there, floor) for floor in floors):
        missing = printable(os.path.join(there, found.missing[0]))
        raise Missing(
            shown, f"{rule}: there is no {missing}, which is above what is granted", "mount its disk, or make it"
        )


def _made(shown: str, found: host_paths.Found, wanted: Permissions) -> int:
    """Make what is missing and open the last of it; nobody else sees any of it before it is what it is to be."""
    names = [os.fsencode(name) for name in found.missing]
    if b".." in names:
        raise Refusal(shown, f"{printable(found.path)} leads back through what is not there", "make it")
    with _workplace(shown, found) as place:
        fd = _chain(place, names, wanted)
        try:
            rename_directory(place, names[0], found.fd, names[0])
        except FileExistsError as error:
            os.close(fd)
            rule = f"{printable(found.path)} was made by somebody else meanwhile"
            raise MadeMeanwhile(shown, rule, "run again") from error
        except BaseException:
            os.close(fd)
            raise
    return fd


@contextmanager
def _workplace(shown: str, found: host_paths.Found) -> Iterator[int]:
    """Make a directory beside what is missing, in which nobody but root can move anything, and open it.

    A worker may be able to move it and another one of root's there. That is as good: what counts is who can reach what
    is in it. It has what new directories inherit in this place, as what is made in it.
    """
    name = f".stowage-{secrets.token_hex(16)}".encode("ascii")
    above = os.open(".", DIRECTORY, dir_fd=found.fd)
    try:
        os.mkdir(name, 0o700, dir_fd=above)
        try:
            with _only_ours(shown, above, name) as place:
                try:
                    yield place
                finally:
                    _clear(place, [os.fsencode(one) for one in found.missing])
        finally:
            try:
                os.rmdir(name, dir_fd=above)
            except OSError as error:
                # Where it was moved meanwhile, an empty directory is left to whoever did that.
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY):
                    raise
    finally:
        os.close(above)


@contextmanager
def _only_ours(shown: str, above: int, name: bytes) -> Iterator[int]:
    there = os.readlink(f"/proc/self/fd/{above}")
    try:
        fd = open_beneath(above, name)
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise
        raise Refusal(shown, f"what was made in {printable(there)} was moved meanwhile", "run again") from error
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077 or os.listdir(fd):
            rule = f"what was made in {printable(there)} is not an empty directory of root's alone"
            raise Refusal(shown, rule, "its filesystem must let root have directories; run again where one was moved")
        yield fd
    finally:
        os.close(fd)


def _chain(place: int, names: Sequence[bytes], wanted: Permissions) -> int:
    """Make *names* inside each other, the last one as *wanted*, and open that."""
    above = os.dup(place)
    for number, name in enumerate(names, 1):
        try:
            os.mkdir(name, 0o700, dir_fd=above)
            fd = os.open(name, DIRECTORY, dir_fd=above)
        finally:
            os.close(above)
        above = fd
        try:
            _directory(fd, os.fstat(fd), wanted if number == len(names) else Permissions().of_new, False)
        except BaseException:
            os.close(fd)
            raise
    return above


def _clear(place: int, names: Sequence[bytes]) -> None:
    """Remove what was made and not moved."""
    for count in range(len(names), 0, -1):
        with suppress(FileNotFoundError):
            os.rmdir(b"/".join(names[:count]), dir_fd=place)
