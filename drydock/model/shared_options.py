"""Options that several verbs share, each declared once. A step takes the smallest of these records that it needs."""

from __future__ import annotations

from typing import Literal

from drydock.core.errors import InputError
from drydock.core.verb_options import VerbOptions


class JsonOption(VerbOptions):
    """The result as JSON, if asked for."""

    json: bool = False
    """print the result as JSON on standard output"""


class DryRunOption(VerbOptions):
    """Whether something is written."""

    dry_run: bool = False
    """write nothing outside of the cache; say what would be written"""


class DryRunInCopyOption(DryRunOption):
    """A dry run of a verb that writes into the project only: it writes into a copy of it."""

    WRITES_PROJECT = True


class PreviewOption(DryRunOption):
    """Whether something is built."""

    dry_run: bool = False
    """build, download and pin nothing: say what would be, and how much disk it takes"""


class AlwaysJsonOption(VerbOptions):
    """The result is always JSON."""

    json: bool = False
    """accepted for scripts: the result is always JSON"""


class PruneOptions(VerbOptions):
    """Whether what is not needed is removed."""

    prune: bool = False
    yes: bool = False

    def check_prune(self) -> None:
        """Raise InputError for a consent to nothing."""
        if self.yes and not self.prune:
            raise InputError("--yes: nothing to confirm", hint="add --prune")


class RowOption(VerbOptions):
    """A row."""

    target: str
    """row, alias or accelerator"""


class RowOrAutoOption(VerbOptions):
    """A row, or the one that fits a host."""

    TAKES_AUTO = True
    target: str
    """row, alias or accelerator; auto: what fits this machine's devices and driver"""


class RowOrAllOption(VerbOptions):
    """A row, or each."""

    target: str = ""
    """row, alias or accelerator [default: every variant]"""


class CheckOption(VerbOptions):
    """Compare instead of writing."""

    check: bool = False
    """write nothing; fail if a file is outdated or was edited"""


class OfflineOption(VerbOptions):
    """Without the network."""

    offline: bool = False
    """do not use the network; fail if something is missing"""


class BuilderOption(VerbOptions):
    """Which BuildKit builds."""

    builder: str = ""
    """use this buildx builder instead of the engine's default"""


class NoCacheOption(VerbOptions):
    """Without BuildKit's cache."""

    no_cache: bool = False
    """do not use BuildKit's cache"""


class VerboseOption(VerbOptions):
    """How much is printed."""

    verbose: bool = False
    """-v for short: print all that is done and BuildKit's log instead of progress"""


class ContextOption(VerbOptions):
    """Build contexts that are replaced."""

    context: tuple[str, ...] = ()
    """NAME=FOLDER or NAME=docker-image://…: replace a named build context; repeatable"""


class PlatformOption(VerbOptions):
    """For which architecture."""

    platform: str = ""
    """target platform, such as linux/arm64 [default: this machine's]"""


class InsecureOption(VerbOptions):
    """Plain HTTP."""

    insecure: bool = False
    """allow plain HTTP to a registry on another machine"""


class TrustOptions(InsecureOption):
    """Whose signatures count."""

    verify_key: str = ""
    """accept signatures made with this public key"""
    identity: str = ""
    """accept keyless signatures of this identity; requires --issuer"""
    issuer: str = ""
    """OIDC issuer of the identity"""
    trusted_root: str = ""
    """trusted root file (cosign trusted-root create), to verify without network"""


class SignOptions(VerbOptions):
    """Who signs."""

    sign_key: str = ""
    """sign with this cosign key: a file, env://NAME or a KMS URI"""
    keyless: bool = False
    """sign with your OIDC identity instead of a key"""


class SuppliedOption(VerbOptions):
    """Files that only the user has."""

    supplied: tuple[str, ...] = ()
    """folder with files that only you have, such as a vendor's installer: pin them; repeatable"""


class LockedOptions(SuppliedOption):
    """Whether inputs may be pinned."""

    locked: bool = False
    """pin nothing: fail if the lock lacks an input, as with CI=true"""


class AdvisoryOptions(VerbOptions):
    """Known vulnerabilities."""

    advisories: bool = False
    """list known vulnerabilities of what the locks pin, and what could not be checked"""
    database: tuple[str, ...] = ()
    """with --advisories: OSV records in a file, all.zip or folder; uses no network; repeatable"""
    ignore: tuple[str, ...] = ()
    """with --advisories: accept the vulnerability with this id or alias; repeatable"""


class SharedFoundations(InsecureOption, JsonOption):
    """Where foundations are shared."""

    registry: str = ""
    """HOST/REPOSITORY [default: drydock.yaml's `foundations`]"""


class StatementOptions(VerbOptions):
    """What `prove` saw of the image."""

    statement: str = ""
    """signed file that `prove` wrote: check that it is about this image, and show what it says"""
    root: str = ""
    """with --statement: recorded host (facts --record host.json) that it must be about"""
    max_age: int = 0
    """refuse a channel that was last published, and with --statement a statement that ended, more days ago than this"""

    def check_statement(self) -> None:
        """Raise InputError for a host that nothing is compared with, or an age that cannot be."""
        if self.root and not self.statement:
            raise InputError("--root: requires --statement, which is compared with the host")


class PlannedOptions(VerbOptions):
    """Whose plan it is."""

    model: str = ""
    """folder on this machine with the model's config.json, if the nodes' is elsewhere"""
    target: str = ""
    """the row that the image was built from, if no lock here has its digest"""


class FileOptions(PlannedOptions):
    """A topology, planned or not."""

    file: str
    """a topology.yaml, or its plan: topology plan --json"""


class SshOptions(VerbOptions):
    """How nodes are reached."""

    user: str = ""
    """with ansible: user to log in as [default: as in ~/.ssh/config]"""
    ssh_key: str = ""
    """file with the private key of ssh"""
    known_hosts: str = ""
    """file with the nodes' host keys [default: ~/.ssh/known_hosts]"""
    become: bool = False
    """run as root on the nodes, by sudo"""


class TopologyStartOptions(DryRunOption, FileOptions, SshOptions):
    """What is started or stopped, and how."""

    format: Literal["", "ansible", "compose"] = ""
    """ansible: on the nodes, by ssh; compose: all nodes as containers of this machine's engine"""
    output: str = ""
    """folder for the rendered files [default: .cache/topology/NAME]"""


class ContentOptions(DryRunOption, JsonOption):
    """What a project's row gets or loses."""

    WORDS = ("package",)
    TAKES_ALL_WORDS = True
    package: tuple[str, ...] = ()
    """Python package, such as structlog==25.1.0; `--package` may be left out; repeatable"""
    debian: tuple[str, ...] = ()
    """Debian package, such as curl; repeatable"""
    certificate: tuple[str, ...] = ()
    """file NAME.crt with certificates in PEM that the image trusts; repeatable"""
    target: str = ""
    """row of the project [default: its only one, or `defaults.target` of drydock.yaml]"""
