# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network mounts, between two emulated machines: reading through them, and the seconds until they are there.

Reading is compared with mounts that are made by hand with the options that one would choose. Linux has one connection,
and where the options agree one filesystem in memory, for all mounts of a server and a minor version: two mounts at the
same time would be the same one. So each is made, read and unmounted in turn, alone on the client, in the order A B B A,
and what the kernel counts as its transport is checked each time. Ours is made by the playbook, and again for each turn
by the unit that it wrote. Each time one file is read thrice that the server has in memory and the client has not; a
first round is not counted. The client's daemon runs, and is given the seconds that it takes to look at a mount that
appears: on this one slow processor they would be counted as the mount's. The mounts by hand are given as many.

Preparing is compared with a playbook that one would write for it: the file of exports as a template, `exportfs -ra` as
its handler, and `ansible.posix.mount`. It has one file for all exports and looks at nothing else, which is the quickest
that it can be. The server runs already, and Ansible's connections are open. "Again" is with nothing left to do. Each is
run twice, in both orders: a remote call takes seconds on an emulated processor.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from run import BUILD, Bench, command

REPOSITORY = BUILD.parent
LAB = "bench-network"
SERVER, CLIENT = "gpu-01", "gpu-02"
DATA = "/mnt/nvme0/data"
SHARDS = [f"shard-{number}" for number in range(5)]
# Carries the collection ansible.posix, and goes with the ansible-core that runs it.
PEER = "ansible==12.3.0"
PEERS = BUILD / "bench" / PEER

# Takes the drives.
DIRECTORIES = r"""
set -eu
umask 022
mkdir -p /mnt/nvme0/data
cd /mnt/nvme0/data
mkdir "$@"
head -c 16M /dev/urandom >imagenet/pictures
ln imagenet/pictures fast/pictures
"""

# Takes the rounds, and for each transport its name, our drive and the options by hand.
READ = r"""
set -eu
export LC_ALL=C
rounds=$1
shift
umount -a -t nfs4
mkdir -p /mnt/by-hand
turn() {
    point=/var/lib/stowage/datavolumes/mounts/vision.$3-0
    if [ "$1" = ours ]; then
        systemctl start "$point"
    else
        what=$(systemctl show --property=What --value "$point")
        point=/mnt/by-hand
        mount -t nfs4 -o "$4" "$what" "$point"
    fi
    [ "$(grep -c ' nfs4 ' /proc/self/mounts)" = 1 ]
    counted=$(sed -n 's/^\txprt:\t\([a-z]*\) .*/\1/p' /proc/self/mountstats)
    sleep 3
    for read in 1 2 3; do
        dd if="$point/pictures" iflag=nocache count=0 status=none # it forgets the file
        said=$(dd if="$point/pictures" of=/dev/null bs=1M 2>&1)
        echo "$1 $2 $counted $(echo "$said" | sed -n 's/.* copied, \([0-9.]*\) s.*/\1/p')"
    done
    umount "$point"
}
systemctl is-active --quiet stowaged
for round in $(seq 0 "$rounds"); do
    for who in peer ours ours peer; do turn "$who" "$1" "$2" "$3"; done
    for who in peer ours ours peer; do turn "$who" "$4" "$5" "$6"; done
done
"""
BY_HAND = {
    "tcp": "vers=4.2,proto=tcp,ro,hard,nosuid,nodev",
    "rdma": "vers=4.1,proto=rdma,port=20049,ro,hard,nosuid,nodev",
}

# As if nobody had prepared anything. Says how many mounts there were.
FORGET = {
    CLIENT: r"""
set -eu
grep -c ' nfs4 ' /proc/self/mounts || true
umount -a -t nfs4
sed -i '/ nfs4 /d' /etc/fstab
find /etc/systemd/system -name 'var-lib-stowage-datavolumes*' -delete
rm -f /var/lib/stowage/network_mounts.json
systemctl daemon-reload
""",
    SERVER: r"""
set -eu
rm -f /etc/exports.d/*.exports /var/lib/stowage/network_exports.json
exportfs -ra
""",
}

ROLL_OUT = """\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: stowage.host.host}
    - ansible.builtin.include_role: {name: stowage.host.daemon}
"""
EXPORTS = """\
{% set options = 'ro,sync,no_subtree_check,root_squash,mountpoint=/mnt/nvme0' %}
{% for shard in shards %}
/mnt/nvme0/data/{{ shard }} {{ hostvars['gpu-02'].ansible_host }}({{ options }})
{% endfor %}
"""
PLAYBOOK = """\
- hosts: gpu-01
  gather_facts: false
  become: true
  tasks:
    - name: Run the server
      ansible.builtin.systemd_service: {name: nfs-server, state: started, enabled: true}
    - name: Write the exports
      ansible.builtin.template: {src: exports.j2, dest: /etc/exports.d/shards.exports, mode: "0644"}
      notify: Export
  handlers:
    - name: Export
      ansible.builtin.command: exportfs -ra
- hosts: gpu-02
  gather_facts: false
  become: true
  tasks:
    - name: Mount
      ansible.posix.mount:
        src: "{{ hostvars['gpu-01'].ansible_host }}:/mnt/nvme0/data/{{ item }}"
        path: "/srv/{{ item }}"
        fstype: nfs4
        opts: vers=4.2,proto=tcp,ro,hard,nosuid,nodev
        state: mounted
      loop: "{{ shards }}"
"""


def run(bench: Bench) -> None:
    site = Site(bench.scratch)
    _ansible_posix()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, so that the machines go
    _lab("down")
    try:
        _lab("up", "--kind", "qemu", "--hosts", f"{SERVER},{CLIENT}", "--disks", "ext4")
        site.roll_out()
        _reading(bench, site)
        _preparing(bench, site)
    finally:
        _lab("down")


class Site:
    """The two machines, as Ansible and a shell reach them."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def roll_out(self) -> None:
        """Make the data, and have Stowage on both."""
        transports = {**dict.fromkeys(SHARDS, "TCP"), "imagenet": "TCP", "fast": "RDMA"}
        drives = [
            {
                "metadata": {"name": name},
                "spec": {
                    "sources": [{"node": SERVER, "path": f"{DATA}/{name}", "mount_path": f"/{name}"}],
                    "transport": transport,
                },
            }
            for name, transport in transports.items()
        ]
        variables = {
            "host_data_location": {"path": "/mnt/nvme0/stowage"},
            "host_paths": {"vision": [DATA]},
            "host_drives": {"vision": drives},
            "shards": SHARDS,
        }
        (self.home / "site.yml").write_text(json.dumps({"all": {"vars": variables}}))  # JSON is YAML
        (self.home / "exports.j2").write_text(EXPORTS)
        (self.home / "peer.yml").write_text(PLAYBOOK)
        (self.home / "roll_out.yml").write_text(ROLL_OUT)
        self.shell(SERVER, DIRECTORIES, *transports)
        self.play(self.home / "roll_out.yml")

    def play(self, playbook: Path, **variables: str) -> float:
        """Run a playbook, and return the seconds that it took."""
        environment = {
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": f"{BUILD / 'collections'}:{PEERS}",
            "ANSIBLE_SSH_ARGS": "-C -o ControlMaster=auto -o ControlPersist=900s",
        }
        arguments = ["ansible-playbook", str(playbook), "-i", str(self.home / "site.yml")]
        arguments += ["-i", str(BUILD / "lab" / LAB / "inventory.yml"), "-e", json.dumps(variables)]
        began = time.perf_counter()
        done = subprocess.run(
            arguments, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        seconds = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(f"{playbook.name} failed:\n{done.stdout}")
        return seconds

    def prepare(self, *drives: str) -> float:
        """Have the client mount *drives*, as stowage.host.run_prepare does."""
        playbook = REPOSITORY / "playbooks/parts/network_mounts.yml"
        return self.play(playbook, network_mount_hosts=CLIENT, run_workspace="vision", run_drives=",".join(drives))

    def shell(self, host: str, script: str, *arguments: str) -> str:
        """Run a script of the shell on a host, and return what it says."""
        lab = [sys.executable, str(REPOSITORY / "tests/lab/lab.py"), "shell", "--name", LAB, host]
        done = subprocess.run(
            [*lab, "bash", "-s", *arguments], input=script, check=True, text=True, stdout=subprocess.PIPE
        )
        return done.stdout

    def forget(self) -> int:
        """Take all exports and network mounts away, and return how many mounts there were."""
        mounts = int(self.shell(CLIENT, FORGET[CLIENT]))
        self.shell(SERVER, FORGET[SERVER])
        return mounts


def _reading(bench: Bench, site: Site) -> None:
    drives = {"tcp": "imagenet", "rdma": "fast"}
    site.prepare(*drives.values())
    rounds = 1 if bench.quick else 3
    each = [word for proto, drive in drives.items() for word in (proto, drive, BY_HAND[proto])]
    turns = [line.split() for line in site.shell(CLIENT, READ, str(rounds), *each).splitlines()]
    for proto in drives:
        seconds: dict[str, list[float]] = {"ours": [], "peer": []}
        for who, asked, counted, took in turns[24:]:  # 2 transports, 4 turns, 3 reads
            if counted != asked:
                raise SystemExit(f"a mount over {asked} ({who}) went over {counted}")
            if asked == proto:
                seconds[who].append(float(took))
        bench.ratio(f"reading over {proto.upper()}, to a mount by hand", seconds["ours"], seconds["peer"], 1.03)


def _preparing(bench: Bench, site: Site) -> None:
    prepared = {"ours": lambda: site.prepare(*SHARDS), "peer": lambda: site.play(site.home / "peer.yml")}
    first: dict[str, list[float]] = {"ours": [], "peer": []}
    again: dict[str, list[float]] = {"ours": [], "peer": []}
    order = ["peer", "ours"]
    site.forget()
    for _round in range(1 if bench.quick else 2):
        for who in order:
            first[who].append(prepared[who]())
            again[who].append(prepared[who]())
            mounts = site.forget()
            if mounts != len(SHARDS):
                raise SystemExit(f"{mounts} mounts instead of {len(SHARDS)} ({who})")
        order.reverse()
    bench.ratio(f"preparing {len(SHARDS)} drives, to a playbook", first["ours"], first["peer"], 1)
    bench.ratio("preparing them again", again["ours"], again["peer"], 1)


def _ansible_posix() -> None:
    """Have the peer's collection below .build."""
    if PEERS.exists():
        return
    PEERS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PEERS.parent) as work:
        command(sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary=:all:", "-d", work, PEER)
        (wheel,) = Path(work).glob("*.whl")
        collection = Path(work, "collections")
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if name.startswith("ansible_collections/ansible/posix/")]
            archive.extractall(collection, wanted)
        collection.rename(PEERS)


def _lab(word: str, *arguments: str) -> None:
    command(sys.executable, str(REPOSITORY / "tests/lab/lab.py"), word, "--name", LAB, *arguments)
