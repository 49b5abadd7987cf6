# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pythons that the running machine may not have, and virtual environments for them.

A Python that is not here comes from a minimal Debian root filesystem, made once, and runs in a container that shares
the network. Programs in the container have pip's settings and the files that these name, so a site's own package index
is enough there too.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/lab"))
import debian_mirror  # noqa: E402

PIP = str(REPOSITORY / ".venv/bin/pip")
NEWEST_PINS = REPOSITORY / "requirements/newest-core.txt"
NEWEST_WORK = REPOSITORY / ".build/newest-core"
CACHE = Path("/var/cache/stowage-lab")
PACKAGES = "python3-venv,ca-certificates,openssh-client"
# Version managers put shims on PATH that refuse to run, and ansible-test calls every Python that it finds.
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Interpreter:
    python: str
    # The command that runs another one where this Python is; empty for one of this machine.
    prefix: list[str]

    def run(self, command: list[str], environment: dict[str, str], directory: Path) -> int:
        words = [f"{name}={value}" for name, value in environment.items()]
        script = 'cd "$1" && shift && exec env -i "$@"'
        whole = [*self.prefix, "/bin/sh", "-c", script, "sh", str(directory), *words, *command]
        return subprocess.run(whole, stdin=subprocess.DEVNULL, check=False).returncode


def run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def pip_settings() -> dict[str, str]:
    listing = subprocess.check_output([PIP, "config", "list"], text=True)
    settings = {}
    # pip lists the environment first, and it is the environment that wins.
    for line in reversed(listing.splitlines()):
        key, value = line.split("=", 1)
        settings[key.rsplit(".", 1)[1]] = ast.literal_eval(value)
    return settings


def make_home(home: Path) -> None:
    """A home directory with pip's settings, for programs that pass on no PIP_ variable."""
    configuration = home / ".config/pip/pip.conf"
    configuration.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} = {value}".replace("%", "%%") for key, value in sorted(pip_settings().items())]
    configuration.write_text("\n".join(["[global]", *lines, ""]))


def find(versions: tuple[str, ...], release: str, work: Path, readable: Path) -> Interpreter:
    """One of the Python versions, of this machine or else of a Debian release, where work can be written."""
    for version in versions:
        path = shutil.which(f"python{version}", path=SYSTEM_PATH)
        if path and subprocess.run([path, "-c", "import ensurepip, venv"], check=False).returncode == 0:
            return Interpreter(path, [])
    if os.geteuid() != 0:
        raise SystemExit(f"python: not root, so no Debian {release} root can be made; install python{versions[0]}")
    return Interpreter("/usr/bin/python3", container(debian_root(release), work, readable))


def debian_root(release: str) -> Path:
    key = hashlib.sha256(f"{release} {PACKAGES}".encode()).hexdigest()[:12]
    root = CACHE / f"python-{release}-{key}"
    if root.exists():
        return root
    run([str(REPOSITORY / "tests/gates/packages.sh"), "mmdebstrap", "systemd-container", "debian-archive-keyring"])
    CACHE.mkdir(parents=True, exist_ok=True)
    fresh = CACHE / f"{root.name}.{os.getpid()}"
    print(f"python: making a Debian {release} root in {root}", flush=True)
    mirror = debian_mirror.mirror()
    if mirror is None:
        raise SystemExit(f"python: {debian_mirror.REMEDY}")
    try:
        run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", release, str(fresh), mirror])
        fresh.rename(root)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return root


def container(root: Path, work: Path, readable: Path) -> list[str]:
    """The command that runs another one in the root, with these and pip's files at their own paths."""
    text = " ".join(pip_settings().values())
    # An index in a directory links to files beside that directory.
    named = [str(Path(path).parent) for path in re.findall(r"file://(/[^\s,]+)", text)]
    named += re.findall(r"(?<![\w:/])/[^\s,]+", text)
    command = ["systemd-nspawn", "--quiet", f"--directory={root}", "--volatile=overlay", "--register=no", "--keep-unit"]
    command += [f"--machine=stowage-gate-{os.getpid()}", "--pipe", "--as-pid2", "--resolv-conf=bind-host"]
    command += ["--timezone=off", f"--bind-ro={readable}", f"--bind={work}"]
    return command + [f"--bind-ro={path}" for path in sorted(set(named)) if path != "/" and os.path.exists(path)]


def newest_core(readable: Path) -> Interpreter:
    """A Python for the newest ansible-core, which is then in the virtual environment NEWEST_WORK / "venv"."""
    make_home(NEWEST_WORK / "home")
    interpreter = find(("3.13", "3.12", "3.14"), "trixie", NEWEST_WORK, readable)
    make_venv(NEWEST_WORK / "venv", interpreter, NEWEST_PINS, NEWEST_WORK / "home")
    return interpreter


def fetch_pip(home: Path, version: str) -> Path:
    wheel = home / f"wheels/pip-{version}-py3-none-any.whl"
    if not wheel.exists():
        run([PIP, "download", "-qq", "--no-deps", "--dest", str(wheel.parent), f"pip=={version}"])
    return wheel


def make_venv(venv: Path, interpreter: Interpreter, pins: Path, home: Path) -> None:
    wanted = f"{interpreter.python} {interpreter.prefix[2:3]}\n{pins.read_text()}"
    stamp = venv / ".stamp"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    install = [f"{venv}/bin/python", "-m", "pip", "install", "-qq", "--no-deps", "--requirement", str(pins)]
    for command in ([interpreter.python, "-m", "venv", "--clear", str(venv)], install):
        if interpreter.run(command, {"HOME": str(home), "PATH": SYSTEM_PATH}, home) != 0:
            raise SystemExit(f"python: {venv} cannot be made with {pins}")
    stamp.write_text(wanted)
