# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Users and groups of this host, by name and by number."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass


@dataclass(frozen=True)
class User:
    """Somebody who works in the locations."""

    name: str
    uid: int
    groups: tuple[int, ...]


def find_user(name: str) -> User | None:
    """Return the user with its groups, or None when there is none of that name or number."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        return None
    return User(entry.pw_name, entry.pw_uid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def find_group(name: str) -> int | None:
    """Return a group's number, or None when there is none of that name."""
    if name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def find_owner(name: str) -> int | None:
    """Return a user's number, or None when there is none of that name."""
    if name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def owner_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
