# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees for the benches."""

from __future__ import annotations

import os
from pathlib import Path


def make_tree(root: Path, directories: int, files: int, content: bytes = b"") -> None:
    """Make a directory with so many directories, a hundred each in one, of so many files each."""
    for number in range(directories):
        directory = root / f"{number // 100:03d}" / f"{number % 100:02d}"
        directory.mkdir(parents=True)
        dir_fd = os.open(directory, os.O_RDONLY)
        for file in range(files):
            fd = os.open(f"model-{file:05d}.safetensors", os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=dir_fd)
            if content:
                os.write(fd, content)
            os.close(fd)
        os.close(dir_fd)
