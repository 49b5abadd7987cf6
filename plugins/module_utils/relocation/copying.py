# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copying the content of a location, by rsync."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..errors import StowageError
from ..locks import lock
from ..owner import XATTR
from ..places import Places
from ..services.systemd_units import RunCommand
from ..syscalls import DIRECTORY, syncfs
from .content import OF_MKFS, is_of_mkfs

# Times to the nanosecond: else a time of the same second counts as the same. Attributes twice: once leaves out what
# rsync --fake-super makes, and all that anybody calls user.rsync.%something.
_KEPT = (
    *("--archive", "--hard-links", "--acls", "--xattrs", "--xattrs", "--sparse", "--numeric-ids"),
    *("--modify-window=-1", "--delete"),
)
NOT_COPIED = (XATTR, "trusted.SGI_ACL_FILE", "trusted.SGI_ACL_DEFAULT")
"""Extended attributes that are not of the content. An owner mark names its directory, and would be that of another one.
XFS shows its access lists once more by names of its own: another filesystem has none to copy, and to delete them there
would be to delete the access lists."""
# With rules of one's own rsync has no others: what the system itself keeps as attributes is no content.
_LEFT_OUT = tuple(f"--filter=-x {name}" for name in ("system.*", *NOT_COPIED))
LONGEST_PATH = 4000
"""Bytes in the path of what is copied, from the top. Rsync takes longer ones up to some bound near PATH_MAX, 4096, of
which the name of what it was given is a part."""
DEEPEST = 1000
"""Directories one in the other, from the top: rsync 3.5 cannot open any that has more than 1023 above it."""
_LONGEST_S = 7 * 86400.0
_ENDS = {"btrfs": ()}
"""A btrfs subvolume is no mount, and belongs to the tree."""


@contextmanager
def alone(places: Places, location: str) -> Iterator[int]:
    """Hold the lock of the copy of a location, which its copying process holds as well, as a descriptor.

    One that has outlived whoever started it is waited for: it would go on in what is compared then.
    """
    run_fd = os.open(places.run, DIRECTORY)
    try:
        fd = lock(run_fd, os.fsencode(f"relocation-{location}.copy"), _LONGEST_S)
    finally:
        os.close(run_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def copy(
    program: str,
    run_command: RunCommand,
    old_fd: int,
    new_fd: int,
    lock_fd: int,
    fstype: str,
    by_content: bool = False,
) -> None:
    """Make what is in the directory open at *new_fd* what is in that at *old_fd*, with everything that can be copied.

    What a copy that was cut short has left is gone on with.

    :param lock_fd: of :func:`alone`
    :param fstype: of the old one
    :param by_content: whether to read all of it again: a file of the same size and time may differ
    :raises StowageError: when something cannot be copied
    """
    words = [program, *_KEPT, *_ENDS.get(fstype, ("--one-file-system",)), *_LEFT_OUT]
    words += ["--checksum"] if by_content else []
    top = os.fstat(old_fd)
    with suppress(FileNotFoundError):
        if is_of_mkfs(top, OF_MKFS, os.stat(OF_MKFS, dir_fd=old_fd, follow_symlinks=False)):
            words.append(f"--exclude=/{os.fsdecode(OF_MKFS)}")
    # By descriptors, so that it is these two directories whatever is mounted or renamed meanwhile.
    words += ["--", f"/proc/self/fd/{old_fd}/", f"/proc/self/fd/{new_fd}/"]
    code, out, err = run_command(words, pass_fds=[old_fd, new_fd, lock_fd])
    if code != 0:
        lines = (err or out).strip().splitlines()
        shown = "; ".join(lines[:3]) or "no reason given"
        raise StowageError(f"rsync ended with {code}: {shown}")
    syncfs(new_fd)
