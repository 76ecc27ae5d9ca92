//! A machine that kubeadm has made a node of a cluster, with upstream's kubelet and kube-proxy.

use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::Api;
use longshore_testkit::{Guest, program};

use crate::cluster::until;
use crate::machine::Fixture;

/// What runs containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// containerd of the guest's Debian.
    Containerd,
    /// containerd from the folder of upstream's programs.
    OtherContainerd,
    /// A Docker Engine, behind `longshore cri-docker`.
    Docker,
}

impl Runtime {
    pub(crate) fn socket(self) -> &'static str {
        match self {
            Self::Containerd | Self::OtherContainerd => "unix:///run/containerd/containerd.sock",
            Self::Docker => "unix:///run/longshore-docker.sock",
        }
    }

    /// Prints the uids of pods that have a sandbox, each once, in one line.
    pub(crate) fn list_sandboxes(self) -> &'static str {
        match self {
            Self::Containerd | Self::OtherContainerd => {
                "for id in $(ctr -n k8s.io containers ls -q 'labels.\"io.cri-containerd.kind\"==sandbox'); do
                     ctr -n k8s.io containers info $id | sed -nE 's/.*\"io.kubernetes.pod.uid\": \"([^\"]*)\".*/\\1/p'
                 done | sort -u | xargs"
            }
            Self::Docker => {
                "docker ps --all --filter label=io.kubernetes.docker.type=podsandbox \
                     --format '{{.Label \"io.kubernetes.pod.uid\"}}' | sort -u | xargs"
            }
        }
    }
}

/// Who is a node's kubelet and its kube-proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Programs {
    /// `kubelet` and `kube-proxy`.
    Upstream,
    /// `longshore kubelet` and `longshore proxy`.
    Longshore,
    /// `longshore node`, which is both.
    LongshoreNode,
}

/// The units that kubeadm's packages have, and one for kube-proxy.
const UNITS: &str = r#"
mkdir -p /etc/systemd/system/kubelet.service.d /var/lib/kube-proxy
cat >/etc/systemd/system/kubelet.service <<'UNIT'
[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
RestartSec=10
[Install]
WantedBy=multi-user.target
UNIT
cat >/etc/systemd/system/kubelet.service.d/10-kubeadm.conf <<'UNIT'
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
UNIT
cat >/etc/systemd/system/kube-proxy.service <<'UNIT'
[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/usr/bin/kube-proxy --config=/var/lib/kube-proxy/config.conf
Restart=always
RestartSec=10
[Install]
WantedBy=multi-user.target
UNIT
cat >/var/lib/kube-proxy/config.conf <<'CONFIG'
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: 10.244.0.0/16
hostnameOverride: two
clientConnection: {kubeconfig: /etc/kubernetes/kubelet.conf}
CONFIG
systemctl daemon-reload
systemctl enable kubelet
sysctl --quiet --write net.ipv4.ip_forward=1
"#;

/// Exclusive CPUs, pinned memory; and what of either is not for pods.
const PATCH: &str = r#"
mkdir -p /var/tmp/patches
cat >/var/tmp/patches/kubeletconfiguration+strategic.yaml <<'PATCH'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
memoryManagerPolicy: Static
kubeReserved: {cpu: 500m, memory: 412Mi}
evictionHard: {memory.available: 100Mi}
reservedMemory: [{numaNode: 0, limits: {memory: 512Mi}}]
PATCH
"#;

/// A network of pods as an administrator sets it up on a machine that `longshore join` has not seen: a bridge with
/// the node's range, and a route to that of the other node.
const NETWORK: &str = r#"
mkdir -p /etc/cni/net.d
cat >/etc/cni/net.d/10-pods.conflist <<CONFIG
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
 {"type": "bridge", "bridge": "pods0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "$OWN"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
CONFIG
ip route replace $OTHER via 198.18.7.1
"#;

impl Fixture {
    /// Adds upstream's programs to the payload, from the folder of the environment's `PEERS`, and a driver of CSI.
    pub(crate) fn add_upstream(&self, runtime: Runtime) {
        let peers = std::env::var_os("PEERS").expect(
            "PEERS names the folder with kubeadm, kubelet, kube-proxy and sample-device-plugin: see docs/testing.md",
        );
        let (peers, payload) = (Path::new(&peers), self.payload());
        let programs = ["kubeadm", "kubelet", "kube-proxy", "sample-device-plugin"];
        copy(peers, &programs, &payload.join("upstream"));
        fs::copy(program("csi-driver").unwrap(), payload.join("upstream/csi-driver")).unwrap();
        let folder = payload.join("runtime");
        match runtime {
            Runtime::Containerd => {}
            Runtime::OtherContainerd => {
                copy(peers, &["containerd", "containerd-shim-runc-v2", "ctr"], &folder);
            }
            Runtime::Docker => {
                let docker = std::env::var_os("DOCKER").expect(
                    "DOCKER names a folder with the unpacked packages docker.io and docker-cli: `make vm-machines` sets it",
                );
                let programs = ["sbin/dockerd", "sbin/docker-proxy", "bin/docker"];
                copy(&Path::new(&docker).join("usr"), &programs, &folder);
            }
        }
    }
}

/// Copies programs into a folder.
fn copy(from: &Path, programs: &[&str], to: &Path) {
    fs::create_dir_all(to).unwrap();
    for program in programs {
        let file = from.join(program);
        fs::copy(&file, to.join(file.file_name().unwrap()))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

/// Puts upstream's programs on a machine, with their units, the runtime, a driver of CSI and a device plugin.
pub(crate) async fn install(guest: &mut Guest, runtime: Runtime) {
    let start = match runtime {
        Runtime::Containerd | Runtime::OtherContainerd => {
            "install -D -m 644 containerd.toml /etc/containerd/config.toml
             for program in runtime/*; do [ ! -e $program ] || install $program /usr/bin; done
             systemctl enable --now containerd
             for image in *.tar; do ctr -n k8s.io images import $image >/dev/null || exit; done"
        }
        Runtime::Docker => {
            "install runtime/* /usr/bin
             cat >/etc/systemd/system/docker.service <<'UNIT'
[Unit]
Wants=containerd.service
After=containerd.service
[Service]
Type=notify
ExecStart=/usr/bin/dockerd --containerd=/run/containerd/containerd.sock
KillMode=process
Delegate=yes
[Install]
WantedBy=multi-user.target
UNIT
             echo 'CRI_DOCKER_ARGS=\"--pod-infra-container-image=longshore.local/pause:1 --cni-bin-dir=/usr/lib/cni\"' \
                 >/etc/default/longshore-cri-docker
             systemctl daemon-reload
             systemctl enable --now docker longshore-cri-docker.socket
             for image in *.tar; do docker load --input $image >/dev/null || exit; done"
        }
    };
    guest.run("dpkg --install longshore_*.deb && install upstream/* /usr/bin").await.unwrap();
    guest.run(start).await.unwrap();
    guest.run(&format!("set -e; {UNITS} {PATCH}")).await.unwrap();
}

/// Joins a cluster by kubeadm, with what `longshore token create` has printed, as whatever kubelet the machine has.
pub(crate) async fn join(guest: &mut Guest, client: &Client, runtime: Runtime, line: &str) {
    let arguments = line.trim().strip_prefix("longshore join ").expect("a line to join with");
    let socket = runtime.socket();
    guest
        .run(&format!("kubeadm join {arguments} --cri-socket={socket} --patches=/var/tmp/patches"))
        .await
        .unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let range = async |name: &str| {
        until(&format!("the range of {name}"), async || {
            let node = nodes.get(name).await.map_err(|error| error.to_string())?;
            node.spec.and_then(|spec| spec.pod_cidr).ok_or_else(String::new)
        })
        .await
    };
    let (own, other) = (range("two").await, range("one").await);
    guest.run(&format!("set -e; OWN={own} OTHER={other}; {NETWORK}")).await.unwrap();
    guest
        .run(
            "set -e
             systemctl stop csi devices 2>/dev/null || true
             systemd-run --quiet --collect --unit=csi csi-driver \
                 test.csi.longshore.dev /var/lib/csi /var/lib/kubelet/plugins_registry
             systemd-run --quiet --collect --unit=devices sample-device-plugin",
        )
        .await
        .unwrap();
}

/// Makes these programs kubelet and kube-proxy of a machine, from the next start of the units on.
pub(crate) async fn configure(guest: &mut Guest, programs: Programs) {
    const DROP_INS: &str = "/etc/systemd/system";
    let set_up = match programs {
        Programs::Upstream => format!(
            "rm -f {DROP_INS}/kubelet.service.d/[23]0-longshore.conf {DROP_INS}/kube-proxy.service.d/20-longshore.conf"
        ),
        Programs::Longshore => format!(
            "rm -f {DROP_INS}/kubelet.service.d/30-longshore.conf
             cp /usr/share/longshore/systemd/kubelet.service.d/20-longshore.conf {DROP_INS}/kubelet.service.d/
             mkdir -p {DROP_INS}/kube-proxy.service.d
             printf '[Service]\\nExecStart=\\nExecStart=/usr/bin/longshore proxy --config=/var/lib/kube-proxy/config.conf\\n' \
                 >{DROP_INS}/kube-proxy.service.d/20-longshore.conf"
        ),
        Programs::LongshoreNode => format!(
            "cp /usr/share/longshore/systemd/kubelet.service.d/20-longshore.conf {DROP_INS}/kubelet.service.d/
             sed 's|/usr/bin/longshore kubelet|/usr/bin/longshore node --proxy-config=/var/lib/kube-proxy/config.conf|' \
                 {DROP_INS}/kubelet.service.d/20-longshore.conf >{DROP_INS}/kubelet.service.d/30-longshore.conf"
        ),
    };
    guest.run(&format!("set -e\n{set_up}\nsystemctl daemon-reload")).await.unwrap();
}

/// Makes these programs kubelet and kube-proxy of a machine, in the place of those that are.
pub(crate) async fn change_to(guest: &mut Guest, programs: Programs) {
    configure(guest, programs).await;
    let (expected, start) = match programs {
        Programs::Upstream => (["kubelet", "kube-proxy"], "systemctl restart kubelet kube-proxy"),
        Programs::Longshore => (["longshore", "longshore"], "systemctl restart kubelet kube-proxy"),
        Programs::LongshoreNode => {
            (["longshore", ""], "systemctl stop kube-proxy && systemctl restart kubelet")
        }
    };
    guest.run(start).await.unwrap();
    let running = guest
        .run(
            "for unit in kubelet kube-proxy; do
                 process=$(systemctl show --value --property MainPID $unit)
                 basename \"$(readlink /proc/$process/exe)\"
             done 2>/dev/null || true",
        )
        .await
        .unwrap();
    let running: Vec<_> = running.lines().map(str::trim).collect();
    assert_eq!(running, expected, "{programs:?}");
}
