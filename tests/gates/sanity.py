# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs ansible-test sanity on a copy of the tree: sanity.py oldest|newest [ansible-test arguments].

oldest: the ansible-core of .venv, on this machine's Python.
newest: the ansible-core of requirements/sanity-newest.txt, which needs Python 3.12. A machine without one gets it
from a Debian 13 root filesystem, run as a container that shares the network.

ansible-test downloads its own pip from one fixed host and drops pip's settings from the environment. Here it finds
that pip in its cache, and the settings in a home directory of its own, so a site's package index is enough.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GATES = REPOSITORY / "tests/gates"
VENV = REPOSITORY / ".venv"
PINS = REPOSITORY / "requirements/sanity-newest.txt"
CACHE = Path("/var/cache/stowage-lab")
RELEASE = "trixie"
ROOT_PACKAGES = "python3,ca-certificates"
MIRROR = "http://deb.debian.org/debian"
# Version managers put shims on PATH that refuse to run, and ansible-test calls every Python that it finds.
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


def run(command: list[str], **options: object) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]


def copy_tree(target: Path) -> None:
    """Copy what git tracks or would track; ansible-test refuses a symlinked collection."""
    shutil.rmtree(target, ignore_errors=True)
    listing = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=REPOSITORY)
    for name in listing.decode().split("\0"):
        source = REPOSITORY / name
        if not name or not os.path.lexists(source):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / name, follow_symlinks=False)


def pip_settings() -> dict[str, str]:
    listing = subprocess.check_output([str(VENV / "bin/pip"), "config", "list"], text=True)
    settings = {}
    # Environment first in pip's listing, but it is the environment that wins.
    for line in reversed(listing.splitlines()):
        key, value = line.split("=", 1)
        settings[key.rsplit(".", 1)[1]] = ast.literal_eval(value)
    return settings


def make_home(home: Path, settings: dict[str, str]) -> None:
    configuration = home / ".config/pip/pip.conf"
    configuration.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} = {value}" for key, value in sorted(settings.items())]
    configuration.write_text("\n".join(["[global]", *lines, ""]).replace("%", "%%"))


def fetch_pip(home: Path, version: str) -> Path:
    wheel = home / f"wheels/pip-{version}-py3-none-any.whl"
    if not wheel.exists():
        download = ["download", "-qq", "--no-deps", "--dest", str(wheel.parent), f"pip=={version}"]
        run([str(VENV / "bin/pip"), *download])
    bootstrap = home / f".ansible/test/cache/get_pip_{version.replace('.', '_')}.py"
    bootstrap.parent.mkdir(parents=True, exist_ok=True)
    bootstrap.write_text(
        textwrap.dedent(f"""\
            import runpy
            import sys

            sys.path.insert(0, {str(wheel)!r})
            sys.argv[1:] = ["install", "--quiet", "--no-index", "--no-deps", {str(wheel)!r}]
            runpy.run_module("pip", run_name="__main__", alter_sys=True)
            """)
    )
    return wheel


def pip_wanted(core: Path) -> str:
    text = (core / "ansible_test/_internal/python_requirements.py").read_text()
    found = re.search(r"pip='([\d.]+)'", text)
    if not found:
        raise SystemExit(f"sanity: {core}: no pip version in ansible-test; adapt tests/gates/sanity.py")
    return found[1]


def python_here() -> str | None:
    for name in ("python3", "python3.14", "python3.13", "python3.12"):
        path = shutil.which(name, path=SYSTEM_PATH)
        check = "import sys; sys.exit(sys.version_info < (3, 12))"
        if path and subprocess.run([path, "-c", check], check=False).returncode == 0:
            return path
    return None


def debian_root() -> Path:
    """A minimal Debian root with a newer Python, made once."""
    if os.geteuid() != 0:
        raise SystemExit("sanity: the newest ansible-core needs Python 3.12 here, or root to make a Debian 13 root")
    key = hashlib.sha256(f"{RELEASE} {ROOT_PACKAGES} {MIRROR}".encode()).hexdigest()[:12]
    root = CACHE / f"sanity-{key}"
    if root.exists():
        return root
    run([str(GATES / "packages.sh"), "mmdebstrap", "systemd-container", "debian-archive-keyring"])
    CACHE.mkdir(parents=True, exist_ok=True)
    fresh = CACHE / f"sanity-{key}.{os.getpid()}"
    print(f"sanity: making a Debian {RELEASE} root in {root}", flush=True)
    try:
        run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={ROOT_PACKAGES}", RELEASE, str(fresh), MIRROR])
        fresh.rename(root)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return root


def container(root: Path, work: Path, settings: dict[str, str]) -> list[str]:
    """Return the command that runs another in the root, with the work directory and pip's files at their own paths."""
    text = " ".join(settings.values())
    # An index in a directory links to files beside that directory.
    named = [str(Path(path).parent) for path in re.findall(r"file://(/[^\s,]+)", text)]
    named += re.findall(r"(?<![\w:/])/[^\s,]+", text)
    files = sorted({path for path in named if path != "/" and os.path.exists(path)})
    command = ["systemd-nspawn", "--quiet", f"--directory={root}", "--volatile=overlay", "--register=no", "--keep-unit"]
    command += ["--pipe", "--as-pid2", "--resolv-conf=bind-host", "--timezone=off", f"--bind={work}"]
    command += [f"--machine=stowage-sanity-{os.getpid()}"]
    command += [f"--bind-ro={GATES}", f"--bind-ro={PINS}"]
    return command + [f"--bind-ro={path}" for path in files]


def main() -> int:
    parser = argparse.ArgumentParser(description="ansible-test sanity on a copy of the tree")
    parser.add_argument("core", choices=["oldest", "newest"])
    arguments, more = parser.parse_known_args()
    work = REPOSITORY / ".build/sanity" / arguments.core
    home = work / "home"
    collection = work / "ansible_collections/stowage/host"
    copy_tree(collection)
    settings = pip_settings()
    make_home(home, settings)

    prefix: list[str] = []
    environment = {"HOME": str(home), "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    if arguments.core == "oldest":
        venv = VENV
    else:
        venv = work / "venv"
        python = python_here()
        if python is None:
            prefix = container(debian_root(), work, settings)
            python = "/usr/bin/python3"
        install_core(venv, python, prefix, home)
    if not prefix:
        # The copy is in a directory that the outer repository ignores: asked there, git would list no file at all.
        run(["git", "init", "--quiet", str(collection)])
    (core,) = venv.glob("lib/python3*/site-packages")
    fetch_pip(home, pip_wanted(core))

    # shellcheck comes from .venv, as a program of its own that needs no Python.
    shutil.copy2(VENV / "bin/shellcheck", work / "shellcheck")
    environment["PATH"] = f"{venv}/bin:{work}:{SYSTEM_PATH}"
    command = [f"{venv}/bin/ansible-test", "sanity", "--local", "--color", "no", *more]
    words = " ".join(f"{name}={value}" for name, value in environment.items())
    script = f'cd "$1" && shift && exec env -i {words} "$@"'
    done = subprocess.run(
        [*prefix, "/bin/sh", "-c", script, "sh", str(collection), *command], stdin=subprocess.DEVNULL, check=False
    )
    return done.returncode


def install_core(venv: Path, python: str, prefix: list[str], home: Path) -> None:
    """A virtual environment for the newest core, made without ensurepip, which Debian keeps in another package."""
    pins = PINS.read_text()
    stamp = venv / ".stamp"
    wanted = f"{python} {bool(prefix)}\n{pins}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    found = re.search(r"^pip==([\d.]+)", pins, re.MULTILINE)
    if not found:
        raise SystemExit(f"sanity: {PINS}: pip is not pinned")
    wheel = fetch_pip(home, found[1])
    run([*prefix, python, "-m", "venv", "--clear", "--without-pip", str(venv)])
    install = [f"{venv}/bin/python", f"{wheel}/pip", "install", "-qq", "--no-deps", "--requirement", str(PINS)]
    run([*prefix, "/usr/bin/env", f"HOME={home}", *install])
    stamp.write_text(wanted)


if __name__ == "__main__":
    sys.exit(main())
