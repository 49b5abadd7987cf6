# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of daemon, exporter and command on a host, and how a process tells which of them it was started with."""

from __future__ import annotations

import hashlib
import os
import pwd
import zipfile
from collections.abc import Mapping

from ..own_files import HEADER
from ..places import Places

PROGRAM = "/usr/local/bin/stowage"
LIBRARY = "/usr/local/lib/stowage"
VIRTUALENV = f"{LIBRARY}/venv"
UNITS = "/etc/systemd/system"
TMPFILES = "/etc/tmpfiles.d/stowage.conf"
SYSUSERS = "/etc/sysusers.d/stowage.conf"
USE_USER = "stowage-use"
"""As whom the looks at use run: a user to whom nothing on any disk belongs."""

DAEMON = "stowaged.service"
EXPORTER = "stowage-exporter.service"
LEASES_PATH = "stowage-leases.path"
LEASES = "stowage-leases.service"
USE_SOCKET = "stowage-use.socket"
USE = "stowage-use@.service"
FILL = "stowage-fill@.service"
NAMES = (DAEMON, EXPORTER, LEASES_PATH, LEASES, USE_SOCKET, USE, FILL)
LOADED = (DAEMON, EXPORTER, LEASES_PATH, LEASES, USE_SOCKET)
"""Those that the service manager can be asked about: a template is no unit itself."""
SERVICES = (DAEMON, EXPORTER)
"""Those that always run."""
WAITING = (LEASES_PATH, USE_SOCKET)
"""Those that start others when there is something to do."""

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


def sysusers() -> str:
    """Return what makes the user as whom the looks at use run."""
    return f'{HEADER}\nu {USE_USER} - "Stowage, looks whether copies are in use"\n'


def has_user() -> bool:
    """Return whether that user is there."""
    try:
        pwd.getpwnam(USE_USER)
    except KeyError:
        return False
    return True


def is_virtualenv(path: str) -> bool:
    """Return whether the directory at *path* is the virtual environment that the role made, by its prompt."""
    if any(os.path.islink(one) for one in (path, os.path.dirname(path))):
        return False
    try:
        with open(os.path.join(path, "pyvenv.cfg"), encoding="utf-8", errors="replace") as stream:
            return "prompt = 'stowage'" in stream.read().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_program(path: str) -> bool:
    """Return whether the file at *path* is an application of Stowage."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "stowaged/entry.py" in archive.namelist()
    except zipfile.BadZipFile:
        return False
