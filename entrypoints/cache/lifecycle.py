"""The compile caches over one start: opened before vLLM, kept once it is ready, set aside when it died of them. IO.

A cache may hold what kills vLLM, or what makes it answer wrongly. When a start fails with exactly what an earlier one
became ready with, it is repeated once without: if that becomes ready, the cache is to blame and is set aside; if not,
it is not, and stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from entrypoints.cache.entries import (
    COMPILED,
    FILL,
    HIT,
    QUARANTINE,
    EntryVerdict,
    Opened,
    Unusable,
    arrive,
    is_in_use,
    listed,
    nearest,
    open_entry,
    set_aside,
    share,
    write,
)
from entrypoints.cache.plan import short
from entrypoints.core.errors import EntrypointError
from entrypoints.core.folders import copy, make, make_private, remove, size
from entrypoints.core.records import CachePlan, Entry
from entrypoints.core.redact import is_secret

if TYPE_CHECKING:
    from threading import Thread

SUSPECT = "DRYDOCK_SUSPECT"
"""Names what the repeated start must not use, from the process to itself; nobody else sets it."""
SCHEMA = 1

_SECONDS = 5.0
"""That a server which ends waits for its caches to be kept."""
_SHOWN = 3
"""Factors that a miss names."""
_COMPILING = ("VLLM_", "TORCH", "TRITON_", "PYTORCH_", "PT_", "XLA_", "NEURON_", "CUDA_", "HIP_", "SYCL_")

Say = Callable[[str], None]


class Caches:
    """What one start uses of the caches. `private` is its own folder below TMPDIR."""

    def __init__(self, plan: CachePlan, private: str, env: Mapping[str, str], say: Say) -> None:
        self._plan = plan
        self._private = private
        self._env = env
        self._say = say
        self._told: list[str] = []
        self._moved: dict[str, str] = {}
        """Folders of the plan → where they are instead."""
        self._suspects = tuple(path for path in env.get(SUSPECT, "").split(":") if path)
        self.opened: tuple[Opened, ...] = ()
        self.was_ready = False
        self._keeping: Thread | None = None

    # --- before ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the entries, make all folders, say what was found. Raises HOST, USAGE."""
        plan = self._plan
        self._check_settings()
        if plan.why:
            make_private(self._private)
            self._told.append(self._elsewhere())
        self.opened = tuple(self._open(entry) for entry in plan.entries)
        self._carry()
        for folder in plan.folders.values():
            self._make(folder)
        for line in (*self._told, *self._outcome()):
            self._say(line)

    def _check_settings(self) -> None:
        """See that what the user set can be meant. Raises USAGE."""
        if self._env.get("DRYDOCK_CACHE_QUOTA"):
            from entrypoints.cache.quota import parse_quota

            parse_quota(self._env["DRYDOCK_CACHE_QUOTA"], 0)
        for source in self._plan.sources:
            if not os.path.isdir(source):
                self._told.append(f"WARN DRYDOCK_CACHE_FROM: {source}: no such folder")

    def _elsewhere(self) -> str:
        """Say where caches go instead of the volume, and what becomes of them."""
        goes = f"{self._plan.why}: caches go to {self._plan.work}"
        if self._plan.publish:
            return f"cache: {goes}, and back once ready"
        return f"WARN {goes} and are gone when the container ends"

    def _open(self, entry: Entry) -> Opened:
        """Open an entry in its place, or else a private one."""
        plan, path = self._plan, f"{self._plan.work}/{COMPILED}/{entry.name}"
        if path in self._suspects:
            return self._alone(entry, path, "the last start failed with it")
        sources = (*((plan.volume,) if plan.work != plan.volume else ()), *plan.sources)
        try:
            return open_entry(plan.work, entry, sources, self._told)
        except Unusable as why:
            return self._alone(entry, path, str(why))

    def _alone(self, entry: Entry, path: str, why: str) -> Opened:
        """Give this start a folder of its own instead of an entry."""
        make_private(self._private)
        folder = f"{self._private}/alone/{entry.name}.{os.getpid()}"
        make(folder)
        self._moved[path] = folder
        if path not in self._suspects:
            self._told.append(f"WARN {path}: {why}: this start compiles for itself, in {folder}")
        return Opened(entry, folder, -1, EntryVerdict(FILL, why), {})

    def _carry(self) -> None:
        """Take over from the nearest entry what holds for any plan, such as what vLLM found out about models."""
        for opened in self.opened:
            if opened.verdict.kind == FILL and opened.entry.carry and not self._suspects:
                self._carry_into(opened)

    def _carry_into(self, opened: Opened) -> None:
        image = self._plan.entries[0].factors
        same = (each for each in listed(self._plan.work) if image.items() <= each.kept.get("factors", {}).items())
        found = nearest(same, opened.entry)
        for folder in opened.entry.carry if found else ():
            _try_to(copy, f"{found[0].path}/{folder}" if found else "", f"{opened.path}/{folder}")

    def _make(self, folder: str) -> None:
        """Make one cache's folder; one that cannot be written is replaced by a private one."""
        try:
            make(self.place(folder))
        except EntrypointError as error:
            if folder.startswith(self._private):
                raise
            make_private(self._private)
            self._moved[folder] = f"{self._private}/{os.path.basename(folder)}"
            make(self._moved[folder])
            self._told.append(f"WARN {error.message}; {self._moved[folder]} is used, for this container only")

    def place(self, text: str) -> str:
        """Return a path, or a value that holds one, as it really is."""
        for planned, real in self._moved.items():
            text = text.replace(planned, real)
        return text

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the plan's variables with the folders as they really are."""
        placed = {name: self.place(value) if name in self._plan.folders else value for name, value in env.items()}
        placed.pop(SUSPECT, None)
        return placed

    def count(self) -> None:
        """Note in the entries that a start uses them, which is not ready yet."""
        for opened in self.opened:
            if opened.lock >= 0:
                now = int(time.time())
                fresh = {"schema": SCHEMA, "factors": opened.entry.factors, "made": now, "ready": 0, "attempts": 0}
                manifest = {**fresh, **opened.kept, "used": now}
                _try_to(write, opened.path, {**manifest, "attempts": manifest["attempts"] + 1})

    # --- what is said ----------------------------------------------------------------------------------------------

    def _outcome(self) -> tuple[str, ...]:
        """Say hit or miss, and which factor changed."""
        if not self.opened:
            return ()
        kernels, plan = self.opened
        found = "hit" if kernels.verdict.kind == HIT else "miss"
        if plan.verdict.kind == HIT:
            when = time.strftime("%Y-%m-%d", time.gmtime(plan.kept["ready"]))
            return (f"cache hit: compiled for this very plan, ready with it on {when}; kernels {found}",)
        return (f"cache miss: {plan.verdict.why or self._difference(plan.entry)}; kernels {found}",)

    def _difference(self, entry: Entry) -> str:
        found = nearest(listed(self._plan.volume), entry)
        if found is None:
            return "nothing is kept here yet"
        words = "; ".join(found[1][:_SHOWN]) + (f"; and {len(found[1]) - _SHOWN} more" if found[1][_SHOWN:] else "")
        return f"against {os.path.basename(found[0].path)}, {words}"

    @property
    def hit(self) -> bool:
        """Tell whether this very plan was ready before with what is used now."""
        return len(self.opened) > 1 and self.opened[1].verdict.kind == HIT

    # --- after -----------------------------------------------------------------------------------------------------

    def keep_behind(self) -> None:
        """Keep what is there in a thread of its own: an entry may have many files."""
        from threading import Thread

        self.was_ready = True
        self._keeping = Thread(target=self.keep, daemon=True)
        self._keeping.start()

    def keep(self) -> None:
        """Note that vLLM became ready with what is there, hand it on, and make room."""
        self._condemn()
        for opened in self.opened:
            if opened.lock >= 0:
                try:
                    self._keep(opened)
                except (OSError, EntrypointError) as error:
                    self._say(f"WARN {opened.path} was not kept: {getattr(error, 'strerror', '') or error}")
        from entrypoints.cache.quota import make_room

        make_room(self._plan.volume, self._env, self._say)

    def _keep(self, opened: Opened) -> None:
        count, taken = size(opened.path)
        environment = fingerprint(self._env)
        now = int(time.time())
        manifest = {"schema": SCHEMA, "factors": opened.entry.factors, "made": now, **opened.kept}
        manifest |= {"ready": now, "used": now, "attempts": 0, "files": count, "bytes": taken}
        write(opened.path, {**manifest, "environment": environment})
        share(opened.lock)
        self._tell_growth(opened, count, environment)
        if self._plan.publish:
            self._publish(opened)

    def _tell_growth(self, opened: Opened, count: int, environment: Mapping[str, str]) -> None:
        """Say what was compiled although it was a hit, and which variables differ from when it was filled."""
        more = count - opened.kept.get("files", count)
        if opened.verdict.kind != HIT or more <= 0 or "model" not in opened.entry.factors:
            return
        before = opened.kept.get("environment", {})
        names = sorted(name for name in {**before, **environment} if before.get(name) != environment.get(name))
        since = f"; different since it was filled: {', '.join(names)}" if names else ""
        self._say(f"cache hit was partial: {more} files were added{since}")

    def _publish(self, opened: Opened) -> None:
        """Copy an entry to the volume, where it appears whole; one that another server handed on first stays."""
        path = f"{self._plan.volume}/{COMPILED}/{opened.entry.name}"
        if not os.path.exists(path):
            taken = arrive(opened.path, path)
            self._say(f"cache: {taken / 1e6:.1f} MB handed on to {path}")

    # --- when it failed --------------------------------------------------------------------------------------------

    def suspects(self) -> str:
        """Name what a repeated start must do without; empty when the caches cannot be to blame."""
        if self._suspects or self.was_ready or not self.hit:
            return ""
        return ":".join(opened.path for opened in self.opened if opened.verdict.kind == HIT)

    def _condemn(self) -> None:
        """Set aside what the last start failed with, since this one became ready without; `repeated` said so."""
        for path in self._suspects:
            left = _condemned(path)
            if left:
                self._say(f"WARN {path}: vLLM fails with it and not without; not set aside: {left}")

    def hold(self) -> None:
        """Let the locks pass to the program that this process becomes."""
        for opened in self.opened:
            if opened.lock >= 0:
                os.set_inheritable(opened.lock, True)

    def close(self, *, patient: bool) -> None:
        """Let keeping end, at once or in its own time, and remove what was for this start only."""
        if self._keeping:
            self._keeping.join(None if patient else _SECONDS)
        for opened in self.opened:
            if opened.path.startswith(f"{self._private}/alone/"):
                remove(opened.path)


def _try_to(do: Callable[..., Any], *what: Any) -> None:
    """Do what a start can do without: what was not copied is found out anew, and a full volume speaks for itself."""
    try:
        do(*what)
    except OSError:
        return


def repeated(failure: str, suspects: str) -> str:
    """Return the one line that says why a start is repeated, without what, and what becomes of that. Pure."""
    paths = suspects.split(":")
    names, compiled = " and ".join(os.path.basename(path) for path in paths), os.path.dirname(paths[0])
    aside = f"{os.path.dirname(compiled)}/{QUARANTINE}"
    begin = f"WARN {failure}, with caches that it was ready with before: starting once more without them"
    return f"{begin}; if that becomes ready, {names} of {compiled} are set aside in {aside}"


def _condemned(path: str) -> str:
    """Set an entry aside; return why that was not possible, or nothing."""
    if is_in_use(path):
        return "another server uses it"
    try:
        set_aside(path)
    except Unusable as why:
        return str(why)
    return ""


def fingerprint(env: Mapping[str, str]) -> dict[str, str]:
    """Return what a compiler's own key may take in, by name, each value as a digest; no secret. Pure."""
    return {
        name: short(value) for name, value in sorted(env.items()) if name.startswith(_COMPILING) and not is_secret(name)
    }
