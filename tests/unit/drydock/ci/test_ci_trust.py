"""What separates the jobs of pull requests from those of releases, read from the committed workflows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from drydock.ci import workflow
from drydock.core.paths import ROOT

PROTECTED = {"github": "github.ref_protected", "gitlab": '$CI_COMMIT_REF_PROTECTED == "true"'}
"""What each condition of a job with rights begins with."""
REQUEST = {
    "github": "github.event_name == 'pull_request'",
    "gitlab": '$CI_PIPELINE_SOURCE == "merge_request_event"',
}
"""What each condition of a pull request's job begins with."""
HELD = {"release": "release", "release-files": "release", "drift": "locks", "recipes": "locks", "first-locks": "locks"}
ENVIRONMENTS = {"github": HELD | {"pages": "github-pages"}, "gitlab": HELD}
"""Job that holds a credential → its protected environment."""


class CiJob(NamedTuple):
    """What decides which code a job runs, where, and with which rights."""

    conditions: tuple[str, ...]
    """Each alternative under which it runs."""
    runner: str
    cache: str
    environment: str
    needs: tuple[str, ...]
    text: str
    """Everything about the job, as JSON."""


def jobs(form: str) -> dict[str, CiJob]:
    """Return every job of a committed workflow."""
    data: dict[Any, Any] = yaml.safe_load((ROOT / workflow.PATHS[form]).read_text())
    if form == "github":
        parsed = {name: of_github(job) for name, job in data["jobs"].items()}
    else:
        parsed = {name: of_gitlab(job) for name, job in data.items() if isinstance(job, dict) and "script" in job}
    assert parsed
    return parsed


def of_github(job: Mapping[str, Any]) -> CiJob:
    needs, environment = job.get("needs", []), job.get("environment", "")
    cache = job["env"]["DRYDOCK_CACHE"]
    return CiJob((job["if"],), job["runs-on"], cache, environment, tuple(needs), json.dumps(job))


def of_gitlab(job: Mapping[str, Any]) -> CiJob:
    conditions = tuple(rule["if"] for rule in job["rules"])
    (runner,) = job["tags"]
    environment = job.get("environment", {}).get("name", "")
    return CiJob(conditions, runner, job["variables"]["DRYDOCK_CACHE"], environment, (), json.dumps(job))


def of_requests(form: str) -> dict[str, CiJob]:
    """Return the jobs that run for a pull request; each other job must be unreachable for one."""
    begins = REQUEST[form]
    matches = {name: job for name, job in jobs(form).items() if all(text.startswith(begins) for text in job.conditions)}
    assert set(matches) >= {"test", "build"}
    return matches


def of_releases(form: str) -> dict[str, CiJob]:
    release_jobs = {name: job for name, job in jobs(form).items() if name not in of_requests(form)}
    assert set(release_jobs) >= {"release-test", "release", "release-files", "drift"}
    return release_jobs


def labels(form: str, job: CiJob) -> set[str]:
    """Return what names the machines of a job: its tag, or the variables with its label."""
    return set(re.findall(r"vars\.\w+", job.runner)) if form == "github" else {job.runner.replace("$ARCH", "amd64")}


@pytest.mark.parametrize("form", workflow.PATHS)
def test_no_runner_serves_both_pull_requests_and_releases(form: str) -> None:
    requests = {label for job in of_requests(form).values() for label in labels(form, job)}
    releases = {label for job in of_releases(form).values() for label in labels(form, job)}
    assert requests
    assert releases
    assert not requests & releases
    assert all("release" in label.lower() for label in releases)


@pytest.mark.parametrize("form", workflow.PATHS)
def test_no_cache_of_a_release_is_one_that_a_pull_request_writes(form: str) -> None:
    requests = {job.cache for job in of_requests(form).values()}
    releases = {job.cache for job in of_releases(form).values()}
    assert len(requests) == len(releases) == 1
    assert not requests & releases
    folders = [re.findall(r"'([^']+)'", cache) or [cache] for cache in (*requests, *releases)]
    assert len({folder[0] for folder in folders}) == 2, "the defaults differ too"
    for job in of_releases(form).values():
        assert "cache@" not in job.text
        assert "actions/cache" not in job.text
        assert '"cache"' not in job.text


KEPT = {"github": {".venv", "~/.cache/pip"}, "gitlab": {".venv", ".cache/pip"}}
"""What jobs of pull requests keep: what `inv` makes of requirements.txt, never inputs of an image."""


def cached(form: str, name: str) -> list[tuple[str, set[str]]]:
    """Return the key and the paths of each cache of a job, in a committed workflow."""
    data: dict[Any, Any] = yaml.safe_load((ROOT / workflow.PATHS[form]).read_text())
    if form == "github":
        steps = [step["with"] for step in data["jobs"][name]["steps"] if "actions/cache" in step.get("uses", "")]
        return [(step["key"], set(step["path"].split())) for step in steps]
    cache = data[name].get("cache")
    return [(f"{cache['key']['prefix']} {cache['key']['files']}", set(cache["paths"]))] if cache else []


@pytest.mark.parametrize("form", workflow.PATHS)
def test_jobs_of_requests_keep_only_the_environment_by_the_hash_of_its_requirements(form: str) -> None:
    caches = {name: cached(form, name) for name in of_requests(form)}
    assert caches["test"]
    assert caches["changes"]
    for key, paths in (entry for entries in caches.values() for entry in entries):
        assert "requirements.txt" in key
        assert re.match("(pull|merge)-request", key)
        assert paths == KEPT[form]


@pytest.mark.parametrize("form", workflow.PATHS)
def test_credentials_are_in_protected_environments_only(form: str) -> None:
    for name, job in jobs(form).items():
        assert job.environment == ENVIRONMENTS[form].get(name, "")
        holds = re.search(
            r"secrets\.|id-token|id_tokens|: \"write\"|DRYDOCK_PUSH_TOKEN|ci publish|ci propose|release files",
            job.text,
        )
        assert bool(holds) == (name in ENVIRONMENTS[form])
    text = (ROOT / workflow.PATHS[form]).read_text()
    assert "pull_request_target" not in text
    assert "workflow_run" not in text


TAG = {
    "github": "github.ref_protected && github.event_name == 'push' && startsWith(github.ref, 'refs/tags/v')"
    " && !contains(github.ref, '-')",
    "gitlab": '$CI_COMMIT_REF_PROTECTED == "true" && $CI_COMMIT_TAG =~ /^v\\d+\\.\\d+\\.\\d+$/'
    ' && $CI_PIPELINE_SOURCE == "push"',
}


@pytest.mark.parametrize("form", workflow.PATHS)
def test_files_of_a_release_are_made_when_its_protected_tag_is_pushed_and_never_else(form: str) -> None:
    assert jobs(form)["release-files"].conditions == (TAG[form],)
    makers = {name for name, job in jobs(form).items() if "release files" in job.text}
    assert makers == {"release-files"}


@pytest.mark.parametrize("form", workflow.PATHS)
def test_each_job_runs_for_requests_or_for_protected_refs_and_none_for_both(form: str) -> None:
    for job in of_releases(form).values():
        assert all(text.startswith(PROTECTED[form]) for text in job.conditions)
        assert not any("pull_request" in text or "merge_request" in text for text in job.conditions)
        assert not any(re.search(r"^[^(]*\|\|", text) for text in job.conditions), "no alternative avoids it"
    for job in of_requests(form).values():
        assert not any("||" in text for text in job.conditions)


@pytest.mark.parametrize("form", workflow.PATHS)
def test_a_release_takes_nothing_from_a_job_of_a_pull_request(form: str) -> None:
    for name, job in of_releases(form).items():
        assert not set(job.needs) & set(of_requests(form))
        used_jobs = set(re.findall(r"needs\.([\w-]+)\.", job.text))
        assert used_jobs <= set(job.needs)
        assert "artifact" not in job.text or (name in ("pages", "weekly") and "download" not in job.text)


def test_the_page_names_the_label_of_each_runner() -> None:
    page = Path(ROOT / "docs" / "ci.md").read_text()
    labels_of_runners = re.findall(r"vars\.(DRYDOCK_\w+)", (ROOT / workflow.PATHS["github"]).read_text())
    assert labels_of_runners
    for name in labels_of_runners:
        assert f"`{name}`" in page
    for job in jobs("gitlab").values():
        assert f"`{job.runner.replace('$ARCH', 'amd64')}`" in page
