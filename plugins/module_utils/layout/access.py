# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the users who work in the locations of a layout can: asked as each of them, or foretold."""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..accounts import User
from ..answers import Tell, in_child
from ..errors import Refusal
from ..paths import is_within
from .directories import Ownership, Wanted, wanted_of
from .found import Place
from .rules import OF_ROOT

_PERMISSIONS = ((os.R_OK, "read"), (os.W_OK, "write"), (os.X_OK, "enter"))
_READ_AND_ENTER = os.R_OK | os.X_OK
_ALL = os.R_OK | os.W_OK | os.X_OK


def check_users(
    users: Sequence[User], places: Mapping[str, Place], wanted: Wanted, changing: Sequence[str] = ()
) -> None:
    """Refuse what a user cannot use, as far as that is known before the directories *changing* get their owner."""
    needs = []
    for name, place in places.items():
        if name == "root":
            continue
        if not place.exists:
            check_will_have_access(users, name, place, wanted_of(name, wanted, None))
        if not any(is_within(place.existing, path) for path in changing):
            needs.append(Need(name, place.existing, _needed(name) if place.exists else os.X_OK))
    check_access(users, needs)


def _needed(name: str) -> int:
    """Return what users must be allowed to do in a location: where others' directories are, they change nothing."""
    return _READ_AND_ENTER if name in (*OF_ROOT, "volume_root") else _ALL


@dataclass(frozen=True)
class Need:
    """A location, and what its users must be allowed to do there."""

    name: str
    path: str
    permissions: int = _ALL


def check_access(users: Sequence[User], needs: Sequence[Need]) -> None:
    """Refuse the first location that a user cannot use, found out as that user.

    Asking the kernel as the user is the only way that knows access lists, read-only mounts and root squash.
    """
    for user in users:

        def work(tell: Tell, user: User = user) -> None:
            os.setgroups(user.groups)
            gid = pwd.getpwuid(user.uid).pw_gid
            os.setresgid(gid, gid, gid)
            os.setresuid(user.uid, user.uid, user.uid)
            for need in needs:
                tell(_missing(need))

        problems = in_child(work, lambda count: f"{needs[count].name}: {needs[count].path}")
        for need, problem in zip(needs, problems):
            if isinstance(problem, list):
                rule, remedy = map(str, problem)
                raise Refusal(need.name, f"user {user.name} cannot use {need.path}: {rule}", remedy)


def _missing(need: Need) -> tuple[str, str] | None:
    parts = need.path.strip("/").split("/")
    for length in range(1, len(parts)):
        above = "/" + "/".join(parts[:length])
        if not os.access(above, os.X_OK):
            return f"may not pass through {above}{_described(above)}", f"let the user enter {above}"
    if need.permissions & os.W_OK and os.statvfs(need.path).f_flag & os.ST_RDONLY:
        return "its filesystem is mounted read-only", "mount it for writing"
    wanted = [word for bit, word in _PERMISSIONS if need.permissions & bit and not os.access(need.path, bit)]
    if not wanted:
        return None
    return f"may not {' or '.join(wanted)}{_described(need.path)}", _remedy(need)


def _remedy(need: Need) -> str:
    wanted = "read and enter" if need.permissions == _READ_AND_ENTER else "read, write and enter"
    return f"give the user permission to {wanted} it, by owner, group or access list"


def _described(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError as error:
        return f" ({error.strerror})"
    return f" ({Ownership.of(status).described})"


def check_will_have_access(users: Sequence[User], name: str, place: Place, wanted: Ownership) -> None:
    """Refuse a directory that is still to be made when its users would not be able to use it."""
    if wanted.uid is None or wanted.gid is None or _has_default_access_list(place.existing):
        return  # only the kernel will know, once the directory is there and has inherited the access list
    for user in users:
        if user.uid == wanted.uid:
            granted = wanted.mode >> 6
        elif wanted.gid in user.groups:
            granted = wanted.mode >> 3
        else:
            granted = wanted.mode
        missing = [word for bit, word in _PERMISSIONS if bit & _needed(name) and not granted & bit]
        if missing and user.uid != 0:
            raise Refusal(
                name,
                f"user {user.name} could not use {place.path}: may not {' or '.join(missing)} ({wanted.described})",
                "choose an owner, group and mode that let the user in",
            )


def _has_default_access_list(path: str) -> bool:
    try:
        return bool(os.getxattr(path, "system.posix_acl_default"))
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return False
        raise
