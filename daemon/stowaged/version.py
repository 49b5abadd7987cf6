# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The version; the builder of the application replaces this file by one that names the collection's."""

from __future__ import annotations

VERSION = "0"
