# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The readers of tables that say what is in use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core import mounts
from stowage_core.use import exports as use_exports
from stowage_core.use import mounts as use_mounts
from stowage_core.use.look import Subject, _exports, _named, last_names
from stowage_core.use.mounts import Overlay, View, layer_paths


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        (b"rw,lowerdir=/a:/b,upperdir=/u,workdir=/w", [("/a",), ("/b",), ("/u",), ("/w",)]),
        (b"rw,lowerdir=l/ABC:l/DEF,upperdir=x/diff", [("l/ABC",), ("l/DEF",), ("x/diff",)]),
        # a colon in a name: escaped by whoever mounted it, the backslash then shown in octal
        (rb"rw,lowerdir=/a\134:b:/c", [(r"/a\:b", "/a:b"), ("/c",)]),
        # a comma in a name: shown in octal by the kernel
        (rb"rw,lowerdir=/a\054b", [("/a,b",)]),
        (rb"rw,lowerdir=/a\134\054b", [(r"/a\,b", "/a,b")]),
        (rb"rw,lowerdir+=/a:b,lowerdir+=/c\040d,datadir+=/e", [("/a:b",), ("/c d",), ("/e",)]),
        (b"rw,lowerdir=/a::/data", [("/a",), ("/data",)]),
        (b"rw,lowerdir=/a\rb:/c", [("/a\rb",), ("/c",)]),
        (b"rw,relatime,index=off", []),
    ],
)
def test_layers_of_an_overlay(options: bytes, layers: list[tuple[str, ...]]) -> None:
    assert layer_paths(options) == layers


@given(st.binary(max_size=60))
def test_layers_of_anything(options: bytes) -> None:
    for layer in layer_paths(options):
        assert layer and all(layer)


LINES = rb"""21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
30 21 259:1 / /mnt/nvme0 rw - xfs /dev/nvme0n1 rw
31 21 259:1 /stowage/drives/ml.a/data /run/stowage/pins/r/1 rw - xfs /dev/nvme0n1 rw
32 30 0:50 / /mnt/nvme0/stowage/drives/ml.b/x rw - tmpfs tmpfs rw
33 21 259:1 /stowage/drives/ml.aa /mnt/aa rw - xfs /dev/nvme0n1 rw
34 21 259:1 /stowage/drives /mnt/all rw - xfs /dev/nvme0n1 rw
35 21 259:2 /stowage/drives/ml.c /mnt/c rw - xfs /dev/nvme1n1 rw
36 21 0:60 / /mnt/o rw - overlay overlay rw,lowerdir=/x:y,upperdir=/mnt/nvme0/stowage/drives/ml.d/u
37 21 0:60 / /mnt/o2 rw - overlay overlay rw,lowerdir=/x:y,upperdir=/mnt/nvme0/stowage/drives/ml.d/u
38 21 0:61 / /mnt/e rw - ecryptfs /secret\040place rw
"""


@pytest.mark.parametrize(
    ("copy", "around", "found"),
    [
        ("ml.a", (), ["mounted at /run/stowage/pins/r/1 in this host"]),
        ("ml.b", (), ["tmpfs is mounted inside it, at /mnt/nvme0/stowage/drives/ml.b/x in this host"]),
        ("ml.c", (), []),
        ("ml", (), []),
        ("ml.c", ("/stowage/drives",), ["mounted at /mnt/all in this host"]),
    ],
)
def test_mounts_of_a_copy(copy: str, around: tuple[str, ...], found: list[str]) -> None:
    view = View("this host", mounts.parse(LINES))
    assert list(use_mounts.uses(view, "259:1", f"/stowage/drives/{copy}", around)) == found


def test_overlays_of_a_table() -> None:
    overlay, cryptic = use_mounts.overlays_of(LINES, "this host").values()
    assert overlay.where == "/mnt/o in this host" and overlay.bases == ["/mnt/o", "/mnt/o2"]
    assert overlay.absolute == [("/x",), ("/mnt/nvme0/stowage/drives/ml.d/u",)] and overlay.relative == [("y",)]
    assert overlay.shows_layers and not overlay.is_proven
    assert (cryptic.where, cryptic.absolute) == ("/mnt/e in this host", [("/secret place",)])
    cryptic.found.update(cryptic.absolute)
    assert cryptic.is_proven and not cryptic.shows_layers


@pytest.mark.parametrize(
    ("changes", "doubts"),
    [
        ({}, []),
        ({"below": set("abcd")}, []),
        ({"shown": None}, ["cannot be looked into: something else is mounted over it"]),
        ({"found": {("/l",)}}, ["has the layer /u, which cannot be found"]),
        ({"below": {"a"}}, ["shows b, which is in none of the layers that its paths lead to now"]),
        # a layer whose relative path leads nowhere may be where the name is: the subjects are searched for that path
        ({"below": {"a"}, "relative": [("r",)]}, []),
        (
            {"absolute": [("/",)], "found": {("/",)}},
            ["has the layer /, which is what the kernel shows for a directory that was mounted nowhere"],
        ),
    ],
)
def test_doubts_of_an_overlay(changes: dict[str, Any], doubts: list[str]) -> None:
    layers: dict[str, Any] = {"absolute": [("/l",), ("/u",)], "relative": [], "found": {("/l",), ("/u",)}}
    names: dict[str, Any] = {"shown": frozenset("ab"), "below": set("abc")}
    overlay = Overlay("/o in this host", **{**layers, **names, **changes})
    assert list(use_mounts._doubts(overlay)) == doubts
    assert overlay.is_proven is (not doubts and "relative" not in changes)


def test_a_whole_filesystem_s_own_mount_is_no_use() -> None:
    text = b"""1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 8:2 / /mnt/kv rw - xfs /dev/sdb rw
3 1 8:2 / /srv/again rw - xfs /dev/sdb rw
4 1 8:2 /part /srv/part rw - xfs /dev/sdb rw
"""
    view = use_mounts.View("this host", mounts.parse(text))
    every = [f"mounted at {point} in this host" for point in ("/mnt/kv", "/srv/again", "/srv/part")]
    assert list(use_mounts.uses(view, "8:2", "/", ())) == every
    assert list(use_mounts.uses(view, "8:2", "/", (), ("/mnt/kv",))) == every[1:]
    assert list(use_mounts.uses(view, "8:2", "/part", (), ("/srv/again",))) == every[2:]


def test_directories_above() -> None:
    found = list(use_mounts._above(["/a/b/c", "/a/d", "/"]))
    assert sorted(found) == ["/", "/a", "/a/b"]


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        ("/mnt/nvme0/stowage/drives/ml.a/x", True),
        ("drives/ml.a", True),
        ("/srv/ml.aa", False),
        ("l/ABC", False),
        ("../l", True),
        ("/srv/../x", False),
    ],
)
def test_layers_that_name_a_copy(layer: str, named: bool) -> None:
    subject = Subject("ml.a", -1, "8:1", "/drives/ml.a", (), ())
    layers = [(layer,)]
    overlay = Overlay("/o", layers if layer[0] == "/" else [], layers if layer[0] != "/" else [])
    assert bool(list(_named(subject, overlay))) == named


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        ("/srv/runs/ann/sft/42/work", True),
        ("/mnt/ann/sft/42", True),
        ("ann/sft/42/fs", True),
        ("sft/42/work", True),
        ("42/work", True),
        ("42", True),
        ("42/../43", True),
        # containerd numbers its layers
        ("/var/lib/containerd/snapshots/42/fs", False),
        ("/srv/runs/bob/sft/42/work", False),
        ("/srv/runs/ann/sft/4242", False),
        ("42/fs", False),
        ("snapshots/42/fs", False),
        ("sft/42/fs", False),
    ],
)
def test_layers_that_name_a_run(layer: str, named: bool, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    fd = os.open(tmp_path, os.O_PATH)
    try:
        subject = Subject("42", fd, "8:1", "/runs/ann/sft/42", (), (), known_by=("ann", "sft", "42"))
        layers = [(layer,)]
        overlay = Overlay("/o", layers if layer[0] == "/" else [], layers if layer[0] != "/" else [])
        assert bool(list(_named(subject, overlay))) == named
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        ("/stowage/runs/ann", True),
        ("/host/srv/stowage/runs", True),
        ("/var/lib/docker/runs/diff", False),
        ("/srv/other/runs", False),
    ],
)
def test_layers_that_name_a_location(layer: str, named: bool) -> None:
    subject = Subject("runs", -1, "8:1", "/stowage/runs", (), (), known_by=last_names("/srv/stowage/runs"))
    assert bool(list(_named(subject, Overlay("/o", [(layer,)], [])))) == named


def test_the_last_names_of_a_path() -> None:
    assert [last_names(path) for path in ("/srv/stowage/runs", "/mnt/hdd", "/data")] == [
        ("stowage", "runs"),
        ("mnt", "hdd"),
        ("data",),
    ]


def test_place_in_filesystem() -> None:
    table = mounts.parse(LINES)
    assert mounts.place_in_filesystem("/mnt/nvme0", table[1]) == "/"
    assert mounts.place_in_filesystem("/mnt/nvme0/x", table[1]) == "/x"
    assert mounts.place_in_filesystem("/run/stowage/pins/r/1/y", table[2]) == "/stowage/drives/ml.a/data/y"


def test_names_with_other_line_ends_do_not_end_a_line() -> None:
    """A stranger can name a mount point so, in a namespace of its own."""
    name = b"/m/a\rb\x0bc\x0cd\x1c\x85"
    table = b"1 2 0:7 / %s rw - overlay overlay rw,lowerdir=%s\n2 1 8:1 / /x rw - ext4 /dev/x rw\n" % (name, name)
    assert [os.fsencode(mount.point) for mount in mounts.parse(table)] == [name, b"/x"]
    assert use_mounts.overlays_of(table, "here")["0:7"].absolute == [(os.fsdecode(name),)]
    assert use_exports.parse(b"%s\t10.0.0.2(rw)\n/x\t*(ro)\n" % name) == [os.fsdecode(name), "/x"]


EXPORTS = rb"""# Version 1.1
/srv/data	10.0.0.2(rw,sync,no_subtree_check)
/	*(ro,insecure,no_root_squash,sync,v4root,fsid=0,uuid=1,sec=390003)
/mnt/with\040space	gpu-02(ro) gpu-03(rw)
/srv/v4root-like	10.0.0.3(rw,refer=/v4root)
not a line
"""


def test_exports() -> None:
    assert use_exports.parse(EXPORTS) == ["/srv/data", "/mnt/with space", "/srv/v4root-like", "not"]


@given(st.binary(max_size=80))
def test_exports_of_anything(text: bytes) -> None:
    assert all(isinstance(path, str) and path for path in use_exports.parse(text))


@pytest.mark.parametrize(
    ("path", "reaches"),
    [
        ("/mnt/nvme0/stowage/drives/ml.a", True),
        ("/mnt/nvme0/stowage/drives/ml.a/data", True),
        ("/mnt/nvme0", True),
        ("/mnt/nvme0/stowage/drives/ml.aa", False),
        ("/run/stowage/pins/r/1", True),
        ("/mnt/all", True),
        ("/mnt/c", False),
    ],
)
def test_exports_that_reach_a_copy(path: str, reaches: bool) -> None:
    place = "/stowage/drives/ml.a"
    subject = Subject("ml.a", -1, "259:1", place, (), (f"/mnt/nvme0{place}",))
    assert _exports(path, path, subject, mounts.parse(LINES)) is reaches
