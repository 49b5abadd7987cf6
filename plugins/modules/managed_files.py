#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write and remove small text files that are the collection's own, all of them in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: managed_files
short_description: Write and remove the collection's own small files
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Writes small text files as a whole (units, settings), and removes others, in one call instead of one for each file.
  - Each file is replaced atomically. Its directory is made when it is missing. The files belong to root.
options:
  files:
    description:
      - Files to write.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where the file is.
        type: path
        required: true
      content:
        description: All of its text.
        type: str
        required: true
      mode:
        description: Its mode, as an octal number in quotes.
        type: str
        default: "0644"
  absent:
    description:
      - Paths of files to remove.
    type: list
    elements: path
    default: []
attributes:
  check_mode:
    description: Predicts the changes and the diff of a run.
    support: full
  diff_mode:
    description: Shows the text and the mode of each file that differs.
    support: full
  platform:
    description: Linux.
    support: full
    platforms: linux
"""

EXAMPLES = r"""
- name: Write the settings of the daemon
  stowage.host.managed_files:
    files:
      - path: /etc/stowage/daemon.json
        content: "{{ settings | to_nice_json }}\n"
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line for each file.
  type: list
  elements: str
  returned: always
  sample: ["wrote /etc/stowage/daemon.json"]
"""

import os
import stat
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils import records
from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.paths import check_path

ARGUMENT_SPEC = {
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "path", "required": True},
            "content": {"type": "str", "required": True},
            "mode": {"type": "str", "default": "0644"},
        },
    },
    "absent": {"type": "list", "elements": "path", "default": []},
}


def mode_of(value: str, name: str) -> int:
    try:
        mode = int(value, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise Refusal(name, f"mode {value!r} is not an octal number up to 0777")
    return mode


def read(path: str) -> tuple[str, str] | None:
    """Return text and mode of the file at *path*, or None when there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Refusal(path, f"cannot be read ({error.strerror})", "only a regular file can be replaced") from error
    with open(fd, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Refusal(path, "is no regular file", "move it away")
        return stream.read().decode("utf-8", "backslashreplace"), f"{stat.S_IMODE(status.st_mode):04o}"


def body(module: AnsibleModule, differences: Differences) -> Mapping[str, Any]:
    wanted: dict[str, tuple[str, str] | None] = {}
    for number, one in enumerate(module.params["files"]):
        path = check_path(one["path"], f"files[{number}].path")
        wanted[path] = (one["content"], f"{mode_of(one['mode'], path):04o}")
    for number, given in enumerate(module.params["absent"]):
        path = check_path(given, f"absent[{number}]")
        if path in wanted:
            raise Refusal(path, "is to be written and to be removed", "name it once")
        wanted[path] = None
    present = {path: read(path) for path in wanted}
    for path, file in wanted.items():
        before = present[path]
        if not differences.note(path, _shown(file), _shown(before)):
            continue
        if not module.check_mode:
            if file is None:
                records.remove(path)
            else:
                records.write_bytes(path, file[0].encode(), int(file[1], 8))
        differences.act(f"removed {path}" if file is None else f"wrote {path}")
    return {}


def _shown(file: tuple[str, str] | None) -> str | None:
    return None if file is None else f"mode {file[1]}\n{file[0]}"


def main() -> None:
    run(AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True), body)


if __name__ == "__main__":
    main()
