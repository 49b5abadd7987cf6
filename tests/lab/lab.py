# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Throwaway hosts: machines with real systemd, SSH and disks of their own.

    lab.py up [--name LAB] [--kind nspawn|qemu] [--hosts 2 | --hosts gpu-01,gpu-02] [--disks ext4,xfs,btrfs] [--size 1G]
    lab.py down | status | inventory | shell HOST [COMMAND...]    [--name LAB]
    lab.py stop HOST | start HOST [--name LAB]     cuts one host's power, and starts it again with its disks
    lab.py roots [--kind nspawn|qemu]              builds the root filesystems ahead of time
    lab.py site [--inventory PATH]                 rolls stowage.host.site out and shows what an operator wants to see

Hosts of nspawn.py share the kernel of this machine; those of qemu.py have Debian's, on an emulated processor.

All state of a lab is in .build/lab/<lab>. What the kernel holds for it (a bridge, control groups, loop devices) is
found again by names made from that path, so ``down`` cleans up after a crash too, and never touches another lab.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import base
import nspawn
import qemu
from base import LABS, MKFS, REPOSITORY, RUN, Host, Lab, LabError, cgroups, host_names, locked, run, say, write

KINDS = {"nspawn": nspawn, "qemu": qemu}
PRIVATE_NETWORK = ipaddress.ip_network("10.213.0.0/16")  # each lab takes a /24 that is free on this machine

NEEDED = {  # program -> Debian package, on the machine that runs the lab
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "losetup": "mount",
    "unshare": "util-linux",
}


# The machine that the lab runs on


def preflight(kind: str | None = None) -> None:
    """Expect what any lab needs, and hosts of that kind."""
    if not sys.platform.startswith("linux"):
        raise LabError("the throwaway hosts need Linux; give your own hosts with INVENTORY=path")
    if os.geteuid() != 0:
        raise LabError("the throwaway hosts need root: run it with sudo, or give your own hosts with INVENTORY=path")
    cgroups()
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    os.environ["PATH"] = path
    needed = {**NEEDED, **(KINDS[kind].NEEDED if kind else {})}
    missing = sorted({package for program, package in needed.items() if not shutil.which(program, path=path)})
    if missing:
        say(f"Debian packages that this machine lacks: {' '.join(missing)}")
        run(REPOSITORY / "tests" / "gates" / "packages.sh", *missing)


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


def wait_for_host(lab: Lab, host: Host) -> None:
    patience = KINDS[host.kind].START_LIMIT_S
    limit = time.monotonic() + patience
    state = ""
    while time.monotonic() < limit:
        state = run(*lab.ssh(host), "systemctl is-system-running --wait", quiet=True).strip()
        if state == "running":
            return
        if state == "degraded":
            failed = run(*lab.ssh(host), "systemctl list-units --failed --plain --no-legend", quiet=True)
            raise LabError(f"{host.name}: units failed: {', '.join(line.split()[0] for line in failed.splitlines())}")
        time.sleep(0.1)
    raise LabError(f"{host.name}: not up after {patience} s; see {lab.home.with_suffix('.consoles.log')}")


def inventory(lab: Lab, hosts: list[Host]) -> str:
    # A host that has died says nothing: after five minutes it is unreachable, and not waited for any longer.
    alive = "-o ServerAliveInterval=30 -o ServerAliveCountMax=10"
    ssh_options = f"-o UserKnownHostsFile={lab.home / 'known_hosts'} -o IdentitiesOnly=yes {alive}"
    return json.dumps(  # JSON is YAML
        {
            "all": {
                "hosts": {host.name: variables(host) for host in hosts},
                "vars": {
                    "ansible_user": "root",
                    "ansible_python_interpreter": "/usr/bin/python3",
                    "ansible_ssh_private_key_file": str(lab.home / "key"),
                    "ansible_ssh_common_args": ssh_options,
                    "ansible_control_path_dir": str(lab.control_path),
                    "ansible_pipelining": True,
                    "lab_name": lab.name,
                },
            }
        },
        indent=2,
    )


def variables(host: Host) -> dict[str, object]:
    found: dict[str, object] = {"ansible_host": host.address, "lab_disks": host.disks}
    others = {"lab_other_address": host.other_address, "lab_rdma_address": host.rdma_address}
    return found | {name: address for name, address in others.items() if address}


def up(lab: Lab, kind: str, names: list[str], disks: list[str], size: str) -> None:
    preflight(kind)
    if [(host.name, host.kind) for host in lab.hosts()] == [(name, kind) for name in names] and all(
        lab.running(name) for name in names
    ):
        say(f"{lab.name} is up: {', '.join(names)}")
        return
    down(lab)
    build_roots(kind, {Host(name, "").suite for name in names})
    try:
        lab.home.mkdir(parents=True)
        with locked(RUN / "network.lock"):
            network = free_network()
            run("ip", "link", "add", lab.bridge, "type", "bridge")
            run("ip", "address", "add", f"{network[1]}/24", "dev", lab.bridge)
            run("ip", "link", "set", lab.bridge, "up")
        addresses = [str(address) for address in network]
        hosts = [KINDS[kind].plan(name, number, addresses, disks) for number, name in enumerate(names, 1)]
        write(lab.home / "lab.json", json.dumps([vars(host) for host in hosts]))
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"stowage-lab-{lab.name}", "-f", lab.home / "key")
        lab.control_path.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: KINDS[kind].prepare(lab, host, hosts, size), hosts))
            keys = [(lab.home / host.name / "seed/etc/ssh/ssh_host_ed25519_key.pub").read_text() for host in hosts]
            write(lab.home / "known_hosts", "".join(f"{h.address} {key}" for h, key in zip(hosts, keys, strict=True)))
            for host in hosts:
                KINDS[kind].start(lab, host)
            list(pool.map(lambda host: wait_for_host(lab, host), hosts))
        write(lab.home / "inventory.yml", inventory(lab, hosts))
    except BaseException:
        down(lab)
        raise
    say(f"{lab.name} is up: {', '.join(f'{host.name} ({host.suite}, {host.address})' for host in hosts)}")


def build_roots(kind: str, suites: Iterable[str]) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(KINDS[kind].root_image, sorted(suites)))


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
        keep_consoles(lab)
        shutil.rmtree(lab.home)
        say(f"{lab.name} is down")


def keep_consoles(lab: Lab) -> None:
    """Keep what the hosts' consoles said: why one did not start, or died."""
    with open(lab.home.with_suffix(".consoles.log"), "wb") as file:
        for console in sorted(lab.home.glob("*/console.log")):
            file.write(f"--- {console.parent.name}\n".encode() + console.read_bytes())


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
        KINDS[host.kind].start(lab, host)
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
        up(lab, "nspawn", host_names("2"), ["ext4", "xfs"], "1G")
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
    for name in ("up", "roots"):
        commands.choices[name].add_argument("--kind", default="nspawn", choices=list(KINDS), help="default: nspawn")
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
            up(lab, options.kind, host_names(options.hosts), disks, options.size)
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
            preflight(options.kind)
            build_roots(options.kind, base.SUITES)
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
