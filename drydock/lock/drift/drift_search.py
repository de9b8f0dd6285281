"""Compares locks with what an `Upstream` has today. All IO goes through it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from packaging.version import Version

from drydock.core.console import log
from drydock.core.errors import DriftError, DrydockError, GoneError, NotAskedError
from drydock.core.project import Project
from drydock.inputs.uv import Environment, ResolveRequest
from drydock.inputs.wheels import find_image_environment, select_named_indexes
from drydock.lock import lockfile
from drydock.lock.drift.ask import Offer, Upstream
from drydock.lock.drift.drift_record import Drift, DriftedPin, NotAsked
from drydock.lock.pin import BOOTSTRAP
from drydock.model.bases import DebianBase, ImageBase
from drydock.model.locked import LockedDeb, LockedPlatform, LockedSource, LockedWheel
from drydock.model.variant import SourceCode, Variant

T = TypeVar("T")
UNPINNED = "not pinned before"
COMMIT = re.compile(r"[0-9a-f]{40}")
Pins = Mapping[str, tuple[str, str]]
"""Name → version and sha256."""


def raise_if_found(drift: Drift) -> None:
    """Raise DriftError if something drifted, else NotAskedError if a source could not be reached."""
    if drift.drifted:
        commands = dict.fromkeys(change.command for change in drift.drifted)
        raise DriftError(f"{len(drift.drifted)} pins have drifted", hint="; ".join(commands))
    if drift.not_asked:
        raise NotAskedError(
            f"no drift found, but {len(drift.not_asked)} sources could not be reached",
            hint="see above for each; run it again where they can be reached",
        )


def find_drift(project: Project, variants: Iterable[Variant], upstream: Upstream) -> Drift:
    """Compare each variant's lock with what is upstream today. Raises StaleError for a stale lock."""
    notes = Notes()
    for variant in variants:
        pins = lockfile.read_lock(lockfile.path_of_lock(project, variant.id))
        lockfile.check_lock_inputs(variant, pins)
        for platform in variant.platforms:
            log(f"{variant.id}: looking up the newest versions for {platform}")
            _Platform(variant, platform, pins.platforms[platform], upstream, notes).compare_all()
    return Drift(
        drifted=tuple(notes.drifted), beyond=tuple(notes.beyond), not_asked=tuple(notes.not_asked), asked=notes.asked
    )


class Notes:
    """What was found so far."""

    def __init__(self) -> None:
        self.drifted: list[DriftedPin] = []
        self.beyond: list[DriftedPin] = []
        self.not_asked: list[NotAsked] = []
        self.asked = 0


class _Platform:
    """Compares one platform of one variant."""

    def __init__(self, variant: Variant, platform: str, pins: LockedPlatform, upstream: Upstream, notes: Notes) -> None:
        self.variant, self.platform, self.pins, self.upstream, self.notes = variant, platform, pins, upstream, notes

    def compare_all(self) -> None:
        """Look up everything that is pinned, and everything that could not be pinned."""
        self._wheels()
        self._base()
        for source in self.variant.sources:
            self._source(source)

    # --- wheels -----------------------------------------------------------------------------------------------------

    def _wheels(self) -> None:
        variant = self.variant
        request = ResolveRequest(
            variant.requirements,
            tuple(override.requirement for override in variant.overrides),
            tuple(exclusion.name for exclusion in variant.exclude),
            public=variant.indexes,
        )
        locked = tuple(wheel for wheels in self.pins.layers.values() for wheel in wheels)
        build_indexes = select_named_indexes(variant.indexes, variant.build_requirements)
        if "wheels" in self.pins.unresolved:
            self._unpinned(request)
            return
        for kind, kind_request, wheels in (
            ("wheel", request, locked),
            ("build", ResolveRequest(variant.build_requirements, public=build_indexes), self.pins.build),
        ):
            if kind_request.requirements:
                self._distributions(kind, kind_request, wheels)

    def _unpinned(self, request: ResolveRequest) -> None:
        """Note wheels that could not be pinned before and can be now."""
        offers = self._ask("wheels within the stack's bounds", lambda: self.upstream.allowed(request, self._target))
        if offers:
            self._note("wheel", "all of them", None, f"{len(offers)} distributions", UNPINNED)

    @property
    def _target(self) -> Environment:
        return find_image_environment(self.variant.python, self.platform, self.variant.base)

    def _distributions(self, kind: str, request: ResolveRequest, wheels: tuple[LockedWheel, ...]) -> None:
        target = self._target
        old = {wheel.name: (wheel.version, wheel.sha256) for wheel in wheels}
        allowed = self._ask(f"{kind}s within the stack's bounds", lambda: self.upstream.allowed(request, target))
        if allowed is not None:
            self._compare(kind, old, {name: (o.version, o.sha256) for name, o in allowed.items()}, allowed)
        names = tuple(sorted(old))
        newest = self._ask(f"the newest {kind}s", lambda: self.upstream.newest(names, target)) if names else None
        if newest is not None:
            self._newer(kind, {**old, **{n: (o.version, o.sha256) for n, o in (allowed or {}).items()}}, newest)

    def _newer(self, kind: str, current: Pins, newest: Mapping[str, Offer]) -> None:
        """Note what is newer than the bounds allow."""
        for name, offer in sorted(newest.items()):
            if name in current and Version(offer.version) > Version(current[name][0]):
                self._beyond(kind, name, current[name][0], offer)

    def _beyond(self, kind: str, name: str, old: str, offer: Offer) -> None:
        command = (
            f"raise the bound in {self._stack} (what another distribution bounds needs an override), "
            f"then {self._relock}"
        )
        change = self._change(kind, name, old, offer.version)
        self.notes.beyond.append(change.model_copy(update={"origin": offer.origin, "command": command}))

    # --- base -------------------------------------------------------------------------------------------------------

    def _base(self) -> None:
        base = self.variant.base
        if isinstance(base, DebianBase):
            self._debs("deb", base.suite, base.packages, getattr(self.pins.base, "packages", ()))
            self._debs("bootstrap", base.suite, BOOTSTRAP, getattr(self.pins.base, "bootstrap", ()))
        else:
            self._image(base)

    def _debs(self, kind: str, suite: str, packages: tuple[str, ...], locked: tuple[LockedDeb, ...]) -> None:
        suite_name = f"Debian's {suite}"
        upstream_debs = self._ask(suite_name, lambda: self.upstream.debs(suite, packages, self.platform))
        if upstream_debs is not None:
            self._compare(kind, _debs_of(locked), _debs_of(upstream_debs), {})

    def _image(self, base: ImageBase) -> None:
        old = self.pins.base.digest
        if base.adopted and not base.tag:
            self._unasked(base.reference, "the stack names a digest, and no tag to follow")
            return
        adopt = f"./inv adopt {base.reference} --row {self.variant.id} --to REGISTRY/NAME" if base.adopted else ""
        try:
            tag = self._ask(base.reference, lambda: self.upstream.tag(base.reference, self.platform))
        except GoneError as error:
            self._note(
                "base", base.reference, old, None, find_innermost_cause(error), f"name another base in {self._stack}"
            )
            return
        if tag is not None and tag.digest != old:
            detail = self._prefix(base, old, tag.layers) if old else UNPINNED
            self._note("base", base.reference, old, tag.digest, detail, adopt)

    def _prefix(self, base: ImageBase, old: str | None, layers: tuple[str, ...]) -> str:
        """Return how many of the first layers are still the same; if all are, layers were only added."""
        bare = f"{base.reference.partition('@')[0]}@{old}"
        try:
            before = self.upstream.tag(bare, self.platform).layers
        except DrydockError as error:
            return f"the locked image cannot be looked up: {error.problems[0]}"
        same = next((n for n, pair in enumerate(zip(before, layers, strict=False)) if len(set(pair)) > 1), None)
        count = min(len(before), len(layers)) if same is None else same
        return f"the first {count} of {len(before)} layers are the same"

    # --- sources ----------------------------------------------------------------------------------------------------

    def _source(self, source: SourceCode) -> None:
        locked = next((item for item in self.pins.sources if item.name == source.name), None)
        if source.sdist:
            self._sdist(source, locked)
        elif source.url:
            self._unasked(source.name, "the stack names one archive, and nothing to follow")
        elif source.ref and not COMMIT.fullmatch(source.ref):
            self._ref(source, locked.commit if locked else None)
        else:
            self._unasked(source.name, "the stack names a commit, and no tag or branch to follow")

    def _ref(self, source: SourceCode, old: str | None) -> None:
        correct = f"find out why, correct the commit of {source.name} in {self._stack}, then {self._relock}"
        command = correct if source.commit else ""
        try:
            commit = self._ask(f"{source.name} {source.ref}", lambda: self.upstream.commit(source))
        except GoneError as error:
            self._note("source", source.name, old, None, find_innermost_cause(error), command)
            return
        if commit is not None and commit != old:
            self._note("source", source.name, old, commit, f"{source.ref} has moved" if old else UNPINNED, command)

    def _sdist(self, source: SourceCode, locked: LockedSource | None) -> None:
        name, _, version = source.sdist.partition("==")
        offers = self._ask(f"{name}, its source", lambda: self.upstream.newest((name,), self._target, sdist=True))
        if offers is not None and locked is None:
            self._note("sdist", name, None, version)
        offer = next(iter((offers or {}).values()), None)
        if offer and Version(offer.version) > Version(version):
            self._beyond("sdist", name, version, offer)

    # --- notes ------------------------------------------------------------------------------------------------------

    @property
    def _stack(self) -> str:
        return f"templates/{self.variant.accelerator}/stacks/{self.variant.stack}.yaml or what it inherits"

    @property
    def _relock(self) -> str:
        return f"./inv lock --target {self.variant.id}"

    def _ask(self, source: str, ask: Callable[[], T]) -> T | None:
        """Return the answer, or None if there is none, after noting the reason.

        Raises GoneError, which is an answer too: the reference no longer exists.
        """
        try:
            answer = ask()
        except GoneError:
            self.notes.asked += 1
            raise
        except DrydockError as error:
            self._unasked(source, find_innermost_cause(error))
            return None
        self.notes.asked += 1
        return answer

    def _unasked(self, source: str, why: str) -> None:
        self.notes.not_asked.append(NotAsked(variant=self.variant.id, platform=self.platform, source=source, why=why))

    def _compare(self, kind: str, old: Pins, new: Pins, offers: Mapping[str, Offer]) -> None:
        for name in sorted(old.keys() | new.keys()):
            before, now = old.get(name), new.get(name)
            if before == now:
                continue
            same_version = before and now and before[0] == now[0]
            change = self._change(kind, name, before and before[0], now and now[0])
            update = {"origin": offers[name].origin if name in offers else ""}
            update |= {"detail": "different file"} if same_version else {}
            self.notes.drifted.append(change.model_copy(update=update))

    def _note(
        self, kind: str, name: str, old: str | None, new: str | None, detail: str = "", command: str = ""
    ) -> None:
        change = self._change(kind, name, old, new)
        update = {"detail": detail, "command": command or (self._relock if detail == UNPINNED else change.command)}
        self.notes.drifted.append(change.model_copy(update=update))

    def _change(self, kind: str, name: str, old: str | None, new: str | None) -> DriftedPin:
        return DriftedPin(
            variant=self.variant.id,
            platform=self.platform,
            kind=kind,
            name=name,
            old=old,
            new=new,
            command=f"{self._relock} --upgrade",
        )


def find_innermost_cause(error: DrydockError) -> str:
    """Return in one line why there was no answer: the innermost cause that a tool reports."""
    lines = [line.strip() for line in "\n".join(error.problems).splitlines() if line.strip()]
    causes = [line.removeprefix("cause: ") for line in lines if line.startswith("cause: ")]
    return " ".join((causes[-1] if causes else lines[0] if lines else type(error).__name__).split())[:300]


def _debs_of(debs: Iterable[LockedDeb]) -> dict[str, tuple[str, str]]:
    return {f"{deb.name}:{deb.architecture}": (deb.version, deb.sha256) for deb in debs}
