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
    needed = {"__init__"}
    for path in (collection / "daemon" / "stowaged").glob("*.py"):
        entries[f"stowaged/{path.name}"] = path.read_bytes()
        needed |= _imported(path.read_bytes(), CORE)
    core = collection / "plugins" / "module_utils"
    while needed:
        name = needed.pop()
        path = core / f"{name}.py"
        if path.exists():  # else it is a name in a module, not a module
            entries[f"{CORE}/{path.name}"] = path.read_bytes()
            needed |= {other for other in _imported(path.read_bytes(), None) if f"{CORE}/{other}.py" not in entries}
    source = entries["stowaged/version.py"].decode("ascii")
    entries["stowaged/version.py"] = source.replace('"0"', f'"{version(collection)}"').encode("ascii")
    return entries


def _imported(source: bytes, package: str | None) -> set[str]:
    """Return what a module imports from *package*, or from its own package when that is None.

    Only what daemon and command need goes along: a change to the modules alone must not restart the daemon.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            if node.module == package and node.level == (package is None):
                found.update(alias.name for alias in node.names)
            elif package is None and node.level == 1 and node.module:
                found.add(node.module)
            elif package is not None and node.level == 0 and (node.module or "").startswith(package + "."):
                found.add(str(node.module).split(".")[1])
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
