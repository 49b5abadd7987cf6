# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files outside Stowage's own directories that it writes as a whole, and never takes from somebody else."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from typing import Callable

from .errors import Refusal


def read(path: str, is_ours: Callable[[bytes], bool], name: str = "") -> bytes | None:
    """Return the content of our file at *path*, or None when there is none.

    :raises Refusal: when what is there is not ours to replace or remove
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
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Refusal(label, f"{path} is not a regular file", "name another one")
        data = b"".join(iter(partial(os.read, fd, 1 << 16), b""))
    finally:
        os.close(fd)
    if not is_ours(data):
        raise Refusal(label, f"{path} was not written by Stowage", "name another file, or move this one away")
    return data
