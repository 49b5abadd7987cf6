# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a program of the newest ansible-core, which needs Python 3.12: newest_core.py ansible-playbook [arguments]."""

from __future__ import annotations

import sys

from interpreters import NEWEST_WORK, REPOSITORY, SYSTEM_PATH, newest_core


def main() -> int:
    program, *arguments = sys.argv[1:]
    interpreter = newest_core(REPOSITORY)
    environment = {
        "ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / ".build/collections"),
        "HOME": str(NEWEST_WORK / "home"),
        "LC_ALL": "C.UTF-8",
        "PATH": f"{NEWEST_WORK}/venv/bin:{SYSTEM_PATH}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return interpreter.run([f"{NEWEST_WORK}/venv/bin/{program}", *arguments], environment, REPOSITORY)


if __name__ == "__main__":
    sys.exit(main())
