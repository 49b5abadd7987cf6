# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What throwaway hosts of both kinds have in common: names, root filesystems, and the files that make them hosts."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import debian_mirror

REPOSITORY = Path(__file__).resolve().parents[2]
LABS = REPOSITORY / ".build" / "lab"
CACHE = Path("/var/cache/stowage-lab")
RUN = Path("/run/stowage-lab")

SUITES = ("bookworm", "trixie")
PACKAGES = (
    *("acl", "attr", "busybox-static", "dbus", "e2fsprogs", "iproute2", "openssh-server", "procps", "rsync"),
    *("python3", "python3-apt", "python3-prometheus-client", "python3-psutil", "python3-pyroute2"),
    *("sudo", "systemd", "systemd-sysv", "udev", "util-linux", "xfsprogs"),
)
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/javascript/*")
ROOT_SIZE = 4 << 30
# Units that would reach out of the machine, or wait for a terminal.
MASKED = ("console-getty.service", "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "dev-hugepages.mount")
DISABLED = ("apt-daily.timer", "apt-daily-upgrade.timer", "fstrim.timer", "e2scrub_all.timer")
# -q and -f: the images are new.
MKFS = {"ext4": ["mkfs.ext4", "-q"], "xfs": ["mkfs.xfs", "-q", "-f"], "btrfs": ["mkfs.btrfs", "-q", "-f"]}


class LabError(Exception):
    """One line: what is wrong, and the remedy."""


def run(*command: str | Path, quiet: bool = False, **settings: object) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, text=True, capture_output=True, check=False, **settings)  # type: ignore[call-overload]
    if done.returncode and not quiet:
        message = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"{shlex.join(words)}: {message[0] if message else f'exit {done.returncode}'}")
    return str(done.stdout)


def say(text: str) -> None:
    print(f"lab: {text}", flush=True)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cgroups() -> Path:
    """The unified hierarchy of control groups: /sys/fs/cgroup, or /sys/fs/cgroup/unified beside the old ones."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        if after.startswith("cgroup2 "):
            return Path(before.split()[4])
    raise LabError(
        "the throwaway hosts need control groups v2: boot this machine with systemd.unified_cgroup_hierarchy"
    )


# Root filesystems, built once


@dataclass(frozen=True)
class Root:
    """The recipe of a Debian root filesystem."""

    name: str
    suite: str
    packages: tuple[str, ...]
    left_out: tuple[str, ...] = LEFT_OUT
    masked: tuple[str, ...] = MASKED
    disabled: tuple[str, ...] = DISABLED
    hooks: tuple[str, ...] = ()
    """Lines of shell that change it in the end; it is $1."""
    beside: tuple[str, ...] = ()
    """What the files beside the image depend on, but the image does not."""

    def image(self, take_out: Callable[[Path, Path], None] | None = None, **environment: str) -> Path:
        """An ext4 image of it, from the cache, or built in about a minute.

        :param take_out: called with the root and the image's path, for what is wanted beside the image
        :param environment: of the packages' scripts
        """
        recipe = json.dumps([asdict(self), ROOT_SIZE])
        image = CACHE / f"{self.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.img"
        with locked(CACHE / f"{self.name}.lock"):
            if not image.exists():
                say(f"building the root filesystem of {self.name}, once, into {CACHE}")
                work = CACHE / f"{self.name}.build"
                shutil.rmtree(work, ignore_errors=True)
                work.mkdir()
                self._build(work / "root", {**os.environ, **environment})
                with open(work / "image", "wb") as file:
                    file.truncate(ROOT_SIZE)
                # The checksum seed lets each copy have a UUID of its own without a rewrite.
                run("mkfs.ext4", "-q", "-O", "metadata_csum_seed", "-d", work / "root", work / "image")
                if take_out:
                    take_out(work / "root", image)
                (work / "image").rename(image)
                shutil.rmtree(work)
        return image

    def _build(self, root: Path, environment: dict[str, str]) -> None:
        units = "$1/etc/systemd/system"
        prepare = [
            'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf "$1"/etc/hostname "$1"/etc/machine-id',
            f'for unit in {" ".join(self.masked)}; do ln -sf /dev/null "{units}/$unit"; done',
            f'for unit in {" ".join(self.disabled)}; do find "{units}" -name "$unit" -delete; done',
            f'ln -s /lib/systemd/system/systemd-networkd.service "{units}/multi-user.target.wants/"',
            f'mkdir -p "{units}/local-fs.target.wants"',
            *self.hooks,
        ]
        mirror = debian_mirror.mirror()
        if mirror is None:
            raise LabError(debian_mirror.REMEDY)
        run(
            *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(self.packages)}"),
            '--aptopt=Acquire::Languages "none"',
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in self.left_out),
            *(f"--customize-hook={line}" for line in prepare),
            *(self.suite, root, f"deb {mirror} {self.suite} main"),
            env=environment,
        )


# Hosts


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    kind: str = "nspawn"
    other_address: str = ""
    """A second one on the same interface."""
    rdma_address: str = ""
    """On an interface of its own, which RDMA goes over."""
    disks: dict[str, str] = field(default_factory=dict)
    """Filesystem types by mount point."""

    @property
    def suite(self) -> str:
        """Odd numbers are Debian 12, even ones Debian 13."""
        return "trixie" if int(self.name[-1]) % 2 == 0 else "bookworm"


@dataclass(frozen=True)
class Lab:
    name: str

    @property
    def home(self) -> Path:
        return LABS / self.name

    @property
    def tag(self) -> str:
        return hashlib.sha256(os.fsencode(self.home)).hexdigest()[:6]

    @property
    def bridge(self) -> str:
        return f"stowage-{self.tag}"

    @property
    def control_path(self) -> Path:
        """Sockets of SSH connections: their paths must be short."""
        return RUN / self.tag

    def machine(self, host: str) -> str:
        return f"{self.tag}-{host}"

    def cgroup(self, host: str) -> Path:
        return cgroups() / f"stowage-lab-{self.tag}-{host}"

    def hosts(self) -> list[Host]:
        try:
            records = json.loads((self.home / "lab.json").read_text())
        except FileNotFoundError:
            return []
        return [Host(**record) for record in records]

    def ssh(self, host: Host) -> list[str]:
        return [
            *("ssh", "-i", str(self.home / "key"), "-o", f"UserKnownHostsFile={self.home / 'known_hosts'}"),
            *("-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "IdentitiesOnly=yes", f"root@{host.address}"),
        ]

    def running(self, host: str) -> bool:
        try:
            return "populated 1" in (self.cgroup(host) / "cgroup.events").read_text()
        except FileNotFoundError:
            return False


def host_names(wanted: str) -> list[str]:
    names = [f"gpu-{n:02}" for n in range(1, int(wanted) + 1)] if wanted.isdigit() else wanted.split(",")
    for name in names:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,20}[0-9]", name):
            raise LabError(f"{name}: a host's name is of lower-case letters, digits and dashes, and ends with a digit")
    return names


def seed(lab: Lab, host: Host, hosts: list[Host], root: Path, interface: str) -> Path:
    """Copy the root image *root* for the host, and write the files that make it this host, for its first start.

    :return: the directory of these files
    """
    home = lab.home / host.name
    files = home / "seed"
    (home / "root").mkdir(parents=True)
    run("cp", "--reflink=auto", "--sparse=always", root, home / "root.img")
    run("tune2fs", "-U", "random", home / "root.img")
    write(files / "etc/hostname", f"{host.name}\n")
    names = "".join(f"{other.address} {other.name}\n" for other in hosts)
    write(files / "etc/hosts", f"127.0.0.1 localhost\n::1 localhost\n{names}")
    write(files / "etc/machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    addresses = "".join(f"Address={address}/24\n" for address in (host.address, host.other_address) if address)
    write(files / "etc/systemd/network/10-lab.network", f"[Match]\nName={interface}\n\n[Network]\n{addresses}")
    # So many tasks can run at once over one connection of Ansible's.
    write(files / "etc/ssh/sshd_config.d/sessions.conf", "MaxSessions 40\n")
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", host.name, "-f", files / "etc/ssh/ssh_host_ed25519_key")
    write(files / "root/.ssh/authorized_keys", (lab.home / "key.pub").read_text(), 0o600)
    (files / "root").chmod(0o700)
    (files / "root/.ssh").chmod(0o700)
    return files


def seed_unit(files: Path, name: str, text: str, wanted_by: str) -> None:
    """Write a unit that is enabled."""
    units = files / "etc/systemd/system"
    write(units / name, f"{text}\n[Install]\nWantedBy={wanted_by}\n")
    wants = units / f"{wanted_by}.wants"
    wants.mkdir(exist_ok=True)
    (wants / name).symlink_to(f"../{name}")


def seed_mount(files: Path, device: str, point: str, fstype: str, text: str = "") -> None:
    text += f"[Mount]\nWhat={device}\nWhere={point}\nType={fstype}\n"
    seed_unit(files, f"{point.strip('/').replace('/', '-')}.mount", text, "local-fs.target")


def disk_image(path: Path, size: str) -> Path:
    run("truncate", "--size", size, path)
    return path


# Begins what starts a host: $1 is its control group, $2 its directory.
ENTER = """
echo $$ >"$1/cgroup.procs"
mount -o loop "$2/root.img" "$2/root"
if [ -d "$2/seed" ]; then
  cp -a "$2/seed/." "$2/root/"
  rm -r "$2/seed"  # what is changed on the host stays changed when it is started again
fi
"""


def spawn(lab: Lab, host: Host, script: str, command: list[str], **environment: str) -> None:
    """Start a host in a mount namespace and a control group of its own: with its processes, all of it goes."""
    home, cgroup = lab.home / host.name, lab.cgroup(host.name)
    cgroup.mkdir()
    enter = f'{ENTER}{script}shift 2\nexec "$@"\n'
    with open(home / "console.log", "wb") as log:
        subprocess.Popen(
            [
                *("unshare", "--mount", "--propagation", "private", "sh", "-ec", enter, "sh", str(cgroup), str(home)),
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={"PATH": os.environ["PATH"], **environment},
            umask=0o022,
        )
