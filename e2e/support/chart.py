"""Installing the operator the way users do: the real chart with the real helm."""

from e2e.cluster import Cluster
from e2e.support.images import REPOSITORY, Images

RELEASE = "bladellm"
NAMESPACE = "bladellm-system"
CHART = REPOSITORY / "charts" / "bladellm"


def image_values(images: Images) -> list[str]:
    """``--set`` arguments that make the chart use these images."""
    values = []
    for key, reference in (("image", images.operator), ("engineImage", images.engine)):
        repository, _, tag = reference.rpartition(":")
        if not repository or "/" in tag:  # a registry's port is no tag
            raise ValueError(f"image {reference!r} needs a tag")
        values += ["--set", f"{key}.registry=", "--set", f"{key}.repository={repository}", "--set", f"{key}.tag={tag}"]
    return values


def values(images: Images) -> list[str]:
    """``--set`` arguments of the tests' release: their images, and that routers watch keys, which has to be granted."""
    return [*image_values(images), "--set", "watchKeys=true"]


def install(cluster: Cluster, images: Images, *arguments: str) -> None:
    """Install or upgrade, and wait until the operator is ready; raises CommandFailed with helm's words.

    A CRD that was applied without helm is taken over.
    """
    options = ["--wait", "--timeout", "180s", "--take-ownership", "--namespace", NAMESPACE]
    cluster.helm("upgrade", "--install", RELEASE, str(CHART), *options, *values(images), *arguments)
