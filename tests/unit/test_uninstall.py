# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Uninstalling removes what Stowage made, and nothing of anybody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.stowage.host.plugins.modules import uninstall
from stowage_core.differences import Differences
from stowage_core.places import Places
from stowage_core.services import daemon_units


class Module:
    """An Ansible module, as far as it is asked."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "lib" / "stowage"
    monkeypatch.setattr(daemon_units, "LIBRARY", str(path))
    monkeypatch.setattr(daemon_units, "VIRTUALENV", str(path / "venv"))
    monkeypatch.setattr(daemon_units, "PROGRAM", str(tmp_path / "bin" / "stowage"))
    return path


def make(path: Path, prompt: str = "prompt = 'stowage'\n") -> None:
    (path / "venv" / "bin").mkdir(parents=True)
    (path / "venv" / "pyvenv.cfg").write_text(f"home = /usr/bin\n{prompt}")


def remove(tmp_path: Path, check_mode: bool = False) -> tuple[list[str], list[str]]:
    module, differences = Module(), Differences(check_mode)
    systemctl: Any = None
    uninstall.remove(module, systemctl, differences, Places.under(str(tmp_path)), {})
    return differences.actions, module.warnings


def test_the_virtual_environment_of_the_role_goes_with_its_directory(library: Path, tmp_path: Path) -> None:
    make(library)
    expected = ([f"remove {library}/venv"], [])
    assert remove(tmp_path, check_mode=True) == expected and library.exists()
    assert remove(tmp_path) == expected and not library.exists()
    assert remove(tmp_path) == ([], [])


def test_what_else_is_in_its_directory_stays(library: Path, tmp_path: Path) -> None:
    make(library)
    (library / "theirs").write_text("data")
    assert remove(tmp_path) == ([f"remove {library}/venv"], [])
    assert [path.name for path in library.iterdir()] == ["theirs"]


@pytest.mark.parametrize("kind", ["directory", "another environment", "link", "link inside", "file"])
def test_what_somebody_else_made_stays(kind: str, library: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    make(elsewhere, "" if kind == "another environment" else "prompt = 'stowage'\n")
    library.parent.mkdir()
    if kind == "directory":
        (library / "venv").mkdir(parents=True)
    elif kind == "another environment":
        elsewhere.rename(library)
    elif kind == "link":
        library.symlink_to(elsewhere)
    elif kind == "link inside":
        library.mkdir()
        (library / "venv").symlink_to(elsewhere / "venv")
    else:
        library.write_text("")
    assert remove(tmp_path) == ([], [f"{library}: was not made by Stowage; it stays"])
    assert kind == "another environment" or (elsewhere / "venv" / "pyvenv.cfg").exists()
    assert library.exists()
