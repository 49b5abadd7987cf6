# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done to a node of Slurm, by what the controller says of it. A real Slurm is in molecule/accounting."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from stowage_core.errors import Refusal, StowageError
from stowage_core.gate.judgement import STALE, WATERMARK, Hold
from stowage_core.places import Places
from stowaged import gate_command, slurm_node
from stowaged.slurm_node import Node, change, parse

FULL = Hold(WATERMARK, "filesystem /a is 93 % full, the watermark is 90 %")
FULLER = Hold(WATERMARK, "filesystem /a is 94 % full, the watermark is 90 %")
UNDRAIN = ["State=UNDRAIN", f"Reason={slurm_node.RELEASED}"]
OTHER = Hold(WATERMARK, "filesystem /b is 93 % full, the watermark is 90 %")
OURS = f"stowage: {FULL.text}"
SHOWN = (
    "NodeName=gpu-01 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=0.10 AvailableFeatures=(null)"
    " RealMemory=1 AllocMem=0 FreeMem=100 Sockets=2 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1"
    " Owner=N/A MCS_label=N/A Partitions=all  BootTime=2026-01-02T03:04:05 SlurmdStartTime=2026-01-02T03:04:06"
    " CfgTRES=cpu=2,mem=1M,billing=2 AllocTRES= CurrentWatts=0 AveWatts=0{rest} \n"
)


def node(state: str, reason: str = "") -> Node:
    return Node(frozenset(state.split("+")), reason)


@pytest.mark.parametrize(
    ("state", "rest", "found"),
    [
        ("IDLE", "", node("IDLE")),
        ("IDLE*+DRAIN", " Reason=x [root@2026-11-30T12:00:00]", node("IDLE+DRAIN", "x")),
        ("MIXED+DRAIN+NOT_RESPONDING", "", node("MIXED+DRAIN+NOT_RESPONDING")),
        ("IDLE+DRAIN", f" Reason={OURS} [root@2026-11-30T12:00:00]", node("IDLE+DRAIN", OURS)),
        (
            "DOWN",
            " Reason=a [x] State=IDLE [not@this] [slurm@2026-11-30T12:00:00] Comment=Reason=stowage: b [a@b]",
            node("DOWN", "a [x] State=IDLE [not@this]"),
        ),
    ],
)
def test_what_the_controller_says(state: str, rest: str, found: Node) -> None:
    assert parse(SHOWN.format(state=state, rest=rest)) == found


@pytest.mark.parametrize("text", ["", "No nodes in the system\n", "slurm_load_node error\n"])
def test_an_answer_without_a_node(text: str) -> None:
    with pytest.raises(StowageError, match="no state"):
        parse(text)


@pytest.mark.parametrize(
    ("before", "holding", "changes"),
    [
        (node("IDLE"), [], []),
        (node("IDLE"), [FULL], ["State=DRAIN", f"Reason={OURS}"]),
        (node("MIXED"), [FULL, OTHER], ["State=DRAIN", f"Reason={OURS}; {OTHER.text}"]),
        (node("UNKNOWN"), [FULL], ["State=DRAIN", f"Reason={OURS}"]),
        # Drained by us: another text, or none; not for each percent, which would hide since when.
        (node("IDLE+DRAIN", OURS), [FULL], []),
        (node("IDLE+DRAIN", OURS), [FULLER], []),
        (node("IDLE+DRAIN", OURS), [OTHER], [f"Reason=stowage: {OTHER.text}"]),
        (node("IDLE+DRAIN", OURS), [], UNDRAIN),
        (node("ALLOCATED+DRAIN", OURS), [], UNDRAIN),
        # It went down meanwhile, and stays so.
        (node("DOWN+DRAIN", OURS), [], UNDRAIN),
        # Drained by somebody else.
        (node("IDLE+DRAIN", "bad DIMM"), [FULL], []),
        (node("IDLE+DRAIN", "bad DIMM"), [], []),
        (node("IDLE+DRAIN"), [FULL], []),
        (node("IDLE+DRAIN"), [], []),
        (node("IDLE+DRAIN", "stowage is full of bugs"), [], []),
        # An operator has put a reason in front of ours.
        (node("IDLE+DRAIN", f"bad DIMM; {OURS}"), [], []),
        # Down or failing, with whatever reason.
        (node("DOWN", "Not responding"), [FULL], []),
        (node("DOWN", OURS), [], []),
        (node("IDLE+FAIL", "bad DIMM"), [FULL], []),
        # It takes jobs, and somebody has left a note: that it takes none is worth more.
        (node("IDLE", "watch the fan"), [FULL], ["State=DRAIN", f"Reason={OURS}"]),
        (node("IDLE", OURS), [], []),
    ],
)
def test_only_what_is_ours_is_changed(before: Node, holding: list[Hold], changes: list[str]) -> None:
    assert change(before, holding) == changes


class Controller:
    """A controller with one node, which does as it is told."""

    def __init__(self, state: str = "IDLE", reason: str = "") -> None:
        self.state, self.reason = state, reason
        self.updates: list[list[str]] = []

    def __call__(self, arguments: Sequence[str]) -> str:
        if list(arguments[:3]) == ["--oneliner", "show", "node"]:
            rest = f" Reason={self.reason} [root@2026-11-30T12:00:00]" if self.reason else ""
            return SHOWN.format(state=self.state, rest=rest)
        assert list(arguments[:2]) == ["update", "NodeName=gpu-01"]
        self.updates.append(list(arguments[2:]))
        for field, _equals, value in (one.partition("=") for one in arguments[2:]):
            if field == "Reason":
                self.reason = value
            else:
                self.state = "IDLE" if value == "UNDRAIN" else "IDLE+DRAIN"
        return ""


def test_a_disk_that_fills_and_is_emptied() -> None:
    controller = Controller()
    rounds: list[list[Hold]] = [[], [FULL], [FULLER], [OTHER], [], [], [FULL]]
    told = [slurm_node.apply("gpu-01", holding, controller) for holding in rounds]
    assert told == [
        "",
        f"node gpu-01: drained: {FULL.text}",
        "",
        f"node gpu-01: drained: {OTHER.text}",
        "node gpu-01: takes jobs again",
        "",
        f"node gpu-01: drained: {FULL.text}",
    ]
    assert len(controller.updates) == 4


def test_a_node_that_slurm_drains_later_is_not_ours() -> None:
    """Slurm keeps the reason that is there, as long as there is one."""
    controller = Controller("IDLE+DRAIN", OURS)
    slurm_node.apply("gpu-01", [], controller)
    controller.state = "IDLE+DRAIN"
    assert slurm_node.apply("gpu-01", [], controller) == "" and len(controller.updates) == 1


def test_a_note_that_is_replaced_is_told() -> None:
    assert slurm_node.apply("gpu-01", [FULL], Controller(reason="watch the fan")).endswith(
        "; its reason was: watch the fan"
    )


def test_the_name_that_slurmd_tells() -> None:
    assert slurm_node.name_of({"SLURMD_NODENAME": "n1"}) == "n1"
    assert slurm_node.name_of({}) == os.uname().nodename.partition(".")[0]


def program(home: Path, text: str) -> None:
    (home / "scontrol").write_text(f"#!/bin/sh\n{text}\n")
    (home / "scontrol").chmod(0o755)


def test_scontrol_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    program(tmp_path, 'echo "$2 $SLURM_TIME_FORMAT."')
    assert slurm_node.run_scontrol(["a", "b c"]) == "b c .\n"
    program(tmp_path, "echo 'slurm_load_node error: down' >&2; exit 1")
    with pytest.raises(StowageError, match="^scontrol show node n1: slurm_load_node error: down$"):
        slurm_node.run_scontrol(["show", "node", "n1", "x"])
    program(tmp_path, "exit 3")
    with pytest.raises(StowageError, match="exit status 3"):
        slurm_node.run_scontrol(["ping"])


def test_a_hung_scontrol_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(slurm_node, "LIMIT_S", 0.2)
    program(tmp_path, "/bin/sleep 3 & wait")  # its children may outlive it, and hold what it prints to
    began = time.monotonic()
    with pytest.raises(StowageError, match=r"no answer within 0\.2 s; see whether slurmctld is up"):
        slurm_node.run_scontrol(["ping"])
    assert time.monotonic() - began < 2


def test_a_host_without_scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_node, "_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refusal, match="PATH"):
        slurm_node.run_scontrol(["ping"])


def test_a_daemon_that_is_being_restarted_drains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = gate_command.Gate((Hold(STALE, "the daemon does not run"),), stale=True)
    gates = [stale, stale, gate_command.Gate(())]
    monkeypatch.setattr(gate_command.recorded, "read", lambda _places: gates.pop(0) if len(gates) > 1 else gates[0])
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    assert gate_command._settled(Places.under(str(tmp_path))).holding() == []
    gates[:] = [stale]
    monkeypatch.setattr(gate_command, "RESTART_S", 0.0)
    assert gate_command._settled(Places.under(str(tmp_path))) == stale
