# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The old path of a location: what is mounted over it while it is moved, and afterwards.

While it is copied the old directory is mounted over itself, read-only: readers go on, and nobody opens anything for
writing. Then the new directory is mounted over that, in one step, and stays there, so that stored absolute paths go on
working. The old content lies beneath, where only root reaches it, through a copy of the mount around it.

Where the old directory is all of a disk, mounted there, the unit that keeps the old path takes the place of the disk's.
So the disk is mounted at another place as well, which only root can enter.

Hosts have their mounts shared (systemd's default): what is mounted at one place of a directory would appear at its
other places. So each of these mounts is one apart.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..errors import Refusal, StowageError, printable
from ..mounts import FilesystemId, Located, Mount, is_shared, of_all_namespaces, of_path, place_in_filesystem
from ..mounts import read as read_mounts
from ..own_files import HEADER, is_ours, read
from ..paths import is_within
from ..records import make_directory, remove, write_bytes
from ..services.systemd_units import Systemctl, mount_unit, quote_word
from ..syscalls import DIRECTORY, bind_mount, detach, unmount
from .stages import Found

UNITS = "/etc/systemd/system"
_LONGEST = 255
"""Bytes in the name of a unit."""


@dataclass(frozen=True)
class OldPath:
    """The old path, without symbolic links, and what may be mounted over it."""

    real: str
    new_real: str
    disk_at: str = ""
    """Where its disk is mounted as well, when the old directory is all of one."""

    def beneath(self, table: Sequence[Mount]) -> tuple[str, str]:
        """Return device and place in its filesystem of the old directory, whatever is mounted over it."""
        if not self.disk_at:
            above = of_path(os.path.dirname(self.real), table)
            return above.device, place_in_filesystem(self.real, above)
        lowest = [mount for mount in table if mount.point == self.real][:1]
        for mount in (*(mount for mount in table if mount.point == self.disk_at), *lowest):
            return mount.device, mount.root
        raise StowageError(f"{self.real}: its disk is mounted neither there nor at {self.disk_at}; mount it")

    def name_for_all(self, source: str, table: Sequence[Mount]) -> str:
        """Return what the old directory, on a shared filesystem, is called on every host.

        :param source: of its filesystem, as ``nas:/export``
        """
        return os.path.normpath(f"{source}/{self.beneath(table)[1]}")

    def found(self, table: Sequence[Mount]) -> Found:
        """Return what is mounted at the old path."""
        mount = of_path(self.real, table)
        if mount.point != self.real:
            return Found()
        here = (mount.device, mount.root)
        new = Located.of(self.new_real, table)
        if here == (new.device, new.place):
            return Found(bound=True)
        return Found(closed=here == self.beneath(table) and "ro" in mount.options)

    def close(self, fd: int) -> None:
        """Mount the old directory, open at *fd*, read-only over itself."""
        if self.disk_at and not os.path.ismount(self.disk_at):
            make_directory(os.path.dirname(os.path.dirname(self.disk_at)))
            for directory in (os.path.dirname(self.disk_at), self.disk_at):
                with suppress(FileExistsError):
                    os.mkdir(directory, 0o700)
            bind_mount(fd, self.disk_at, apart=True)
        bind_mount(fd, self.real, read_only=True, apart=True)

    def uncover(self) -> None:
        """Unmount what was mounted for the move: at the end the old directory is at its path, and can be written.

        :raises StowageError: when it is all of a disk that is mounted nowhere
        """
        while True:
            now = self.found(read_mounts())
            if not (now.closed or now.bound):
                break
            try:
                unmount(self.real)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                detach(self.real)
        self._return_disk()
        self.leave_disk()

    def _return_disk(self) -> None:
        """Mount the old disk at its path, where a boot has mounted the new directory in its place."""
        if not self.disk_at:
            return
        table = read_mounts()
        there = of_path(self.real, table)
        if there.point == self.real and (there.device, there.root) == self.beneath(table):
            return
        if not os.path.ismount(self.disk_at):
            raise StowageError(f"{self.real}: its disk is mounted neither there nor at {self.disk_at}; mount it")
        fd = os.open(self.disk_at, DIRECTORY)
        try:
            bind_mount(fd, self.real, apart=True)
        finally:
            os.close(fd)

    def leave_disk(self) -> None:
        """Unmount the disk from its second place."""
        if self.disk_at and os.path.isdir(self.disk_at):
            while os.path.ismount(self.disk_at):
                unmount(self.disk_at)
            os.rmdir(self.disk_at)

    def writable_ways(self, table: Sequence[Mount]) -> list[str]:
        """Return where the old directory can still be opened for writing, in any mount namespace, once it is closed.

        A namespace that does not follow this host's mounts, as a container's, has the mount around it as it was.
        """
        device, place = self.beneath(table)
        ways = []
        for mounts in of_all_namespaces():
            for mount in mounts:
                if mount.device != device or not is_within(place, mount.root) or mount.read_only:
                    continue
                name = os.path.normpath(os.path.join(mount.point, os.path.relpath(place, mount.root)))
                if name != self.disk_at and of_path(name, mounts) is mount:
                    ways.append(f"it can still be written as {printable(name)} in some mount namespace")
        return list(dict.fromkeys(ways))


# -- Lasting across a boot


@dataclass(frozen=True)
class KeptMount:
    """A mount unit of a move: what keeps the old path, or the old disk at its second place."""

    description: str
    point: str
    what: str
    fstype: str
    options: tuple[str, ...]
    needs: str = ""
    """A path that has to be mounted before."""
    target: str = "local-fs.target"

    @property
    def name(self) -> str:
        return mount_unit(self.point)

    def path(self, units: str) -> str:
        return os.path.join(units, self.name)

    @property
    def content(self) -> bytes:
        lines = [
            HEADER,
            "[Unit]",
            f"Description={self.description}",
            *([f"RequiresMountsFor={quote_word(self.needs)}"] if self.needs else []),
            "",
            "[Mount]",
            f"What={_plain(self.what)}",
            f"Where={_plain(self.point)}",
            f"Type={self.fstype}",
            f"Options={','.join(self.options)}",
            "DirectoryMode=0700",
            "",
            "[Install]",
            f"WantedBy={self.target}",
        ]
        return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")

    def check(self, name: str, units: str) -> None:
        """Refuse, for location *name*, a path whose unit has no name, or is somebody else's."""
        length = len(self.name)
        if length > _LONGEST:
            rule = (
                f"the name of the mount unit for {self.point} would have {length} bytes, and the longest has {_LONGEST}"
            )
            raise Refusal(name, rule, "move it by hand: its old path cannot be kept")
        there = read(self.path(units))
        if there is not None and not is_ours(there[0]):
            rule = f"{self.path(units)} mounts something at {self.point} and was not written by Stowage"
            raise Refusal(name, rule, "take that out, or move the location by hand")

    def write(self, units: str, systemctl: Systemctl) -> None:
        """Have it mounted at every boot, also after a power cut."""
        write_bytes(self.path(units), self.content)
        systemctl.daemon_reload()
        systemctl.tell("enable", self.name)
        self._sync(units)

    def verify(self, systemctl: Systemctl) -> None:
        """Fail when systemd does not know the unit: what silently does not act is worse than nothing."""
        unit = systemctl.show([self.name], ["FragmentPath"])[self.name]
        if unit["LoadState"] != "loaded" or not unit["FragmentPath"].endswith(f"/{self.name}"):
            raise StowageError(f"{self.name}: systemd does not use it; see systemctl status")

    def is_there(self, units: str) -> bool:
        there = read(self.path(units))
        return there is not None and is_ours(there[0])

    def remove(self, units: str, systemctl: Systemctl) -> None:
        """Have it mounted at no boot any more, also after a power cut."""
        if not self.is_there(units):
            return
        systemctl.tell("disable", self.name)
        self._sync(units)
        remove(self.path(units))
        systemctl.daemon_reload()

    def _sync(self, units: str) -> None:
        """Have on the disk what systemctl has changed."""
        for directory in (os.path.join(units, f"{self.target}.wants"), units):
            with suppress(FileNotFoundError):  # of the last one that was wanted the directory goes, too
                fd = os.open(directory, DIRECTORY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)


def kept_path(location: str, old: OldPath, table: Sequence[Mount]) -> KeptMount:
    """Return what mounts the new directory at the old path."""
    shared = is_shared(of_path(old.new_real, table).fstype)
    options = ("bind", "nosuid", "nodev", *(("_netdev",) if shared else ()))
    target = "remote-fs.target" if shared else "local-fs.target"
    return KeptMount(f"The old path of {location}", old.real, old.new_real, "none", options, old.new_real, target)


def kept_disk(location: str, old: OldPath, filesystem: FilesystemId) -> KeptMount:
    """Return what mounts the old disk at its second place."""
    what = f"/dev/disk/by-uuid/{filesystem.uuid}"
    # nofail: a dead old disk must not keep the host from starting.
    options = ("nosuid", "nodev", "nofail")
    return KeptMount(f"The old disk of {location}", old.disk_at, what, filesystem.fstype, options)


def _plain(text: str) -> str:
    """Return *text* for a setting of a unit, with nothing left to expand."""
    return text.replace("%", "%%")
