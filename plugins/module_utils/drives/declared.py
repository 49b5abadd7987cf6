# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drives as they are declared: every field and rule of Astraeus's drives, checked as a whole list, defaults filled in.

Nothing here looks at a host. The bodies are those of Astraeus's API (``metadata`` and ``spec``), with two fields
beside them: ``state`` (``absent`` makes the entry a tombstone) and ``force``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ..errors import Refusal, did_you_mean, quoted
from ..paths import check_path, check_relative

Entry = dict[str, Any]
"""One drive of a list: ``metadata``, ``spec`` (None in a tombstone without one), ``state``, ``force``."""

PLACED = "placed"
ON_ONE_MACHINE = ""
SHARED = "shared"
SCRATCH = "local-any"
_KINDS = {
    PLACED: "a drive kept on the machines' data locations",
    ON_ONE_MACHINE: "a drive on one machine",
    SHARED: "a shared filesystem",
    SCRATCH: "scratch on each machine",
}

TRANSPORTS = ("Auto", "RDMA", "TCP", "Local")
MODES = ("ReadOnly", "ReadWrite")
STATES = ("present", "absent")

_ENTRY_FIELDS = ("metadata", "spec", "state", "force")
_METADATA_FIELDS = ("name", "labels")
_SPEC_FIELDS = (
    "sources",
    "transport",
    "evictable",
    "size_hint_bytes",
    "fill",
    "permissions",
    "idle_ttl_seconds",
    "managed_by",
)
_SOURCE_FIELDS = ("node_scope", "node", "path", "mount_path", "mode", "eligible_nodes")
_PERMISSION_FIELDS = ("create", "owner_uid", "owner_gid", "dir_mode", "apply", "recursive")
_TEMPLATE_FIELDS = ("image", "command", "args", "env")
"""What a fill does with its template; what else a worker template may have is kept."""
_TEMPLATE_REFUSED = {
    "datavolume_refs": "a fill may not have drives of its own: it sees the copy at /drive",
    "external_accesses": "a fill may not have external accesses of its own",
}
_TEMPLATE_SPELLINGS = {
    "arg": "args",
    "argv": "args",
    "arguments": "args",
    "cmd": "command",
    "datavolumes": "datavolume_refs",
    "data_volumes": "datavolume_refs",
    "entrypoint": "command",
    "environ": "env",
    "environment": "env",
    "envs": "env",
    "external_access": "external_accesses",
}
"""Other words, of other tools too, for fields that act here."""
_SHORT = 4
"""Letters of a word that has too many real words near it to be told from a slip."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_NAME_RULE = "only lowercase letters, digits and hyphens, no dot, a letter or digit at both ends, at most 63 characters"
# host and port, path, tag, digest: nothing that an engine takes for an option, or for a file of the host
_IMAGE = re.compile(
    r"[a-z0-9][a-z0-9._-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*(:[a-z0-9_][a-z0-9._-]*)?(@[a-z0-9]+:[0-9a-f]{32,})?",
    re.ASCII | re.IGNORECASE,
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DIR_MODE = re.compile(r"[0-7]{3,4}", re.ASCII)
_LARGEST_ID = 2**32 - 2
_LARGEST = 2**63 - 1


class Problems(Refusal):
    """Everything that is wrong with a list of drives, each problem on a line of its own."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("", "\n".join(self.problems))


def check_name(value: Any, name: str) -> str:
    """Return *value* when it can name a workspace or a drive: together they name a copy's directory."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Refusal(name, f"{_shown(value)} is not a name", _NAME_RULE)
    return value


def copy_name(workspace: str, drive: str) -> str:
    """Return the name of the directory that holds a host's copy of a placed drive."""
    return f"{workspace}.{drive}"


def split_copy_name(value: Any, name: str = "copy") -> tuple[str, str]:
    """Return workspace and drive of a copy name, or refuse it."""
    workspace, dot, drive = value.partition(".") if isinstance(value, str) else ("", "", "")
    if not (dot and _NAME.fullmatch(workspace) and _NAME.fullmatch(drive)):
        raise Refusal(name, f"{_shown(value)} is not of the form <workspace>.<drive>", f"each has {_NAME_RULE}")
    return workspace, drive


def is_placed(spec: Mapping[str, Any] | None) -> bool:
    """Return whether a checked spec is that of a drive kept on the machines' data locations."""
    return spec is not None and any(source["node_scope"] == PLACED for source in spec["sources"])


def kind(spec: Mapping[str, Any]) -> str:
    """Return in words what a checked spec is: the kind of its first source."""
    return _KINDS[spec["sources"][0]["node_scope"]]


def check_lists(workspaces: Any, machines: Collection[str] | None = None) -> dict[str, list[Entry]]:
    """Return the checked drives of several workspaces by workspace, or refuse with everything that is wrong in them.

    :param workspaces: a list of ``{"name": ..., "drives": [...]}``
    :param machines: the hosts that there are; with it, a source that names another one is refused
    """
    problems: list[str] = []
    found: dict[str, list[Entry]] = {}
    if not isinstance(workspaces, list):
        raise Problems(["workspaces: must be a list"])
    for index, value in enumerate(workspaces):
        where = f"workspaces[{index}]"
        if not isinstance(value, Mapping):
            problems.append(f"{where}: {_shown(value)} must be a dictionary")
            continue
        try:
            name = check_name(value.get("name"), f"{where}.name")
        except Refusal as error:
            problems.append(str(error))
            continue
        where = f"workspace {name}"
        unknown: list[str] = []
        _Fields(value, "", unknown, ("name", "drives"))
        problems.extend(f"{where}: {problem}" for problem in unknown)
        if name in found:
            problems.append(f"{where}: is there twice; make one list of both")
            continue
        found[name] = []
        if value.get("drives") is None:
            problems.append(f"{where}: drives are required; an empty list is a complete list too")
            continue
        try:
            found[name] = check_drives(value["drives"], machines, f"{where}: drives")
        except Problems as error:
            problems.extend(error.problems)
    if problems:
        raise Problems(problems)
    return found


def check_drives(value: Any, machines: Collection[str] | None = None, name: str = "drives") -> list[Entry]:
    """Return a workspace's complete list of drives, checked and with defaults filled in.

    :param machines: the hosts that there are; with it, a source that names another one is refused
    :raises Problems: everything that is wrong with the list, at once
    """
    if not isinstance(value, list):
        raise Problems([f"{name} must be a list"])
    problems: list[str] = []
    entries = []
    seen: dict[str, int] = {}
    for index, item in enumerate(value):
        entry = _entry(item, f"{name}[{index}]", problems, machines)
        drive = entry["metadata"]["name"]
        if drive and drive in seen:
            problems.append(f"{name}[{index}] ({drive}): metadata.name: is the name of {name}[{seen[drive]}] already")
        seen.setdefault(drive, index)
        entries.append(entry)
    if problems:
        raise Problems(problems)
    return entries


def _entry(value: Any, where: str, problems: list[str], machines: Collection[str] | None) -> Entry:
    found: list[str] = []
    fields = _Fields(value, "", found, _ENTRY_FIELDS)
    metadata = fields.inner("metadata", _METADATA_FIELDS)
    name = ""
    try:
        name = check_name(metadata.value("name"), "metadata.name")
    except Refusal as error:
        if isinstance(value, Mapping):
            found.append("metadata.name: required" if metadata.value("name") is None else str(error))
    labels = metadata.texts("labels")
    state = fields.choice("state", STATES, "present")
    force = fields.boolean("force")
    if force and state != "absent":
        fields.add("force", "only a drive with state: absent can be forced")
    spec = None
    if isinstance(value, Mapping) and (state == "present" or fields.value("spec") is not None):
        spec = _spec(fields.inner("spec", _SPEC_FIELDS), machines)
    label = f"{where} ({name})" if name else where
    problems.extend(f"{label}: {problem}" for problem in found)
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "state": state,
        "force": force,
    }


def _spec(fields: _Fields, machines: Collection[str] | None) -> dict[str, Any]:
    sources = [
        _source(_Fields(item, fields.path(f"sources[{index}]"), fields.problems, _SOURCE_FIELDS), machines)
        for index, item in enumerate(fields.items("sources"))
    ]
    scopes = [source["node_scope"] for source in sources]
    placed = PLACED in scopes
    unclear = None in scopes  # a misspelt kind is one problem, not several
    if fields.value("sources") in (None, []) and fields.is_mapping:
        fields.add("sources", "required; at least one source")
    if placed and len(sources) > 1:
        fields.add("sources", "a placed drive has exactly one source")
    spec = {
        "sources": sources,
        "transport": fields.choice("transport", TRANSPORTS, "Auto"),
        "evictable": fields.boolean("evictable"),
        "size_hint_bytes": fields.integer("size_hint_bytes"),
        "permissions": _permissions(fields.inner("permissions", _PERMISSION_FIELDS)),
        "idle_ttl_seconds": fields.integer("idle_ttl_seconds"),
    }
    if spec["evictable"] and not placed and not unclear:
        fields.add("evictable", "only a drive kept on the machines' data locations can be evictable")
    if spec["size_hint_bytes"] and not placed and not unclear:
        fields.add("size_hint_bytes", "only a drive kept on the machines' data locations has an expected size")
    if fields.value("fill") is not None:
        spec["fill"] = _fill(fields.inner("fill", ("template",)))
        if not placed and not unclear:
            fields.add("fill", "only a drive kept on the machines' data locations can be filled")
    if fields.value("managed_by") is not None:
        fields.add("managed_by", "the field is set by Stowage only, never through the API")
    return spec


def _source(fields: _Fields, machines: Collection[str] | None) -> dict[str, Any]:
    scope: str | None = fields.choice("node_scope", tuple(_KINDS), ON_ONE_MACHINE)
    if fields.value("node_scope") not in (None, *_KINDS):
        scope = None
    node = fields.text("node")
    eligible = [fields.text_of(item, f"eligible_nodes[{i}]") for i, item in enumerate(fields.items("eligible_nodes"))]
    if node and scope == PLACED:
        fields.add("node", "must be empty for a placed drive: each machine keeps its own copy")
    if node and scope == SCRATCH:
        fields.add("node", "must be empty for scratch: it is on whichever machine runs the worker")
    if fields.value("node") in (None, "") and scope == ON_ONE_MACHINE and fields.is_mapping:
        fields.add("node", "required for a drive on one machine: name the machine that holds the data")
    for index, machine in enumerate(eligible):
        if machine and machine in eligible[:index]:
            fields.add(f"eligible_nodes[{index}]", f"{_shown(machine)} is there twice")
    if machines is not None:
        for key, machine in [("node", node), *((f"eligible_nodes[{i}]", item) for i, item in enumerate(eligible))]:
            if machine and machine not in machines:
                fields.add(key, f"{_shown(machine)} is not a machine of this inventory{_near(machine, machines)}")
    return {
        "node_scope": scope,
        "node": node,
        "path": _source_path(fields, scope),
        "mount_path": fields.checked("mount_path", check_path) if fields.value("mount_path") not in (None, "") else "",
        "mode": fields.choice("mode", MODES, "ReadOnly"),
        "eligible_nodes": eligible,
    }


def _source_path(fields: _Fields, scope: str | None) -> str:
    if scope is None:
        return ""
    if scope == PLACED:
        return fields.checked("path", check_relative) if fields.value("path") is not None else ""
    if fields.value("path") is None and fields.is_mapping:
        fields.add("path", "required")
    return fields.checked("path", check_path) if fields.value("path") is not None else ""


def _permissions(fields: _Fields) -> dict[str, Any]:
    permissions: dict[str, Any] = {"create": fields.boolean("create")}
    for key in ("owner_uid", "owner_gid"):
        if fields.value(key) is not None:
            permissions[key] = fields.integer(key, _LARGEST_ID)
    for key in ("apply", "recursive"):
        if fields.value(key) is not None:
            permissions[key] = fields.boolean(key)
    mode = fields.value("dir_mode")
    if mode is not None:
        if not isinstance(mode, str) or not _DIR_MODE.fullmatch(mode):
            fields.add("dir_mode", f'{_shown(mode)} is not a mode; write octal digits in quotes, such as "0755"')
        else:
            permissions["dir_mode"] = mode
    return permissions


def _fill(fields: _Fields) -> dict[str, Any]:
    """Return a fill with its template, a worker template: what a fill does not depend on is kept as it was given.

    What is another spelling of something that acts, or is refused, was meant to be that.
    """
    template = fields.inner("template")
    for key in template.others((*_TEMPLATE_FIELDS, *_TEMPLATE_REFUSED)):
        meant = _misspelt(key)
        if meant:
            template.add(_plain(key), f"unknown field; did you mean {meant}?")
    for key, rule in _TEMPLATE_REFUSED.items():
        if template.value(key):
            template.add(key, f"{rule}; leave it out")
    if template.value("image") in (None, "") and template.is_mapping:
        template.add("image", "required: the container image that fills a copy")
    image = template.text("image")
    if image and not _IMAGE.fullmatch(image):
        template.add("image", f"{_shown(image)} is not the name of an image; write it as registry/path:tag")
    args = [template.text_of(item, f"args[{index}]") for index, item in enumerate(template.items("args"))]
    checked: dict[str, Any] = {"image": image, "command": template.text("command"), "args": args}
    if template.value("env") is not None:
        checked["env"] = template.texts("env")
        for name in checked["env"]:
            if not _VARIABLE.fullmatch(name):
                template.add("env", f"{_shown(name)} cannot name a variable; letters, digits and underscores can")
    return {"template": {**template.others(_TEMPLATE_FIELDS), **checked}}


def _misspelt(key: Any) -> str:
    """Return the field of a fill's template that *key* is another spelling of, or nothing."""
    word = key.lower() if isinstance(key, str) else ""
    for name in (*_TEMPLATE_FIELDS, *_TEMPLATE_REFUSED):
        if word == name or (len(name) > _SHORT and _is_one_slip(word, name)):
            return name
    return _TEMPLATE_SPELLINGS.get(word, "")


def _is_one_slip(word: str, name: str) -> bool:
    """Return whether a letter more, less or other, or two that changed places, make the one of the other."""
    start = len(os.path.commonprefix((word, name)))
    word, name = word[start:], name[start:]
    end = len(os.path.commonprefix((word[::-1], name[::-1])))
    word, name = word[: len(word) - end], name[: len(name) - end]
    return max(len(word), len(name)) <= 1 or (len(name) == 2 and word == name[::-1])


def without_effect(lists: Mapping[str, Iterable[Entry]]) -> list[str]:
    """Return what does nothing in checked lists of drives by workspace, although Astraeus's API accepts it."""
    return [
        f"workspace {workspace}: drive {entry['metadata']['name']}: {problem}"
        for workspace, entries in lists.items()
        for entry in entries
        if entry["state"] != "absent" and entry["spec"] is not None
        for problem in _idle_fields(entry["spec"])
    ]


def _idle_fields(spec: Mapping[str, Any]) -> Iterable[str]:
    scopes = {source["node_scope"] for source in spec["sources"]}
    if spec["transport"] != "Auto" and ON_ONE_MACHINE not in scopes:
        yield (
            f"spec.transport: {spec['transport']} does nothing for {kind(spec)}: it says how other machines reach"
            f" {_KINDS[ON_ONE_MACHINE]}; leave it out"
        )
    if spec["idle_ttl_seconds"] and PLACED not in scopes:
        yield f"spec.idle_ttl_seconds: does nothing for {kind(spec)}, which has no copies that could go; leave it out"
    permissions = spec["permissions"]
    owner = [key for key in ("owner_uid", "owner_gid", "dir_mode") if key in permissions]
    applies = permissions.get("apply", False)
    if permissions.get("recursive") and not applies:
        yield "spec.permissions.recursive: does nothing without apply; set apply: true too, or leave it out"
    if applies and not owner:
        yield "spec.permissions.apply: does nothing without owner_uid, owner_gid or dir_mode; set one, or leave it out"
    # Copies and scratch are made in any case.
    if owner and not applies and not permissions["create"] and scopes <= {ON_ONE_MACHINE, SHARED}:
        what = ", ".join(owner)
        yield f"spec.permissions: {what} do nothing without create or apply: nothing is made, and what is there stays"
    idle = sorted(set(spec.get("fill", {}).get("template", {})).difference(_TEMPLATE_FIELDS, _TEMPLATE_REFUSED))
    if idle:
        yield f"spec.fill.template: {', '.join(map(_plain, idle))}: kept, and does nothing in a fill"


def hidden(value: Any, before: Any = None) -> Any:
    """Return *value*, drives as they were declared, with the values of a fill's variables hidden: they may be secrets.

    Also where ``env`` was misspelt: what is refused is shown as well.

    :param before: what it is compared with: a value that is another there is said to have changed
    """
    if isinstance(value, list):
        return [hidden(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    other = before if isinstance(before, Mapping) else {}
    shown = {}
    for key, one in value.items():
        secret = str(key).lower().startswith("env")
        shown[key] = one if key == "labels" else (_hidden_values if secret else hidden)(one, other.get(key))
    return shown


def _hidden_values(variables: Any, before: Any) -> Any:
    if not isinstance(variables, Mapping):
        return "***" if before in (None, variables) else "*** (changed)"
    known = before if isinstance(before, Mapping) else variables
    return {name: "***" if known.get(name, value) == value else "*** (changed)" for name, value in variables.items()}


class _Fields:
    """One mapping under check. Whatever is wrong is added to the problems, and a default stands in for it.

    A field that is null counts as left out, as it does in Astraeus's API.
    """

    def __init__(self, value: Any, path: str, problems: list[str], known: Iterable[str] | None) -> None:
        self.is_mapping = isinstance(value, Mapping)
        self.problems = problems
        self._path = path
        self._value: Mapping[Any, Any] = value if isinstance(value, Mapping) else {}
        if not self.is_mapping:
            problems.append(": ".join(filter(None, (path, f"{_shown(value)} must be a dictionary"))))
        known = tuple(self._value if known is None else known)
        for key in self._value:
            if key not in known or not isinstance(key, str):
                problems.append(": ".join((self.path(_plain(key)), f"unknown field{_near(key, known)}")))

    def path(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def add(self, key: str, rule: str) -> None:
        self.problems.append(f"{self.path(key)}: {rule}")

    def value(self, key: str) -> Any:
        return self._value.get(key)

    def others(self, known: Iterable[str]) -> dict[str, Any]:
        """Return the fields that are not *known*, as they were given."""
        return {key: value for key, value in self._value.items() if key not in known and value is not None}

    def inner(self, key: str, known: Iterable[str] | None = None) -> _Fields:
        """Return the mapping in *key*, which may have the fields *known*; any when left out."""
        value = self.value(key)
        return _Fields({} if value is None else value, self.path(key), self.problems, known)

    def items(self, key: str) -> list[Any]:
        value = self.value(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.add(key, f"{_shown(value)} must be a list")
            return []
        return value

    def text(self, key: str) -> str:
        value = self.value(key)
        return "" if value in (None, "") else self.text_of(value, key)

    def text_of(self, value: Any, key: str) -> str:
        if not isinstance(value, str):
            self.add(key, f"{_shown(value)} must be a string")
        elif not value:
            self.add(key, "may not be empty")
        elif not value.isprintable():
            self.add(key, f"{_shown(value)} may not contain control characters")
        else:
            return value
        return ""

    def texts(self, key: str) -> dict[str, str]:
        value = self.value(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(
            isinstance(part, str) and part.isprintable() for pair in value.items() for part in pair
        ):
            self.add(key, "must be a dictionary of printable strings; put quotes around numbers")
            return {}
        return dict(value)

    def boolean(self, key: str) -> bool:
        value = self.value(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        self.add(key, f"{_shown(value)} must be true or false")
        return False

    def integer(self, key: str, largest: int = _LARGEST) -> int:
        value = self.value(key)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
            self.add(key, f"{_shown(value)} must be a whole number from 0 to {largest}")
            return 0
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            listed = ", ".join(choice or '""' for choice in choices)
            near = _near(value, [choice for choice in choices if choice])
            self.add(key, f"{_shown(value)} is not one of {listed}{near}")
            return default
        return value

    def checked(self, key: str, check: Callable[[Any, str], str]) -> str:
        value = self.value(key)
        if isinstance(value, str) and not _encodable(value):
            self.add(key, f"{_shown(value)} is not a file name")
            return ""
        try:
            return check(value, self.path(key))
        except Refusal as error:
            self.problems.append(str(error))
            return ""


def _encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 40 else _shown(value)


def _shown(value: Any) -> str:
    """Return *value* as a message shows it: short and on one line, whatever it is."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = value if len(value) <= 80 else value[:80] + "…"
        return quoted(text) if _encodable(text) else ascii(text)
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**64):
        return repr(value)
    if isinstance(value, int):
        return "a number above 2^64"
    return "a list" if isinstance(value, list) else "a dictionary" if isinstance(value, Mapping) else "this value"


def _near(value: Any, known: Iterable[str]) -> str:
    """Return a question for the name that was probably meant, as it follows a rule, or nothing."""
    near = did_you_mean(value, known) if isinstance(value, str) else ""
    return f"; {near}" if near else ""


def managed_refusal(name: str, manager: str) -> Refusal:
    """Return the refusal to change a drive that belongs to another object, as ``model/llama``."""
    return Refusal("DATAVOLUME_MANAGED", f"drive {name} is managed by {manager}", f"delete {manager} instead")


def in_use_refusal(name: str, workers: int, remedy: str) -> Refusal:
    """Return the refusal to delete a drive that live workers use."""
    return Refusal("DATAVOLUME_IN_USE", f"drive {name} is used by {workers} live worker(s)", remedy)
