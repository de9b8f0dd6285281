"""Environment variables → docs/reference/variables.md, and the table of an image's own in docs/container.md. Pure.

tests/contracts/test_variables.py compares the names with those that code reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from drydock.ci.ci_variables import GROUPS
from drydock.model.variant import ResolvedSetting, Variant
from drydock.pages.markdown import each_once, format_accelerators, make_table

_HEAD = """# Variables

    docker run --rm --env DRYDOCK_OFFLINE=1 … IMG plan --model /models/m    # prints each that is set, and why
    ./inv run --target gaudi2 --model ./model --env VLLM_LOGGING_LEVEL=DEBUG

What drydock reads from the environment and what it sets there. A value of yours wins over what drydock would set.
[`run --env`](../run.md#variables) passes variables to a container. Written by `./inv docs` from
`drydock/pages/variables_page.py` and `templates/`.
"""
IMAGE = {
    "DRYDOCK_OFFLINE": "`1`: download nothing: sets the libraries' offline switches",
    "DRYDOCK_KEEP_WRONG": "`1`: after a wrong answer, keep the container running (not ready) for debugging",
    "DRYDOCK_IMAGE_DIGEST": "the image's digest, set by the orchestrator; part of the cache key, and in `/metrics`",
    "DRYDOCK_CACHE_DIR": "the writable folder, instead of `/cache`",
    "DRYDOCK_CACHE_FROM": "more folders with the layout of `/cache`, separated by colons, to copy compiled code from",
    "DRYDOCK_CACHE_QUOTA": "limit for compiled code on the volume: `50G`, `25%`; default `50%`",
    "DRYDOCK_CACHE_SHARED": (
        "`1`: trust everyone who can write to the volume; see [Whose files are used](caches.md#whose-files-are-used)"
    ),
    "DRYDOCK_ALLOWED_HOSTS": (
        "names, with commas, by which [a server without a key](run.md#who-can-connect) is asked too, such as a proxy's"
    ),
    "DRYDOCK_INSECURE_HUB": "`1`: send the hub's token over plain http to another machine",
    "DRYDOCK_GROUP_SECRET": "the secret with which [several hosts](container.md#several-hosts) sign",
    "DRYDOCK_CPUS": "the processors that vLLM may use, such as `0-9`; on Gaudi, drydock sets it",
    "DRYDOCK_WORK_FOLDER": "the folder that vLLM starts in; with Gaudi's profiler, drydock sets it",
    "DRYDOCK_PROFILE": "another profile than the image's own, for tests",
}
"""Name, or names with commas, → what it means. Links are relative to docs/."""
IMAGE_OTHERS = {
    "VLLM_API_KEY": "the keys that clients must send, one a line",
    "VLLM_USE_MODELSCOPE": "`True`: a model's id is one of ModelScope",
    "VLLM_PORT": "ignored if Kubernetes set it to the address of a Service",
    "VLLM_TORCH_PROFILER_DIR": "where vLLM writes profiles: it must be writable",
    "VLLM_BUCKETING_FROM_FILE": "buckets of your own, so drydock chooses none",
    "HF_HOME, HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, MODELSCOPE_CACHE, XDG_CACHE_HOME, HOME": "where models are cached",
    "HF_ENDPOINT, MODELSCOPE_DOMAIN, HF_HUB_ETAG_TIMEOUT": "the hub, and how long `plan` waits for it",
    "HF_TOKEN, HUGGING_FACE_HUB_TOKEN, HF_TOKEN_PATH, HF_HUB_DISABLE_IMPLICIT_TOKEN": "the token for the hub",
    "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING, RUNAI_STREAMER_S3_UNSIGNED": (
        "how [a bucket](run.md#a-model-in-a-bucket) is read"
    ),
    "REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE": "certificate authorities to trust",
    "OMP_NUM_THREADS, PATH, PYTHONPATH, TMPDIR": "as usual; `fabric` and the programs that drydock starts get them",
    "NO_COLOR, TERM": "whether the output has colours",
    "ROCR_VISIBLE_DEVICES, TPU_ACCELERATOR_TYPE, ZE_FLAT_DEVICE_HIERARCHY": "which devices a driver shows, and how",
}
TASKS = {
    "PYTHONUTF8": "set by drydock for itself where the locale is not UTF-8",
    "DRYDOCK_CACHE, XDG_CACHE_HOME, HOME": "[where downloads and images are kept](build.md#cache-folders)",
    "DRYDOCK_PROJECT": "the folder of [your project](project.md), as `--project`",
    "SUDO_UID": "for root: the user whose [projects](project.md#which-project-is-used) are found as well, set by sudo",
    "DRYDOCK_MIRRORS, XDG_CONFIG_HOME": "the file with [mirrors](lock.md#mirrors)",
    "DRYDOCK_DEBIAN_MIRROR, DRYDOCK_DEBIAN_KEYRING, DRYDOCK_SNAPSHOT_ARCHIVE": "[Debian's archives](lock.md)",
    "DRYDOCK_FOUNDATIONS": "repository of [foundations](build.md#foundations-in-a-registry), as `--foundations`",
    "DRYDOCK_COSIGN_KEY, COSIGN_PASSWORD": "cosign's key for `release.files`, and the password of any key",
    "DRYDOCK_BUILDER_ID, GITHUB_WORKFLOW_REF, CI_CONFIG_REF_URI": "the [builder](publish.md#provenance)",
    "CI": "`true`: pin nothing, as with `--locked`",
    "DOCKER_CONFIG, DOCKER_AUTH_CONFIG": "docker's folder with credentials, and credentials themselves",
    "HTTPS_PROXY, https_proxy, HTTP_PROXY, http_proxy, ALL_PROXY, all_proxy, NO_PROXY, no_proxy": (
        "[proxies](lock.md#certificates-and-proxies), if pip's configuration has none"
    ),
    "REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE, SSL_CERT_DIR": (
        "[certificate authorities](lock.md#certificates-and-proxies), if pip's configuration has none"
    ),
    "PIP_CERT, PIP_CLIENT_CERT, SSL_CLIENT_CERT, PIP_PROXY, PIP_KEYRING_PROVIDER": (
        "certificates, proxy and [keyring](lock.md#credentials) of indexes and registries"
    ),
    "HF_ENDPOINT, HF_TOKEN, MODELSCOPE_DOMAIN": "for models of hubs; `run` passes those of Hugging Face on",
    "HF_HOME, HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, MODELSCOPE_CACHE": "caches of models that `entrypoint` looks into",
    "VLLM_API_KEY": "the key that clients of `run` must send",
    "UV_CACHE_DIR": "uv's cache; its other variables are made of pip's configuration",
    "GIT_CONFIG_COUNT": "git's own settings, which mirrors are added to",
    "NCCL_IB_HCA, NCCL_IB_DISABLE, UCX_TLS": "set for the ranks of a topology: whether their pods get RDMA devices",
    "NO_COLOR, TERM, PATH": "as usual",
}
JOBS = {
    "DRYDOCK_RUNNER_ARM64, DRYDOCK_RELEASE_RUNNER_ARM64": "the same for arm64",
    "DRYDOCK_PULL_REQUEST_CACHE, DRYDOCK_RELEASE_CACHE": "cache folder of the runners, if not next to the checkout",
    "CI_REGISTRY, CI_REGISTRY_USER, CI_REGISTRY_PASSWORD, CI_SERVER_URL, CI_PROJECT_URL": "set by GitLab",
    "GITHUB_REPOSITORY, GITHUB_SERVER_URL": "set by GitHub",
}
INSIDE = {
    "DRYDOCK_MAX_REQUEST_BYTES, DRYDOCK_ADMIN_ENDPOINTS, DRYDOCK_DRAINING": "the supervisor → its plug-in for vLLM",
    "DRYDOCK_MEASURED": "the supervisor → its plug-in for vLLM: the file for what vLLM logs of its memory",
    "DRYDOCK_SUSPECT": "a start after a crash → the next one: which cache entry to leave out",
    "DRYDOCK_KNOWN_MODELS, DRYDOCK_HUB_CACHES": "`./inv entrypoint` → the entrypoint",
    "LOCAL_RANK": "torchrun → the collective test",
    "DRYDOCK_BENCH": "a benchmark → its containers",
    "STUB_VLLM, SETUPTOOLS_SCM_PRETEND_VERSION": "a stand-in's build → its stub",
}


def make_image_table() -> str:
    """Return the variables of drydock's own that an image reads."""
    return make_table(("variable", "description"), _list_variable_rows(IMAGE))


def render_variables_page(variants: Sequence[Variant]) -> str:
    """Return the page."""
    parts = {
        "An image": make_table(
            ("variable", "meaning"), [*_list_variable_rows(IMAGE), *_list_variable_rows(IMAGE_OTHERS)]
        ),
        "Set by images": _SET + make_table(("variable", "value", "images", "reason"), _list_set_variables(variants)),
        "Known to images": _KNOWN + make_table(("group", "variables", "accelerators"), _list_known_groups(variants)),
        "Tasks": make_table(("variable", "meaning"), _list_variable_rows(TASKS)),
        "Jobs of CI": _JOBS + make_table(("variable", "meaning"), [*_list_job_variables(), *_list_variable_rows(JOBS)]),
        "Between programs of drydock": "Do not set these.\n\n"
        + make_table(("variable", "from whom to whom"), _list_variable_rows(INSIDE)),
    }
    return _HEAD + "".join(f"\n## {title}\n\n{text}" for title, text in parts.items()).replace("](", "](../")


_SET = """\
Before vLLM starts, where you have not set them. What depends on host and model, such as the processors of a CPU server,
`plan` prints. More are [a container's](run.md#options-of-a-container) and [of caches](caches.md).

"""
_KNOWN = """\
*shown* are printed in a plan if you set them, *compiling* can be part of a compiler's cache key: there a name stands
for all that begin so. *devices* can hide devices, *files* name a file that must exist, and `run --env` knows those that
are *documented*.

"""
_JOBS = """[CI](ci.md) says where each is set.

"""


def _list_variable_rows(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for names, text in texts.items():
        yield _format_code_names(names.split(", ")), text


def _format_code_names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _list_set_variables(variants: Sequence[Variant]) -> Iterator[tuple[str, ...]]:
    settings = (
        (
            ((item.setting, item.value, because),) * 2
            for item, because in _stated(variant)
            if not item.setting.startswith("-")
        )
        for variant in variants
    )
    for (name, value, because), holders in sorted(each_once(settings), key=lambda entry: entry[0][0]):
        yield f"`{name}`", f"`{value}`", format_accelerators(variants, holders), because


def _stated(variant: Variant) -> Iterator[tuple[ResolvedSetting, str]]:
    """Yield each setting with its reason, which names the role that has it; those of two roles once."""
    yield from ((item, item.because) for item in variant.settings)
    of_roles: dict[str, tuple[ResolvedSetting, list[str]]] = {}
    for role, own in variant.roles.items():
        for item in own.settings:
            of_roles.setdefault(item.model_dump_json(), (item, []))[1].append(role)
    for item, roles in of_roles.values():
        yield item, f"{' and '.join(roles)}: {item.because}"


def _list_known_groups(variants: Sequence[Variant]) -> Iterator[tuple[str, ...]]:
    """Yield the names of each group, by the accelerators that know them."""
    for group in ("shown", "compiling", "devices", "documented", "files"):
        names = each_once(((name, name) for name in getattr(variant.variables, group)) for variant in variants)
        names_by_holders: dict[str, list[str]] = {}
        for name, holders in names:
            names_by_holders.setdefault(format_accelerators(variants, holders), []).append(name)
        for holders_text, some in names_by_holders.items():
            yield group, _format_code_names(some), holders_text


def _list_job_variables() -> Iterator[tuple[str, str]]:
    purposes = {item.name: group.when for groups in GROUPS.values() for group in groups for item in group.variables}
    yield from ((f"`{name}`", when) for name, when in purposes.items())
