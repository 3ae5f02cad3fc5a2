"""``python -m e2e``: find a cluster, build and load the images, run the tests in it, and take it down.

Arguments it does not know go to pytest: ``python -m e2e --keep -k dns -x``.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import DEFAULT_NAME, Cluster, Existing, Kind, NoCluster, OwnNode, find, is_up
from e2e.cluster.errors import ERRORS
from e2e.support import report
from e2e.support.diagnostics import dump_cluster
from e2e.support.images import REPOSITORY, build_archives


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Print how long a part took, also when it failed."""
    print(f"== e2e {name}", flush=True)
    begin = time.monotonic()
    try:
        yield
    finally:
        print(f"== e2e {name} took {time.monotonic() - begin:.1f} s", flush=True)


def run_pytest(cluster: Cluster, name: str, folder: Path, arguments: list[str]) -> int:
    """pytest inside the cluster's network; failed tests leave what they saw in ``folder``. Its exit code, or CI's."""
    junit = folder / "junit.xml"
    tests = [] if any(argument.startswith("e2e/") for argument in arguments) else ["e2e/tests"]
    command = [sys.executable, "-m", "pytest", *tests, "-q", "-p", "no:cacheprovider", "-o", "timeout=600"]
    environment = {**cluster.environment, "E2E_CLUSTER": name, "E2E_DIAGNOSTICS": str(folder)}
    done = subprocess.run(
        [*cluster.enter, *command, "-o", "junit_family=xunit2", f"--junitxml={junit}", *arguments],
        cwd=REPOSITORY,
        env=environment,
    )
    outcome = report.read(junit)
    code = report.exit_code(done.returncode, outcome, ci=in_ci())
    if code and not done.returncode:
        print(f"in CI every test has to run; {outcome.tests} ran, skipped: {', '.join(outcome.skipped) or 'none'}")
    return code


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m e2e", description=__doc__, allow_abbrev=False)
    top.add_argument("--name", default=os.environ.get("E2E_CLUSTER", DEFAULT_NAME), help="name of the cluster")
    top.add_argument("--keep", action="store_true", help="leave the cluster up; the next run uses it again")
    return top


def run(cluster: Cluster, options: argparse.Namespace, arguments: list[str]) -> int:
    """All phases but the last one; whatever goes wrong is explained in a folder that is named."""
    folder = Path(tempfile.mkdtemp(prefix="bladellm-e2e-diagnostics-"))
    code = 1
    try:
        archives: list[Path] = []
        if not isinstance(cluster, Existing):
            with phase("images"):
                archives = build_archives()
        with phase("up"):
            if is_up(cluster):
                print("  already up")
            elif isinstance(cluster, OwnNode | Kind):
                cluster.up()
            else:
                raise NoCluster("the cluster of E2E_KUBECONFIG does not respond")
        with phase("load"):
            if archives:
                cluster.load_images(archives)
        with phase("tests"):
            code = run_pytest(cluster, options.name, folder, arguments)
    finally:
        if code and is_up(cluster):
            dump_cluster(cluster, folder)
            print(f"what was found at the time is in {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    return code


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that it cleans up as after Ctrl-C
    options, arguments = parser().parse_known_args()
    try:
        cluster = find(options.name)
        try:
            return run(cluster, options, arguments)
        finally:
            if not options.keep:
                with phase("down"):
                    cluster.down()
    except NoCluster as error:
        print(f"e2e skipped: {error}")
        return 1 if in_ci() else 0
    except ERRORS as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
