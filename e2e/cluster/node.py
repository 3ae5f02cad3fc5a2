"""containerd and the kubelet: their configuration files and command lines.

Every path is set to one below the cluster's folder, also those with a default that nobody thinks of (pod logs, runc's
state, network namespaces): two kubelets on one machine would otherwise clean up each other's pods, and a crash would
leave files behind.
"""

import json

from e2e.cluster.layout import NODE, NODE_ADDRESS, PODS, Layout

CNI_PLUGINS = "/usr/lib/cni"  # Debian's folder
PAUSE_IMAGE = "localhost/pause:1"

CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "{state}"
disabled_plugins = [{disabled}]
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  netns_mounts_under_state_dir = true
  # Without CAP_SYS_RESOURCE the score cannot be lowered, and runc would fail.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_plugins}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{folder}/runc"
        SystemdCgroup = false
"""


def containerd(layout: Layout) -> list[str]:
    disabled = ", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in ("aufs", "btrfs", "zfs", "devmapper"))
    config = layout.folder / "containerd.toml"
    config.write_text(
        CONTAINERD.format(
            folder=layout.folder,
            state=layout.containerd_state,
            socket=layout.containerd_socket,
            pause=PAUSE_IMAGE,
            cni_plugins=CNI_PLUGINS,
            disabled=disabled,
        )
    )
    network = layout.folder / "cni" / "10-bridge.conflist"
    network.parent.mkdir(parents=True, exist_ok=True)
    network.write_text(json.dumps(_pod_network(layout)))
    return ["containerd", f"--config={config}"]


def _pod_network(layout: Layout) -> dict[str, object]:
    addresses = {"type": "host-local", "dataDir": str(layout.folder / "ipam"), "ranges": [[{"subnet": PODS}]]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "isDefaultGateway": True, "hairpinMode": True}
    return {
        "cniVersion": "0.4.0",
        "name": layout.network,
        "plugins": [{**bridge, "ipam": addresses}, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def kubelet(layout: Layout) -> list[str]:
    config = layout.folder / "kubelet.json"
    config.write_text(json.dumps(_kubelet_configuration(layout)))
    return [
        "kubelet",
        f"--config={config}",
        f"--kubeconfig={layout.kubeconfig('kubelet')}",
        f"--hostname-override={NODE}",
        f"--node-ip={NODE_ADDRESS}",
        f"--root-dir={layout.folder / 'kubelet'}",
        "--register-node=true",
    ]


def _kubelet_configuration(layout: Layout) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.network}",
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "podLogsDir": str(layout.folder / "pod-logs"),
        "volumePluginDir": str(layout.folder / "volume-plugins"),
        "clusterDomain": "cluster.local",
        "clusterDNS": [NODE_ADDRESS],
        "resolvConf": "",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(layout.pki / "kubelet-server.key"),
        # A full disk of the host is no reason to evict a test's pods or to drop its images.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {},
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "5s",
        # The lease is renewed every quarter of this: four chances within the 20 s after which a node is NotReady.
        "nodeLeaseDurationSeconds": 20,
        # A container that ends again and again is started after 5 s each time, not after 10, 20, 40 … 300.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "5s"},
    }
