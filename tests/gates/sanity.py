# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs ansible-test sanity on a copy of the tree: sanity.py oldest|newest [ansible-test arguments].

oldest: the ansible-core of .venv. newest: the one of requirements/newest-core.txt, which needs Python 3.12.

ansible-test downloads its own pip from one fixed host, and hides pip's variables from it. Here it finds that pip in its
cache and pip's settings in its home directory, so a package index is enough.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from interpreters import (
    NEWEST_PINS,
    NEWEST_WORK,
    REPOSITORY,
    SYSTEM_PATH,
    Interpreter,
    fetch_pip,
    make_home,
    newest_core,
    run,
)


def copy_tree(target: Path) -> None:
    """Copy what git tracks or would track; ansible-test refuses a collection behind a link."""
    shutil.rmtree(target, ignore_errors=True)
    listing = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=REPOSITORY)
    for name in listing.decode().split("\0"):
        if not name or not os.path.lexists(REPOSITORY / name):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, target / name, follow_symlinks=False)
    # The copy is in a directory that the repository around it ignores: asked there, git would list no file at all.
    run(["git", "init", "--quiet", str(target)])


def add_bootstrap(core: Path, home: Path) -> None:
    """Put what ansible-test would download, a script that installs one version of pip, where it looks first."""
    text = (core / "ansible_test/_internal/python_requirements.py").read_text()
    version = re.search(r"pip='([\d.]+)'", text)
    if version is None:
        raise SystemExit(f"sanity: {core}: ansible-test no longer says which pip it wants")
    wheel = fetch_pip(home, version[1])
    script = home / f".ansible/test/cache/get_pip_{version[1].replace('.', '_')}.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        textwrap.dedent(f"""\
            import runpy
            import sys

            sys.path.insert(0, {str(wheel)!r})
            sys.argv[1:] = ["install", "--quiet", "--no-index", "--no-deps", {str(wheel)!r}]
            runpy.run_module("pip", run_name="__main__", alter_sys=True)
            """)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="ansible-test sanity on a copy of the tree")
    parser.add_argument("core", choices=["oldest", "newest"])
    arguments, more = parser.parse_known_args()
    work = NEWEST_WORK if arguments.core == "newest" else REPOSITORY / ".build/sanity"
    home = work / "home"
    collection = work / "ansible_collections/stowage/host"
    copy_tree(collection)

    if arguments.core == "oldest":
        make_home(home)
        venv = REPOSITORY / ".venv"
        interpreter = Interpreter(str(venv / "bin/python"), [])
    else:
        venv = work / "venv"
        interpreter = newest_core(NEWEST_PINS)
    if interpreter.prefix:
        # No git in the container, and none needed where no repository is around.
        shutil.rmtree(collection / ".git")
    (core,) = venv.glob("lib/python3*/site-packages")
    add_bootstrap(core, home)

    # shellcheck comes from .venv, as a program of its own that needs no Python.
    shutil.copy2(REPOSITORY / ".venv/bin/shellcheck", work / "shellcheck")
    environment = {
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "PATH": f"{venv}/bin:{work}:{SYSTEM_PATH}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [f"{venv}/bin/ansible-test", "sanity", "--local", "--color", "no", *more]
    return interpreter.run(command, environment, collection)


if __name__ == "__main__":
    sys.exit(main())
