# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where root filesystems are made from: the mirror that this machine has its own packages from."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess

REMEDY = "no Debian mirror in this machine's apt sources; name one in STOWAGE_DEBIAN_MIRROR"


def mirror() -> str | None:
    """Return the mirror's address, or None where this machine knows of none."""
    named = os.environ.get("STOWAGE_DEBIAN_MIRROR")
    if named:
        return named
    release = platform.freedesktop_os_release()
    if release.get("ID") == "debian" and shutil.which("apt-get"):
        form = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
        command = ["apt-get", "indextargets", "--format", form, "Created-By: Packages"]
        for line in subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines():
            uri, suite, component = line.split()
            if (suite, component) == (release.get("VERSION_CODENAME"), "main"):
                return uri
    return None
