# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and settings of systemd's units, and what ``systemctl`` says of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Callable

from ..errors import Refusal, StowageError, quoted
from ..own_files import HEADER

RunCommand = Callable[..., tuple[int, str, str]]
Properties = dict[str, str]

_BARE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_.")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")
_SUFFIXES = ("service", "socket", "timer", "target", "path", "slice", "scope", "mount", "automount", "swap", "device")


def escape_path(path: str) -> str:
    """Return an absolute, normalized *path* as it stands in the name of a unit, like ``systemd-escape --path``."""
    trimmed = os.fsencode(path).strip(b"/")
    if not trimmed:
        return "-"
    escaped = []
    for index, byte in enumerate(trimmed):
        if byte == ord("/"):
            escaped.append("-")
        elif byte in _BARE and not (index == 0 and byte == ord(".")):
            escaped.append(chr(byte))
        else:
            escaped.append(f"\\x{byte:02x}")
    return "".join(escaped)


def mount_unit(path: str) -> str:
    """Return the name of the mount unit for a mount point."""
    return escape_path(path) + ".mount"


def mount_units_above(path: str) -> dict[str, str]:
    """Return for *path* and every directory above it but the root, deepest first, the name of its mount unit."""
    parts = path.strip("/").split("/")
    points = ["/" + "/".join(parts[:length]) for length in range(len(parts), 0, -1)]
    units = {point: mount_unit(point) for point in points}
    return {point: unit for point, unit in units.items() if len(unit) <= 255}  # a longer name is no unit


def service_name(name: str) -> str:
    """Return the full name of a service, or refuse it; ``slurmd`` and ``slurmd.service`` are the same."""
    return _checked(name if name.endswith(".service") else name + ".service", "service")


def unit_name(name: str) -> str:
    """Return the full name of a unit, a service when it has no other suffix, or refuse it."""
    return _checked(name if name.rpartition(".")[2] in _SUFFIXES else name + ".service", "unit")


def _checked(name: str, kind: str) -> str:
    stem = name.rpartition(".")[0]
    if not _UNIT.fullmatch(name) or not stem or stem.startswith(("-", ".", "@")):
        raise Refusal(kind, f"{quoted(name)} is not the name of a systemd unit")
    if stem.endswith("@"):
        raise Refusal(kind, f"{quoted(name)} is a template", "name its instances")
    return name


def quote_word(text: str) -> str:
    """Return *text* as one word of a setting that takes a list, with nothing left to expand."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def render_mount_drop_in(paths: Sequence[str], mount_points: Sequence[str]) -> bytes:
    """Return the drop-in that ties a service to the mounts at *mount_points*, which cover *paths*.

    RequiresMountsFor= orders the service after the mounts and pulls them in. BindsTo= stops it when one of them goes,
    also when somebody unmounts it by hand. The assertion fails a start loudly when a unit is up and nothing is there.
    """
    lines = [HEADER, "[Unit]"]
    lines += [f"RequiresMountsFor={quote_word(path)}" for path in paths]
    for point in mount_points:
        unit = mount_unit(point)
        lines += [f"BindsTo={unit}", f"After={unit}", f"AssertPathIsMountPoint={point.replace('%', '%%')}"]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def parse_show(text: str) -> list[Properties]:
    """Return what ``systemctl show`` printed: the properties of each unit, in the order of the question."""
    units: list[Properties] = []
    for block in text.strip("\n").split("\n\n"):
        properties = {}
        for line in block.split("\n"):
            name, equals, value = line.partition("=")
            if equals:
                properties[name] = value
        if properties:
            units.append(properties)
    return units


class Systemctl:
    """The host's service manager, asked and told by its own command."""

    def __init__(self, program: str, run_command: RunCommand) -> None:
        self._program = program
        self._run_command = run_command

    def show(self, units: Sequence[str], properties: Sequence[str]) -> dict[str, Properties]:
        """Return *properties* of each of *units*, by the name it was asked for; one call for all of them."""
        names = list(dict.fromkeys(units))
        if not names:
            return {}
        # LoadState is never empty: it keeps a block of empty properties from vanishing.
        wanted = ",".join(dict.fromkeys(("Id", "LoadState", *properties)))
        found = parse_show(self._call("show", f"--property={wanted}", "--", *names))
        if len(found) != len(names):
            raise StowageError(f"systemctl show: answered for {len(found)} of {len(names)} units")
        return dict(zip(names, found))

    def running(self, template: str) -> list[str]:
        """Return the instances of a template, such as ``a@.service``, that run or are about to."""
        pattern = template.replace("@.", "@*.")
        states = "--state=active,activating,reloading,deactivating"
        listed = self._call("list-units", "--plain", "--no-legend", "--full", states, "--", pattern)
        return [line.split()[0] for line in listed.splitlines() if line.strip()]

    def daemon_reload(self) -> None:
        """Make the service manager read its unit files again."""
        self._call("daemon-reload")

    def tell(self, verb: str, unit: str) -> None:
        """Have the service manager do something with one unit."""
        self._call(verb, "--", unit)

    def restart(self, unit: str) -> None:
        """Restart one unit."""
        self._call("restart", "--", unit)

    def _call(self, *arguments: str) -> str:
        code, out, err = self._run_command([self._program, *arguments])
        if code != 0:
            problem = " ".join((err or out).split())
            raise StowageError(f"systemctl {arguments[0]} {arguments[-1]}: {problem or f'exit status {code}'}")
        return out
