"""Keys and certificates of one cluster, and the kubeconfig files made from them.

One self-made authority signs everything. openssl makes a key and its certificate in one call, and the calls run side by
side.
"""

import base64
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.cluster.layout import API_PORT, API_SERVICE, NODE, NODE_ADDRESS, Layout

API_NAMES = (
    "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,"
    f"IP:127.0.0.1,IP:{API_SERVICE},IP:{NODE_ADDRESS}"
)
SERVERS = {
    "apiserver": ("/CN=kube-apiserver", API_NAMES),
    "kubelet-server": (f"/CN={NODE}", f"DNS:{NODE},IP:127.0.0.1,IP:{NODE_ADDRESS}"),
}
CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "kubelet": f"/O=system:nodes/CN=system:node:{NODE}",
    "proxy": "/CN=system:kube-proxy",
    "apiserver-kubelet": "/O=system:masters/CN=apiserver-kubelet",
    "front-proxy": "/CN=front-proxy",
    # Tools of the harness, not parts of Kubernetes: names of their own keep them out of the audit log.
    "coredns": "/O=system:masters/CN=e2e:coredns",
    "kwok": "/O=system:masters/CN=e2e:kwok",
}
USERS = ("admin", "controller-manager", "scheduler", "kubelet", "proxy", "coredns", "kwok")
"""Users that get a kubeconfig file."""

# The distribution's default configuration would make every certificate an authority.
OPENSSL_CONFIG = "[req]\ndistinguished_name = name\n[name]\n"


def openssl(folder: Path, *arguments: str) -> None:
    """Raises RuntimeError with openssl's own words."""
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")


def _request(name: str, subject: str, extensions: list[str], signer: list[str]) -> list[str]:
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key"]
    certificate = ["-out", f"{name}.crt", "-days", "365", "-subj", subject, "-config", "openssl.cnf", *signer]
    return ["req", "-x509", *new_key, *certificate, *(part for text in extensions for part in ("-addext", text))]


def make_pki(layout: Layout) -> None:
    """Everything below ``layout.pki``, and the kubeconfig files beside it."""
    folder = layout.pki
    folder.mkdir(parents=True)
    (folder / "openssl.cnf").write_text(OPENSSL_CONFIG)
    authority = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,digitalSignature"]
    openssl(folder, *_request("ca", "/CN=bladellm-e2e", authority, []))

    by_ca = ["-CA", "ca.crt", "-CAkey", "ca.key"]
    calls = [["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "sa.key"]]
    for name, (subject, names) in SERVERS.items():
        extensions = ["extendedKeyUsage=serverAuth", f"subjectAltName={names}"]
        calls.append(_request(name, subject, extensions, by_ca))
    for name, subject in CLIENTS.items():
        calls.append(_request(name, subject, ["extendedKeyUsage=clientAuth", "keyUsage=digitalSignature"], by_ca))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda call: openssl(folder, *call), calls))
    openssl(folder, "pkey", "-in", "sa.key", "-pubout", "-out", "sa.pub")

    for user in USERS:
        path = layout.kubeconfig(user)
        path.touch(mode=0o600)
        path.write_text(json.dumps(_kubeconfig(folder, user)))


def _kubeconfig(folder: Path, user: str) -> dict[str, object]:
    def embedded(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    cluster = {"server": f"https://{NODE_ADDRESS}:{API_PORT}", "certificate-authority-data": embedded("ca.crt")}
    credentials = {"client-certificate-data": embedded(f"{user}.crt"), "client-key-data": embedded(f"{user}.key")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
        "current-context": "e2e",
    }
