# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Throwaway hosts: systemd-nspawn machines with real systemd, SSH and disks of their own.

    lab.py up [--name LAB] [--hosts 2 | --hosts gpu-01,gpu-02] [--disks ext4,xfs,btrfs] [--size 1G]
    lab.py down | status | inventory | shell HOST [COMMAND...]    [--name LAB]
    lab.py stop HOST | start HOST [--name LAB]     cuts one host's power, and starts it again with its disks
    lab.py roots                                   builds the root filesystems ahead of time
    lab.py site [--inventory PATH]                 rolls stowage.host.site out and shows what an operator wants to see

All state of a lab is in .build/lab/<lab>. What the kernel holds for it (a bridge, control groups, loop devices) is
found again by names made from that path, so ``down`` cleans up after a crash too, and never touches another lab.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import ipaddress
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import debian_mirror

REPOSITORY = Path(__file__).resolve().parents[2]
LABS = REPOSITORY / ".build" / "lab"
CACHE = Path("/var/cache/stowage-lab")
RUN = Path("/run/stowage-lab")
PRIVATE_NETWORK = ipaddress.ip_network("10.213.0.0/16")  # each lab takes a /24 that is free on this machine
START_LIMIT_S = 60

NEEDED = {  # program -> Debian package, on the machine that runs the lab
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "losetup": "mount",
    "unshare": "util-linux",
}
PACKAGES = [
    "acl",
    "attr",
    "btrfs-progs",
    "busybox-static",
    "crun",
    "dbus",
    "e2fsprogs",
    "iproute2",
    "openssh-server",
    "podman",
    "procps",
    "python3",
    "python3-apt",
    "python3-prometheus-client",
    "python3-psutil",
    "python3-pyroute2",
    "python3-pytest",
    "strace",
    "sudo",
    "systemd",
    "systemd-sysv",
    "udev",
    "util-linux",
    "xfsprogs",
]
SUITES = {"bookworm": [*PACKAGES, "docker.io", "prometheus"], "trixie": PACKAGES}
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/javascript/*")
ROOT_SIZE = 4 << 30
# The first disk is /mnt/nvme0, the second /mnt/nvme1, ... -q and -f: the images are new.
MKFS = {"ext4": ["mkfs.ext4", "-q"], "xfs": ["mkfs.xfs", "-q", "-f"], "btrfs": ["mkfs.btrfs", "-q", "-f"]}
LOOP_NODES = 128
# Units that would reach out of the machine, or wait for a terminal.
MASKED = ["console-getty.service", "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "dev-hugepages.mount"]
DISABLED = [
    *("prometheus.service", "apt-daily.timer", "apt-daily-upgrade.timer", "fstrim.timer", "e2scrub_all.timer"),
    *("podman.service", "podman.socket", "podman-auto-update.service", "podman-auto-update.timer"),
    *("podman-restart.service", "podman-clean-transient.service"),
    *("docker.service", "docker.socket", "containerd.service"),
]
# What Podman cannot have here: control groups with controllers (where the machine has version 1 beside 2, they are in
# the former) or with a filter of devices (for which it would raise a limit), and a network: the tools are not there.
CONTAINERS = '[containers]\ncgroups = "disabled"\nnetns = "none"\n'
# Docker can have all it wants. It is only to leave the host's network alone, which leads nowhere.
DOCKER = '{"bridge": "none", "iptables": false, "ip6tables": false}\n'


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


# The machine that the lab runs on


def preflight() -> None:
    if not sys.platform.startswith("linux"):
        raise LabError("the throwaway hosts need Linux; give your own hosts with INVENTORY=path")
    if os.geteuid() != 0:
        raise LabError("the throwaway hosts need root: run it with sudo, or give your own hosts with INVENTORY=path")
    cgroups()
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    os.environ["PATH"] = path
    missing = sorted({package for program, package in NEEDED.items() if not shutil.which(program, path=path)})
    if missing:
        say(f"Debian packages that this machine lacks: {' '.join(missing)}")
        run(REPOSITORY / "tests" / "gates" / "packages.sh", *missing)


def cgroups() -> Path:
    """The unified hierarchy of control groups: /sys/fs/cgroup, or /sys/fs/cgroup/unified beside the old ones."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        if after.startswith("cgroup2 "):
            return Path(before.split()[4])
    raise LabError(
        "the throwaway hosts need control groups v2: boot this machine with systemd.unified_cgroup_hierarchy"
    )


def mirror() -> str:
    found = debian_mirror.mirror()
    if found is None:
        raise LabError(debian_mirror.REMEDY)
    return found


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Root filesystems, built once


def root_image(suite: str) -> Path:
    """An ext4 image of a Debian root filesystem, from the cache, or built in about a minute."""
    recipe = json.dumps([suite, SUITES[suite], LEFT_OUT, MASKED, DISABLED, ROOT_SIZE])
    image = CACHE / f"{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.img"
    with locked(CACHE / f"{suite}.lock"):
        if image.exists():
            return image
        say(f"building the root filesystem of {suite}, once, into {CACHE}")
        work = CACHE / f"{suite}.build"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        units = "$1/etc/systemd/system"
        prepare = [
            'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf "$1"/etc/hostname "$1"/etc/machine-id',
            f'for unit in {" ".join(MASKED)}; do ln -sf /dev/null "{units}/$unit"; done',
            f'for unit in {" ".join(DISABLED)}; do find "{units}" -name "$unit" -delete; done',
            f'ln -s /lib/systemd/system/systemd-networkd.service "{units}/multi-user.target.wants/"',
            f'mkdir -p "{units}/local-fs.target.wants"',
        ]
        run(
            *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(SUITES[suite])}"),
            *('--aptopt=Acquire::Languages "none"', *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT)),
            *(f"--customize-hook={line}" for line in prepare),
            *(suite, work / "root", f"deb {mirror()} {suite} main"),
        )
        with open(work / "image", "wb") as file:
            file.truncate(ROOT_SIZE)
        # The checksum seed lets each copy have a UUID of its own without a rewrite.
        run("mkfs.ext4", "-q", "-O", "metadata_csum_seed", "-d", work / "root", work / "image")
        (work / "image").rename(image)
        shutil.rmtree(work)
        return image


# Hosts


@dataclass(frozen=True)
class Host:
    name: str
    address: str

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


def free_network() -> ipaddress.IPv4Network:
    taken = []
    for route in json.loads(run("ip", "-json", "route", "show", "table", "all")):
        if route["dst"] not in ("default",) and ":" not in route["dst"]:
            taken.append(ipaddress.ip_network(route["dst"], strict=False))
    for network in PRIVATE_NETWORK.subnets(new_prefix=24):
        if not any(network.overlaps(other) for other in taken):
            assert isinstance(network, ipaddress.IPv4Network)
            return network
    raise LabError(f"no free network in {PRIVATE_NETWORK}: take a lab down")


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def device_nodes() -> str:
    """tmpfiles.d lines for the devices that disks and tests need; a machine of nspawn has none of them."""
    lines = [f"b! /dev/loop{n} 0660 root disk - 7:{n}" for n in range(LOOP_NODES)]
    for name in ("loop-control", "btrfs-control", "fuse"):
        try:
            number = os.stat(f"/dev/{name}").st_rdev
        except FileNotFoundError:
            continue  # a kernel without it
        lines.append(f"c! /dev/{name} 0660 root disk - {os.major(number)}:{os.minor(number)}")
    return "\n".join(lines) + "\n"


def prepare_host(lab: Lab, host: Host, hosts: list[Host], disks: list[str], size: str) -> None:
    """Make everything that the host consists of: its root and disk images, and the files that make it this host."""
    home = lab.home / host.name
    seed = home / "seed"
    units = seed / "etc/systemd/system"
    (home / "root").mkdir(parents=True)
    run("cp", "--reflink=auto", "--sparse=always", root_image(host.suite), home / "root.img")
    run("tune2fs", "-U", "random", home / "root.img")
    for number, fstype in enumerate(disks):
        image = home / f"nvme{number}.img"
        run("truncate", "--size", size, image)
        run(*MKFS[fstype], image)
        # Attached here and mounted only inside: the host can truly unmount it, and put another filesystem on it.
        device = run("losetup", "--find", "--show", image).strip()
        unit = f"[Mount]\nWhat={device}\nWhere=/mnt/nvme{number}\nType={fstype}\n"
        write(units / f"mnt-nvme{number}.mount", f"{unit}\n[Install]\nWantedBy=local-fs.target\n")
        wants = units / "local-fs.target.wants"
        wants.mkdir(exist_ok=True)
        (wants / f"mnt-nvme{number}.mount").symlink_to(f"../mnt-nvme{number}.mount")
    write(seed / "etc/hostname", f"{host.name}\n")
    names = "".join(f"{other.address} {other.name}\n" for other in hosts)
    write(seed / "etc/hosts", f"127.0.0.1 localhost\n::1 localhost\n{names}")
    write(seed / "etc/machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    write(seed / "etc/systemd/network/10-lab.network", f"[Match]\nName=host0\n\n[Network]\nAddress={host.address}/24\n")
    write(seed / "etc/tmpfiles.d/stowage-lab.conf", device_nodes())
    write(seed / "etc/containers/containers.conf.d/lab.conf", CONTAINERS)
    write(seed / "etc/docker/daemon.json", DOCKER)
    (seed / "etc/ssh").mkdir()
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", host.name, "-f", seed / "etc/ssh/ssh_host_ed25519_key")
    write(seed / "root/.ssh/authorized_keys", (lab.home / "key.pub").read_text(), 0o600)
    (seed / "root").chmod(0o700)
    (seed / "root/.ssh").chmod(0o700)


START = """
echo $$ >"$1/cgroup.procs"
mount -o loop "$2/root.img" "$2/root"
cp -a "$2/seed/." "$2/root/"
shift 2
exec "$@"
"""


def start_host(lab: Lab, host: Host) -> None:
    """Start the machine in a mount namespace and a control group of its own: with its processes, all of it goes."""
    home, cgroup = lab.home / host.name, lab.cgroup(host.name)
    cgroup.mkdir()
    command = [
        *("unshare", "--mount", "--propagation", "private", "sh", "-ec", START, "sh", str(cgroup), str(home)),
        *("systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--console=read-only"),
        *(f"--directory={home / 'root'}", f"--machine={lab.machine(host.name)}", f"--network-bridge={lab.bridge}"),
        # As free as a real host's root, save for what reaches the machine outside: modules, ports, the clock.
        *("--capability=all", "--drop-capability=CAP_SYS_MODULE,CAP_SYS_RAWIO,CAP_SYS_TIME"),
    ]
    environment = {"PATH": os.environ["PATH"], "SYSTEMD_SECCOMP": "0", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
    with open(home / "console.log", "wb") as log:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
            umask=0o022,
        )


def wait_for_host(lab: Lab, host: Host) -> None:
    limit = time.monotonic() + START_LIMIT_S
    state = ""
    while time.monotonic() < limit:
        state = run(*lab.ssh(host), "systemctl is-system-running --wait", quiet=True).strip()
        if state == "running":
            return
        if state == "degraded":
            failed = run(*lab.ssh(host), "systemctl list-units --failed --plain --no-legend", quiet=True)
            raise LabError(f"{host.name}: units failed: {', '.join(line.split()[0] for line in failed.splitlines())}")
        time.sleep(0.1)
    raise LabError(f"{host.name}: not up after {START_LIMIT_S} s; see {lab.home / host.name / 'console.log'}")


def inventory(lab: Lab, hosts: list[Host], disks: list[str]) -> str:
    ssh_options = f"-o UserKnownHostsFile={lab.home / 'known_hosts'} -o IdentitiesOnly=yes"
    return json.dumps(  # JSON is YAML
        {
            "all": {
                "hosts": {host.name: {"ansible_host": host.address} for host in hosts},
                "vars": {
                    "ansible_user": "root",
                    "ansible_python_interpreter": "/usr/bin/python3",
                    "ansible_ssh_private_key_file": str(lab.home / "key"),
                    "ansible_ssh_common_args": ssh_options,
                    "ansible_control_path_dir": str(lab.control_path),
                    "ansible_pipelining": True,
                    "lab_name": lab.name,
                    "lab_disks": {f"/mnt/nvme{number}": fstype for number, fstype in enumerate(disks)},
                },
            }
        },
        indent=2,
    )


def up(lab: Lab, names: list[str], disks: list[str], size: str) -> None:
    preflight()
    if [host.name for host in lab.hosts()] == names and all(lab.running(name) for name in names):
        say(f"{lab.name} is up: {', '.join(names)}")
        return
    down(lab)
    suites = {Host(name, "").suite for name in names}
    with ThreadPoolExecutor() as pool:
        list(pool.map(root_image, sorted(suites)))
    try:
        lab.home.mkdir(parents=True)
        with locked(RUN / "network.lock"):
            network = free_network()
            run("ip", "link", "add", lab.bridge, "type", "bridge")
            run("ip", "address", "add", f"{network[1]}/24", "dev", lab.bridge)
            run("ip", "link", "set", lab.bridge, "up")
        hosts = [Host(name, str(network[number])) for number, name in enumerate(names, 11)]
        write(lab.home / "lab.json", json.dumps([vars(host) for host in hosts]))
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"stowage-lab-{lab.name}", "-f", lab.home / "key")
        lab.control_path.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: prepare_host(lab, host, hosts, disks, size), hosts))
            keys = [(lab.home / host.name / "seed/etc/ssh/ssh_host_ed25519_key.pub").read_text() for host in hosts]
            write(lab.home / "known_hosts", "".join(f"{h.address} {key}" for h, key in zip(hosts, keys, strict=True)))
            for host in hosts:
                start_host(lab, host)
            list(pool.map(lambda host: wait_for_host(lab, host), hosts))
        write(lab.home / "inventory.yml", inventory(lab, hosts, disks))
    except BaseException:
        log = lab.home.with_suffix(".failed.log")
        with open(log, "wb") as file:
            for console in sorted(lab.home.glob("*/console.log")):
                file.write(console.read_bytes())
        down(lab)
        raise
    say(f"{lab.name} is up: {', '.join(f'{host.name} ({host.suite}, {host.address})' for host in hosts)}")


# Taking it down


def devices_of_mounts(path: Path) -> set[str]:
    return {line.split(" ", 3)[2] for line in path.read_text().splitlines()}


def filesystems_inside(lab: Lab) -> set[str]:
    """Device numbers of what only the lab's hosts have mounted: a loop device on a file there is theirs too."""
    found: set[str] = set()
    for cgroup in cgroups().glob(f"stowage-lab-{lab.tag}-*"):
        for procs in cgroup.rglob("cgroup.procs"):
            for pid in procs.read_text().split():
                with contextlib.suppress(OSError):  # it has just ended
                    found |= devices_of_mounts(Path(f"/proc/{pid}/mountinfo"))
    return found - devices_of_mounts(Path("/proc/self/mountinfo"))


def loop_devices(lab: Lab, inside: set[str]) -> list[str]:
    """Loop devices on the lab's images, and those that a host put on a file of its own and left."""
    listing = json.loads(run("losetup", "--json", "--list", "--output", "NAME,BACK-FILE,BACK-MAJ:MIN,MAJ:MIN") or "{}")
    loops = [{key: str(value).strip() for key, value in loop.items()} for loop in listing.get("loopdevices", [])]
    ours: list[str] = []
    devices = set(inside)
    while True:
        more = [
            loop
            for loop in loops
            if loop["name"] not in ours
            and (loop["back-file"].startswith(f"{lab.home}/") or loop["back-maj:min"] in devices)
        ]
        if not more:
            return ours[::-1]
        ours += [loop["name"] for loop in more]
        devices |= {loop["maj:min"] for loop in more}


def remove_cgroups(lab: Lab, host: str = "*") -> None:
    """End all processes of the lab's hosts, or of one, and only these: nothing else is in their control groups."""
    ours = sorted(cgroups().glob(f"stowage-lab-{lab.tag}-{host}"))
    for cgroup in ours:
        (cgroup / "cgroup.kill").write_text("1")
    limit = time.monotonic() + 10
    for cgroup in ours:
        while "populated 1" in (cgroup / "cgroup.events").read_text():
            if time.monotonic() > limit:
                raise LabError(f"{cgroup}: its processes do not end")
            time.sleep(0.02)
    # Beside the unified hierarchy, nspawn makes groups of the same name in an old one.
    for hierarchy in (cgroups(), *Path("/sys/fs/cgroup").iterdir()):
        for cgroup in hierarchy.glob(f"stowage-lab-{lab.tag}-{host}") if hierarchy.is_dir() else ():
            for directory, _directories, _files in os.walk(cgroup, topdown=False):
                os.rmdir(directory)


def down(lab: Lab) -> None:
    for socket in lab.control_path.glob("*"):
        run("ssh", "-O", "exit", "-S", socket, "lab", quiet=True)
    inside = filesystems_inside(lab)
    remove_cgroups(lab)
    for device in loop_devices(lab, inside):
        run("losetup", "--detach", device, quiet=True)
    limit = time.monotonic() + 10
    while (left := loop_devices(lab, inside)) and time.monotonic() < limit:
        time.sleep(0.05)
    if left:
        raise LabError(f"{' '.join(left)}: still in use by something outside the lab; see losetup --list")
    if Path("/sys/class/net", lab.bridge).exists():
        run("ip", "link", "delete", lab.bridge)
    for directory in Path("/run/systemd/nspawn/propagate").glob(f"{lab.tag}-*"):
        directory.rmdir()
    shutil.rmtree(lab.control_path, ignore_errors=True)
    if lab.home.exists():
        shutil.rmtree(lab.home)
        say(f"{lab.name} is down")


# What one does with it


def status(lab: Lab) -> None:
    names = sorted(path.name for path in LABS.glob("*") if path.is_dir()) if lab.name == "all" else [lab.name]
    for one in map(Lab, names):
        for host in one.hosts():
            state = "up" if one.running(host.name) else "down"
            print(f"{one.name}  {host.name}  {host.suite}  {host.address}  {state}")


def find_host(lab: Lab, name: str) -> Host:
    for host in lab.hosts():
        if host.name == name:
            return host
    raise LabError(f"{name}: no such host in lab {lab.name}; start it with: lab.py up --name {lab.name}")


def stop(lab: Lab, name: str) -> None:
    host = find_host(lab, name)
    if lab.running(host.name):
        remove_cgroups(lab, host.name)
        say(f"{host.name} is down")


def start(lab: Lab, name: str) -> None:
    host = find_host(lab, name)
    if not lab.running(host.name):
        remove_cgroups(lab, host.name)  # empty ones, of a host that went down by itself
        start_host(lab, host)
        wait_for_host(lab, host)
        say(f"{host.name} is up")


def shell(lab: Lab, name: str, command: list[str]) -> None:
    host = find_host(lab, name)
    os.execvp("ssh", [*lab.ssh(host), *command])


def site(lab: Lab, own_inventory: str | None) -> None:
    if own_inventory:
        if not Path(own_inventory).exists():
            raise LabError(f"INVENTORY={own_inventory}: no such file; name an inventory of your hosts")
        sources = ["-i", own_inventory]
    else:
        up(lab, host_names("2"), ["ext4", "xfs"], "1G")
        sources = ["-i", str(REPOSITORY / "tests/lab/site/inventory.yml"), "-i", str(lab.home / "inventory.yml")]
    if subprocess.run(["ansible-playbook", "stowage.host.site", *sources], check=False).returncode:
        raise LabError("the rollout failed, see above; a second run goes on where it stopped")
    LABS.mkdir(parents=True, exist_ok=True)
    report = LABS / f"{lab.name}.txt"
    report.unlink(missing_ok=True)
    show = ["ansible-playbook", str(REPOSITORY / "tests/lab/site/show.yml"), *sources, "-e", f"show_report={report}"]
    done = subprocess.run(show, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        print(done.stdout)
        raise LabError("the hosts do not show their status, see above")
    if not report.exists():
        raise LabError(f"INVENTORY={own_inventory}: it has no hosts; see ansible-inventory --list -i {own_inventory}")
    print(report.read_text())


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lab.py", description="Throwaway hosts for Stowage's tests and demonstration")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default="site", help="the lab's name (default: site)")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("up", "down", "status", "inventory", "stop", "start", "shell", "roots", "site"):
        commands.add_parser(name, parents=[named])
    commands.choices["up"].add_argument("--hosts", default="2", help="a number, or names separated by commas")
    commands.choices["up"].add_argument("--disks", default="ext4,xfs", help="filesystems of nvme0, nvme1, ...")
    commands.choices["up"].add_argument("--size", default="1G", help="size of each disk; XFS needs 300M")
    for name in ("stop", "start", "shell"):
        commands.choices[name].add_argument("host")
    commands.choices["shell"].add_argument("argv", nargs=argparse.REMAINDER)
    commands.choices["site"].add_argument("--inventory", help="the inventory of your own hosts")
    options = parser.parse_args(list(arguments) if arguments is not None else None)
    lab = Lab(options.name)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, so that a start that is ended cleans up
    try:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", options.name):
            raise LabError(f"{options.name}: a lab's name is of lower-case letters, digits and dashes")
        if options.command == "up":
            disks = options.disks.split(",")
            unknown = [fstype for fstype in disks if fstype not in MKFS]
            if unknown:
                raise LabError(f"{unknown[0]}: no such filesystem; choose from {', '.join(MKFS)}")
            up(lab, host_names(options.hosts), disks, options.size)
        elif options.command == "down":
            preflight()
            down(lab)
        elif options.command == "status":
            status(lab)
        elif options.command == "inventory":
            print((lab.home / "inventory.yml").read_text())
        elif options.command == "stop":
            preflight()
            stop(lab, options.host)
        elif options.command == "start":
            preflight()
            start(lab, options.host)
        elif options.command == "shell":
            shell(lab, options.host, options.argv)
        elif options.command == "roots":
            preflight()
            with ThreadPoolExecutor() as pool:
                list(pool.map(root_image, SUITES))
        elif options.command == "site":
            site(lab, options.inventory)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
