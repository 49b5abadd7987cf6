# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of daemon, exporter and command on a host, and how a process tells which of them it was started with."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping

from .own_files import HEADER
from .places import Places

PROGRAM = "/usr/local/bin/stowage"
LIBRARY = "/usr/local/lib/stowage"
UNITS = "/etc/systemd/system"
TMPFILES = "/etc/tmpfiles.d/stowage.conf"

DAEMON = "stowaged.service"
EXPORTER = "stowage-exporter.service"
LEASES_PATH = "stowage-leases.path"
LEASES = "stowage-leases.service"
NAMES = (DAEMON, EXPORTER, LEASES_PATH, LEASES)
SERVICES = (DAEMON, EXPORTER)
"""Those that always run."""

_STAMP = "STOWAGE_INSTALLED"
_SECTION = "[Service]\n"


def unit_path(name: str) -> str:
    return os.path.join(UNITS, name)


def stamp_of(text: str, application: str) -> str:
    """Return what tells one unit with one application from every other."""
    return hashlib.sha256(f"{application}\n{text}".encode()).hexdigest()[:16]


def stamped(text: str, application: str) -> str:
    """Return the unit *text* with the stamp in the environment of its processes, where they show what they run."""
    return text.replace(_SECTION, f"{_SECTION}Environment={_STAMP}={stamp_of(text, application)}\n", 1)


def running_stamp(pid: str, proc: str = "/proc") -> str | None:
    """Return the stamp in the environment of a process, None when it has none or there is no such process."""
    try:
        with open(f"{proc}/{pid}/environ", "rb") as stream:
            variables = stream.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    prefix = f"{_STAMP}=".encode()
    return next((one[len(prefix) :].decode("ascii", "replace") for one in variables if one.startswith(prefix)), None)


def directories(places: Places) -> Mapping[str, int]:
    """Return the directories that daemon and exporter need, with their modes; all of them are root's."""
    return {places.run: 0o755, places.state_dir: 0o755, places.pins_dir: 0o711, places.var: 0o755}


def tmpfiles(places: Places) -> str:
    """Return what makes the directories again at every boot. No RuntimeDirectory=: pins must outlive the daemon."""
    lines = [HEADER, *(f"d {path} {mode:04o} root root -" for path, mode in directories(places).items())]
    return "\n".join(lines) + "\n"


def is_program(path: str) -> bool:
    """Return whether the file at *path* is an application of Stowage."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "stowaged/entry.py" in archive.namelist()
    except zipfile.BadZipFile:
        return False
