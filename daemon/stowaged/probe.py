# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asking whether a declared directory is there, is the right one, and how much room its filesystem has.

Everything here touches a disk and runs in a child.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Callable

from stowage_core import mounts
from stowage_core.data_location import locations as data_locations
from stowage_core.data_location.locations import DataLocation
from stowage_core.errors import Refusal, StowageError
from stowage_core.layout import available
from stowage_core.mounts import FilesystemId, Mount
from stowage_core.owner import read_mark
from stowage_core.places import Places
from stowage_core.sizes import Space
from stowage_core.tiers.claim import KIND as TIER

from .children import Send
from .declared import DATA_LOCATION, Target
from .last_measured import last_filesystem, unsaid


class UnavailableError(StowageError):
    """A directory is not there, or another one is in its place."""


class UnmadeError(UnavailableError):
    """A directory is not there that is made when it is first used."""


class UnclaimedError(UnavailableError):
    """A directory is there, and does not bear the owner mark of what it is to be."""


def open_target(
    places: Places, target: Target, location: DataLocation | None, table: Sequence[Mount], send: Send = unsaid
) -> tuple[int, Mount, Sequence[Mount]]:
    """Return a descriptor of *target*, the mount that it lies on, and the mounts: looking may have mounted one.

    An empty directory where a disk is missing must not become a zero.

    :param location: the data location's record, for the target that is the data location
    :raises UnavailableError: saying what is wrong, in one line
    """
    try:
        if target.object == DATA_LOCATION and location is not None:
            fd = data_locations.open_verified(location, table)
        else:
            fd = os.open(target.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except StowageError as error:
        raise UnavailableError(str(error)) from error
    except FileNotFoundError as error:
        try:
            available.check_mounted(target.path, os.path.realpath(target.path), mounts.read())
        except Refusal as missing:
            raise UnavailableError(str(missing)) from missing
        if target.made_on_use:
            unmade = last_filesystem(places, target) is None
            rule = "is not there; mount its disk, or leave it: it is made when a run uses it next"
            raise (UnmadeError if unmade else UnavailableError)(f"{target.path}: {rule}") from error
        raise UnavailableError(f"{target.path}: {error.strerror}; mount its disk or correct the declaration") from error
    except OSError as error:
        raise UnavailableError(f"{target.path}: {error.strerror}; mount its disk or correct the declaration") from error
    try:
        table = mounts.with_mount_of(fd, table)
        # Where it is declared to be outranks where it was.
        before = None if target.filesystem is not None else last_filesystem(places, target, send)
        return fd, _checked(fd, target, table, before), table
    except BaseException:
        os.close(fd)
        raise


def _checked(fd: int, target: Target, table: Sequence[Mount], before: FilesystemId | None) -> Mount:
    try:
        mount = available.check(target.path, fd, table, target.mount_point, target.filesystem)
    except StowageError as error:
        raise UnavailableError(str(error)) from error
    if target.must_be_shared and not mounts.is_shared(mount.fstype):
        raise UnavailableError(f"{target.path}: is not on a shared filesystem mounted here; mount it")
    if before is not None and not mounts.identify(fd, table).matches(before) and not os.listdir(fd):
        raise UnavailableError(
            f"{target.path}: an empty directory on another filesystem than at the last measurement; mount its disk"
        )
    if target.claim is not None:
        _check_claim(fd, target, target.claim)
    return mount


def _check_claim(fd: int, target: Target, claim: tuple[str, str]) -> None:
    """Refuse a directory that is not the tier: its disk may be missing, or others may have it now."""
    name, identity = claim
    mark = read_mark(fd)
    if mark is None or (mark.kind, mark.name) != (TIER, name) or identity not in ("", mark.identity):
        rule = f"does not bear the owner mark of tier {name}: its disk is missing, or another directory is in its place"
        raise UnclaimedError(f"{target.path}: {rule}; mount its disk, or roll the host out again")


def place_of(mount: Mount) -> dict[str, Any]:
    """Return what is to be known of the mount that a target is really on, wherever its path leads."""
    return {"device": mount.device, "shared": mounts.is_shared(mount.fstype)}


def ask(
    places: Places,
    target: Target,
    location: DataLocation | None,
    table: Sequence[Mount],
    touch: Callable[[Mount], bool] = lambda _mount: True,
) -> dict[str, Any]:
    """Return what is known about *target* after touching it.

    :param touch: given each mount on the way before it is touched
    """
    _real, mount = mounts.follow(target.path, table, touch)
    touch(mount)
    place = place_of(mount)
    try:
        fd, mount, table = open_target(places, target, location, table)
    except StowageError as error:
        made = not isinstance(error, UnmadeError)
        known = {"claimed": False} if isinstance(error, UnclaimedError) else {}
        return {
            "object": target.object,
            "available": False,
            "made": made,
            "reason": str(error),
            "place": place,
            **known,
        }
    place = place_of(mount)
    try:
        space = Space.of(fd)
        if target.claim is not None:
            with os.scandir(fd) as entries:
                next(entries, None)  # what cannot be listed is not there for its store either
    except OSError as error:
        reason = f"{target.path}: {error.strerror}; see what is wrong with its disk"
        return {"object": target.object, "available": False, "reason": reason, "place": place, "claimed": True}
    finally:
        os.close(fd)
    return {
        "object": target.object,
        "available": True,
        "reason": "",
        "place": place,
        "filesystem": {**describe(mount, table), **asdict(space)},
    }


def describe(mount: Mount, table: Sequence[Mount]) -> dict[str, Any]:
    """Return a filesystem's name: of the many places where it may be mounted always the same one, and no pin."""
    places = [one for one in table if one.device == mount.device]
    first = min(places, key=lambda one: (len(one.root), one.id))
    return {
        "id": first.device,
        "mountpoint": first.point,
        "device": first.source,
        "fstype": first.fstype,
        "shared": mounts.is_shared(first.fstype),
    }
