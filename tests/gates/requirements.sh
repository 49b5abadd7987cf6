#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Pins the newest releases of what requirements/*.in name. Each list needs the oldest Python that uses it:
# sanity-newest one of 3.12 or newer (PYTHON_NEWEST, default python3.13), the others one of 3.11 (PYTHON, default python3).
set -euo pipefail
cd "$(dirname "$0")/../.."

for list in requirements/*.in; do
    name=$(basename "$list" .in)
    python=${PYTHON:-python3}
    [[ $name != sanity-newest ]] || python=${PYTHON_NEWEST:-python3.13}
    venv=.build/requirements/$name
    "$python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install -qq --upgrade --requirement "$list"
    options=()
    ! grep -qx pip "$list" || options=(--all)
    {
        echo "# Made from $name.in by make requirements."
        "$venv/bin/python" -m pip freeze "${options[@]}"
    } >"$venv.txt"
    mv "$venv.txt" "requirements/$name.txt"
done
