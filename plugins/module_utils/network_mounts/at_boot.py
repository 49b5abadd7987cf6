# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The service that makes the network mounts of this host again after a boot.

Their units alone would be tried once, while the boot waits, and hosts that come up together after a power failure would
be without what the slower one of them holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial

from .. import own_files, records
from ..differences import Differences
from ..own_files import HEADER
from ..services.systemd_units import Systemctl, quote_word
from . import mount_units

SERVICE = "stowage-network-mounts.service"
AGAIN_S = 30
"""How long it waits before it tries again, in seconds."""


def path() -> str:
    return os.path.join(mount_units.UNITS, SERVICE)


def link() -> str:
    """Return what makes it start at every boot."""
    return os.path.join(mount_units.UNITS, "multi-user.target.wants", SERVICE)


def content(units: Iterable[str]) -> bytes:
    """Return the service for mount *units*: exec, so that no boot waits for a server."""
    lines = [
        HEADER,
        "[Unit]",
        "Description=Stowage: network mounts after a boot",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart=systemctl start -- {' '.join(quote_word(unit) for unit in units)}",
        "Restart=on-failure",
        f"RestartSec={AGAIN_S}",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return ("\n".join(lines) + "\n").encode("ascii")


def keep(units: Iterable[str], systemctl: Systemctl, differences: Differences) -> None:
    """Have the service start mount *units* at every boot; without any, there is none."""
    wanted = sorted(units)
    if not wanted and own_files.is_there(path()):
        # It may be at work on what is unmounted now.
        differences.do(f"systemctl stop {SERVICE}", partial(systemctl.tell, "stop", SERVICE))
    stale = own_files.keep("unit", path(), content(wanted) if wanted else None, differences)
    loose = differences.note(f"{SERVICE} at every boot", bool(wanted), os.path.islink(link()))
    if loose and wanted:
        differences.do(f"link {link()}", _link)
    elif loose:
        differences.do(f"remove {link()}", partial(records.remove, link()))
    if stale or loose:
        differences.do("systemctl daemon-reload", systemctl.daemon_reload)


def _link() -> None:
    records.make_directory(os.path.dirname(link()))
    os.symlink(path(), link())
