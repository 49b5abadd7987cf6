# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's NFS server of this host: running, and listening for RDMA too where that is wanted."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from .. import own_files
from ..differences import Differences
from ..errors import Refusal, one_line
from ..facts import networks
from ..own_files import HEADER
from ..services.systemd_units import Systemctl

CONFIGURATION = "/etc/nfs.conf.d/stowage.conf"
PORTLIST = "/proc/fs/nfsd/portlist"
RDMA_PORT = 20049
SERVICE = "nfs-server.service"
TOOLS = {"server": "exportfs and rpc.nfsd", "client": "mount.nfs"}
PACKAGES = {
    "server": "nfs-kernel-server (Debian, Ubuntu) or nfs-utils",
    "client": "nfs-common (Debian, Ubuntu) or nfs-utils",
}
"""What to install where the tools of NFS are missing."""

_CONTENT = f"{HEADER}\n[nfsd]\nrdma=y\nrdma-port={RDMA_PORT}\n".encode("ascii")
_LISTENER = f"rdma {RDMA_PORT}"


def check_tools() -> None:
    """Refuse a host that cannot export: it needs the tools of NFS's server."""
    if not networks.nfs().can_export:
        raise Refusal("NFS server", f"this host has no {TOOLS['server']}", f"install {PACKAGES['server']}")


@dataclass(frozen=True)
class Server:
    """One call: what the server has to be, and how it is."""

    systemctl: Systemctl
    differences: Differences

    def start(self) -> None:
        """Have the server run, now and at every boot."""
        unit = self.systemctl.show([SERVICE], ["ActiveState", "UnitFileState"])[SERVICE]
        if unit["LoadState"] != "loaded":
            raise Refusal("NFS server", f"systemd has no {SERVICE}", f"install {PACKAGES['server']}")
        if self.differences.note(
            f"{SERVICE} is enabled", True, unit["UnitFileState"] in ("enabled", "static", "alias")
        ):
            self.differences.do(f"systemctl enable {SERVICE}", lambda: self.systemctl.tell("enable", SERVICE))
        if self.differences.note(f"{SERVICE} runs", True, unit["ActiveState"] == "active"):
            self.differences.do(f"systemctl start {SERVICE}", lambda: self.systemctl.tell("start", SERVICE))

    def listen_for_rdma(self) -> str:
        """Have the server listen for RDMA, now and at every boot; return why it does not, or nothing.

        A running server reads its configuration at its next start only, which would drop its clients: so it is told
        by its list of ports. Who loads a module has no proof of anything: what counts is what stands in that list then.
        """
        own_files.keep("configuration", CONFIGURATION, _CONTENT, self.differences)
        if _listens():
            return ""
        if not self.differences.check_mode:
            try:
                _listen()
            except OSError as error:
                hint = " (the kernel has no NFS server over RDMA, or no RDMA device)" if error.errno in _NO_RDMA else ""
                return f"{one_line(error, PORTLIST)}{hint}"
            if not _listens():
                return f"the server took {_LISTENER} and does not listen on it; see dmesg"
        # Noted once it is so: a host that cannot listen would have changed with each call.
        self.differences.note(f"NFS server listens on {_LISTENER}", True, False)
        self.differences.act(f"listen on {_LISTENER}")
        return ""


_NO_RDMA = (errno.EPROTONOSUPPORT, errno.ENODEV, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def _listens() -> bool:
    return _LISTENER in networks.nfs().listeners


def _listen() -> None:
    fd = os.open(PORTLIST, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, f"{_LISTENER}\n".encode("ascii"))
    finally:
        os.close(fd)
