# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""``stowage gate``: whether this host may take new jobs, for schedulers and people; and holding it by hand."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from stowage_core.gate import holds, recorded
from stowage_core.gate.recorded import Gate
from stowage_core.places import Places

from .outcome import FOUND, OK, outcome

DESCRIPTION = "say whether this host may take new jobs, and why not"
RESTART_S = 15.0
"""How long a daemon may take to be back, before a node is drained because of it."""


def main(arguments: Sequence[str], places: Places) -> int:
    """Run it as a program of its own: schedulers ask often, and need not wait for all other commands to be loaded."""
    parser = argparse.ArgumentParser(prog="stowage gate", description=DESCRIPTION)
    add_options(parser)
    options = parser.parse_args(arguments)
    return outcome(lambda: run(options, places))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(refuse=parser.error)
    parser.add_argument("--user", help="ask for a job of this user: the user's quota counts too")
    parser.add_argument("--team", help="ask for a job of this team: the team's quota counts too")
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="how long to wait for it to open (default: 0)")
    parser.add_argument("--json", action="store_true", help="as JSON")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--slurm", action="store_true", help="drain or undrain this host's node, as a health check")
    what.add_argument("--hold", metavar="TEXT", help="hold all jobs of this host until they are released, and say why")
    what.add_argument("--release", action="store_true", help="lift what was held by hand")


def _check_acting(options: argparse.Namespace) -> None:
    """Refuse what would say nothing: whoever gives it expects it to act."""
    of_host = {"--slurm": options.slurm, "--hold": options.hold is not None, "--release": options.release}
    of_asking = {"--user": options.user, "--team": options.team, "--wait": options.wait, "--json": options.json or None}
    given = [name for name, value in of_asking.items() if value is not None]
    for name, is_given in of_host.items():
        if is_given and given:
            options.refuse(f"{name} is about all jobs of this host and has no answer: leave out {', '.join(given)}")


def run(options: argparse.Namespace, places: Places) -> int:
    _check_acting(options)
    if options.hold is not None:
        print("held" if holds.set_hold(places, holds.OPERATOR, options.hold) else "held already")
        return OK
    if options.release:
        print("released" if holds.lift(places, holds.OPERATOR) else "nothing was held by hand")
        return OK
    if options.slurm:
        return _keep_node(places)
    user, team = options.user or "", options.team or ""
    gate = recorded.wait(places, options.wait or 0.0, user, team)
    found = gate.holding(user, team)
    if options.json:
        print(json.dumps(gate.to_json(user, team), indent=2, sort_keys=True))
    else:
        print("\n".join(hold.text for hold in found) or "open")
        for text in gate.unknown(user, team) if not found else ():
            print(f"stowage: {text}", file=sys.stderr)
    return FOUND if found else OK


def _keep_node(places: Places) -> int:
    from . import slurm_node  # nobody else needs it

    done = slurm_node.apply(slurm_node.name_of(os.environ), _settled(places).holding(), slurm_node.run_scontrol)
    if done:
        print(done)
    return OK


def _settled(places: Places) -> Gate:
    """Return the gate; a daemon that is only being restarted is waited for, so that no node is drained for that."""
    deadline = time.monotonic() + RESTART_S
    while True:
        gate = recorded.read(places)
        if not gate.stale or time.monotonic() >= deadline:
            return gate
        time.sleep(recorded.POLL_S)
