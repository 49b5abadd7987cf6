# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the unit tests with Python 3.9, the oldest that a host may have: oldest_python.py [pytest arguments]."""

from __future__ import annotations

import sys

from interpreters import REPOSITORY, SYSTEM_PATH, find, make_home, make_venv


def main() -> int:
    work = REPOSITORY / ".build/oldest-python"
    home = work / "home"
    make_home(home)
    interpreter = find(("3.9",), "bullseye", REPOSITORY / ".build", REPOSITORY)
    make_venv(work / "venv", interpreter, REPOSITORY / "requirements/oldest-python.txt", home)
    environment = {
        "HOME": str(home),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(work / "hypothesis"),
        "LC_ALL": "C.UTF-8",
        "PATH": f"{work}/venv/bin:{SYSTEM_PATH}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [f"{work}/venv/bin/python", "-m", "pytest", "-q", "-o", f"cache_dir={work}/pytest", *sys.argv[1:]]
    return interpreter.run(command, environment, REPOSITORY)


if __name__ == "__main__":
    sys.exit(main())
