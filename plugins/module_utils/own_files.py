# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files outside Stowage's own directories that it writes as a whole, and never takes from somebody else."""

from __future__ import annotations

import errno
import os
import re
import stat
from functools import partial

from . import records
from .differences import Differences
from .errors import Refusal

HEADER = "# Written by Stowage. Local changes are lost."
"""The first line of a file that is Stowage's to replace and to remove."""

_MODE = re.compile(r"0[0-7]{3,4}")


def read(path: str, name: str = "") -> tuple[bytes, int] | None:
    """Return content and mode of the regular file at *path*, or None when there is none.

    :param name: what the operator knows the file as, for the message
    """
    label = name or path
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise Refusal(label, f"{path} is a symbolic link", "name the file itself, or remove the link") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Refusal(label, f"{path} is not a regular file", "name another one, or move it away")
        return b"".join(iter(partial(os.read, fd, 1 << 16), b"")), stat.S_IMODE(status.st_mode)
    finally:
        os.close(fd)


def read_ours(path: str, name: str = "") -> tuple[bytes, int] | None:
    """Return content and mode of our file at *path*, or None when there is none.

    :raises Refusal: when what is there is not ours to replace or remove
    """
    found = read(path, name)
    if found is not None and not is_ours(found[0]):
        rule = f"{path} was not written by Stowage"
        raise Refusal(name or path, rule, "name another file, or move this one away")
    return found


def keep(name: str, path: str, content: bytes | None, differences: Differences) -> bool:
    """Have *content* in our file at *path*, or no such file when it is None, and return whether that differed.

    :param name: what kind of file it is, for the diff
    :raises Refusal: when what is there is not ours to replace or remove
    """
    found = read_ours(path)
    actual = None if found is None else found[0]
    if not differences.note(f"{name} {path}", in_lines(content), in_lines(actual)):
        return False
    if content is None:
        differences.do(f"remove {path}", partial(records.remove, path))
    else:
        differences.do(f"write {path}", partial(records.write_bytes, path, content))
    return True


def is_there(path: str) -> bool:
    """Return whether the file at *path* is ours."""
    try:
        return read_ours(path) is not None
    except Refusal:
        return False


def is_ours(data: bytes) -> bool:
    """Return whether a file begins with :data:`HEADER`."""
    return data.split(b"\n", 1)[0] == HEADER.encode("ascii")


def parse_mode(text: str, name: str) -> int:
    """Return a mode as it is written for a file or directory, or refuse it: YAML makes 493 of a bare 0755."""
    if not _MODE.fullmatch(text):
        raise Refusal(name, f"{text!r} must be an octal number that begins with 0", 'write it in quotes, like "0755"')
    return int(text, 8)


def in_lines(data: bytes | None) -> list[str] | None:
    """Return the content of a text file as a diff shows it, None where there is none."""
    return None if data is None else data.decode("utf-8", "backslashreplace").split("\n")
