# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet as its hosts would report it, with a little of everything that goes wrong, and always the same.

Every name in it goes through one function, so that a test can have any.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

NOW = 1764504000.0
Facts = dict[str, Any]

_TB = 10**12
_LOCATIONS = {
    "runs": "/mnt/nvme1/runs",
    "state": "/srv/stowage/state",
    "reflow": "/srv/stowage/reflow",
    "packages": "/srv/stowage/packages",
    "cache": "/mnt/nvme0/cache",
    "hf_hub_cache": "/mnt/nvme0/cache/hub",
    "hf_datasets_cache": "/mnt/nvme0/cache/datasets",
    "modelscope_cache": "/mnt/nvme0/cache/modelscope",
}
_FILESYSTEMS = (
    # mount, type, kind, size, the least and the most that is used
    ("/", "ext4", "SSD", 480 * 10**9, 0.15, 0.6),
    ("/boot/efi", "vfat", "SSD", 5 * 10**8, 0.02, 0.04),
    ("/mnt/nvme0", "xfs", "NVMe SSD", 3840 * 10**9, 0.2, 0.97),
    ("/mnt/nvme1", "xfs", "NVMe SSD", 7680 * 10**9, 0.1, 0.9),
)
_MISSING = (
    "its filesystem (UUID 1f0f3a2e-7b8f-4d0c-9f4b-0d3b0c0d7f11, ext4) is not mounted, another one is in its place; "
    "mount its disk, or roll the layout out again"
)
_PEOPLE = ("ann", "bo", "chen", "dara", "elif", "farid", "gita", "hugo", "ines", "jun", "kofi", "lena", "mio", "noor")
_TEAMS = ("vision", "speech", "robotics", "retrieval", "evaluation")


class Fleet:
    """Hosts by name with their facts; None for those that do not answer.

    On a bad day the disks that Stowage's directories are on are missing on every host.
    """

    def __init__(
        self, hosts: int, drives: int = 12, named: Callable[[str], str] = lambda name: name, bad_day: bool = False
    ) -> None:
        self._chance = random.Random(hosts)
        self._named = named
        self._drives = drives
        self.hosts = {
            named(f"gpu-{number:0{len(str(hosts))}}"): self._host(number, hosts) for number in range(1, hosts + 1)
        }
        if bad_day:
            for facts in filter(None, self.hosts.values()):
                self._lose_disks(facts)

    def _host(self, number: int, hosts: int) -> Facts | None:
        if number % 40 == 7:
            return None
        gathered = NOW - self._chance.uniform(1, 40)
        filesystems = self._filesystems(number)
        measured = gathered - self._chance.uniform(5, 290)
        copies = self._copies(number, measured)
        return {
            "gathered": gathered,
            "filesystems": filesystems,
            "layout": {
                "root": "/srv/stowage",
                "locations": {
                    self._named(name): self._location(name, path, number, measured) for name, path in _LOCATIONS.items()
                },
            },
            "data_location": {
                "path": self._named("/mnt/nvme0/stowage"),
                "max_bytes": 2 * _TB,
                "available": number % 33 != 5,
                "size_bytes": 3840 * 10**9,
                "free_bytes": filesystems[2]["free_bytes"],
                "used_bytes": sum(one["allocated"] or 0 for one in copies.values()),
                "reserved_bytes": 0,
                "strangers": [],
            },
            "drives": {self._named("ml"): [self._drive(index, number, hosts) for index in range(self._drives)]},
            "copies": copies,
            "network_mounts": self._network_mounts(number, measured),
            "tiers": None if number % 50 == 9 else self._tiers(number, measured),
            "leases": [{}] * (number % 4),
            "eviction": {
                "mode": "plan",
                "plan": [{}] * (number % 3),
                "blocked": number % 37 == 2,
                "why": "none may go",
            },
            "daemon": {"installed": True, "running": number % 41 != 3, "last_cycle_age_s": 4.5},
            "accounts": self._accounts(number, measured),
            "gate": self._gate(number, filesystems, gathered),
            "events": self._events(number, gathered),
            "volumes": [
                {
                    "name": self._named("atlas"),
                    "path": "/srv/volumes/atlas",
                    "available": number % 29 != 6,
                    "grants": 3,
                    "used_by": [],
                }
            ],
            "relocations": [
                {
                    "location": "runs",
                    "path": self._named("/mnt/nvme1/runs"),
                    "to": self._named("/mnt/nvme2/runs"),
                    "stage": "copied" if number % 2 else "finished",
                    "doing": "",
                    "since": measured - 600,
                }
            ]
            if number % 11 == 3
            else [],
            "problems": [self._named(f"claim of tier chat/0 on gpu-{number}: damaged")] if number % 45 == 4 else [],
        }

    def _lose_disks(self, facts: Facts) -> None:
        """Have a host tell what it tells when none of its disks but the system's is there."""
        why = self._named(_MISSING)
        facts["filesystems"] = [one for one in facts["filesystems"] if not one["mount"].startswith("/mnt/")]
        locations = facts["layout"]["locations"]
        for one in locations.values():
            one.update(available=False, reason=f"{one['path']}: {why}", mounted=False, complete=False)
        facts["data_location"].update(available=False, size_bytes=None, free_bytes=None, strangers=None)
        for copy in facts["copies"].values():
            copy.update(present=None, aside=None, complete=False)
        for drive in [drive for drives in facts["drives"].values() for drive in drives]:
            for source in drive["sources"]:
                if source["available"]:
                    source.update(available=False, complete=False)
        for tier in facts["tiers"] or ():
            tier.update(claimed=None, complete=False)
            where = f"tier {tier['backend']}/0 {tier['path']}"
            facts["problems"].append(f"{where}: its directory cannot be seen; is its disk mounted?")
        missing = [(f"location {name}", one["path"]) for name, one in locations.items()]
        missing.append(("data location", facts["data_location"]["path"]))
        texts = [f"{what} ({path}) is not available: {why}" for what, path in missing]
        holds = [{"reason": "unavailable", "text": one, "user": "", "team": ""} for one in texts]
        facts["gate"] = {"judged": facts["gathered"], "watermark_pct": 90.0, "holds": holds, "stale": False}
        unavailable = [
            {"location": name, "path": one["path"], "reason": one["reason"]} for name, one in locations.items()
        ]
        facts["accounts"].update(complete=False, unavailable=unavailable)

    def _filesystems(self, number: int) -> list[Facts]:
        found = []
        for mount, fstype, kind, size, least, most in _FILESYSTEMS:
            used = int(size * self._chance.uniform(least, most))
            found.append(self._filesystem(mount, fstype, kind, size, used))
        found[0]["system_disk"] = True
        lustre = self._filesystem("/lustre", "lustre", "shared", 900 * _TB, 512 * _TB, "10.0.0.1@o2ib:/fs")
        if number % 25 == 3:
            lustre.update(answers=False, error="does not answer", size_bytes=None, used_bytes=None, free_bytes=None)
        return [*found, lustre]

    def _filesystem(self, mount: str, fstype: str, kind: str, size: int, used: int, source: str = "/dev/x") -> Facts:
        point = self._named(mount)
        return {
            "mount": point,
            "mounts": [point],
            "fstype": fstype,
            "kind": kind,
            "source": self._named(source),
            "shared": kind == "shared",
            "system_disk": False,
            "answers": True,
            "error": "",
            "size_bytes": size,
            "used_bytes": used,
            "free_bytes": size - used,
            "files": 10**7,
            "files_free": 10**6 if mount == "/mnt/nvme1" else 9 * 10**6,
        }

    def _location(self, name: str, path: str, number: int, measured: float) -> Facts:
        complete = not (name == "runs" and number % 17 == 4)
        known = not (name == "packages" and number % 11 == 1)
        mounted = number % 33 != 5 if path.startswith("/mnt/nvme0") else None
        return {
            "path": self._named(path),
            "override": True,
            "mounted": mounted,
            "available": mounted is not False,
            "reason": "" if complete else self._named(f"{path}: ann/llm: Permission denied"),
            "bytes": self._chance.randrange(3 * 10**11) if known else None,
            "files": self._chance.randrange(10**6) if known else None,
            "complete": complete if known else None,
            "measured": measured - (0 if complete else 8000) if known else None,
        }

    def _gate(self, number: int, filesystems: list[Facts], time: float) -> Facts | None:
        if number % 47 == 8:
            return None
        holds = [
            {
                "reason": "watermark",
                "text": f"filesystem {one['mount']} is {-(-100 * one['used_bytes'] // one['size_bytes'])} % full, "
                "the watermark is 90 %",
                "user": "",
                "team": "",
            }
            for one in filesystems[:4]
            if one["used_bytes"] > 0.9 * one["size_bytes"]
        ]
        if number % 10 == 1:
            user = self._named("ann")
            holds.append({"reason": "quota", "text": f"user {user} uses 1.2 TB of 1.0 TB", "user": user, "team": ""})
        return {"judged": time, "watermark_pct": 90.0, "holds": holds, "stale": False}

    def _accounts(self, number: int, measured: float) -> Facts:
        users = {}
        for name in self._chance.sample(_PEOPLE, 9):
            size = self._chance.randrange(9 * 10**11)
            quota = _TB if name in ("ann", "bo", "chen") else None
            since = measured - 40000 if quota and name == "ann" and number % 10 == 1 else None
            users[self._named(name)] = {
                "bytes": 12 * 10**11 if since else size,
                "runs": self._chance.randrange(80),
                "runs_bytes": size,
                "reflow_bytes": 0,
                "quota": quota,
                "exceeded_since": since,
            }
        teams = {
            self._named(name): {
                "bytes": self._chance.randrange(2 * _TB),
                "runs": self._chance.randrange(300),
                "quota": 3 * _TB if name == "vision" else None,
                "exceeded_since": None,
            }
            for name in _TEAMS
        }
        complete = number % 17 != 4
        unavailable = {"location": "runs", "path": self._named("/mnt/nvme1/runs"), "reason": "Permission denied"}
        kinds = ("runs", "reflow", "caches", "packages", "state", "other")
        return {
            "measured": measured,
            "complete": complete,
            "unavailable": [] if complete else [unavailable],
            "users": users,
            "teams": teams,
            "tracked": {kind: self._chance.randrange(4 * _TB // (place + 1)) for place, kind in enumerate(kinds)},
        }

    def _drive(self, index: int, number: int, hosts: int) -> Facts:
        kind = ("placed", "", "shared", "local-any")[index % 4]
        node = {"": index * 3 % hosts + 1, "shared": 1}.get(kind)
        here = kind == "local-any" or node == number
        known = here and number % 23 != 9
        source = {
            "node_scope": kind,
            "node": self._named(f"gpu-{node:0{len(str(hosts))}}") if node else "",
            "path": self._named({"placed": "", "": f"/mnt/nvme1/data-{index}"}.get(kind, f"/{kind}/{index}")),
            "available": here if here else None,
            "answers": (index, number) != (3, 2) if known else None,
            "bytes": self._chance.randrange(2 * _TB) if known else None,
            "files": self._chance.randrange(10**6) if known else None,
            "complete": True if known else None,
            "measured": NOW - 200 if known else None,
        }
        name = {"placed": "hf-cache", "": "imagenet", "shared": "checkpoints", "local-any": "scratch"}[kind]
        return {
            "name": self._named(f"{name}-{index}"),
            "identity": f"i-{index}-{number}",
            "state": "present",
            "evictable": kind == "placed",
            "size_hint_bytes": 107374182400 if kind == "placed" else 0,
            "used_by": [self._named("finetune-3/w0")] if (index + number) % 7 == 0 else [],
            "sources": [source],
        }

    def _copies(self, number: int, measured: float) -> dict[str, Facts]:
        found = {}
        for index in range(0, self._drives, 4):
            if self._chance.random() < 0.6:
                known = self._chance.random() < 0.95
                size = self._chance.randrange(10**9, 2 * 10**11) if known else None
                drive = self._named(f"hf-cache-{index}")
                found[f"{self._named('ml')}.{drive}"] = {
                    "present": True,
                    "aside": False,
                    "workspace": self._named("ml"),
                    "drive": drive,
                    "identity": f"i-{index}-{number}",
                    "allocated": size,
                    "bytes": size,
                    "files": 800 if known else None,
                    "complete": True if known else None,
                    "measured": measured if known else None,
                    "last_used": measured - 10**5 * self._chance.random() if index % 8 else None,
                }
        return found

    def _network_mounts(self, number: int, measured: float) -> list[Facts]:
        found = []
        for index in range(1, min(self._drives, 12), 4):
            state = "Failed" if (number, index) == (2, 1) else "Bound"
            found.append(
                {
                    "workspace": self._named("ml"),
                    "drive": self._named(f"imagenet-{index}"),
                    "source": 0,
                    "node": self._named("gpu-01"),
                    "state": state,
                    "reason": self._named("mount.nfs: Connection timed out") if state == "Failed" else "",
                    "message": "mounted over TCP (RDMA did not work)" if number % 13 == 4 else "",
                    "time": measured - 9000,
                    "path": f"/var/lib/stowage/datavolumes/mounts/ml.imagenet-{index}-0",
                    "proto": "tcp" if number % 13 == 4 else "rdma",
                    "read_only": True,
                    "answers": number % 31 != 6 if state == "Bound" else None,
                    "available": number % 31 != 6 if state == "Bound" else None,
                }
            )
        return found

    def _tiers(self, number: int, measured: float) -> list[Facts]:
        return [
            {
                "backend": self._named(backend),
                "position": 0,
                "path": self._named(f"/mnt/nvme0/kv/{backend}"),
                "store": "mooncake",
                "capacity": 10**12,
                "allocated": self._chance.randrange(10**12),
                "bytes": self._chance.randrange(10**12),
                "files": self._chance.randrange(9000),
                "buckets": 40,
                "keys": 90000,
                "claimed": True,
                "full": number % 6 == 0,
                "filling": False,
                "settings_differ": number % 19 == 2,
                "writable": True,
                "complete": True,
                "measured": measured,
            }
            for backend in ("chat", "code")
        ]

    def _events(self, number: int, gathered: float) -> list[Facts]:
        return [
            {
                "time": gathered - 3000 * place - 40 * self._chance.random(),
                "object": self._named(f"drive/ml/hf-cache-{4 * (place % 3)}"),
                "reason": "Evicted",
                "message": self._named(
                    f"Copy removed from gpu-{number}: evicted: the disk it is on is nearly full (107 GB)"
                ),
            }
            for place in range(20, 0, -1)
        ]
