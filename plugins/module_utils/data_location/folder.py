# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder of a data location, held open: what is in it, making it and its parts, and giving it up."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from ..copies.present import names_in, opened
from ..differences import Differences
from ..errors import Refusal, quoted
from ..mounts import Mount
from ..owner import XATTR, Mark, Registry, read_mark, release
from ..syscalls import DIRECTORY, open_beneath
from . import locations as data_locations
from .locations import CONDEMNED, DRIVES, LOCKS, PENDING, DataLocation
from .place import check_components

_PARTS = (DRIVES, b".stowage", LOCKS, b".stowage-trash", PENDING, CONDEMNED)
_HOLDING = (DRIVES, PENDING, CONDEMNED)
"""The parts that hold copies, or may: a data location is given up only without any of them."""
_PRIVATE = "0:0 0700"


@dataclass(frozen=True)
class Folder:
    """The folder that was chosen, as it is before a run."""

    path: str
    parent: int
    """What it is in; in check mode what there is of that."""
    fd: int | None
    """None while it is not there."""
    mark: Mark | None = None

    @property
    def nearest(self) -> int:
        return self.parent if self.fd is None else self.fd

    @classmethod
    def open(cls, path: str, check_mode: bool, warnings: list[str], stack: contextlib.ExitStack) -> Folder:
        """Open the folder at the resolved *path* until *stack* is left.

        :raises Refusal: when anybody but root could put another one in its place
        """
        directory, name = os.path.split(path)
        if check_mode and not os.path.lexists(directory):
            # An earlier task of the same play may be what makes it.
            warnings.append(f"path {path}: {directory} does not exist; taken to be made before a run")
            while not os.path.lexists(directory):
                directory, name = os.path.split(directory)
            check_components(directory)
        else:
            check_components(path)
        parent = os.open(directory, DIRECTORY)
        stack.callback(os.close, parent)
        try:
            fd = os.open(name, DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            return cls(path, parent, None)
        stack.callback(os.close, fd)
        return cls(path, parent, fd)

    def make(self, stack: contextlib.ExitStack) -> int:
        """Make the folder, and return it open until *stack* is left."""
        name = os.fsencode(os.path.basename(self.path))
        os.mkdir(name, 0o755, dir_fd=self.parent)
        fd = open_beneath(self.parent, name)
        stack.callback(os.close, fd)
        os.fchmod(fd, 0o755)
        os.fsync(self.parent)
        return fd

    def check_marks_possible(self, mount: Mount) -> None:
        try:
            os.getxattr(self.nearest, XATTR)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                raise Refusal(
                    f"path {self.path}",
                    f"its filesystem ({mount.fstype}) cannot hold an owner mark (trusted extended attribute)",
                    "use ext4, XFS or btrfs",
                ) from error
            if error.errno != errno.ENODATA:
                raise

    def check_content(self, adopting: bool) -> None:
        """Refuse a folder without a mark that holds what looks like ours: it was copied, restored, or is someone's."""
        if self.fd is None or self.mark is not None:
            return
        if names_in(self.fd, DRIVES) and not adopting:
            raise Refusal(
                f"path {self.path}",
                "its folder drives holds something, and there is no mark that it is Stowage's",
                "name the directories to take in with adopt, or choose another folder",
            )
        for part in (PENDING, CONDEMNED):
            if names_in(self.fd, part):
                raise Refusal(
                    f"path {self.path}",
                    f"{os.fsdecode(part)} holds something, and there is no mark that it is Stowage's",
                    "look at it and move it away, or choose another folder",
                )

    def parts(self) -> dict[bytes, str]:
        """Return owner and mode of each directory inside a data location, as they are."""
        return {part: "absent" if self.fd is None else _state(self.fd, part) for part in _PARTS}

    def note_parts(self, differences: Differences) -> None:
        for part, state in self.parts().items():
            differences.note(os.path.join(self.path, os.fsdecode(part)), _PRIVATE, state)

    def missing_parts(self) -> list[bytes]:
        """Return the directories inside a data location that are not there or not root's alone, outermost first."""
        return [part for part, state in self.parts().items() if state != _PRIVATE]


def make_part(part: bytes, fd: int) -> None:
    """Make a directory inside a data location, for root alone; made early, because a full disk cannot make it."""
    with contextlib.suppress(FileExistsError):  # it may be there with another owner or mode
        os.mkdir(part, 0o700, dir_fd=fd)
    with opened(fd, part) as inner:
        os.fchown(inner, 0, 0)
        os.fchmod(inner, 0o700)


def give_up(location: DataLocation, mounts: Sequence[Mount], registry: Registry) -> None:
    """Take the mark and the empty parts away; the folder itself stays.

    :raises Refusal: when something is where copies are, whatever was found there before: then all stays
    """
    fd = data_locations.open_verified(location, mounts)
    try:
        with contextlib.ExitStack() as again:
            for part in _HOLDING:
                try:
                    os.rmdir(part, dir_fd=fd)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise
                    raise _not_empty(location, part, names_in(fd, part)) from error
                again.callback(make_part, part, fd)
            again.pop_all()
        for part in (LOCKS, os.path.dirname(LOCKS), os.path.dirname(PENDING)):
            try:
                os.rmdir(part, dir_fd=fd)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise
        mark = read_mark(fd)
        if mark is not None:
            release(fd, mark)
    finally:
        os.close(fd)
    registry.remove(location.path)


def _not_empty(location: DataLocation, part: bytes, names: Sequence[bytes]) -> Refusal:
    some = ", ".join(map(quoted, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    path = os.path.join(location.path, os.fsdecode(part))
    return Refusal(f"data location {location.path}", f"there is something in {path} now ({some})", "run again")


def _state(fd: int, part: bytes) -> str:
    """Return owner and mode of a directory inside the data location."""
    try:
        with opened(fd, part) as inner:
            status = os.fstat(inner)
    except FileNotFoundError:
        return "absent"
    return f"{status.st_uid}:{status.st_gid} {stat.S_IMODE(status.st_mode):04o}"
