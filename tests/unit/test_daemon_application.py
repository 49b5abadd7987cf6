# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stowage_daemon_build", REPOSITORY / "daemon" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_runs_and_knows_its_version(builder: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "stowage"
    program.write_bytes(builder.build())
    program.chmod(0o755)
    answer = subprocess.run([str(program), "--version"], stdout=subprocess.PIPE, text=True, check=True)
    assert answer.stdout == f"stowage {builder.version()}\n"
    refused = subprocess.run([str(program), "stauts"], stderr=subprocess.PIPE, text=True, check=False)
    assert refused.returncode == 2 and "invalid choice: 'stauts'" in refused.stderr


def test_the_same_sources_give_the_same_bytes(builder: ModuleType, tmp_path: Path) -> None:
    """Another place, another order of files, other times, modes, umask and locale; bytecode lying around."""
    copy = tmp_path / "collection"
    for part in ("daemon", "plugins/module_utils"):
        shutil.copytree(REPOSITORY / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path in sorted((copy / "daemon" / "stowaged").iterdir(), reverse=True):
        path.chmod(0o600)
        os.utime(path, (time.time() + 1e6,) * 2)
    (copy / "daemon" / "stowaged" / "__pycache__").mkdir()
    (copy / "daemon" / "stowaged" / "__pycache__" / "loop.cpython-311.pyc").touch()
    # An installed collection has no galaxy.yml.
    (copy / "MANIFEST.json").write_text(f'{{"collection_info": {{"version": "{builder.version()}"}}}}')
    other = tmp_path / "other"
    subprocess.run(
        [sys.executable, "-I", str(copy / "daemon" / "build.py"), str(other)],
        check=True,
        env={"LC_ALL": "C", "TZ": "Asia/Tokyo"},
        umask=0o077,
    )
    assert other.read_bytes() == builder.build()


def test_what_is_in_it(builder: ModuleType) -> None:
    with zipfile.ZipFile(io.BytesIO(builder.build())) as archive:
        names = archive.namelist()
        assert names == sorted(names) and all(name.endswith(".py") for name in names)
        assert {"__main__.py", "stowaged/service.py", "stowage_core/mounts.py"} <= set(names)
        assert "stowage_core/module_run.py" not in names
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}


def test_every_module_in_it_can_be_imported(builder: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "stowage"
    program.write_bytes(builder.build())
    with zipfile.ZipFile(program) as archive:
        names = [name[:-3].replace("/", ".") for name in archive.namelist() if name != "__main__.py"]
    imports = "import sys; sys.path.insert(0, sys.argv[1])\n" + "".join(
        f"import {name.replace('.__init__', '')}\n" for name in names
    )
    subprocess.run([sys.executable, "-I", "-c", imports, str(program)], check=True, cwd=tmp_path)
