# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The claim on a tier's directory: where it may be, whose it must be, and making it this host's.

The claim is the owner mark. A path that is claimed already, is inside a claimed one or around it is refused under the
host lock, so two backends never write, or delete, in one directory. An existing directory is taken in with what is in
it. Its owner has to fit; group and mode are changed on the directory itself, and nothing below it is ever touched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .. import claims
from .. import mounts as mount_table
from ..claims import Claims
from ..data_location.place import check_components, is_local
from ..errors import Refusal, StowageError, printable
from ..mounts import Mount, follow, of_path
from ..owner import XATTR, Mark, Registry, read_mark
from ..paths import is_within, relation
from ..places import Places
from ..services.lasting_mounts import LastingMounts
from ..syscalls import DIRECTORY, mount_id, open_beneath, rename_noreplace
from .recorded import Claimed
from .survey import marked_below

KIND = "tier"

_SUBVOLUME_INODE = 256

_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
)
"""Of the system with all that is in them: whatever a declaration says, no tier is there, to be emptied one day."""
_OF_MANY = (
    *("/home", "/media", "/mnt", "/opt", "/srv", "/tmp", "/var"),
    *("/var/cache", "/var/lib", "/var/log", "/var/opt", "/var/spool", "/var/tmp"),
)
"""Of the system, with directories of others in them."""


@dataclass(frozen=True)
class Wanted:
    """A tier as a host is to have it."""

    name: str
    """Of backend and position: ``chat/0``."""
    path: str
    uid: int
    gid: int
    mode: int
    user: tuple[int, int]
    """The store's own user and group."""

    @property
    def title(self) -> str:
        return f"tier {self.name}: path {printable(self.path)}"

    @property
    def state(self) -> str:
        return f"{self.uid}:{self.gid} {self.mode:04o}"


@dataclass(frozen=True)
class Found:
    """The directory of a tier as it is before a run."""

    parent: int
    """What it is in; in check mode what there is of that."""
    fd: int | None
    """None while it is not there."""
    mark: Mark | None = None
    """This tier's own."""

    @property
    def state(self) -> str:
        return "absent" if self.fd is None else state_of(os.fstat(self.fd))


def state_of(status: os.stat_result) -> str:
    """Return owner, group and mode of a directory, as the diff shows them."""
    return f"{status.st_uid}:{status.st_gid} {stat.S_IMODE(status.st_mode):04o}"


def can_write(user: tuple[int, int], uid: int, gid: int, mode: int, groups: Collection[int] = ()) -> bool:
    """Return whether *user* can list, write and enter a directory of that owner, group and mode.

    :param groups: in which the user is besides its own
    """
    if user[0] == 0:
        return True
    shift = 6 if user[0] == uid else 3 if user[1] == gid or gid in groups else 0
    return mode >> shift & 7 == 7


# -- Where it may be


def check_place(wanted: Wanted, mounts: Sequence[Mount], lasting: LastingMounts) -> None:
    """Refuse a path that is not on a disk of this host's own, is the system's, or is not what is really there."""
    path, name = wanted.path, wanted.title
    for system in _SYSTEM:
        if relation(path, system) in ("is", "is inside"):
            raise Refusal(
                name, f"it {relation(path, system)} {system}, which is the system's", "choose another directory"
            )
    for system in (*_SYSTEM, *_OF_MANY):
        if is_within(system, path):
            rule = f"it {relation(path, system)} {system}, which holds what is not the tier's"
            raise Refusal(name, rule, "name a directory of its own")
    real, mount = follow(path, mounts)
    if real != path:
        rule = f"it leads over a symbolic link to {printable(real)}; the store refuses links, and mounts miss them"
        raise Refusal(name, rule, f"write {printable(real)}")
    lasting.check(name, path, mounts)
    if mount_table.is_shared(mount.fstype):
        raise Refusal(
            name, f"{mount.point} is {mount.fstype}, which other hosts see too", "choose a directory on a local disk"
        )
    if not is_local(mount):
        raise Refusal(
            name, f"{mount.point} is {mount.fstype}, which no disk keeps", "choose a directory on a local disk"
        )
    if mount.read_only:
        raise Refusal(name, f"the filesystem at {mount.point} is read-only", "choose a directory on another disk")
    for inner in mounts:
        if inner.point != path and is_within(inner.point, path):
            rule = f"{inner.fstype} is mounted inside it, at {printable(inner.point)}"
            raise Refusal(name, rule, "choose a directory with nothing mounted in it")


def check_apart(wanted: Wanted, taken: Mapping[str, str], claimed: Claims, mounts: Sequence[Mount]) -> None:
    """Refuse a path that overlaps anything that is taken on this host, or lies in what another host has marked.

    :param taken: what is taken by path, and by whom
    """
    others = dict(taken)
    own = claimed.entries.get(wanted.path, {})
    if (own.get("kind"), own.get("name")) == (KIND, wanted.name):
        others.pop(wanted.path, None)
    claims.check_apart(wanted.title, wanted.path, others, mounts, "choose a directory apart from it")
    around = claims.owner_around(wanted.path, mounts)
    if around:
        raise Refusal(wanted.title, f"it is inside {around}", "choose a directory apart from it")


def is_whole(fd: int, mount: Mount) -> bool:
    """Return whether the directory open at *fd*, where *mount* is mounted, is all of a filesystem or btrfs subvolume.

    Any other has a name elsewhere as well.
    """
    return mount.root == "/" or (mount.fstype == "btrfs" and os.fstat(fd).st_ino == _SUBVOLUME_INODE)


def check_can_be_emptied(wanted: Wanted, fd: int | None, mounts: Sequence[Mount]) -> None:
    """Refuse a bind mount: its directory is in use as long as that is there, and may be another's elsewhere."""
    mount = of_path(wanted.path, mounts)
    if fd is not None and mount.point == wanted.path and not is_whole(fd, mount):
        rule = f"is a bind mount, of {printable(mount.root)} in {printable(mount.source)}, and is to be emptied one day"
        raise Refusal(wanted.title, rule, "name the directory itself, or leave clean_after_delete out")


def check_seen(wanted: Wanted, claimed: Claims) -> None:
    """Refuse to take what is at the path for the tier while the one that was claimed is elsewhere."""
    if wanted.path in claimed.unseen:
        raise _elsewhere(wanted, str(claimed.entries[wanted.path]["identity"]))


def check_known(wanted: Wanted, known: Claimed | None, mark: Mark | None, claimed: Claims) -> None:
    """Refuse another directory than the known one when the registry, which would tell where that is, was lost."""
    registered = wanted.path in claimed.entries or wanted.path in claimed.dropped
    if known is not None and not registered and (mark is None or mark.identity != known.identity):
        raise _elsewhere(wanted, known.identity)


def _elsewhere(wanted: Wanted, identity: str) -> Refusal:
    rule = "what is there is not the directory that was claimed: its disk is not mounted, or cannot be read"
    remedy = f"bring its disk back, or, if it is gone for good, give it up with forget: {identity}"
    return Refusal(wanted.title, rule, remedy)


# -- The directory


def find(
    wanted: Wanted,
    hosts: tuple[str, str],
    check_mode: bool,
    warnings: list[str],
    stack: contextlib.ExitStack,
) -> Found:
    """Open the directory of a tier until *stack* is left, and refuse what cannot be made the tier's.

    :param hosts: this host's name, and the one that it had before
    """
    found = _opened(wanted, check_mode, warnings, stack)
    _check_marks_possible(wanted, found)
    if not can_write(wanted.user, wanted.uid, wanted.gid, wanted.mode):
        raise _not_writable(wanted, f"with {wanted.state}, as declared", "correct owner, group or mode")
    if found.fd is None:
        return found
    mark = _own_mark(wanted, found.fd, hosts)
    if mark is None:
        _check_taken_in(wanted, found.fd)
    return Found(found.parent, found.fd, mark)


def _opened(wanted: Wanted, check_mode: bool, warnings: list[str], stack: contextlib.ExitStack) -> Found:
    directory, name = os.path.split(wanted.path)
    if check_mode and not os.path.lexists(directory):
        # An earlier task of the same play may be what makes it.
        warnings.append(f"{wanted.title}: {printable(directory)} does not exist; taken to be made before a run")
        while not os.path.lexists(directory):
            directory, name = os.path.split(directory)
    check_components(directory)
    if not os.path.lexists(directory):
        rule = f"{printable(directory)} does not exist, and only the last directory is made"
        raise Refusal(wanted.title, rule, "mount the disk that it is for, or make it")
    parent = os.open(directory, DIRECTORY)
    stack.callback(os.close, parent)
    try:
        fd = os.open(name, DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        return Found(parent, None)
    except NotADirectoryError:
        raise Refusal(wanted.title, "is not a directory", "choose another one, or move it away") from None
    stack.callback(os.close, fd)
    return Found(parent, fd)


def _check_marks_possible(wanted: Wanted, found: Found) -> None:
    try:
        os.getxattr(found.parent if found.fd is None else found.fd, XATTR)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            rule = "its filesystem cannot hold an owner mark (trusted extended attribute)"
            raise Refusal(wanted.title, rule, "use ext4, XFS or btrfs") from error
        if error.errno != errno.ENODATA:
            raise


def _own_mark(wanted: Wanted, fd: int, hosts: tuple[str, str]) -> Mark | None:
    mark = read_mark(fd)
    if mark is None:
        return None
    by = printable(f"{mark.kind} {mark.name} of host {mark.host}").replace("data-location", "data location")
    if (mark.kind, mark.name) != (KIND, wanted.name):
        raise Refusal(wanted.title, f"it is claimed by {by} already", "choose another directory")
    if mark.host not in hosts:
        remedy = f"if its disk was moved here or the host was renamed, take it over with adopt_from: {mark.host}"
        raise Refusal(wanted.title, f"it is claimed by {by}, and this host is {hosts[0]}", remedy)
    return mark


def _check_taken_in(wanted: Wanted, fd: int) -> None:
    """Refuse an existing directory that is not the store's, or has somebody's claim in it."""
    status = os.fstat(fd)
    if status.st_uid != wanted.uid:
        mode = stat.S_IMODE(status.st_mode)
        remedy = f"chown {wanted.uid}:{wanted.gid} {printable(wanted.path)}, or declare its owner"
        if not can_write(wanted.user, status.st_uid, status.st_gid, mode):
            raise _not_writable(wanted, f"it is there with {state_of(status)}", remedy)
        rule = f"it is there and belongs to user {status.st_uid}, and {wanted.uid} is to own it"
        raise Refusal(wanted.title, rule, remedy)
    inside = marked_below(fd)
    if inside:
        rule = f"it is there, and what is in it may be another's: {inside}"
        raise Refusal(wanted.title, rule, "choose a directory apart from it")


def _not_writable(wanted: Wanted, why: str, remedy: str) -> Refusal:
    user = f"{wanted.user[0]}:{wanted.user[1]}"
    return Refusal(wanted.title, f"no write permission on directory for the store, which runs as {user}: {why}", remedy)


def make(wanted: Wanted, parent: int, stack: contextlib.ExitStack) -> int:
    """Make the directory, and return it open until *stack* is left.

    Under its name it is there with its owner or not at all: another run would refuse it otherwise.
    """
    name = b".stowage-" + secrets.token_hex(16).encode("ascii")
    os.mkdir(name, 0o700, dir_fd=parent)
    try:
        fd = open_beneath(parent, name)
        stack.callback(os.close, fd)
        own(wanted, fd)
        os.fsync(fd)
        rename_noreplace(parent, name, parent, os.fsencode(os.path.basename(wanted.path)))
    except BaseException as error:
        os.rmdir(name, dir_fd=parent)
        if isinstance(error, FileExistsError):
            raise Refusal(wanted.title, "somebody has made it meanwhile", "run again") from error
        raise
    os.fsync(parent)
    return fd


def own(wanted: Wanted, fd: int) -> None:
    """Give the directory itself its owner, group and mode; what is in it keeps its own."""
    os.fchown(fd, wanted.uid, wanted.gid)
    os.fchmod(fd, wanted.mode)


def open_directory(path: str, mounts: Sequence[Mount]) -> int:
    """Open the directory of a claimed tier on the mount that shows it, without following any link."""
    mount = of_path(path, mounts)
    root = os.open(mount.point, DIRECTORY)
    try:
        if mount_id(root) != mount.id:
            raise OSError(errno.EXDEV, "something else was mounted there meanwhile", path)
        return open_beneath(root, os.fsencode(os.path.relpath(path, mount.point)))
    finally:
        os.close(root)


def why_lost(places: Places, path: str, name: str, identity: str, fd: int) -> str:
    """Return why the directory open at *fd* is not the tier any more that was claimed at *path*; empty when it is."""
    try:
        mark = read_mark(fd)
    except StowageError as error:
        return str(error)
    if mark is None or (mark.kind, mark.name, mark.identity) != (KIND, name, identity):
        return f"it does not bear the owner mark of tier {name}"
    try:
        there = os.lstat(path)
    except OSError as error:
        return f"it is not at its path any more: {error.strerror}"
    if not os.path.samestat(there, os.fstat(fd)):
        return "something else is at its path now"
    if Registry(places).all().get(path, {}).get("identity") != identity:
        return "its claim is not registered any more"
    return ""
