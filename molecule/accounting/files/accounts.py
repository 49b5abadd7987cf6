# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares the accounts of this host with what du says, to the byte: each user, each team and each kind of files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def du(*paths: Path, without: tuple[Path, ...] = ()) -> int:
    """Return the sizes of all that is no directory at or below *paths*, each file once."""
    leave_out = [word for path in without for word in ("-path", str(path), "-prune", "-o")]
    names = b"".join(
        subprocess.run(
            ["find", str(path), "-xdev", *leave_out, "!", "-type", "d", "-print0"], check=True, stdout=subprocess.PIPE
        ).stdout
        for path in paths
    )
    if not names:
        return 0
    du = ["du", "-c", "--apparent-size", "--block-size=1", "--files0-from=-"]
    return int(subprocess.run(du, check=True, input=names, stdout=subprocess.PIPE).stdout.splitlines()[-1].split()[0])


def directories(path: Path) -> list[Path]:
    return [one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".") and one.name != "lost+found"]


def wanted(prefix: Path) -> dict[str, Any]:
    layout = read(prefix / "etc/stowage/layout.json")
    paths = {name: Path(one["path"]) for name, one in layout["locations"].items()}
    root, cache = Path(layout["root"]), paths["cache"]
    caches = [path for name, path in paths.items() if name.endswith("_cache")]
    users: dict[str, int] = {}
    teams: dict[str, int] = {}
    for user in directories(paths["runs"]):
        stamps = prefix / "var/lib/stowage/run_teams" / user.name
        runs = [run for experiment in directories(user) for run in directories(experiment)]
        users[user.name] = du(user, without=tuple(runs))
        for run in runs:
            size = du(run)
            users[user.name] += size
            stamp = stamps / run.parent.name / f"{run.name}.json"
            if stamp.exists():
                team = read(stamp)["team"]
                teams[team] = teams.get(team, 0) + size
    for user in directories(paths["reflow"]):
        users[user.name] = users.get(user.name, 0) + du(user)
    tracked = {name: du(paths[name]) for name in ("runs", "reflow", "packages", "state")}
    tracked["caches"] = sum(map(du, caches))
    tracked["other"] = du(root, without=tuple(paths.values())) + du(cache, without=tuple(caches))
    return {"users": users, "teams": teams, "tracked": tracked}


def shown(prefix: Path) -> dict[str, Any]:
    accounts = read(prefix / "run/stowage/state/accounts.json")
    sizes = {kind: {name: one["bytes"] for name, one in accounts[kind].items()} for kind in ("users", "teams")}
    return {**sizes, "tracked": accounts["tracked"]}


def main() -> int:
    prefix = Path(sys.argv[1] if len(sys.argv) > 1 else "/")
    du_says, told = wanted(prefix), shown(prefix)
    for kind, sizes in du_says.items():
        if sizes != told[kind]:
            print(f"{kind}: du says {sizes}, the daemon {told[kind]}")
    return du_says != told


if __name__ == "__main__":
    sys.exit(main())
