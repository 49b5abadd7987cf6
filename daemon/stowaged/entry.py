# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the application starts: the daemon, a look at use, the exporter or the command."""

from __future__ import annotations

import os
import sys

from stowage_core.places import Places


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for and return the exit status."""
    name = os.path.basename(sys.argv[0])
    arguments = sys.argv[1:] if arguments is None else arguments
    places = Places()
    if len(arguments) >= 2 and arguments[0] == "--prefix":
        # Another root: an image that is mounted somewhere, or a test's.
        places, arguments = Places.under(arguments[1]), arguments[2:]
    program = arguments[0] if arguments else ""
    if name == "stowaged" or program == "daemon":
        from . import service

        return service.main(places)
    if name == "stowage-exporter" or program == "exporter":
        from . import exporter

        return exporter.main(arguments[1:] if program == "exporter" else arguments, places)
    if program == "use":
        from . import use_service

        return use_service.main()
    if program == "gate":
        from . import gate_command

        return gate_command.main(arguments[1:], places)
    from . import command

    return command.main(arguments, places)
