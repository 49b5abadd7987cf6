# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon ``stowaged``, the exporter ``stowage-exporter`` and the command ``stowage``."""
