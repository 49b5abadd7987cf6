#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Pins the newest releases of what requirements/*.in name. Each list is pinned by the oldest Python that uses it.
set -euo pipefail
cd "$(dirname "$0")/../.."

for list in requirements/*.in; do
    name=$(basename "$list" .in)
    case $name in
        oldest-python) python=python3.9 ;;
        newest-core) python=python3.12 ;;
        *) python=python3.11 ;;
    esac
    venv=.build/requirements/$name
    "$python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install -qq --upgrade --requirement "$list"
    {
        echo "# Made from $name.in by make requirements."
        "$venv/bin/python" -m pip freeze
    } >"$venv.txt"
    mv "$venv.txt" "requirements/$name.txt"
done
