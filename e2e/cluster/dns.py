"""CoreDNS beside the control plane: the cluster's names and nothing else (there is nowhere to forward to)."""

from e2e.cluster.layout import NODE_ADDRESS, Layout

COREFILE = """\
.:53 {{
  bind {address}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig}
    ttl 5
  }}
  cache 5
}}
"""


def coredns(layout: Layout) -> list[str]:
    corefile = layout.folder / "Corefile"
    corefile.write_text(COREFILE.format(address=NODE_ADDRESS, kubeconfig=layout.kubeconfig("coredns")))
    return ["coredns", f"-conf={corefile}"]


def is_ready(layout: Layout) -> bool:
    """It announces itself once its first list of Services is complete."""
    log = layout.logs / "coredns.log"
    return log.exists() and "CoreDNS-" in log.read_text()
