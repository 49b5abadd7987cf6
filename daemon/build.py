# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the zip application ``stowaged.pyz``: daemon, exporter and command in one file.

The same sources give the same bytes on every controller: entries are stored and sorted, with fixed times and modes,
and no bytecode is in it. What is needed of ``plugins/module_utils`` becomes the package ``stowage_core``.

    python3 daemon/build.py stowaged.pyz
"""

from __future__ import annotations

import ast
import io
import re
import sys
import zipfile
from pathlib import Path

COLLECTION = Path(__file__).resolve().parents[1]
SHEBANG = b"#!/usr/bin/python3 -I\n"
MAIN = b"import sys\n\nfrom stowaged.entry import main\n\nsys.exit(main())\n"
CORE = "stowage_core"


def build(collection: Path = COLLECTION) -> bytes:
    """Return the application."""
    entries = _entries(collection)
    buffer = io.BytesIO()
    buffer.write(SHEBANG)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(entries):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, entries[name])
    return buffer.getvalue()


def version(collection: Path = COLLECTION) -> str:
    """Return the collection's version, from galaxy.yml in the sources or MANIFEST.json where it was installed."""
    for name, pattern in (
        ("galaxy.yml", r'^version:\s*["\']?([^"\'\s]+)'),
        ("MANIFEST.json", r'"version":\s*"([^"]+)"'),
    ):
        path = collection / name
        if path.exists():
            found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
            if found:
                return found.group(1)
    raise RuntimeError(f"{collection}: no version in galaxy.yml or MANIFEST.json; is this the collection's directory?")


def _entries(collection: Path) -> dict[str, bytes]:
    entries = {"__main__.py": MAIN}
    needed = {CORE}
    for path in (collection / "daemon" / "stowaged").glob("*.py"):
        entries[f"stowaged/{path.name}"] = path.read_bytes()
        needed |= _imported(path.read_bytes(), "stowaged")
    core = collection / "plugins" / "module_utils"
    seen: set[str] = set()
    while needed - seen:
        name = min(needed - seen)
        seen.add(name)
        package, path = _module(core, name)
        if path is not None:  # else it is a name in a module, not a module
            entries[f"{CORE}/{path.relative_to(core).as_posix()}"] = path.read_bytes()
            needed |= {package, *_imported(path.read_bytes(), package)}
    source_of_version = entries["stowaged/version.py"].decode("ascii")
    entries["stowaged/version.py"] = source_of_version.replace('"0"', f'"{version(collection)}"').encode("ascii")
    return entries


def _module(core: Path, name: str) -> tuple[str, Path | None]:
    """Return the package of the module *name* of the domain, and its file when it is one."""
    place = core.joinpath(*name.split(".")[1:])
    if place.is_dir():
        return name, place / "__init__.py"
    path = place.with_name(f"{place.name}.py")
    return name.rpartition(".")[0], path if path.is_file() else None


def _imported(source: bytes, package: str) -> set[str]:
    """Return what of the domain a module in *package* imports: modules, and names that may be modules.

    Only what daemon and command need goes along: a change to the modules alone must not restart the daemon.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom):
            continue
        above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
        name = ".".join([*above, *([node.module] if node.module else [])])
        if name.partition(".")[0] == CORE:
            found |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
    return found


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python3 daemon/build.py FILE", file=sys.stderr)
        return 2
    target = Path(sys.argv[1])
    target.write_bytes(build())
    target.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main())
