# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Credentials in caches that all workloads of a host share: found by their names at a few places, and never opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from stowage_core import events
from stowage_core.errors import printable
from stowage_core.layout.rules import PURPOSES
from stowage_core.places import Places
from stowage_core.syscalls import NO_DIRECTORY, open_beneath

CACHES = frozenset(f"location/{one.name}" for one in PURPOSES if one.in_cache or one.name == "cache")
"""The locations that are looked into, as objects."""
BESIDE = frozenset({"location/hf_hub_cache", "location/hf_datasets_cache"})
"""Those that a default ``HF_HOME`` has in it: whoever gives what is around them as that has the token beside them."""
REASON = "CredentialsInSharedCache"

_HUGGING_FACE = (b"token", b"stored_tokens")
"""What huggingface_hub writes into HF_HOME."""
_MODELSCOPE = (b"git_token", b"cookies")
"""What ModelScope writes into its directory of credentials; modelscope_hub writes ``token`` into MODELSCOPE_HOME."""
_PLACES: tuple[tuple[bytes, tuple[bytes, ...]], ...] = (
    # The cache was given as HF_HOME, MODELSCOPE_HOME or HOME, git's and curl's own files with it.
    (b".", (*_HUGGING_FACE, *_MODELSCOPE, b".git-credentials", b".netrc")),
    # HF_HOME was given as what is around the default places of its caches.
    (b"hf", _HUGGING_FACE),
    # MODELSCOPE_CREDENTIALS_PATH was put into the cache, as vLLM does.
    (b"credentials", _MODELSCOPE),
    # The cache was given as XDG_CACHE_HOME.
    (b"huggingface", _HUGGING_FACE),
    # The cache was given as HOME.
    (b".cache/huggingface", _HUGGING_FACE),
    (b".config/git", (b"credentials",)),
    (b".huggingface", (b"token",)),
    (b".modelscope", (b"token",)),
    (b".modelscope/credentials", _MODELSCOPE),
)


def find(fd: int, path: str, beside: bool = False) -> list[str]:
    """Return the paths of files in the cache open at *fd*, which is at *path*, that are called as credentials are.

    :param beside: whether those of Hugging Face are looked for in the directory around it too
    :raises OSError: when it cannot be looked at
    """
    found = []
    if beside:
        around = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
        try:
            name = os.readlink(f"/proc/self/fd/{around}")
            found += [os.path.join(name, os.fsdecode(one)) for one in _HUGGING_FACE if _is(around, one)]
        finally:
            os.close(around)
    for place, names in _PLACES:
        try:
            directory = open_beneath(fd, place, os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                continue
            raise
        try:
            there = [name for name in names if _is(directory, name)]
        finally:
            os.close(directory)
        found += [os.path.normpath(os.path.join(path, os.fsdecode(place), os.fsdecode(name))) for name in there]
    return sorted(found)


def _is(directory: int, name: bytes) -> bool:
    """Return whether there is something in the file *name*; an empty one tells nobody anything."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


def tell(places: Places, location: str, found: Sequence[str], before: Sequence[str]) -> None:
    """Record an event of each file that was not there *before*.

    :param location: the object's name
    """
    for path in found:
        if path not in before:
            rule = f"{printable(path)} is called as a file with credentials, in a cache that all workloads share"
            message = f"{rule}; remove it, and withdraw what it holds"
            events.tell(places, object=location, reason=REASON, message=message, path=path)
