# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of Slurm that takes no jobs while its host's gate is held, for Slurm's HealthCheckProgram.

It is drained with a reason that begins with ``stowage:``, and only a node that is drained with such a reason is taken
into service again. What an operator, or another program, has drained stays theirs.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Callable

from stowage_core.errors import Refusal, StowageError, printable
from stowage_core.gate.judgement import Hold, without_figures

PREFIX = "stowage: "
RELEASED = "taken into service by stowage"
"""What replaces our reason: Slurm may keep it, and if it drained the node itself later that would look like ours."""
LIMIT_S = 10.0
"""How long one call of scontrol may take: slurmd ends the whole health check after a minute."""
_NAME_VARIABLE = "SLURMD_NODENAME"
"""slurmd tells its health check the node's name, and nothing else."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OUT_OF_SERVICE = frozenset(("DRAIN", "DOWN", "FAIL"))
_STATE = re.compile(r"(?:^| )State=(\S+)")
_REASON = re.compile(r" Reason=(.*?) \[\S+@\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\]")

Scontrol = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Node:
    """What the controller says of a node."""

    flags: frozenset[str]
    """Its state and the flags of it, such as ``IDLE`` and ``DRAIN``."""
    reason: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it is drained by this program, and nobody has given another reason since."""
        return "DRAIN" in self.flags and self.reason.startswith(PREFIX)


def parse(text: str) -> Node:
    """Return the node in what ``scontrol --oneliner show node`` prints.

    :raises StowageError: when it prints no node
    """
    state = _STATE.search(text)
    if state is None:
        raise StowageError(f"scontrol show node: no state in {printable(text.strip()[:200])!r}")
    reason = _REASON.search(text, state.end())
    flags = (flag.rstrip("*~#!%$@^-") for flag in state.group(1).split("+"))
    return Node(frozenset(flags), reason.group(1) if reason else "")


def change(node: Node, holding: Sequence[Hold]) -> list[str]:
    """Return what is to be updated of a node, nothing when it is as it should be or not ours to change."""
    wanted = PREFIX + "; ".join(hold.text for hold in holding)
    if not holding:
        return ["State=UNDRAIN", f"Reason={RELEASED}"] if node.is_ours else []
    if not node.flags & _OUT_OF_SERVICE:
        return ["State=DRAIN", f"Reason={wanted}"]
    if node.is_ours and without_figures(node.reason) != without_figures(wanted):
        return [f"Reason={wanted}"]
    return []


def name_of(environment: Mapping[str, str]) -> str:
    """Return the name of this host's node."""
    return environment.get(_NAME_VARIABLE) or socket.gethostname().partition(".")[0]


def apply(name: str, holding: Sequence[Hold], scontrol: Scontrol) -> str:
    """Have the controller drain the node called *name*, or take it into service, and return what was done in words.

    :param holding: what holds all jobs of this host
    """
    node = parse(scontrol(["--oneliner", "show", "node", name]))
    changes = change(node, holding)
    if not changes:
        return ""
    scontrol(["update", f"NodeName={name}", *changes])
    if not holding:
        return f"node {name}: takes jobs again"
    before = f"; its reason was: {node.reason}" if node.reason and not node.is_ours and node.reason != RELEASED else ""
    return f"node {name}: drained: {'; '.join(hold.text for hold in holding)}{before}"


def run_scontrol(arguments: Sequence[str]) -> str:
    """Run scontrol and return what it prints.

    :raises StowageError: when it cannot be found, fails, or does not end in time
    """
    program = shutil.which("scontrol", path=f"{os.environ.get('PATH', '')}:{_PATH}")
    if program is None:
        raise Refusal("scontrol", "this host has none", "put its directory into PATH in the script that calls this")
    # Its times in the usual form, whatever the environment wants.
    environment = {name: value for name, value in os.environ.items() if name != "SLURM_TIME_FORMAT"}
    described = f"scontrol {' '.join(arguments[:3])}"
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise StowageError(f"{described}: no answer within {LIMIT_S:g} s; see whether slurmctld is up") from error
    if done.returncode:
        said = printable((done.stderr or done.stdout).decode("utf-8", "replace").strip())
        raise StowageError(f"{described}: {said or f'exit status {done.returncode}'}")
    return done.stdout.decode("utf-8", "replace")
