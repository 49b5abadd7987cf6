# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Emptying a directory against rm -rf."""

from __future__ import annotations

import os
from pathlib import Path

from run import Bench, command
from trees import make_tree

from stowage_core.trees.emptying import remove


def run(bench: Bench) -> None:
    directories = 200 if bench.quick else 1000
    for fstype in ("ext4", "xfs", "btrfs"):
        with bench.disk(fstype, 4 << 30) as disk:
            compare(bench, fstype, disk.path, directories)


def compare(bench: Bench, fstype: str, path: Path, directories: int) -> None:
    def prepare() -> None:
        make_tree(path / "tree", directories, 100, bytes(5000))
        command("sync", "--file-system", str(path))

    def ours() -> None:
        parent_fd = os.open(path, os.O_RDONLY)
        if remove(parent_fd, b"tree").left:
            raise SystemExit("something is left")
        os.close(parent_fd)

    def peer() -> None:
        command("rm", "-rf", str(path / "tree"))

    bench.compare(f"emptying, {fstype} / rm -rf", ours, peer, 1.1, before=prepare)
