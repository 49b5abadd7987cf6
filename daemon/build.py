# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the zip application ``stowaged.pyz``: daemon, exporter and command in one file.

The same sources give the same bytes on every controller: entries are stored and sorted, with fixed times and modes,
and no bytecode is in it. ``plugins/module_utils`` becomes the package ``stowage_core``.

    python3 daemon/build.py stowaged.pyz
"""

from __future__ import annotations

import io
import re
import sys
import zipfile
from pathlib import Path

COLLECTION = Path(__file__).resolve().parents[1]
SHEBANG = b"#!/usr/bin/python3 -I\n"
MAIN = b"import sys\n\nfrom stowaged.entry import main\n\nsys.exit(main())\n"
_CONTROLLER_ONLY = frozenset(("module_run.py",))


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
    for package, directory in (("stowage_core", "plugins/module_utils"), ("stowaged", "daemon/stowaged")):
        for path in (collection / directory).glob("*.py"):
            if path.name not in _CONTROLLER_ONLY:
                entries[f"{package}/{path.name}"] = path.read_bytes()
    source = entries["stowaged/version.py"].decode("ascii")
    entries["stowaged/version.py"] = source.replace('VERSION = "0"', f'VERSION = "{version(collection)}"').encode(
        "ascii"
    )
    return entries


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
