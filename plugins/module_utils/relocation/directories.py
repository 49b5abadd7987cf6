# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two directories of a move, opened and proved to be those that it began with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import Refusal
from ..layout.found import opened as found
from ..mounts import Mount, of_fd, of_path
from ..services.mount_points import underneath
from ..syscalls import DIRECTORY
from .recorded import Identity, Relocation


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a directory whose path has no symlinks, for reading."""
    with found(path) as place:
        fd = os.open(".", DIRECTORY, dir_fd=place)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def opened_old(one: Relocation, table: Sequence[Mount]) -> Iterator[int]:
    """Open the old directory at its path, before the switch.

    :raises Refusal: when it is another one
    """
    with opened(one.real) as fd:
        _check_old(one, fd, of_fd(fd, table))
        yield fd


@contextmanager
def opened_beneath(one: Relocation, table: Sequence[Mount]) -> Iterator[int]:
    """Open the old directory beneath what is mounted over it, for writing.

    :raises Refusal: when it is another one
    """
    if one.disk_at:
        with opened(one.disk_at) as fd:
            _check_old(one, fd, of_fd(fd, table))
            yield fd
        return
    with underneath(one.real, table) as fd:
        _check_old(one, fd, of_path(os.path.dirname(one.real), table))
        yield fd


@contextmanager
def opened_new(one: Relocation, table: Sequence[Mount]) -> Iterator[int]:
    """Open the new directory.

    :raises Refusal: when it is another one
    """
    with opened(one.to_real) as fd:
        if not one.new.matches(Identity.of(fd, of_fd(fd, table))):
            rule = f"{one.to} is not the directory that it is moved to: {_ELSE}"
            raise Refusal(one.location, rule, _REMEDY)
        yield fd


_ELSE = "another one is there, or its disk is not mounted"
_REMEDY = "bring it back as it was"


def _check_old(one: Relocation, fd: int, mount: Mount) -> None:
    if not one.old.matches(Identity.of(fd, mount)):
        raise Refusal(one.location, f"{one.path} is not the directory that is moved: {_ELSE}", _REMEDY)
