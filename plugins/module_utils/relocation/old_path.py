# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The old path of a location: what is mounted over it while it is moved, and afterwards.

While it is copied the old directory is mounted over itself, read-only: readers go on, and nobody opens anything for
writing. Then the new directory is mounted over that, in one step, and stays there, so that stored absolute paths go on
working. The old content lies beneath, where only root reaches it, through a copy of the mount around it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import Refusal, StowageError, printable
from ..mounts import Located, Mount, is_shared, of_all_namespaces, of_path, place_in_filesystem
from ..own_files import HEADER, is_ours, read
from ..paths import is_within
from ..records import remove, write_bytes
from ..services.systemd_units import Systemctl, mount_unit, quote_word
from ..syscalls import bind_mount, unmount, unmount_forced
from .stages import Found

UNITS = "/etc/systemd/system"
_LONGEST = 255
"""Bytes in the name of a unit."""


def beneath(real: str, table: Sequence[Mount]) -> tuple[str, str]:
    """Return device and place in its filesystem of the old directory at *real*, whatever is mounted over it."""
    above = of_path(os.path.dirname(real), table)
    return above.device, place_in_filesystem(real, above)


def found(real: str, new_real: str, table: Sequence[Mount]) -> Found:
    """Return what is mounted at the old path *real*."""
    mount = of_path(real, table)
    if mount.point != real:
        return Found()
    here = (mount.device, mount.root)
    if here == beneath(real, table):
        return Found(closed="ro" in mount.options)
    new = Located.of(new_real, table)
    return Found(bound=here == (new.device, new.place))


def close(fd: int, real: str) -> None:
    """Mount the old directory, open at *fd*, read-only over itself."""
    bind_mount(fd, real, read_only=True)


def uncover(real: str, new_real: str, read_table: Callable[[], Sequence[Mount]]) -> None:
    """Unmount what was mounted over the old path: at the end the old directory is there again, and can be written."""
    while True:
        now = found(real, new_real, read_table())
        if not (now.closed or now.bound):
            return
        try:
            unmount(real)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # Who has something open there keeps it, and nobody finds it by this name any more.
            unmount_forced(real)


def writable_ways(real: str, table: Sequence[Mount]) -> list[str]:
    """Return where the old directory can still be opened for writing, in any mount namespace, once it is closed.

    A namespace that does not follow this host's mounts, as a container's, has the mount around it as it was.
    """
    device, place = beneath(real, table)
    ways = []
    for mounts in of_all_namespaces():
        for mount in mounts:
            if mount.device != device or not is_within(place, mount.root) or mount.read_only:
                continue
            name = os.path.normpath(os.path.join(mount.point, os.path.relpath(place, mount.root)))
            if of_path(name, mounts) is mount:
                ways.append(f"it can still be written as {printable(name)} in some mount namespace")
    return list(dict.fromkeys(ways))


# -- Lasting across a boot


@dataclass(frozen=True)
class KeptPath:
    """The mount unit that keeps the old path."""

    location: str
    real: str
    new_real: str
    shared: bool
    """Whether the new directory is on a network filesystem."""

    @property
    def name(self) -> str:
        return mount_unit(self.real)

    def path(self, units: str) -> str:
        return os.path.join(units, self.name)

    @property
    def content(self) -> bytes:
        options = ["bind", "nosuid", "nodev", *(["_netdev"] if self.shared else [])]
        lines = [
            HEADER,
            "[Unit]",
            f"Description=The old path of {self.location}",
            f"RequiresMountsFor={quote_word(self.new_real)}",
            "",
            "[Mount]",
            f"What={_plain(self.new_real)}",
            f"Where={_plain(self.real)}",
            "Type=none",
            f"Options={','.join(options)}",
            "",
            "[Install]",
            f"WantedBy={'remote' if self.shared else 'local'}-fs.target",
        ]
        return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")

    def check(self, units: str) -> None:
        """Refuse a path whose unit has no name, or is somebody else's."""
        length = len(self.name)
        if length > _LONGEST:
            rule = (
                f"the name of the mount unit for {self.real} would have {length} bytes, and the longest has {_LONGEST}"
            )
            raise Refusal(self.location, rule, "move it by hand: its old path cannot be kept")
        there = read(self.path(units))
        if there is not None and not is_ours(there[0]):
            rule = f"{self.path(units)} mounts something at {self.real} and was not written by Stowage"
            raise Refusal(self.location, rule, "take that out, or move the location by hand")

    def write(self, units: str, systemctl: Systemctl) -> None:
        """Have the new directory mounted at the old path at every boot."""
        write_bytes(self.path(units), self.content)
        systemctl.daemon_reload()
        systemctl.tell("enable", self.name)

    def verify(self, systemctl: Systemctl) -> None:
        """Fail when systemd does not know the unit: what silently does not act is worse than nothing."""
        unit = systemctl.show([self.name], ["FragmentPath"])[self.name]
        if unit["LoadState"] != "loaded" or not unit["FragmentPath"].endswith(f"/{self.name}"):
            raise StowageError(f"{self.name}: systemd does not use it; see systemctl status")

    def remove(self, units: str, systemctl: Systemctl) -> None:
        there = read(self.path(units))
        if there is None or not is_ours(there[0]):
            return
        systemctl.tell("disable", self.name)
        remove(self.path(units))
        systemctl.daemon_reload()


def kept_path(location: str, real: str, new_real: str, table: Sequence[Mount]) -> KeptPath:
    return KeptPath(location, real, new_real, is_shared(of_path(new_real, table).fstype))


def _plain(text: str) -> str:
    """Return *text* for a setting of a unit, with nothing left to expand."""
    return text.replace("%", "%%")
