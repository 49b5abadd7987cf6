# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""``stowage tier``: the tiers of one backend on this host and, with what its leader says, whether they take writes.

The daemon has no network; whoever asks has. The leader is asked here, by the command, and nothing of it is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Callable

from stowage_core.errors import Refusal, StowageError, printable
from stowage_core.places import Places
from stowage_core.services import daemon_cycle
from stowage_core.sizes import decimal
from stowage_core.tiers import recorded
from stowage_core.tiers.declared import MOONCAKE, Backend

from . import status, tier_master
from .tables import wrapped
from .tier_master import Master, Verdict

OK, FAILED, FOUND = 0, 1, 3
WAIT_S = 30.0
"""How long the leader's gauge may lag behind: members offload every ten seconds."""
_AGAIN_S = 5.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the backend")
    parser.add_argument("--master", metavar="URL", help="the leader's metrics, as http://10.0.0.1:9003")
    parser.add_argument(
        "--wait",
        type=float,
        default=WAIT_S,
        metavar="SECONDS",
        help="how long to go on asking before a tier counts as not taking writes (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace, places: Places) -> int:
    state = status.read(places)
    try:
        stale = daemon_cycle.is_stale(state.get("cycle"), time.time())
        section = state.get("tiers", {})
        here = [one for one in section.get("tiers", []) if one["backend"] == options.name]
        if not here:
            raise _not_here(options.name, stale)
        shown = {**section, "tiers": here}
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else None
        lines = status.tiers(shown, width, time.time())
        lines += _written(here, width)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        rule = f"the daemon's state is of another version ({error!r})"
        raise Refusal(places.state_dir, rule, "restart stowaged") from error
    master: Master | None = None
    verdict: Verdict | None = None
    if options.master:
        master, verdict = _judged(options, places, here)
    if options.json:
        value = {**shown, "master": None if master is None else asdict(master)}
        value["verdict"] = None if verdict is None else asdict(verdict)
        value["stale"] = stale
        print(json.dumps(value, indent=2, sort_keys=True))
    else:
        if stale:
            lines = [*wrapped(status.OLD, width), *lines]
        if verdict is not None:
            lines += wrapped(verdict.text if verdict.well else f"! {verdict.text}", width)
        print("\n".join(lines))
    if stale or (verdict is not None and not verdict.well):
        return FAILED
    return FOUND if any(one["warnings"] or not one["readable"] for one in here) else OK


def _not_here(name: str, stale: bool) -> StowageError:
    remedy = "systemctl status stowaged, which has stopped" if stale else "roll the host out, or ask on another one"
    return Refusal(f"backend {printable(name)}", "has no tier on this host, as far as the daemon knows", remedy)


def _written(here: Sequence[Mapping[str, Any]], width: int | None) -> list[str]:
    """Return what the members of this host have really written."""
    known = [one["written_bytes"] for one in here if one["written_bytes"] is not None]
    if not known:
        return []
    count = sum(one["buckets"] for one in here if one["buckets"] is not None)
    return wrapped(f"Written on this host: {decimal(sum(known))} in {count} complete buckets", width)


def _judged(
    options: argparse.Namespace, places: Places, here: Sequence[Mapping[str, Any]]
) -> tuple[Master, Verdict | None]:
    """Ask the leader, and again while it seems that nothing is written; no verdict where nothing is to be."""
    first = tier_master.read(options.master)
    stores = [one for one in here if one["store"] == MOONCAKE]
    if not stores:
        return first, None
    backend = recorded.load_backends(places).get(options.name)
    members = declared_members(backend) or max(1, first.members)
    bucket_bytes = stores[0]["bucket_bytes"]
    return until_well(lambda: tier_master.read(options.master), first, members, bucket_bytes, options.wait)


def until_well(
    ask: Callable[[], Master],
    first: Master,
    members: int,
    bucket_bytes: int,
    wait_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Master, Verdict]:
    """Return the last reading and the verdict; readings go on while it is bad, for *wait_s* seconds."""
    last, left = first, wait_s
    verdict = tier_master.judge(first, last, members, bucket_bytes)
    # That values were refused at some time says little; whether more are is seen by another reading.
    seeing = bool(first.refused) and not first.written and first.offered >= members * bucket_bytes
    while (seeing or not verdict.well) and left > 0:
        seeing = False
        pause = min(_AGAIN_S, left)
        sleep(pause)
        left -= pause
        last = ask()
        verdict = tier_master.judge(first, last, members, bucket_bytes)
    return last, verdict


def declared_members(backend: Backend | None) -> int:
    """Return how many members with a tier are declared; 0 when that is not known, as every host may have one."""
    if backend is None:
        return 0
    groups = [group for group in backend.members if group.is_offloading]
    if any(group.hosts is None for group in groups):
        return 0
    return sum(len(group.hosts or ()) for group in groups)
