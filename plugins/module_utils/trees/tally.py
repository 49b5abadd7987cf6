# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sums over a directory tree, and what was missed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from ..syscalls import open_beneath
from .walk import Directory, Problem, Walk

_MOST_TEXTS = 16
_FILES_A_STEP = 256


class Tally:
    """Adds up what walks come across.

    `is_new` is asked for each name of a file with several hard links whether it is to be counted.
    """

    def __init__(self, is_new: Callable[[os.stat_result], bool]) -> None:
        self._is_new = is_new
        self.bytes = 0
        self.directory_bytes = 0
        self.blocks = 0
        self.linked_blocks = 0
        self.files = 0
        self.directories = 0

    def count(self, walk: Walk, step: Callable[[], None]) -> None:
        """Count one tree; call `step` after each directory and each few hundred files."""
        for directory in walk:
            self.count_directory(directory, walk, step)

    def count_directory(self, directory: Directory, walk: Walk, step: Callable[[], None]) -> None:
        """Count what is directly in the directory that the walk is at, and the directory itself."""
        is_new = self._is_new
        dev = directory.status.st_dev
        size = files = 0
        blocks = directory.status.st_blocks
        for number, entry in enumerate(directory.files(), 1):
            if number % _FILES_A_STEP == 0:
                step()
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    directory.gone(entry)
                else:
                    walk.problem(error, entry.name)
                continue
            if status.st_dev != dev and is_mount_point(directory, entry.name):
                walk.skipped(entry.name)
                continue
            if status.st_nlink > 1:
                if not is_new(status):
                    continue
                self.linked_blocks += status.st_blocks
            size += status.st_size
            blocks += status.st_blocks
            files += 1
        self.bytes += size
        self.blocks += blocks
        self.files += files
        self.directory_bytes += directory.status.st_size
        self.directories += 1
        step()

    def add(
        self, bytes: int, directory_bytes: int, blocks: int, files: int, directories: int, linked_blocks: int = 0
    ) -> None:
        """Add what another tally came to."""
        self.bytes += bytes
        self.directory_bytes += directory_bytes
        self.blocks += blocks
        self.files += files
        self.directories += directories
        self.linked_blocks += linked_blocks

    def sums(self) -> tuple[int, int, int, int, int, int]:
        """Return what `add` takes."""
        return self.bytes, self.directory_bytes, self.blocks, self.files, self.directories, self.linked_blocks


def is_mount_point(directory: Directory, name: str) -> bool:
    """Return whether a file of another device is mounted here; on an overlay files just have devices of their own."""
    try:
        os.close(open_beneath(directory.fd, os.fsencode(name), os.O_PATH))
    except OSError as error:
        return error.errno == errno.EXDEV
    return False


class FirstProblems:
    """The first problems in words, the others by their number."""

    def __init__(self) -> None:
        self.complete = True
        self._texts: list[str] = []
        self._more = 0

    def add(self, problem: Problem) -> None:
        """Take note of one."""
        self.complete = self.complete and not problem.missing
        if len(self._texts) < _MOST_TEXTS:
            self._texts.append(str(problem))
        else:
            self._more += 1

    def texts(self) -> tuple[str, ...]:
        """Return them, one line each."""
        return (*self._texts, f"and {self._more} more") if self._more else tuple(self._texts)
