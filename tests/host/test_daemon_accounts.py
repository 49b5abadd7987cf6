# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts on real filesystems: every figure is that of du, and what cannot be measured keeps its last one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from daemon_lab import Daemon, wait_for
from test_measure import du_counts_directories

from stowage_core import events, records
from stowage_core.layout.rules import NAMES
from stowage_core.runs import stamps
from stowage_core.runs.shape import RunName
from stowage_core.runs.stamps import Stamp

CACHES = ("hf_hub_cache", "hf_datasets_cache", "modelscope_cache", "hub_cache", "dataset_cache", "volume_cache")


def du(*paths: Path, across: bool = False) -> int:
    """Return the sizes of what is no directory at or below *paths*, each file once, as du adds them up.

    :param across: whether what has another device number is counted: a mount, or a subvolume
    """
    listed: list[bytes] = []
    for path in paths:
        found = subprocess.run(
            ["find", str(path), *([] if across else ["-xdev"]), "!", "-type", "d", "-print0"],
            check=True,
            stdout=subprocess.PIPE,
        )
        listed.append(found.stdout)
    if not any(listed):
        return 0
    done = subprocess.run(
        ["du", "-c", "--apparent-size", "--block-size=1", "--files0-from=-"],
        check=True,
        input=b"".join(listed),
        stdout=subprocess.PIPE,
    )
    return int(done.stdout.splitlines()[-1].split()[0])


def tree_du(path: Path) -> int:
    """Return what du says of a whole directory, where it does not add the directories themselves."""
    done = subprocess.run(["du", "-s", "--apparent-size", "--block-size=1", str(path)], check=True, stdout=-1)
    return int(done.stdout.split()[0])


QUICK = {"scan_interval_s": 1}


class Site:
    """A host with a layout, the data of users in it, and a daemon."""

    def __init__(self, root: Path, start: Callable[..., Daemon]) -> None:
        self.root = root
        self.paths = {name: root / name for name in NAMES}
        self.paths.update({name: root / "cache" / name for name in CACHES})
        self.start = start
        self.daemon: Daemon = start(**QUICK)

    def put(self, name: str, size: int = 100) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
        return path

    def lay_out(self, **paths: Path) -> None:
        """Declare the layout, in which some locations are elsewhere."""
        self.paths.update(paths)
        for path in self.paths.values():
            path.mkdir(parents=True, exist_ok=True)
        entry = {"filesystem": None, "require_mount": False}
        locations = {name: {"path": str(path), **entry} for name, path in self.paths.items()}
        records.write(self.daemon.places.layout_json, {"root": str(self.root), "locations": locations})

    def stamp(self, name: str, team: str) -> None:
        fd = os.open(self.paths["runs"] / name, os.O_RDONLY)
        try:
            stamps.put(self.daemon.places, RunName.parsed(name), Stamp.of(fd, team, 1.0))
        finally:
            os.close(fd)

    def accounts(self) -> dict[str, Any]:
        return self.daemon.state("accounts")

    def measured(self) -> dict[str, Any]:
        """Return the accounts once everything was measured again, by a round that may have begun before."""
        before = {one["location"]: one["measured"] for one in self.daemon.state("locations").get("locations", [])}
        first = self.accounts().get("measured")

        def again() -> dict[str, Any] | None:
            found = self.daemon.state("locations").get("locations", [])
            newer = all(one["measured"] and one["measured"] != before.get(one["location"]) for one in found)
            accounts = self.accounts()
            return accounts if found and newer and accounts["complete"] and accounts["measured"] != first else None

        return dict(wait_for(again))

    def told(self) -> list[tuple[str, str]]:
        return [(event["object"], event["reason"]) for event in events.read(self.daemon.places)]


@pytest.fixture
def site(disk: Path, start: Callable[..., Daemon]) -> Site:
    return Site(disk / "stowage", start)


def populate(site: Site) -> None:
    """Put files of users into a layout, with hard links within runs, between runs and between users."""
    checkpoint = site.put("runs/ann/llm/one/work/checkpoint", 100_001)
    site.put("runs/ann/llm/one/attempts/1/logs/log", 17)
    site.put("runs/ann/llm/two/work/file", 33)
    site.put("runs/ann/notes", 5)
    site.put("runs/ann/llm/beside the runs", 7)
    site.put("runs/bob/vit/one/work/file", 70_000)
    site.put("runs/stray", 3)
    for name in ("ann/llm/one/work/again", "ann/llm/two/work/same", "bob/vit/one/work/same", "ann/linked beside"):
        os.link(checkpoint, site.root / "runs" / name)
    os.symlink("/etc/passwd", site.root / "runs/ann/llm/two/link")
    site.put("reflow/ann/traffic/buffer", 1000)
    site.put("reflow/eve/buffer", 10)
    for number, name in enumerate(CACHES):
        site.put(f"cache/{name}/blob", 1 << number)
    site.put("cache/of nobody", 19)
    site.put("packages/job.tar", 4242)
    site.put("state/executor.json", 99)
    site.put("left over/by/somebody", 23)
    os.truncate(site.put("left over/sparse", 1), 1 << 30)
    for name, team in (("ann/llm/one", "vision"), ("ann/llm/two", "speech"), ("bob/vit/one", "vision")):
        site.stamp(name, team)


def of_runs(site: Site, *names: str) -> int:
    """Return the sum of the figures of runs, each counted for itself."""
    return sum(du(site.paths["runs"] / name) for name in names)


def beside(site: Site, user: str) -> Iterable[Path]:
    """Return the files of a user that are in no run."""
    top = site.paths["runs"] / user
    return [path for depth in ("*", "*/*") for path in top.glob(depth) if not path.is_dir()]


def test_every_figure_is_that_of_du(site: Site) -> None:
    site.lay_out()
    populate(site)
    os.sync()
    site.daemon.start()
    found = site.measured()
    ann = of_runs(site, "ann/llm/one", "ann/llm/two") + du(*beside(site, "ann"))
    bob = of_runs(site, "bob/vit/one")
    assert {name: (one["runs"], one["runs_bytes"], one["reflow_bytes"]) for name, one in found["users"].items()} == {
        "ann": (2, ann, du(site.paths["reflow"] / "ann")),
        "bob": (1, bob, 0),
        "eve": (0, 0, du(site.paths["reflow"] / "eve")),
    }
    assert {name: (one["runs"], one["bytes"]) for name, one in found["teams"].items()} == {
        "vision": (2, of_runs(site, "ann/llm/one", "bob/vit/one")),
        "speech": (1, of_runs(site, "ann/llm/two")),
    }
    other = [site.root / "left over"]
    assert found["tracked"] == {
        "runs": du(site.paths["runs"]),
        "reflow": du(site.paths["reflow"]),
        "caches": sum(du(site.paths[name]) for name in CACHES),
        "packages": du(site.paths["packages"]),
        "state": du(site.paths["state"]),
        "other": du(*other) + du(site.root / "cache/of nobody"),
    }
    assert found["tracked_bytes"] == sum(found["tracked"].values())
    if not du_counts_directories():
        assert found["tracked"]["runs"] == tree_du(site.paths["runs"])
    assert records.read(site.daemon.places.accounts_json) == found
    assert site.daemon.location("cache")["bytes"] == du(site.paths["cache"])
    page = site.daemon.command("status")
    assert page.returncode == 0 and "! " not in page.stdout and "Accounts" in page.stdout, page.stdout


def test_a_root_over_a_link_to_another_disk(disk: Path, tmp_path: Path, start: Callable[..., Daemon]) -> None:
    (tmp_path / "way").symlink_to(disk)
    site = Site(tmp_path / "way/stowage", start)
    site.lay_out(packages=disk / "stowage/packages")  # declared by the other way there
    site.put("packages/job.tar", 42)
    site.put("runs/ann/llm/one/file", 1000)
    site.put("over/left", 7)
    site.daemon.start()
    found = site.measured()["tracked"]
    assert (found["packages"], found["runs"], found["other"]) == (42, 1000, 7)


def test_a_run_on_another_disk_than_the_root(site: Site, small_disk: Callable[..., Any], fstype: str) -> None:
    runs = small_disk(fstype).path
    site.lay_out(runs=runs)
    (runs / "ann/llm/one").mkdir(parents=True)
    (runs / "ann/llm/one/file").write_bytes(bytes(1000))
    (runs / "lost+found").mkdir(exist_ok=True)
    site.put("over/left", 7)
    site.daemon.start()
    found = site.measured()
    assert {name: one["bytes"] for name, one in found["users"].items()} == {"ann": 1000}
    assert (found["tracked"]["runs"], found["tracked"]["other"]) == (1000, 7)


def test_a_location_that_vanishes_keeps_its_figures(site: Site, small_disk: Callable[..., Any], fstype: str) -> None:
    disk = small_disk(fstype)
    site.lay_out(runs=disk.path)
    (disk.path / "ann/llm/one").mkdir(parents=True)
    (disk.path / "ann/llm/one/file").write_bytes(bytes(1000))
    site.put("reflow/ann/buffer", 10)
    site.stamp("ann/llm/one", "vision")
    site.daemon.configure(**QUICK, quotas={"users": {"ann": 500}})
    site.daemon.start()
    before = site.measured()
    assert before["users"]["ann"]["bytes"] == 1010 and before["users"]["ann"]["exceeded_since"]
    wait_for(lambda: subprocess.run(["umount", str(disk.path)], check=False, stderr=-1).returncode == 0)
    site.put("reflow/ann/more", 5)
    gone = wait_for(lambda: site.accounts()["unavailable"] and site.accounts())
    assert [(one["location"], one["path"]) for one in gone["unavailable"]] == [("runs", str(disk.path))]
    after = wait_for(lambda: site.accounts()["users"]["ann"]["reflow_bytes"] == 15 and site.accounts())
    assert after["users"]["ann"]["runs_bytes"] == 1000 and after["teams"] == before["teams"]
    assert not after["complete"] and after["users"]["ann"]["exceeded_since"] == before["users"]["ann"]["exceeded_since"]
    assert "! Not complete, the last figures of runs count" in " ".join(site.daemon.command("status").stdout.split())
    # The same after a start.
    site.daemon.stop()
    site.daemon.start()
    wait_for(lambda: site.accounts()["unavailable"])
    assert site.accounts()["users"]["ann"]["runs_bytes"] == 1000
    disk.mount()
    assert site.measured()["users"]["ann"]["bytes"] == 1015


def damage(disk: Any, directory: Path) -> None:
    """Damage a directory on its disk, so that root cannot read it either; the disk is unmounted meanwhile."""
    inode, way = os.stat(directory).st_ino, "/" + str(directory.relative_to(disk.path))
    disk.unmount()
    if disk.fstype == "ext4":
        command = ["debugfs", "-w", "-R", f"zap_block -f {way} 0", disk.device]
    else:
        command = ["xfs_db", "-x", "-c", f"inode {inode}", "-c", "write -c v3.change_count 7", disk.device]
    subprocess.run(command, check=True, capture_output=True)
    disk.mount()


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_directory_that_cannot_be_read_makes_it_incomplete(
    kind: str, small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    disk = small_disk(kind)
    site = Site(disk.path / "stowage", start)
    site.lay_out()
    site.put("runs/ann/llm/one/work/file", 1000)
    site.put("runs/bob/llm/one/work/file", 1000)
    site.stamp("ann/llm/one", "vision")
    site.put("state/file", 10)
    site.daemon.start()
    before = site.measured()
    site.daemon.stop()
    damage(disk, site.root / "runs/ann/llm/one/work")
    site.put("runs/bob/llm/one/work/more", 1000)
    site.put("state/more", 10)
    site.daemon.start()
    found = wait_for(lambda: site.accounts()["unavailable"] and site.accounts())
    (one,) = found["unavailable"]
    assert one["location"] == "runs" and "ann/llm/one/work" in one["reason"], one
    assert found["teams"]["vision"] == {**before["teams"]["vision"], "missing": one["reason"].partition(": ")[2]}
    # Only whoever has what cannot be read keeps what he had.
    assert found["users"]["ann"] == {**before["users"]["ann"], "missing": one["reason"].partition(": ")[2]}
    assert (found["users"]["bob"]["bytes"], found["users"]["bob"]["missing"]) == (2000, "")
    assert not found["complete"]
    wait_for(lambda: site.accounts()["tracked"]["state"] == 20)
    assert site.accounts()["tracked"]["runs"] == 2000


def test_a_mount_over_a_directory_clears_no_quota(site: Site) -> None:
    site.lay_out()
    hidden = site.put("runs/ann/llm/one/work/hide/file", 5000).parent
    site.put("runs/bob/llm/one/work/file", 1000)
    site.put("state/hide/file", 7)
    site.stamp("ann/llm/one", "vision")
    site.daemon.configure(**QUICK, quotas={"users": {"ann": 4000}, "teams": {"vision": 4000}})
    site.daemon.start()
    site.measured()
    mounted = [hidden, site.root / "state/hide"]
    for path in mounted:
        subprocess.run(["mount", "-t", "tmpfs", "none", str(path)], check=True)
    try:
        site.put("runs/bob/llm/one/work/more", 1000)
        found = wait_for(lambda: site.accounts()["users"]["bob"]["bytes"] == 2000 and site.accounts())
        for one in (found["users"]["ann"], found["teams"]["vision"]):
            assert one["bytes"] == 5000 and one["exceeded_since"] is not None
            assert one["missing"] == "runs/ann/llm/one/work/hide: another filesystem is mounted there"
        assert [one["location"] for one in found["unavailable"]] == ["runs"]
        assert sorted(site.told()) == [("team/vision", "QuotaExceeded"), ("user/ann", "QuotaExceeded")]
    finally:
        for path in mounted:
            subprocess.run(["umount", str(path)], check=True)
    (hidden / "file").write_bytes(bytes(3000))
    wait_for(lambda: site.accounts()["users"]["ann"]["exceeded_since"] is None)
    assert site.accounts()["users"]["ann"]["missing"] == ""


def test_nobody_is_billed_for_what_others_have_named(site: Site) -> None:
    """As a location is laid out for a group: any of its users may make and rename directories in reflow."""
    site.lay_out()
    site.put("reflow/ann/buffer", 10)
    os.truncate(site.put("reflow/bob/x"), 1 << 40)
    os.chown(site.root / "reflow/bob", 65534, 65534)
    site.paths["reflow"].chmod(0o2775)
    site.daemon.configure(**QUICK, quotas={"users": {"bob": "1G"}})
    site.daemon.start()
    found = site.measured()
    assert {name: one["reflow_bytes"] for name, one in found["users"].items()} == {"nobody": 1 << 40}
    assert found["unproven"] == {"count": 1, "bytes": 10, "most": 10, "first": "ann"} and found["unmatched"][
        "users"
    ] == ["bob"]
    shown = " ".join(site.daemon.command("status").stdout.split())
    assert "! In reflow 10 B in directories, 1 of them, count for nobody" in shown
    # Who cannot rename it cannot have it count for another one either.
    site.paths["reflow"].chmod(0o3775)
    wait_for(lambda: site.accounts()["unproven"]["count"] == 0)
    assert site.accounts()["users"]["ann"]["reflow_bytes"] == 10
    assert site.told() == []


def test_damaged_stamps_take_no_team_away(site: Site) -> None:
    site.lay_out()
    site.put("runs/ann/llm/one/file", 1000)
    site.put("runs/bob/llm/one/file", 1000)
    for user in ("ann", "bob"):
        site.stamp(f"{user}/llm/one", "vision")
    site.daemon.start()
    before = site.measured()
    site.put("runs/bob/llm/one/more", 1000)
    path = Path(stamps.record_path(site.daemon.places, RunName("ann", "llm", "one")))
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    found = wait_for(lambda: site.accounts()["unavailable"] and site.accounts())
    assert [(one["location"], one["path"]) for one in found["unavailable"]] == [("runs", str(path.parents[1]))]
    assert found["teams"] == before["teams"]
    wait_for(lambda: site.accounts()["users"]["bob"]["bytes"] == 2000)
    path.write_bytes(whole)
    assert site.measured()["teams"]["vision"]["bytes"] == 3000


def test_a_quota_is_exceeded_until_it_is_kept(site: Site) -> None:
    site.lay_out()
    first = site.put("runs/ann/llm/one/work/file", 1000)
    site.stamp("ann/llm/one", "vision")
    site.daemon.configure(**QUICK, quotas={"users": {"ann": 500}, "default_team": "1k"})
    site.daemon.start()
    found = site.measured()
    since = found["users"]["ann"]["exceeded_since"]
    assert since and found["teams"]["vision"]["exceeded_since"] is None
    wait_for(lambda: site.told() == [("user/ann", "QuotaExceeded")])
    assert "! user ann uses 1.0 kB of 500 B, for" in site.daemon.command("status").stdout
    # A start changes nothing.
    site.daemon.stop()
    site.daemon.start()
    assert site.measured()["users"]["ann"]["exceeded_since"] == since
    # Another quota holds when it is taken on, without measuring.
    site.daemon.configure(scan_interval_s=3600, quotas={"users": {"ann": "1M"}, "teams": {"vision": 10}})
    assert site.daemon.process is not None
    site.daemon.process.send_signal(1)
    now = wait_for(lambda: site.accounts()["users"]["ann"]["exceeded_since"] is None and site.accounts())
    assert now["users"]["ann"]["quota"] == 1_000_000 and now["teams"]["vision"]["exceeded_since"]
    wait_for(lambda: set(site.told()) >= {("user/ann", "QuotaKept"), ("team/vision", "QuotaExceeded")})
    site.daemon.configure(**QUICK, quotas={"teams": {"vision": 10}})
    site.daemon.process.send_signal(1)
    first.unlink()
    wait_for(lambda: site.accounts()["teams"]["vision"]["exceeded_since"] is None)
    wait_for(lambda: ("team/vision", "QuotaKept") in site.told())


def test_a_run_that_was_made_again_has_no_team(site: Site) -> None:
    site.lay_out()
    site.put("runs/ann/llm/one/file", 1000)
    site.stamp("ann/llm/one", "vision")
    site.daemon.start()
    teams = site.measured()["teams"]
    assert {name: (one["bytes"], one["runs"]) for name, one in teams.items()} == {"vision": (1000, 1)}
    os.rename(site.root / "runs/ann/llm/one", site.root / "runs/ann/llm/old")
    site.put("runs/ann/llm/one/file", 1)
    wait_for(lambda: site.accounts()["users"]["ann"]["runs"] == 2 and site.accounts()["teams"] == {})
