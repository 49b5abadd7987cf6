# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A backup of Stowage's own metadata, before a location is moved."""

from __future__ import annotations

import os
import re
import tarfile
import tempfile

from ..places import Places

ENDING = ".tar.gz"


def back_up(places: Places, path: str) -> None:
    """Write what is declared and recorded on this host into an archive at *path* that only root can read.

    Archives of moves are left out, and so is what is mounted in these directories.
    """
    directory, name = os.path.split(path)
    fd, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=directory)  # mode 0600
    try:
        with open(fd, "wb") as stream:
            with tarfile.open(fileobj=stream, mode="w:gz") as archive:
                for top in (places.etc, places.var):
                    if os.path.isdir(top):
                        _add(archive, top, os.lstat(top).st_dev, os.path.basename(temporary))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def remove_all(places: Places, location: str) -> None:
    """Remove the archives of all moves of a location, and what was cut short of them."""
    ours = re.compile(rf"\.?{re.escape(location)}-[0-9a-f]{{16}}{re.escape(ENDING)}(\..*)?")
    for name in os.listdir(places.relocations_dir):
        if ours.fullmatch(name):
            os.unlink(os.path.join(places.relocations_dir, name))


def _add(archive: tarfile.TarFile, top: str, device: int, itself: str) -> None:
    archive.add(top, recursive=False)
    with os.scandir(top) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.name.endswith(ENDING) or entry.name == itself:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                if status.st_dev != device:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    _add(archive, entry.path, device, itself)
                else:
                    archive.add(entry.path, recursive=False)
            except FileNotFoundError:
                continue  # replaced or removed meanwhile
