"""The Dockerfiles keep what docs/images.md promises, as far as reading them can show it."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from e2e.images.build import IMAGES
from e2e.images.check import normalized

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("engine", "operator")


class Dockerfile:
    """The instructions of a Dockerfile: continuation lines joined, comments gone."""

    def __init__(self, name: str) -> None:
        text = (ROOT / f"Dockerfile.{name}").read_text()
        lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        joined = re.sub(r"\\\n\s*", " ", lines)
        self.instructions = [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]

    def of(self, keyword: str) -> list[str]:
        return [rest for word, rest in self.instructions if word == keyword]

    def stages(self) -> dict[str, list[tuple[str, ...]]]:
        """Stage name (the last one: "final") → its instructions after FROM."""
        found: dict[str, list[tuple[str, ...]]] = {}
        current: list[tuple[str, ...]] = []
        for word, rest in self.instructions:
            if word == "FROM":
                current = found.setdefault(rest.partition(" AS ")[2] or "final", [])
            else:
                current.append((word, rest))
        return found


@pytest.fixture(params=NAMES)
def dockerfile(request: pytest.FixtureRequest) -> Dockerfile:
    return Dockerfile(request.param)


def test_the_base_is_the_first_thing_and_can_be_chosen(dockerfile: Dockerfile) -> None:
    assert dockerfile.instructions[0] == ("ARG", "BASE=python:3.11-slim-bookworm")
    assert dockerfile.of("FROM")[0] == "${BASE} AS base"


def test_every_other_stage_starts_from_a_stage_so_no_second_image_slips_in(dockerfile: Dockerfile) -> None:
    *named, last = dockerfile.stages()
    assert (named[:3], "package" in named, last) == (["base", "requirements", "dependencies"], True, "final")
    assert {origin.partition(" AS ")[0] for origin in dockerfile.of("FROM")[1:]} <= set(named)
    for copy in dockerfile.of("COPY"):
        if origin := re.search(r"--from=(\S+)", copy):
            assert origin[1] in named


def test_nothing_follows_latest(dockerfile: Dockerfile) -> None:
    assert not any("latest" in rest for _, rest in dockerfile.instructions)


def test_the_final_stage_only_copies_and_runs_as_a_number(dockerfile: Dockerfile) -> None:
    final = dockerfile.stages()["final"]
    words = {word for word, _ in final} - {"ENTRYPOINT"}
    assert words == {"COPY", "ENV", "USER", "CMD", "ARG", "LABEL"}  # RUN would leave traces
    assert [rest for word, rest in final if word == "USER"] == ["65532:65532"]
    environment = next(rest for word, rest in final if word == "ENV").split()
    # OpenShift runs it as a user that /etc/passwd does not have.
    assert {"PATH=/opt/bladellm/bin:$PATH", "HOME=/tmp", "USER=bladellm"} <= set(environment)


def test_arguments_of_docker_run_are_those_of_the_server() -> None:
    final = dict(Dockerfile("engine").stages()["final"])
    assert json.loads(final["ENTRYPOINT"]) == ["blade_llm_server"]
    assert json.loads(final["CMD"]) == ["--help"]
    assert "ENTRYPOINT" not in dict(Dockerfile("operator").stages()["final"]), "it has two programs"


def test_dependencies_are_installed_before_any_source_is_copied(dockerfile: Dockerfile) -> None:
    stages = dockerfile.stages()
    copied = [rest for word, rest in stages["dependencies"] if word == "COPY"]
    assert copied == ["--from=requirements /requirements.txt /", "constraints.txt /"]
    assert any("--constraint /constraints.txt" in rest for word, rest in stages["dependencies"] if word == "RUN")
    install = next(rest for word, rest in stages["package"] if word == "RUN")
    assert install.count("--no-deps") == 2


def test_labels_are_complete_and_the_version_is_the_projects(dockerfile: Dockerfile) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"VERSION={version}" in dockerfile.of("ARG")
    names = re.findall(r"org\.opencontainers\.image\.(\w+)=", " ".join(dockerfile.of("LABEL")))
    assert sorted(names) == ["description", "licenses", "title", "version"]


def test_plain_syntax_only_so_that_every_builder_reads_it(dockerfile: Dockerfile) -> None:
    assert not any(rest.startswith("--mount") for rest in dockerfile.of("RUN"))
    assert not any("--link" in rest or "--chmod" in rest for rest in dockerfile.of("COPY"))
    assert not any("<<" in rest for _, rest in dockerfile.instructions)


def test_package_lists_never_stay(dockerfile: Dockerfile) -> None:
    for run in dockerfile.of("RUN"):
        if "apt-get" in run:
            assert "--no-install-recommends" in run
            assert "rm -rf /var/lib/apt/lists/*" in run


@pytest.mark.parametrize(("name", "some"), [("engine", {"torch", "gguf", "minio"}), ("operator", {"kopf", "fastapi"})])
def test_the_requirements_are_those_of_the_images_extras(name: str, some: set[str], tmp_path: Path) -> None:
    """Run the very program the Dockerfile runs, on the real pyproject.toml."""
    run = next(rest for word, rest in Dockerfile(name).stages()["requirements"] if word == "RUN")
    program = re.search(r"-c '(.+)'", run)
    assert program
    script = tmp_path / "requirements.py"
    script.write_text(program[1].replace("/pyproject.toml", str(ROOT / "pyproject.toml")))
    lines = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert set(lines) == set(IMAGES[name].requirements)
    assert some <= {re.split(r"[^A-Za-z0-9-]", line)[0] for line in lines}


def test_what_an_image_installs_has_its_version_in_the_constraints() -> None:
    pinned = {normalized(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    for image in IMAGES.values():
        names = {normalized(re.split(r"[^A-Za-z0-9._-]", line)[0]) for line in image.requirements}
        assert names <= pinned, image.name


@pytest.mark.parametrize(
    ("packages", "passes"),
    [
        (["torch==2.13.0+cpu", "numpy==2.4"], True),
        (["torch==2.13.0", "nvidia-cublas==13"], False),
        (["triton==3.6"], False),
        (["pytorch-triton-rocm==3.6"], False),
    ],
)
def test_a_gpu_package_fails_the_build_that_expects_none(packages: list[str], passes: bool, tmp_path: Path) -> None:
    """Run the very step the Dockerfile runs, with a pip that lists these packages."""
    step = next(rest for rest in Dockerfile("engine").of("RUN") if "EXPECT_CPU" in rest)
    programs = {"/opt/build/bin/pip": "printf '%s\\n' " + " ".join(packages), "/opt/bladellm/bin/python": "true"}
    for path, body in programs.items():
        program = tmp_path / Path(path).name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        step = step.replace(path, str(program))
    for expect, wanted in (("1", passes), ("0", True)):
        done = subprocess.run(["/bin/sh", "-c", step], env={"EXPECT_CPU": expect, "PATH": "/usr/bin:/bin"}, check=False)
        assert (done.returncode == 0) is wanted
