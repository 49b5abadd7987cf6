# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon measures by watching: its figures are those of du, and whatever happens to what watches, they stay so."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from copies_lab import Lab
from daemon_lab import Daemon, wait_for
from test_daemon_accounts import du

from stowage_core import events, mounts, records
from stowage_core.trees.measure import Scan
from stowage_core.trees.watching.engine import Watch
from stowaged.children import Children, Ending, Send
from stowaged.loop import Loop
from stowaged.measuring import Trees
from stowaged.watching import Order, Watcher

MIB = 1 << 20


def declare(daemon: Daemon, **paths: Path) -> None:
    entry = {"filesystem": None, "require_mount": False}
    locations = {name: {"path": str(path), **entry} for name, path in paths.items()}
    records.write(daemon.places.layout_json, {"locations": locations})


def truth(path: Path, across: bool = False) -> tuple[int, int, int]:
    """Return what du says of a directory: bytes, allocated bytes, and inodes; see `du`."""
    options = ["-s"] if across else ["-s", "-x"]
    done = [
        subprocess.run(["du", *options, option, str(path)], check=True, stdout=subprocess.PIPE, text=True).stdout
        for option in ("--block-size=1", "--inodes")
    ]
    allocated, inodes = (int(one.split()[0]) for one in done)
    return du(path, across=across), allocated, inodes


def figures(daemon: Daemon, name: str) -> tuple[int, int, int] | None:
    """Return what the daemon says of a location, None while that is not complete."""
    one = daemon.location(name)
    return (one["bytes"], one["allocated"], one["inodes"]) if one.get("complete") else None


def follows(daemon: Daemon, name: str, path: Path) -> bool:
    """Wait until the daemon says what du says."""
    return bool(wait_for(lambda: figures(daemon, name) == truth(path)))


def measuring(daemon: Daemon, path: Path) -> dict[str, Any]:
    """Return what is shown of the engine that measures the filesystem mounted at *path*."""
    for one in daemon.state("measuring").get("filesystems", []):
        if one["mountpoint"] == str(path):
            return dict(one)
    return {}


def engine(daemon: Daemon, path: Path) -> str | None:
    return measuring(daemon, path).get("engine")


def is_watched(daemon: Daemon, path: Path) -> bool:
    return engine(daemon, path) == "watch" and bool(measuring(daemon, path)["trees"])


def watchers(daemon: Daemon) -> list[int]:
    """Return the children of the daemon that watch."""
    assert daemon.process is not None
    pid, found = daemon.process.pid, []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            links = [os.readlink(one) for one in Path(f"/proc/{child}/fd").iterdir()]
        except OSError:
            continue  # it has ended
        if any("fanotify" in one for one in links):
            found.append(int(child))
    return found


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, though nobody may have waited for it."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def told(daemon: Daemon) -> list[str]:
    return [one["reason"] for one in events.read(daemon.places) if one["reason"].startswith("Watch")]


def reload(daemon: Daemon, **settings: Any) -> None:
    daemon.configure(**settings)
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)


def populate(path: Path) -> None:
    for name in ("runs/ann/llm/one/work", "runs/bob/vit/two", "cache/hub/blobs", "cache/beside"):
        (path / name).mkdir(parents=True)
        (path / name / "file").write_bytes(os.urandom(20_000))
    os.link(path / "runs/ann/llm/one/work/file", path / "runs/bob/vit/two/same")
    os.symlink("/etc/passwd", path / "cache/link")


def lab_of(disk: Path, home: Path, copies: int) -> Lab:
    """Make a data location with some cache copies of 8 MiB, the one that was used last at the end, and a layout."""
    lab = Lab(disk, home)
    for number in range(copies):
        lab.copy(f"ml.cache-{number}", 8 * MIB, last_used=1000.0 + number)
    populate(disk)
    return lab


def test_every_figure_is_that_of_du_while_things_change(
    disk: Path, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    populate(disk)
    with open(disk / "cache/beside/holes", "wb") as holes:
        holes.truncate(100_000)
    lab = Lab(disk, tmp_path)
    lab.copy("ml.one", 3 * MIB)
    daemon = start(lab, scan_interval_s=1)
    declare(daemon, runs=disk / "runs", cache=disk / "cache", hf_hub_cache=disk / "cache/hub")
    daemon.start()
    paths = {"runs": disk / "runs", "cache": disk / "cache", "hf_hub_cache": disk / "cache/hub"}
    for name, path in paths.items():
        follows(daemon, name, path)
    point = Path(daemon.state("filesystems")["filesystems"][0]["mountpoint"])
    wait_for(lambda: is_watched(daemon, point))
    (watcher,) = watchers(daemon)
    wait_for(lambda: measuring(daemon, point)["trees"] == 3)  # runs, cache and what is in it, the copy
    known = measuring(daemon, point)
    assert known["directories"] >= 12 and 0 < known["unsteady"] <= known["directories"]
    listed = daemon.location("runs")["listed"]

    with open(disk / "runs/ann/llm/one/work/file", "ab") as held:
        held.write(os.urandom(50_000))
        held.flush()
        (disk / "cache/hub/new/deep/er").mkdir(parents=True)
        (disk / "cache/hub/new/deep/er/file").write_bytes(os.urandom(7_000))
        shutil.rmtree(disk / "cache/beside")
        os.rename(disk / "runs/bob/vit", disk / "runs/ann/vit")
        (lab.at("ml.one") / "data" / "more").write_bytes(os.urandom(1000))
        for name, path in paths.items():
            follows(daemon, name, path)
        held.write(os.urandom(300_000))
        held.flush()
        follows(daemon, "runs", paths["runs"])
    lab.copy("ml.two", MIB)
    wait_for(lambda: {name: one["bytes"] for name, one in daemon.copies().items()} == copies_of(lab))
    assert daemon.location("data-location")["bytes"] == 4 * MIB + 1000
    found = daemon.state("accounts")["users"]
    assert (found["ann"]["runs"], found["bob"]["runs"]) == (2, 0)
    assert watchers(daemon) == [watcher] and told(daemon) == [] and measuring(daemon, point)["failures"] == 0
    assert daemon.location("runs")["listed"] == listed, "it was not listed in full again"
    page = daemon.command("status").stdout
    assert "Measuring" in page and " watch " in page and "!" not in page


def copies_of(lab: Lab) -> dict[str, int]:
    return {name: du(lab.at(name)) for name in lab.names()}


def test_what_watches_is_killed_and_takes_up_its_work_again(
    small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    small = small_disk("ext4", 64 * MIB)
    populate(small.path)
    daemon = start(scan_interval_s=1)
    declare(daemon, packages=small.path / "runs")
    daemon.start()
    wait_for(lambda: is_watched(daemon, small.path))
    (watcher,) = watchers(daemon)
    os.kill(watcher, signal.SIGKILL)
    wait_for(lambda: engine(daemon, small.path) == "scan")
    shown = measuring(daemon, small.path)
    assert "signal 9" in shown["reason"] and (shown["failures"], shown["trees"]) == (1, 0)
    wait_for(lambda: told(daemon) == ["WatchFailed"])
    (small.path / "runs/ann/new").write_bytes(bytes(5000))
    follows(daemon, "packages", small.path / "runs")
    assert watchers(daemon) == [] and "! " + str(small.path) in daemon.command("status").stdout
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    wait_for(lambda: is_watched(daemon, small.path) and told(daemon) == ["WatchFailed", "WatchResumed"])
    (small.path / "runs/ann/newer").write_bytes(bytes(6000))
    follows(daemon, "packages", small.path / "runs")


def test_a_daemon_that_was_killed_knows_nothing_and_lists_everything_again(
    small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    small = small_disk("ext4", 64 * MIB)
    populate(small.path)
    daemon = start(scan_interval_s=1)
    declare(daemon, packages=small.path / "runs")
    daemon.start()
    follows(daemon, "packages", small.path / "runs")
    (watcher,) = watchers(daemon)
    listed = daemon.location("packages")["listed"]
    daemon.stop(signal.SIGKILL)
    wait_for(lambda: has_ended(watcher))
    (small.path / "runs/ann/llm/one/work/file").write_bytes(bytes(100_000))
    daemon.messages.clear()
    daemon.start()
    follows(daemon, "packages", small.path / "runs")
    assert is_watched(daemon, small.path) and daemon.location("packages")["listed"] > listed and told(daemon) == []


def test_it_is_turned_off_here_or_everywhere(small_disk: Callable[..., Any], start: Callable[..., Daemon]) -> None:
    first, second = small_disk("ext4", 64 * MIB), small_disk("ext4", 64 * MIB)
    for one in (first, second):
        populate(one.path)
    off = {"scan_interval_s": 1, "watch_off": [str(first.path / "runs")]}
    daemon = start(**off)
    declare(daemon, packages=first.path / "runs", state=second.path / "cache")
    daemon.start()
    wait_for(lambda: is_watched(daemon, second.path))
    assert (engine(daemon, first.path), measuring(daemon, first.path)["reason"]) == (
        "scan",
        "turned off here (watch_off)",
    )
    follows(daemon, "packages", first.path / "runs")
    assert len(watchers(daemon)) == 1
    page = " ".join(daemon.command("status").stdout.split())
    assert f"{first.path}: scan: turned off here (watch_off)" in page
    reload(daemon, scan_interval_s=1, watch=False)
    wait_for(lambda: engine(daemon, second.path) == "scan" and watchers(daemon) == [])
    (second.path / "cache/new").write_bytes(bytes(3000))
    follows(daemon, "state", second.path / "cache")
    reload(daemon, scan_interval_s=1)
    wait_for(lambda: is_watched(daemon, first.path) and is_watched(daemon, second.path))
    assert len(watchers(daemon)) == 2 and told(daemon) == []


def test_a_disk_that_is_watched_can_be_unmounted_and_another_one_mounted(
    small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    small = small_disk("ext4", 64 * MIB)
    populate(small.path)
    daemon = start(scan_interval_s=300)
    declare(daemon, packages=small.path / "runs")
    daemon.start()
    wait_for(lambda: is_watched(daemon, small.path))
    wait_for(lambda: figures(daemon, "packages"))
    wait_for(lambda: subprocess.run(["umount", str(small.path)], check=False).returncode == 0)
    # At once another one: it has the device number, and as a rule the mount's, of the first one.
    subprocess.run(["mkfs.ext4", "-q", "-F", small.device], check=True)
    small.mount()
    (small.path / "runs").mkdir()
    (small.path / "runs" / "file").write_bytes(bytes(1234))
    reload(daemon, scan_interval_s=1)
    follows(daemon, "packages", small.path / "runs")
    assert is_watched(daemon, small.path) and told(daemon) == []
    wait_for(lambda: subprocess.run(["umount", str(small.path)], check=False).returncode == 0)
    wait_for(lambda: watchers(daemon) == [] and measuring(daemon, small.path) == {})
    small.mount()
    wait_for(lambda: is_watched(daemon, small.path))
    follows(daemon, "packages", small.path / "runs")


def test_what_is_mounted_over_a_directory_is_not_counted(
    small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    small = small_disk("ext4", 64 * MIB)
    populate(small.path)
    daemon = start(scan_interval_s=1)
    declare(daemon, state=small.path / "cache")
    daemon.start()
    follows(daemon, "state", small.path / "cache")
    over = small.path / "cache/hub"
    subprocess.run(["mount", "-t", "tmpfs", "over", str(over)], check=True)
    (over / "file").write_bytes(bytes(9000))
    assert truth(small.path / "cache")[0] < 40_000
    wait_for(lambda: figures(daemon, "state") == counted_by_command(daemon, small.path / "cache"))
    subprocess.run(["umount", str(over)], check=True)
    follows(daemon, "state", small.path / "cache")
    assert is_watched(daemon, small.path) and told(daemon) == []


def counted_by_command(daemon: Daemon, path: Path) -> tuple[int, int, int]:
    """Return what looking at every file finds; du counts the directory that lies over another one."""
    (line,) = json.loads(daemon.command("measure", str(path), "--json").stdout)
    return line["bytes"], line["allocated"], line["files"] + line["directories"]


def test_everything_is_listed_in_full_at_intervals(
    small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    small = small_disk("ext4", 64 * MIB)
    populate(small.path)
    daemon = start(scan_interval_s=1, full_listing_interval_s=2)
    declare(daemon, packages=small.path / "runs")
    daemon.start()
    wait_for(lambda: is_watched(daemon, small.path))
    first = daemon.location("packages")["listed"]
    wait_for(lambda: daemon.location("packages")["listed"] > first)
    assert time.time() - daemon.location("packages")["listed"] < 10
    wait_for(lambda: measuring(daemon, small.path)["listed"] > first)
    follows(daemon, "packages", small.path / "runs")
    assert len(watchers(daemon)) == 1


def test_copies_go_from_a_disk_that_is_watched(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    small = small_disk("ext4", 128 * MIB)
    lab = lab_of(small.path, tmp_path, 3)
    lab.location = lab.limited(20 * MIB)
    daemon = start(lab, evict="on", scan_interval_s=1)
    declare(daemon, packages=small.path / "runs")
    daemon.start()
    wait_for(lambda: lab.names() == ["ml.cache-1", "ml.cache-2"])
    wait_for(lambda: set(daemon.copies()) == {"ml.cache-1", "ml.cache-2"} and is_watched(daemon, small.path))
    assert len(watchers(daemon)) == 1, "one for everything on the disk"
    lab.copy("ml.cache-3", 8 * MIB, last_used=2000.0)
    wait_for(lambda: lab.names() == ["ml.cache-2", "ml.cache-3"] and lab.trash() == [])
    assert told(daemon) == [] and not daemon.state("evictions")["blocked"]


def test_what_the_daemon_has_open_is_no_use_of_a_copy(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    """What watches lists what has changed in copies whatever it measures: for seconds in a large directory."""
    small = small_disk("ext4", 256 * MIB)
    lab = lab_of(small.path, tmp_path, 2)
    for number in range(30_000):
        (lab.at("ml.cache-0") / f"data/{number}").touch()
    daemon = start(lab, evict="on", scan_interval_s=1)
    declare(daemon, packages=small.path / "runs")
    daemon.start()
    wait_for(lambda: set(daemon.copies()) == {"ml.cache-0", "ml.cache-1"} and is_watched(daemon, small.path), 60)
    wait_for(lambda: measuring(daemon, small.path)["trees"] == 3)
    lab.location = lab.limited(12 * MIB)
    records.write(daemon.places.data_location_json, lab.location.to_json())
    (lab.at("ml.cache-0") / "data/last").touch()
    wait_for(lambda: len(lab.names()) < 2, 60)
    assert lab.names() == ["ml.cache-1"], "the one that was used last stays"


@dataclass(frozen=True)
class Looking:
    """A round that measures one tree, over and over."""

    path: Path
    times: int

    def __call__(self, send: Send, trees: Trees) -> None:
        fd = os.open(self.path, os.O_RDONLY)
        try:
            for _number in range(self.times):
                send({"began": os.getpid()})
                usage = trees.measure(fd)
                send({"bytes": usage.bytes, "listed": trees.listed(fd)})
        finally:
            os.close(fd)


def test_a_round_that_is_broken_off_leaves_nothing_open_and_all_known(disk: Path) -> None:
    populate(disk)
    for number in range(300):
        (disk / f"copy/{number}").mkdir(parents=True)
    status = os.stat(disk)
    loop = Loop()
    children = Children(loop)
    messages: list[dict[str, Any]] = []
    endings: list[Ending] = []

    def done(kind: str, path: Path, times: int = 1, until: str = "done") -> list[dict[str, Any]]:
        """Order a round, and return what is sent up to some message."""
        messages.clear()
        order = Order(kind, Looking(path, times), 1000.0)  # type: ignore[arg-type]
        children.order("one", pickle.dumps(order), 60.0)
        return taken(until)

    def taken(until: str) -> list[dict[str, Any]]:
        while not any(until in message for message in messages):
            assert not endings, endings
            loop.run_once()
        return messages

    device = mounts.of_path(str(disk), mounts.read()).device
    children.keep("one", Watcher(device, 64 << 20), messages.append, endings.append)
    try:
        first = done("measure", disk / "runs")[1]
        (began, *_rest) = done("copies", disk / "copy", 1 << 30, until="began")
        children.interrupt("one")
        assert taken("done")[-1]["done"] == "broken off"
        children.interrupt("one")  # too late: that is not about the next one
        opened = [os.stat(f"/proc/{began['began']}/fd/{fd}") for fd in os.listdir(f"/proc/{began['began']}/fd")]
        assert status.st_dev not in [one.st_dev for one in opened]
        (disk / "runs/ann/new").write_bytes(bytes(500))
        again = done("measure", disk / "runs")
        assert again[0] == began, "it is the same child"
        assert again[1] == {"bytes": first["bytes"] + 500, "listed": first["listed"]}
        assert done("copies", disk / "copy")[-1]["done"] == "", "the next round is not broken off"
        messages.clear()
        children.order("one", pickle.dumps(Order("copies", Looking(disk / "copy", 1000), 1000.0)), 60.0)  # type: ignore[arg-type]
        children.interrupt("one")  # before it can have been taken
        assert taken("done")[-1]["done"] == "broken off"
        assert done("copies", disk / "copy")[-1]["done"] == "", "the next round is not broken off"
        assert messages[-2]["watching"]["lost"] == 0
        assert "No such file" in done("copies", disk / "gone")[-1]["done"]
        assert messages[-2]["watching"]["lost"] == 1, "what it had taken on by then nobody knows"
    finally:
        children.kill_all(5)
        loop.close()


def test_trees_that_nobody_asks_for_any_more_are_forgotten(disk: Path) -> None:
    populate(disk)
    opened = {name: os.open(disk / name, os.O_RDONLY) for name in ("runs", "runs/ann", "runs/bob", "cache")}
    watch = Watch(opened["runs"])
    try:
        for fd in opened.values():
            watch.measure(fd)
        watch.keep_only([watch.root(opened["runs"]), watch.root(opened["runs/ann"])])
        known = {name for name, fd in opened.items() if watch.knows(fd)}
        assert known == {"runs", "runs/ann", "runs/bob"}, "the last is in the first"
        watch.keep_only([watch.root(opened["runs/ann"])])
        assert not any(watch.knows(fd) for fd in opened.values())
        assert watch.measure(opened["cache"]) == Scan().measure(opened["cache"]) and watch.knows(opened["cache"])
    finally:
        watch.close()
        for fd in opened.values():
            os.close(fd)
