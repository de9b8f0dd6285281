"""The `convert` verb with a stand-in for a vendor's script, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from entrypoints.core import errors
from entrypoints.facts.image_files import PACKAGE
from tests.support.sample import PROFILE, write_model
from tests.support.waiting import wait_until

COPIES = """
import pathlib, shutil, sys
model, output = sys.argv[1:3]
for path in pathlib.Path(model).iterdir():
    if path.suffix in (".safetensors", ".json"):
        shutil.copy(path, output)
print("more", *sys.argv[3:])
"""
MEASURES = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[2], "name")
folder.mkdir()
(folder / "maxabs_quant_g2.json").write_text(json.dumps({"dump_stats_path": f"{folder}/g2"}))
pathlib.Path("beside").mkdir()
pathlib.Path("beside", "scales").write_text("1")
"""


def conversion(script: str, **changes: Any) -> dict[str, Any]:
    """Make a conversion as profile.json holds it."""
    plain: dict[str, Any] = {
        "kind": "float8",
        "text": "turns weights",
        "context": "vendor",
        "files": [script],
        "argv": ["{python}", "{scripts}/" + script, "{model}", "{output}"],
        "takes": "fp8",
        "gives": "model",
        "keep": [],
        "programs": [],
        "modules": ["json"],
        "env": {},
        "room": 1.0,
        "serve": {},
        "source": "the vendor's manual",
    }
    return {**plain, **changes}


class Image:
    """An image's folder: its profile, and scripts in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.scripts = folder / "image", folder / "image" / "conversions" / "vendor"
        self.scripts.mkdir(parents=True)
        self.model = write_model(folder / "models" / "Tiny")
        config = json.loads((self.model / "config.json").read_text())
        (self.model / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
        (self.model / "tokenizer.model").write_text("words")
        self.output = self.model.with_name("Tiny-new")

    def has(self, text: str, **changes: Any) -> None:
        """Put a script into the image."""
        (self.scripts / "script.py").write_text(text)
        self.profile(conversion("script.py", **changes))

    def profile(self, *conversions: dict[str, Any], **changes: Any) -> None:
        """Write what the image knows of itself."""
        text = json.dumps({**PROFILE, "python": sys.executable, "conversions": conversions, **changes})
        (self.folder / "profile.json").write_text(text)

    def argv(self, *more: str) -> list[str]:
        """Return the command line of one conversion."""
        places = ("--model", str(self.model), "--output", str(self.output))
        return [sys.executable, "-I", "-S", str(PACKAGE), "convert", *places, *more]

    @property
    def env(self) -> dict[str, str]:
        """Return the container's environment."""
        return {"PATH": os.environ["PATH"], "DRYDOCK_PROFILE": str(self.folder / "profile.json")}

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.argv(*more), capture_output=True, text=True, check=False, timeout=60, env=self.env)

    @property
    def neighbours(self) -> list[str]:
        """Return what lies where the result should."""
        return sorted(path.name for path in self.model.parent.iterdir())


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_a_result_is_whole_and_says_how_to_serve_it(image: Image) -> None:
    image.has(COPIES)

    ran = image.run("--per-tensor")

    assert ran.returncode == errors.OK, ran.stderr
    assert image.neighbours == ["Tiny", "Tiny-new"]
    assert (image.output / "tokenizer.model").read_text() == "words"  # which the script leaves out
    assert ran.stdout == "more --per-tensor\n"
    assert f"serve --model {image.output}" in ran.stderr
    assert json.loads((image.output / "drydock-conversion.json").read_text())["kind"] == "float8"


def test_a_converted_model_is_known_as_such(image: Image) -> None:
    image.has(COPIES)
    image.run()

    again = subprocess.run(
        [*image.argv()[:5], "--model", str(image.output), "--output", f"{image.output}-2"],
        capture_output=True,
        text=True,
        check=False,
        env=image.env,
    )

    assert again.returncode == errors.USAGE
    assert "converted already" in again.stderr


def test_measurements_name_their_final_place_and_are_served_with(image: Image) -> None:
    serve = {"QUANT_CONFIG": "{output}/*/maxabs_quant_*.json", "PREFIX": "{output}", "SLICES": "1"}
    image.has(MEASURES, kind="calibrate", takes="any", gives="measurements", keep=["beside"], serve=serve)

    ran = image.run("--kind", "calibrate")

    assert ran.returncode == errors.OK, ran.stderr
    config = image.output / "name" / "maxabs_quant_g2.json"
    assert json.loads(config.read_text()) == {"dump_stats_path": f"{image.output}/name/g2"}
    assert (image.output / "beside" / "scales").read_text() == "1"
    assert (
        f"-e QUANT_CONFIG={config} -e PREFIX={image.output} -e SLICES=1 … IMG serve --model {image.model}" in ran.stderr
    )


@pytest.mark.parametrize(
    ("script", "changes", "words"),
    [
        ("raise SystemExit(3)", {}, "failed with exit code 3; no output was written"),
        ("import os; os.abort()", {}, "was killed by signal 6"),
        ("", {}, "its model is incomplete"),
        ("", {"gives": "measurements", "serve": {"Q": "{output}/*/q.json"}}, "wrote no measurements"),
        ("", {"keep": ["there"]}, "did not write there"),
    ],
)
def test_a_script_that_fails_leaves_nothing(image: Image, script: str, changes: dict[str, Any], words: str) -> None:
    image.has(script, **changes)

    ran = image.run()

    assert ran.returncode == errors.MODEL
    assert words in ran.stderr
    assert image.neighbours == ["Tiny"]


def test_stopping_the_container_stops_the_script_and_leaves_nothing(image: Image, tmp_path: Path) -> None:
    started = tmp_path / "started"
    image.has(f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(60)")
    process = subprocess.Popen(image.argv(), env=image.env, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: started.exists() or process.poll() is not None, "the script")
    assert process.poll() is None

    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=10)

    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped; no output was written" in stderr
    assert image.neighbours == ["Tiny"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"modules": ["no_such_module"]}, "missing from this image: the Python module no_such_module"),
        ({"programs": ["no-such-program"]}, "missing from this image: no-such-program"),
        ({"context": "absent"}, "missing from this image: the scripts in"),
        ({"room": 1e12}, "GiB free, up to"),
    ],
)
def test_missing_requirements_are_refused_before_the_start(image: Image, changes: dict[str, Any], words: str) -> None:
    image.has("raise SystemExit('ran')", **changes)

    ran = image.run()

    assert ran.returncode == errors.HOST
    assert words in ran.stderr
    assert image.neighbours == ["Tiny"]


def test_an_image_without_scripts_names_those_that_have_them(image: Image) -> None:
    image.profile(thresholds={**PROFILE["thresholds"], "conversion_variants": {"value": ["one", "two"]}})

    ran = image.run()

    assert ran.returncode == errors.HOST
    assert "these images have one: one, two" in ran.stderr


def test_an_accelerator_whose_tool_is_outside_names_the_page_about_it(image: Image) -> None:
    page = {"value": "docs/a.md#w8a8", "because": "a tool converts weights, in an image of its own."}
    image.profile(thresholds={**PROFILE["thresholds"], "conversion_page": page})

    ran = image.run()

    assert ran.returncode == errors.HOST
    assert "a tool converts weights, in an image of its own: see docs/a.md#w8a8" in ran.stderr


def test_an_accelerator_that_needs_none_says_so(image: Image) -> None:
    image.profile()

    assert "without conversion" in image.run().stderr


def test_without_a_name_the_only_model_is_converted(image: Image) -> None:
    image.has(COPIES)
    argv = [word for word in image.argv() if word not in ("--model", str(image.model))]
    env = {**image.env, "DRYDOCK_MODELS": str(image.model.parent)}
    first, second = (subprocess.run(argv, capture_output=True, text=True, check=False, env=env) for _ in range(2))

    assert f"model {image.model}: the only model below" in first.stderr
    assert image.output.is_dir()
    assert (second.returncode, "are 2 models" in second.stderr) == (errors.MODEL, True)


def test_places_that_would_not_do_are_refused(image: Image) -> None:
    image.has(COPIES)

    def refused(*more: str) -> str:
        ran = image.run(*more)
        assert ran.returncode == errors.USAGE
        return ran.stderr

    assert "is inside the model's folder" in refused("--output", f"{image.model}/new")
    assert "already exists" in refused("--output", str(image.model.parent))
    assert "is a mount point" in refused("--output", "/proc")
    assert "--output is required" in refused("--output", "")
    assert "no kind 'flat8'" in refused("--kind=flat8")


def test_a_hub_id_is_to_be_downloaded_first(image: Image) -> None:
    image.has(COPIES)

    ran = image.run("--model", "owner/model")

    assert ran.returncode == errors.MODEL
    assert "download the model first" in ran.stderr
