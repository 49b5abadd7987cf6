# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of the daemon: which of them a process was started with, and what they may be made of."""

from __future__ import annotations

import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.stowage.host.plugins.modules import daemon_service
from stowage_core import own_files
from stowage_core.errors import Refusal, StowageError
from stowage_core.places import Places
from stowage_core.services import daemon_settings, daemon_units
from stowaged import use_service
from stowaged.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
UNIT = f"{own_files.HEADER}\n[Service]\nExecStart=/bin/true\n"


def test_a_process_tells_what_it_was_started_with(tmp_path: Path) -> None:
    text = daemon_units.stamped(UNIT, "abc")
    line = next(line for line in text.splitlines() if line.startswith("Environment="))
    (tmp_path / "7").mkdir()
    (tmp_path / "7/environ").write_bytes(b"PATH=/bin\0" + line.partition("=")[2].encode() + b"\0")
    assert daemon_units.running_stamp("7", str(tmp_path)) == daemon_units.stamp_of(UNIT, "abc")
    assert text.replace(f"{line}\n", "") == UNIT


def test_a_process_that_is_gone_or_was_started_otherwise(tmp_path: Path) -> None:
    (tmp_path / "8").mkdir()
    (tmp_path / "8/environ").write_bytes(b"PATH=/bin\0")
    assert daemon_units.running_stamp("7", str(tmp_path)) is None
    assert daemon_units.running_stamp("8", str(tmp_path)) is None


def test_unit_and_application_both_make_the_stamp() -> None:
    stamps = {daemon_units.stamp_of(text, application) for text in (UNIT, UNIT + "#") for application in ("a", "b")}
    assert len(stamps) == 4


def test_a_unit_without_processes_stays_as_it_is() -> None:
    assert daemon_units.stamped("[Path]\nPathExists=/x\n", "abc") == "[Path]\nPathExists=/x\n"


def test_directories_at_boot_are_those_that_are_checked() -> None:
    places = Places()
    lines = daemon_units.tmpfiles(places).splitlines()
    assert lines[0] == own_files.HEADER
    assert lines[1:] == [f"d {path} {mode:04o} root root -" for path, mode in daemon_units.directories(places).items()]
    assert f"d {places.state_dir} 0755 root root -" in lines, "the exporter is not root"


def test_every_unit_but_the_template_can_be_asked_about() -> None:
    assert [name for name in daemon_units.NAMES if "@" not in name] == list(daemon_units.LOADED)
    assert set(daemon_units.SERVICES + daemon_units.WAITING) <= set(daemon_units.LOADED)


def test_who_looks_is_a_system_user_of_its_own() -> None:
    header, user = daemon_units.sysusers().splitlines()
    assert header == own_files.HEADER and user.startswith("u stowage-use - ") and ":" not in user
    unit = (REPOSITORY / "roles/daemon/templates" / f"{daemon_units.USE}.j2").read_text()
    assert f"\nUser={daemon_units.USE_USER}\n" in unit


def test_what_removes_cannot_look_and_what_looks_cannot_remove() -> None:
    def capabilities(unit: str) -> set[str]:
        text = (REPOSITORY / "roles/daemon/templates" / f"{unit}.j2").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("CapabilityBoundingSet=")]
        return set(line.partition("=")[2].split())

    removes, looks = capabilities(daemon_units.DAEMON), capabilities(daemon_units.USE)
    # What removes may read everything anyway; the second is asked for where a directory is opened by its handle.
    assert removes & looks == {"CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH"}
    assert not removes & {"CAP_SYS_PTRACE", "CAP_SYS_CHROOT"}
    assert not looks & {"CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_CHOWN", "CAP_FSETID"}


def test_the_socket_is_where_the_daemon_asks() -> None:
    unit = (REPOSITORY / "roles/daemon/templates" / f"{daemon_units.USE_SOCKET}.j2").read_text()
    assert f"\nListenStream={Places().use_socket}\n" in unit and "\nSocketMode=0600\n" in unit
    assert daemon_units.USE_SOCKET == use_service.SOCKET


def test_the_program_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    ours, theirs, script = tmp_path / "ours", tmp_path / "theirs", tmp_path / "script"
    for path, name in ((ours, "stowaged/entry.py"), (theirs, "other.py")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, "")
    script.write_text("#!/bin/sh\n")
    assert [daemon_units.is_program(str(path)) for path in (ours, theirs, script)] == [True, False, False]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"cpu_weight": 0}, "cpu_weight: 0 must be a whole number from 1 to 10000"),
        ({"cpu_weight": 10001}, "cpu_weight: 10001 must be a whole number from 1 to 10000"),
        ({"memory_high": "lots"}, "memory_high: 'lots' must be a size such as 128M, a percentage, or infinity"),
        ({"memory_high": "128MB"}, "memory_high: '128MB' must be a size such as 128M, a percentage, or infinity"),
        ({"exporter_listen": "nonsense"}, "must be ADDRESS:PORT"),
        ({"exporter_listen": None}, "must be ADDRESS:PORT"),
        ({"exporter_textfile": "/x/a.txt"}, "must end in .prom"),
        ({"exporter_textfile": "a.prom"}, "must be an absolute path"),
        ({"exporter_certificate": "/x/c.pem"}, "exporter_certificate, exporter_key: each needs the other"),
        ({"exporter_client_ca": "/x/ca.pem"}, "exporter_client_ca: needs exporter_certificate"),
        ({"exporter_user": "a\nUser=root"}, "must be printable text"),
        ({"exporter_listn": "x"}, "did you mean exporter_listen?"),
    ],
)
def test_what_units_cannot_be_made_of(value: dict[str, Any], said: str) -> None:
    (problem,) = daemon_settings.problems_of_units(value)
    assert said in problem


@pytest.mark.parametrize("memory", ["128M", "1G", "50%", "infinity", "1073741824"])
def test_what_they_can_be_made_of(memory: str) -> None:
    assert daemon_settings.problems_of_units({"memory_high": memory, "cpu_weight": 20, "exporter_textfile": ""}) == []


def test_everything_that_is_wrong_in_one_line() -> None:
    with pytest.raises(StowageError) as error:
        daemon_service.settings_of({"host": "a", "cycle_s": 0.0}, {"cpu_weight": 0})
    assert str(error.value) == (
        "settings: cycle_s: 0.0 must be a number of seconds from 0.1 to 3600; "
        "cpu_weight: 0 must be a whole number from 1 to 10000"
    )


def test_whole_seconds_are_written_as_such() -> None:
    written = daemon_service.settings_of({"cycle_s": 10.0, "scan_interval_s": 0.5 + 1, "measure_shared": True}, {})
    assert repr(written) == "{'cycle_s': 10, 'scan_interval_s': 1.5, 'measure_shared': True}"


@pytest.mark.parametrize("units", [{}, {"stowaged.service": UNIT}, dict.fromkeys(daemon_units.NAMES, "x")])
def test_units_that_are_not_ours(units: dict[str, str]) -> None:
    with pytest.raises(Refusal):
        daemon_service.units_of(units, "abc")


def test_rules_module_and_daemon_know_the_same_settings() -> None:
    options = daemon_service.ARGUMENT_SPEC["settings"]["options"]
    assert list(daemon_settings.SETTINGS) == [one.name for one in fields(Settings) if one.name != "declared"]
    assert set(options) == set(daemon_settings.SETTINGS)
    defaults = {name: option["default"] for name, option in options.items() if "default" in option}
    assert {name: getattr(Settings(), name) for name in defaults} == defaults


def test_the_role_documents_the_range_of_the_rules() -> None:
    path = REPOSITORY / "roles/daemon/meta/argument_specs.yml"
    role = yaml.safe_load(path.read_text())["argument_specs"]["main"]["options"]
    module = yaml.safe_load(daemon_service.DOCUMENTATION)["options"]["settings"]["suboptions"]
    for name in ("cycle_s", "scan_interval_s", "minimum_age_s", "boot_grace_s", "full_listing_interval_s"):
        (problem,) = daemon_settings.problems_of({name: -1})
        allowed = problem.partition("seconds ")[2]
        for described in (role[f"daemon_{name}"]["description"], module[name]["description"]):
            assert allowed in str(described), f"{name}: {described}"
