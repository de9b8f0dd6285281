"""The compile caches during one start: opened before vLLM, kept once it is ready, quarantined if they broke it. IO.

A cache can contain files that make vLLM exit or answer wrongly. If a start fails with entries that an earlier start
became ready with, it is repeated once without them. If the repeated start becomes ready, the entries were the cause and
are quarantined. If not, they stay.
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
    copy_into_place,
    find_nearest_entry,
    is_in_use,
    list_entries,
    open_entry,
    quarantine_entry,
    share_lock,
    write_entry_manifest,
)
from entrypoints.cache.plan import make_download_plan, make_hub_environment
from entrypoints.cache.trust import (
    choose_umask,
    find_other_owner,
    find_replacer,
    find_writer,
    is_shared,
    protect_folder,
)
from entrypoints.checks.findings import format_findings_log, make_finding, make_notice
from entrypoints.core.errors import EntrypointError
from entrypoints.core.folders import (
    compute_short_digest,
    copy_folder,
    locate_private_root,
    make_folder,
    make_private_folder,
    measure_folder,
    remove_folder,
)
from entrypoints.core.records import CachePlan, Entry, Facts
from entrypoints.core.redact import is_secret
from entrypoints.core.text import print_message

if TYPE_CHECKING:
    from threading import Thread

SUSPECT = "DRYDOCK_SUSPECT"
"""The entries that a repeated start must not use. Only this process sets it, for itself."""
SCHEMA = 1

_SECONDS = 5.0
"""How long a server that stops waits until its caches are kept."""
_SHOWN = 3
"""How many factors the line about a miss names."""

Say = Callable[[str], None]


class Caches:
    """What one start uses of the caches.

    `private` is its own folder below TMPDIR. The profile has the texts of findings, and the prefixes of variables that
    can enter a compiler's own cache key.
    """

    def __init__(
        self, plan: CachePlan, private: str, env: Mapping[str, str], say: Say, profile: Mapping[str, Any]
    ) -> None:
        self._plan = plan
        self._compiling = tuple(profile["variables"]["compiling"])
        self._findings, self._words = profile["findings"], profile.get("words") or {}
        self._others: list[str] | None = None if is_shared(env) else []
        """Who could have written what is not used; None if everyone who can write to the volume is trusted."""
        self._private = private
        self._env = env
        self._say = say
        self._lines: list[str] = []
        self._moved: dict[str, str] = {}
        """Folders of the plan → the folders that replace them."""
        self._suspects = tuple(path for path in env.get(SUSPECT, "").split(":") if path)
        self.opened: tuple[Opened, ...] = ()
        self.was_ready = False
        self._keeping: Thread | None = None

    # --- before ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the entries, make all folders, and log hit or miss. Raises HOST, USAGE."""
        self._check_settings()
        if self._plan.why:
            make_private_folder(self._private)
            self._lines.append(self._replacement())
        if self._others is not None and self._plan.volume:
            self._check_volume(self._others)
        plan = self._plan
        self.opened = tuple(self._open(entry) for entry in plan.entries)
        self._carry()
        for folder in plan.folders.values():
            self._make(folder)
        for line in (*self._lines, *self._outcome()):
            self._say(line)
        if self._others:
            expected = f"files that only uid {os.getuid()} and root can write"
            unused = make_notice("PLAN-062", "; ".join(dict.fromkeys(self._others)), expected)
            self._say(format_findings_log((make_finding(self._findings, unused, words=self._words),), self._words))

    def _check_volume(self, writers: list[str]) -> None:
        """Use private folders instead of the volume, or of its entries, if another user can replace what is there."""
        volume = self._plan.volume
        for folder, judge in ((volume, find_other_owner), (f"{volume}/{COMPILED}", find_replacer)):
            protect_folder(folder)
            if who := judge(folder):
                instead = f"{self._private}{folder.removeprefix(volume)}"
                writers.append(who)
                make_private_folder(self._private)
                self._moved[folder] = instead
                self._plan = self._plan._replace(work=self._private, publish=False)
                self._lines.append(f"cache: {folder} is not used: {who}; {instead} is used, for this container only")
                if folder == volume:
                    self._plan = self._plan._replace(volume=self._private)
                    return

    def _check_settings(self) -> None:
        """Check the user's settings of the cache. Raises USAGE."""
        if self._env.get("DRYDOCK_CACHE_QUOTA"):
            from entrypoints.cache.quota import parse_quota

            parse_quota(self._env["DRYDOCK_CACHE_QUOTA"], 0)
        for source in self._plan.sources:
            if not os.path.isdir(source):
                self._lines.append(f"WARN DRYDOCK_CACHE_FROM: {source}: no such folder")

    def _replacement(self) -> str:
        """Return the line on which folder replaces the volume, and how long it lasts."""
        instead = f"{self._plan.why}: using {self._plan.work} instead"
        if self._plan.publish:
            return f"cache: {instead}; compiled code is copied back once ready"
        return f"WARN {instead}; its contents are lost when the container ends"

    def _open(self, entry: Entry) -> Opened:
        """Open an entry, or a private folder if the entry cannot be used."""
        plan, path = self._plan, f"{self._plan.work}/{COMPILED}/{entry.name}"
        if path in self._suspects:
            return self._open_private(entry, path, "the last start failed with it")
        sources = (*((plan.volume,) if plan.work != plan.volume else ()), *plan.sources)
        try:
            return open_entry(plan.work, entry, sources, self._lines, self._others)
        except Unusable as why:
            return self._open_private(entry, path, str(why))

    def _open_private(self, entry: Entry, path: str, why: str) -> Opened:
        """Replace an entry by a private folder for this start."""
        make_private_folder(self._private)
        folder = f"{self._private}/alone/{entry.name}.{os.getpid()}"
        make_folder(folder)
        self._moved[path] = folder
        if path not in self._suspects:
            kind = "cache:" if why in (self._others or ()) else "WARN"
            self._lines.append(f"{kind} {path}: {why}: this start compiles for itself, in {folder}")
        return Opened(entry, folder, -1, EntryVerdict(FILL, why), {})

    def _carry(self) -> None:
        """Copy folders that are valid for any plan from the nearest entry, such as vLLM's model inspection."""
        for opened in self.opened:
            if opened.verdict.kind == FILL and opened.entry.carry and not self._suspects:
                self._carry_into(opened)

    def _carry_into(self, opened: Opened) -> None:
        image = self._plan.entries[0].factors
        image_entries = (
            entry
            for entry in list_entries(self._plan.work)
            if image.items() <= entry.manifest.get("factors", {}).items()
        )
        nearest_entry = find_nearest_entry(image_entries, opened.entry)
        if nearest_entry and self._others is not None and find_writer(nearest_entry[0].path):
            return
        for folder in opened.entry.carry if nearest_entry else ():
            _try_to(
                copy_folder, f"{nearest_entry[0].path}/{folder}" if nearest_entry else "", f"{opened.path}/{folder}"
            )

    def _make(self, folder: str) -> None:
        """Make one cache's folder; if it cannot be written, or another user could have, use another one instead."""
        if folder.startswith(f"{self._plan.volume}/") and not folder.startswith(f"{self._plan.volume}/{COMPILED}/"):
            self._check_downloads(folder)
        try:
            make_folder(self.place(folder))
        except EntrypointError as error:
            if folder.startswith(self._private):
                raise
            make_private_folder(self._private)
            self._moved[folder] = f"{self._private}/{os.path.basename(folder)}"
            make_folder(self._moved[folder])
            self._lines.append(f"WARN {error.message}; {self._moved[folder]} is used, for this container only")

    def _check_downloads(self, folder: str) -> None:
        """Use a folder of this user's own next to one that other users could have written to."""
        if self._others is not None and (who := find_writer(folder)):
            self._others.append(who)
            self._moved[folder] = f"{folder}.{os.getuid()}"
            self._lines.append(f"cache: {folder} is not used: {who}; {self._moved[folder]} is used")
            if find_writer(self._moved[folder]):
                make_private_folder(self._private)
                self._moved[folder] = f"{self._private}/{os.path.basename(folder)}"

    def place(self, text: str) -> str:
        """Return a path, or a value that contains one, with planned folders replaced by the real ones."""
        for planned, real in self._moved.items():
            text = text.replace(planned, real)
        return text

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the plan's variables with the real folders."""
        placed = {name: self.place(value) if name in self._plan.folders else value for name, value in env.items()}
        placed.pop(SUSPECT, None)
        return placed

    def count(self) -> None:
        """Count in each entry a start that is not ready yet."""
        for opened in self.opened:
            if opened.lock >= 0:
                now = int(time.time())
                fresh = {"schema": SCHEMA, "factors": opened.entry.factors, "made": now, "ready": 0, "attempts": 0}
                manifest = {**fresh, **opened.manifest, "used": now}
                _try_to(write_entry_manifest, opened.path, {**manifest, "attempts": manifest["attempts"] + 1})

    # --- hit or miss -----------------------------------------------------------------------------------------------

    def _outcome(self) -> tuple[str, ...]:
        """Return the line on hit or miss, and which factor changed."""
        if not self.opened:
            return ()
        kernels, plan = self.opened
        kernel_state = "hit" if kernels.verdict.kind == HIT else "miss"
        if plan.verdict.kind == HIT:
            when = time.strftime("%Y-%m-%d", time.gmtime(plan.manifest["ready"]))
            return (f"cache hit: compiled for this plan, last ready on {when}; kernels {kernel_state}",)
        return (f"cache miss: {plan.verdict.why or self._difference(plan.entry)}; kernels {kernel_state}",)

    def _difference(self, entry: Entry) -> str:
        nearest_entry = find_nearest_entry(list_entries(self._plan.volume), entry)
        if nearest_entry is None or not nearest_entry[1]:  # the same entry, which is not used
            return "no ready entry yet"
        words = "; ".join(nearest_entry[1][:_SHOWN]) + (
            f"; and {len(nearest_entry[1]) - _SHOWN} more" if nearest_entry[1][_SHOWN:] else ""
        )
        return f"compared with {os.path.basename(nearest_entry[0].path)}: {words}"

    @property
    def hit(self) -> bool:
        """Tell whether an earlier start of this plan became ready with the entries in use."""
        return len(self.opened) > 1 and self.opened[1].verdict.kind == HIT

    # --- after -----------------------------------------------------------------------------------------------------

    def keep_behind(self) -> None:
        """Keep the entries, in a separate thread because an entry can have many files."""
        from threading import Thread

        self.was_ready = True
        self._keeping = Thread(target=self.keep, daemon=True)
        self._keeping.start()

    def keep(self) -> None:
        """Mark the entries as ready, copy them to the volume, and remove old ones."""
        self._quarantine_suspects()
        for opened in self.opened:
            if opened.lock >= 0:
                try:
                    self._keep(opened)
                except (OSError, EntrypointError) as error:
                    self._say(f"WARN {opened.path} was not kept: {getattr(error, 'strerror', '') or error}")
        from entrypoints.cache.quota import make_room

        make_room(self._plan.volume, self._env, self._say)

    def _keep(self, opened: Opened) -> None:
        count, byte_count = measure_folder(opened.path)
        environment = hash_variables(self._env, self._compiling)
        now = int(time.time())
        manifest = {"schema": SCHEMA, "factors": opened.entry.factors, "made": now, **opened.manifest}
        manifest |= {"ready": now, "used": now, "attempts": 0, "files": count, "bytes": byte_count}
        write_entry_manifest(opened.path, {**manifest, "environment": environment})
        share_lock(opened.lock)
        self._log_growth(opened, count, environment)
        if self._plan.publish:
            self._publish(opened)

    def _log_growth(self, opened: Opened, count: int, environment: Mapping[str, str]) -> None:
        """Log how many files were compiled despite a hit, and which variables changed since the entry was filled."""
        more = count - opened.manifest.get("files", count)
        if opened.verdict.kind != HIT or more <= 0 or "model" not in opened.entry.factors:
            return
        before = opened.manifest.get("environment", {})
        names = sorted(name for name in {**before, **environment} if before.get(name) != environment.get(name))
        since = f"; changed since it was filled: {', '.join(names)}" if names else ""
        self._say(f"partial cache hit: {more} files were added{since}")

    def _publish(self, opened: Opened) -> None:
        """Copy an entry to the volume, unless another server did so already."""
        path = f"{self._plan.volume}/{COMPILED}/{opened.entry.name}"
        if not os.path.exists(path):
            byte_count = copy_into_place(opened.path, path)
            self._say(f"cache: copied {byte_count / 1e6:.1f} MB to {path}")

    # --- when it failed --------------------------------------------------------------------------------------------

    def suspects(self) -> str:
        """Return the entries that a repeated start must not use; empty if they cannot be the cause."""
        if self._suspects or self.was_ready or not self.hit:
            return ""
        return ":".join(opened.path for opened in self.opened if opened.verdict.kind == HIT)

    def _quarantine_suspects(self) -> None:
        """Quarantine the entries that the last start failed with, because this one became ready without them."""
        for path in self._suspects:
            problem = _try_quarantine(path)
            if problem:
                self._say(f"WARN {path}: vLLM fails with it and not without it; it cannot be quarantined: {problem}")

    def hold(self) -> None:
        """Make the locks inheritable, for the program that replaces this process."""
        for opened in self.opened:
            if opened.lock >= 0:
                os.set_inheritable(opened.lock, True)

    def close(self, *, patient: bool) -> None:
        """Wait until the entries are kept (`patient`: without time limit), and remove this start's private folders."""
        if self._keeping:
            self._keeping.join(None if patient else _SECONDS)
        for opened in self.opened:
            if opened.path.startswith(f"{self._private}/alone/"):
                remove_folder(opened.path)


def open_download_folders(profile: Mapping[str, Any], env: Mapping[str, str], facts: Facts) -> dict[str, str]:
    """Return the environment of a program without a plan, with folders of downloads that only this user can write.

    Makes them. Raises HOST.
    """
    hub = make_hub_environment(profile, env, facts)
    if "cache" not in facts.mounts:
        return hub
    os.umask(choose_umask(env))
    uid = facts.user[0]
    planned = make_download_plan(profile, env, facts.mounts, uid)
    unset = {name: folder for name, folder in planned.folders.items() if name not in env}
    caches = Caches(planned._replace(folders=unset), locate_private_root(env, uid), env, print_message, profile)
    caches.open()
    return caches.environment(hub)


def _try_to(do: Callable[..., Any], *what: Any) -> None:
    """Do something optional and ignore errors: a start can go on without it."""
    try:
        do(*what)
    except OSError:
        return


def explain_repeat(failure: str, suspects: str) -> str:
    """Return the line on why a start is repeated, without which entries, and what happens to them. Pure."""
    paths = suspects.split(":")
    names, compiled = " and ".join(os.path.basename(path) for path in paths), os.path.dirname(paths[0])
    aside = f"{os.path.dirname(compiled)}/{QUARANTINE}"
    begin = f"WARN {failure}; an earlier start became ready with these caches: starting again without them"
    return f"{begin}; if this start becomes ready, {names} of {compiled} are moved to {aside}"


def _try_quarantine(path: str) -> str:
    """Quarantine an entry; return the reason if that is impossible, else nothing."""
    if is_in_use(path):
        return "another server uses it"
    try:
        quarantine_entry(path)
    except Unusable as why:
        return str(why)
    return ""


def hash_variables(env: Mapping[str, str], compiling: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that can enter a compiler's cache key, with digests of their values; no secrets. Pure."""
    return {
        name: compute_short_digest(value)
        for name, value in sorted(env.items())
        if name.startswith(compiling) and not is_secret(name)
    }
