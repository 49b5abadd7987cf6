# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records of fills, what they reserve, and how their containers are run; fills themselves are tested on real disks."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core import records
from stowage_core.copies import fills
from stowage_core.copies.fills import Record
from stowage_core.data_location.locations import DataLocation
from stowage_core.drives.declared import check_drives
from stowage_core.drives.recorded import Drive, record_mode
from stowage_core.errors import Refusal, StowageError
from stowage_core.mounts import FilesystemId
from stowage_core.places import Places
from stowage_core.runs.holders import start_time
from stowage_core.sizes import Space
from stowaged import container, sections, status
from stowaged.container import Container, Engine, Tail
from stowaged.declared import Declared
from stowaged.filling import Fillings

LOCATION = DataLocation("/mnt/stowage", 0, "gpu-01", FilesystemId("ext4", None, "/dev/x"), "here")
NOBODY = 2**22 + 1
"""No process has this number."""


def drive(template: dict[str, Any] | None = None, **spec: Any) -> Drive:
    body = {"sources": [{"node_scope": "placed"}], **spec}
    if template is not None:
        body["fill"] = {"template": template}
    (entry,) = check_drives([{"metadata": {"name": "llama"}, "spec": body}])
    return Drive("ml", entry["metadata"], entry["spec"], "one")


def record(**more: Any) -> Record:
    own = {"pid": os.getpid(), "pid_start": start_time(os.getpid())}
    return Record(
        **{
            "copy": "ml.llama",
            "identity": "one",
            "location": "here",
            "size_hint_bytes": 1000,
            "since": 1.0,
            **own,
            **more,
        }
    )


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.under(str(tmp_path))


# -- Units and records


def test_the_unit_of_a_copy_is_what_systemd_would_name_it() -> None:
    assert fills.unit("ml.hf-cache") == "stowage-fill@ml.hf-cache.service"
    with pytest.raises(Refusal):
        fills.unit("ml.hf/cache")
    longest = "a" * 63
    assert len(fills.unit(f"{longest}.{longest}")) < 256


def test_a_record_comes_back_and_only_root_can_read_it(places: Places) -> None:
    assert fills.load_all(places) == [] and fills.load(places, "ml.llama") is None
    fills.write(places, record(message="exit status 1", failures=2))
    assert fills.load_all(places) == [record(message="exit status 1", failures=2)]
    assert os.stat(fills.record_path(places, "ml.llama")).st_mode & 0o777 == 0o600
    Path(fills.directory(places), "ml.llama.env").touch()
    Path(fills.directory(places), "ml.llama.lock").touch()
    assert len(fills.load_all(places)) == 1
    fills.forget(places, "ml.llama")
    assert fills.load_all(places) == []


@pytest.mark.parametrize("text", ["{", "{}", '{"copy": 1}'])
def test_a_damaged_record_is_an_error(places: Places, text: str) -> None:
    fills.write(places, record())
    Path(fills.record_path(places, "ml.llama")).write_text(text)
    with pytest.raises(records.RecordError):
        fills.load_all(places)


@pytest.mark.parametrize(
    ("changes", "reserved"),
    [
        ({}, 1000),
        ({"written_bytes": 400}, 600),
        ({"written_bytes": 4000}, 0),
        ({"size_hint_bytes": 0}, 0),
        ({"state": fills.FAILED, "next_try": 5000.0 + 31}, 0),  # it waits to try again
        ({"state": fills.FAILED, "next_try": 5000.0 + 29}, 1000),  # and is about to
        ({"state": fills.FAILED, "next_try": 4000.0}, 1000),
        ({"state": fills.FAILED, "next_try": 4000.0, "pid": 0}, 0),
        ({"state": fills.FAILED, "next_try": 5600.0, "pid": 0, "given_up": True}, 0),
        ({"pid": NOBODY}, 0),
        ({"pid_start": 1}, 0),
        ({"pid": 0}, 0),
        ({"location": "an earlier one"}, 0),
    ],
)
def test_what_a_fill_reserves(
    places: Places, changes: dict[str, Any], reserved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 5000.0)
    fills.write(places, record(**changes))
    assert fills.reserved_bytes(places, LOCATION) == reserved
    assert (reserved > 0) <= (list(fills.under_way(places, LOCATION)) == ["ml.llama"])
    seen = Fillings(places, print)
    seen.look()
    assert seen.reserved_bytes(LOCATION) == reserved


@pytest.mark.parametrize(
    ("hint", "limit", "why"),
    [
        (0, 10, ""),
        (900, 0, ""),
        (901, 0, "drive llama needs 901 B; this disk has 900 B"),
        (500, 500, ""),
        (501, 500, "drive llama needs 501 B; the limit here is 500 B"),
    ],
)
def test_what_never_fits(hint: int, limit: int, why: str) -> None:
    space = Space(1000, 200, 100, 0, 0)
    assert fills.too_large(drive(size_hint_bytes=hint), replace(LOCATION, max_bytes=limit), space) == why


@pytest.mark.parametrize(
    ("spec", "template"),
    [
        (drive({"image": "x"}), {"image": "x", "command": "", "args": []}),
        (replace(drive({"image": "x"}), state="absent"), None),
        (drive(), None),
    ],
)
def test_the_template_of_a_drive(spec: Drive, template: dict[str, Any] | None) -> None:
    assert spec.fill == template


def test_a_list_with_variables_is_root_s_alone() -> None:
    assert record_mode([drive({"image": "x"})]) == 0o644
    assert record_mode([drive(), drive({"image": "x", "env": {"TOKEN": "y"}})]) == 0o600


@pytest.mark.parametrize("wrong", [{"image": 1}, {"command": None}, {"args": [1]}, {"env": {"A": 1}}, {"env": []}])
def test_a_damaged_template_is_found_when_the_list_is_read(wrong: dict[str, Any]) -> None:
    value = drive({"image": "x"}).to_json()
    value["spec"] = {**value["spec"], "fill": {"template": {**value["spec"]["fill"]["template"], **wrong}}}
    with pytest.raises((TypeError, AttributeError)):
        Drive.from_json("ml", value)


# -- What is shown


def test_status_shows_what_is_under_way_and_what_failed(places: Places) -> None:
    other = Drive("ml", {"name": "qwen"}, drive({"image": "x"}).spec, "two")
    fills.write(places, record(written_bytes=400))
    fills.write(
        places,
        record(copy="ml.qwen", identity="two", state=fills.FAILED, failures=5, pid=0, message="exit status 1: no"),
    )
    fills.write(places, record(copy="ml.old", identity="three"))
    fills.write(places, record(copy="ml.ended", identity="one", pid=0))
    seen = Fillings(places, print)
    seen.look()
    section = seen.shown(Declared(drives=(drive({"image": "x"}), other)))
    assert [(one["drive"], one["state"], one["reserved_bytes"]) for one in section["fills"]] == [
        ("llama", "filling", 600),
        ("qwen", "failed", 0),
    ]
    lines = status.render({"fills": section}, 80, now=61.0)
    assert "fills" in sections.NAMES and "Fills" in lines
    assert any(line.split()[:2] == ["ml/llama", "filling"] and "400 B" in line for line in lines)
    assert "! ml/qwen: exit status 1: no" in lines


def test_while_a_record_cannot_be_read_what_was_known_stays(places: Places) -> None:
    said: list[str] = []
    fills.write(places, record())
    seen = Fillings(places, said.append)
    seen.look()
    Path(fills.directory(places), "ml.b.json").write_text("{")
    for _number in range(2):
        seen.look()
    assert seen.reserved_bytes(LOCATION) == 1000 and len(said) == 1


# -- The container

CONTAINER = Container("stowage-fill-ml.llama", "pull:1", "", [], "/run/stowage/pins/stowage-fill@ml.llama.service/1")
ALWAYS = [
    *("run", "--rm", "--name=stowage-fill-ml.llama", "--pull=missing", "--log-driver=none"),
    "--security-opt=no-new-privileges",
    "--mount=type=bind,source=/run/stowage/pins/stowage-fill@ml.llama.service/1,target=/drive",
]


@pytest.mark.parametrize(
    ("engine", "changes", "rest"),
    [
        ("podman", {}, ["--", "pull:1"]),
        ("podman", {"args": ["--all", "-v=/:/host"]}, ["--", "pull:1", "--all", "-v=/:/host"]),
        ("podman", {"command": "a b"}, ['--entrypoint=["a b"]', "--", "pull:1"]),
        ("docker", {"command": "a b", "args": ["c"]}, ["--entrypoint=a b", "--", "pull:1", "c"]),
        ("docker", {"env_file": "/run/x.env", "secrets": ["s3cret"]}, ["--env-file=/run/x.env", "--", "pull:1"]),
    ],
)
def test_how_a_container_is_run(engine: str, changes: dict[str, Any], rest: list[str]) -> None:
    found = Engine(f"/usr/bin/{engine}").command(replace(CONTAINER, **changes))
    assert found == [f"/usr/bin/{engine}", *ALWAYS, *rest]


def test_variables_are_in_a_file_as_they_are() -> None:
    assert container.environment({"A": "b", "B": '"c" = $d # e'}) == b'A=b\nB="c" = $d # e\n'


@pytest.mark.parametrize(
    ("there", "choice", "found"),
    [
        (["docker", "podman"], "auto", "podman"),
        (["docker"], "auto", "docker"),
        (["docker", "podman"], "docker", "docker"),
        (["docker"], "podman", None),
        ([], "auto", None),
    ],
)
def test_which_engine_is_taken(tmp_path: Path, there: list[str], choice: str, found: str | None) -> None:
    for name in there:
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    if found is not None:
        assert container.find(choice, str(tmp_path)).name == found
    else:
        with pytest.raises(Refusal, match="container engine: this host has no"):
            container.find(choice, str(tmp_path))


def script(path: Path, text: str) -> Engine:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return Engine(str(path))


def test_the_last_lines_and_the_status_come_back_and_the_container_is_removed(tmp_path: Path) -> None:
    text = (
        f'echo "$@" >>{tmp_path}/calls\n[ $1 = container ] && exit 1\n[ $1 = rm ] && exit\n'
        "for n in $(seq 30); do echo line $n; done; echo on stderr >&2; exit 3"
    )
    engine = script(tmp_path / "podman", text)
    said: list[str] = []
    code, lines = engine.run(CONTAINER, said.append, lambda: None)
    assert code == 3 and lines[-2:] == ("line 30", "on stderr") and len(lines) == 10
    assert len(said) == 31 and said[0] == "line 1"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[1:] == [f"rm --force --time=0 {CONTAINER.name}", f"container inspect {CONTAINER.name}"]


@pytest.mark.parametrize("hint", ["See 'docker run --help'.", "\nRun 'docker run --help' for more information"])
def test_why_docker_could_not_run_it_is_what_comes_back_last(tmp_path: Path, hint: str) -> None:
    why = "docker: Error response from daemon: no such image"
    text = f'[ $1 = container ] && exit 1\n[ $1 = rm ] && exit\necho "{why}\n{hint}" >&2; exit 125'
    assert script(tmp_path / "docker", text).run(CONTAINER, print, lambda: None) == (125, (why,))


def test_what_a_tick_raises_ends_the_container(tmp_path: Path) -> None:
    engine = script(tmp_path / "docker", "[ $1 = container ] && exit 1\n[ $1 = rm ] && exit\nexec sleep 600")

    def tick() -> None:
        raise StowageError("its drive is gone")

    with pytest.raises(StowageError, match="its drive is gone"):
        engine.run(CONTAINER, print, tick)


def test_removing_is_tried_again(tmp_path: Path) -> None:
    gone = f"[ $(wc -l <{tmp_path}/calls) -ge 2 ]"
    text = f"[ $1 = rm ] && echo >>{tmp_path}/calls && exit 125\n[ $1 = container ] && {gone} && exit 125\nexit 0"
    script(tmp_path / "podman", text).remove("x")
    assert (tmp_path / "calls").read_text() == "\n\n"


def test_a_container_that_stays_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_PAUSE_S", 0.0)
    engine = script(tmp_path / "docker", "exit 0")
    with pytest.raises(StowageError, match="docker cannot remove it"):
        engine.remove("x")


def test_an_engine_that_hangs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_REMOVE_S", 0.2)
    engine = script(tmp_path / "docker", "exec sleep 600")
    with pytest.raises(StowageError, match="no answer within"):
        engine.remove("x")


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in zip(places, places[1:])]


SECRET = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=4, max_size=20)


@given(SECRET, st.lists(st.text(max_size=30), max_size=5), st.lists(st.integers(0, 1000), max_size=6))
def test_a_secret_is_never_shown_wherever_the_output_is_cut(secret: str, words: list[str], cuts: list[int]) -> None:
    said: list[str] = []
    tail = Tail([secret, secret[:4]], said.append)
    text = secret.join(["", *words, ""])
    for piece in pieces(text.encode("utf-8", "surrogatepass"), cuts):
        tail.take(piece)
    tail.end()
    assert all(secret not in line and secret[:4] not in line for line in said if "*" not in secret)
    assert all(line.isprintable() and len(line) <= 200 for line in said)
    assert list(tail.lines) == said[-10:]


def test_a_line_without_an_end_is_bounded_and_does_not_show_half_a_secret() -> None:
    said: list[str] = []
    tail = Tail(["topsecret"], said.append)
    for _number in range(100):
        tail.take(b"x" * 10_000)
    tail.take(b"topsecret\nnext\n")
    assert [len(line) for line in said] == [200, 4]


def test_progress_bars_are_lines(tmp_path: Path) -> None:
    said: list[str] = []
    tail = Tail([], said.append)
    tail.take(b"10 %\r20 %\r\n\x1b[2Kdone\n")
    assert said == ["10 %", "20 %", "\\x1b[2Kdone"]


def test_no_shell_is_between(tmp_path: Path) -> None:
    engine = script(
        tmp_path / "docker", '[ $1 = container ] && exit 1\n[ $1 = rm ] && exit\nfor a; do echo "<$a>"; done'
    )
    _code, lines = engine.run(replace(CONTAINER, args=["$(id)", "a b", "`id`"]), print, lambda: None)
    assert lines[-3:] == ("<$(id)>", "<a b>", "<`id`>")
