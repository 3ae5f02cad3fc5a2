"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as plain processes: their flags, and why."""

import json
from collections.abc import Sequence

from e2e.cluster.layout import API_PORT, NODE_ADDRESS, PODS, SERVICES, Layout

ETCD_CLIENT = "http://127.0.0.1:23790"
ETCD_PEER = "http://127.0.0.1:23800"

QUIET_USERS = (
    "system:apiserver",
    "system:kube-controller-manager",
    "system:kube-scheduler",
    "system:kube-proxy",
    "apiserver-kubelet",
    "e2e:coredns",
    "e2e:kwok",
)
QUIET_GROUPS = ("system:nodes", "system:serviceaccounts:kube-system")
"""Kubernetes' own parts: the audit log is about the operator, its routers and the tests."""


def audit_policy() -> dict[str, object]:
    quiet = {"level": "None"}
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": True,
        "rules": [
            {**quiet, "users": list(QUIET_USERS)},
            {**quiet, "userGroups": list(QUIET_GROUPS)},
            {**quiet, "nonResourceURLs": ["*"]},
            {"level": "Metadata"},
        ],
    }


def etcd(layout: Layout) -> list[str]:
    return [
        "etcd",
        f"--data-dir={layout.folder / 'etcd'}",
        "--unsafe-no-fsync",  # nothing here is worth waiting for a disk
        f"--listen-client-urls={ETCD_CLIENT}",
        f"--advertise-client-urls={ETCD_CLIENT}",
        f"--listen-peer-urls={ETCD_PEER}",
        f"--initial-advertise-peer-urls={ETCD_PEER}",
        f"--initial-cluster=default={ETCD_PEER}",
        "--log-level=warn",
    ]


def apiserver(layout: Layout) -> list[str]:
    policy = layout.folder / "audit-policy.json"
    policy.write_text(json.dumps(audit_policy()))
    pki = layout.pki
    return [
        "kube-apiserver",
        f"--etcd-servers={ETCD_CLIENT}",
        f"--bind-address={NODE_ADDRESS}",
        f"--advertise-address={NODE_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--service-cluster-ip-range={SERVICES}",
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki / 'ca.crt'}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy.key'}",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={layout.audit_log}",
        # Debian's etcd is too old for it, and not every client (KWOK) falls back to list and watch by itself.
        "--feature-gates=WatchList=false",
        "--audit-log-maxsize=4000",  # MB: never rotated while a reader counts from an offset
    ]


def controller_manager(layout: Layout, node_grace: int) -> list[str]:
    """``node_grace``: seconds until a silent node counts as NotReady."""
    pki = layout.pki
    return [
        "kube-controller-manager",
        f"--kubeconfig={layout.kubeconfig('controller-manager')}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki / 'sa.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--secure-port=20257",
        "--allocate-node-cidrs=false",  # the CNI plugin does that; and nodeipam would sleep for 10 s
        "--controllers=*,-nodeipam,-cloud-node-lifecycle,-attachdetach",
        f"--node-monitor-grace-period={node_grace}s",
        "--node-monitor-period=2s",
        "--horizontal-pod-autoscaler-sync-period=2s",  # not 15: a test waits for several
        "--kube-api-qps=300",
        "--kube-api-burst=600",
    ]


def scheduler(layout: Layout) -> list[str]:
    return [
        "kube-scheduler",
        f"--kubeconfig={layout.kubeconfig('scheduler')}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--secure-port=20259",
        "--kube-api-qps=300",
        "--kube-api-burst=600",
    ]


def kube_proxy(layout: Layout, node: str) -> Sequence[str]:
    conntrack = ("max-per-core", "tcp-timeout-established", "tcp-timeout-close-wait")
    return [
        "kube-proxy",
        f"--kubeconfig={layout.kubeconfig('proxy')}",
        "--proxy-mode=iptables",
        f"--hostname-override={node}",
        f"--cluster-cidr={PODS}",
        *(f"--conntrack-{setting}=0" for setting in conntrack),  # sysctls of the host: leave them alone
    ]
