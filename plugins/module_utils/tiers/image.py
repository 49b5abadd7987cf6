# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""As whom a store runs: read off its image, with the container engine that the host has.

Nothing is pulled, and the container has no network and no volume. Where the image cannot tell, the published store
image's user counts, and that is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import printable
from .declared import DEFAULT_GID, DEFAULT_UID

ENGINES = ("docker", "podman")

_ID = re.compile(r"uid=(\d+)(?:\([^)]*\))? gid=(\d+)")
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]*", re.ASCII)
_LONGEST = 200
_DEADLINE_S = 60
_KILL_AFTER_S = 5
_OVER = (124, 137)
"""How ``timeout`` ends when the time was over, or it had to kill."""

User = tuple[int, int]
Run = Callable[..., Any]


def read_users(
    images: Iterable[str], run_command: Run, find: Callable[[str], str | None]
) -> tuple[dict[str, User], list[str]]:
    """Return user and group of each of *images* that tells, and why others do not, a line each.

    :param run_command: that of the module, which takes a list of arguments
    :param find: returns where a program is, or None
    """
    users: dict[str, User] = {}
    problems = []
    engines = [path for path in map(find, ENGINES) if path]
    for image in dict.fromkeys(filter(None, images)):
        user, why = _read(image, engines, run_command)
        if user is not None:
            users[image] = user
        else:
            default = f"its user is taken to be {DEFAULT_UID}:{DEFAULT_GID} where owner and group do not say"
            problems.append(f"image {printable(image)}: {why}; {default}")
    return users, problems


def _read(image: str, engines: list[str], run_command: Run) -> tuple[User | None, str]:
    if not _REFERENCE.fullmatch(image):
        return None, "is no name of an image"
    if not engines:
        return None, f"there is no {' or '.join(ENGINES)} on this host to read it with"
    why = "is not on this host, and is not pulled"
    for engine in engines:
        # Of coreutils: what the module runs commands with has no limit of its own.
        limited = ["timeout", f"--kill-after={_KILL_AFTER_S}", str(_DEADLINE_S), engine]
        code, out, err = run_command([*limited, "image", "inspect", image])
        if code == 0:
            arguments = ["run", "--rm", "--pull", "never", "--network", "none", "--entrypoint", "id", image]
            code, out, err = run_command([*limited, *arguments])
        elif code not in _OVER:
            continue
        found = _ID.match(out.strip())
        if code == 0 and found is not None:
            return (int(found.group(1)), int(found.group(2))), ""
        if code in _OVER:
            return None, f"{engine} did not answer within {_DEADLINE_S} s"
        said = printable(" ".join((err or out).split()))[:_LONGEST]
        why = f"did not tell its user: {said or f'id ended with {code}'}"
    return None, why
