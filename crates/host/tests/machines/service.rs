//! One machine as a cluster, from the packages' installation to their removal, and two machines as one cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt};
use longshore_testkit::{BUSYBOX, Guest};
use serde_json::{Value, json};

use crate::cluster::{
    PodState, assert_load_was_served, client, is_ready, pod_states, serve, start_load, until,
    until_node, until_nothing_is_stale, until_served,
};
use crate::machine::{Fixture, Step, TIMEOUT};
use crate::upstream::Runtime;

/// What a machine that is a cluster runs.
const UNITS: [&str; 5] = [
    "longshore-apiserver",
    "longshore-controllers",
    "longshore-dns",
    "longshore-network",
    "longshore",
];
/// All files but those that change by themselves, or that packages of Debian keep.
const FILES: &str = "find / -xdev \\( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /var/tmp \
    -o -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/containerd -o -path /var/lib/systemd -o -path /payload \
    -o -path /var/lib/private -o -path /var/cache \\) -prune -o -print | sort";

async fn install(guest: &mut Guest) {
    guest.run("dpkg --install *.deb").await.unwrap();
    // Nothing is started by a package.
    let active =
        guest.run("systemctl list-units --no-legend --state=active 'longshore*'").await.unwrap();
    assert_eq!(active.trim(), "");
}

async fn until_units_run(guest: &mut Guest, units: &[&str]) {
    let words = units.join(" ");
    until("the units", async || {
        let states = guest
            .run(&format!("systemctl is-active {words} || true"))
            .await
            .map_err(|e| e.to_string())?;
        if states.lines().all(|state| state == "active") { Ok(()) } else { Err(states) }
    })
    .await;
}

/// `longshore check` finds nothing that would fail.
async fn passes_check(guest: &mut Guest) {
    let said = guest.ask("longshore check -o json", TIMEOUT).await.unwrap();
    let report: Value =
        serde_json::from_str(&said.output).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let bad: Vec<_> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["level"] == "failure")
        .collect();
    assert!(bad.is_empty() && said.code == 0, "{bad:#?}");
}

/// A pod that says on the machine when it was told to end, and takes two seconds for it.
async fn create_ending(client: &Client, name: &str, class: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let script = format!(
        "trap 'cut -d\" \" -f1 /proc/uptime >/trace/{name}; sleep 2; exit 0' TERM; while :; do sleep 1; done"
    );
    let pod = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "priorityClassName": class,
            "terminationGracePeriodSeconds": 20,
            "containers": [{
                "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "trace", "mountPath": "/trace"}],
            }],
            "volumes": [{"name": "trace", "hostPath": {"path": "/var/lib/trace", "type": "DirectoryOrCreate"}}],
        },
    }))
    .unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    until(&format!("{name} runs"), async || {
        let status = pods.get(name).await.map_err(|e| e.to_string())?.status.unwrap_or_default();
        if status.phase.as_deref() == Some("Running") { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
}

/// The machine is powered off while pods run: they end in the order of their bands, and the API knows.
async fn powers_off_in_order(guest: &mut Guest, client: &Client) {
    create_ending(client, "usual", "").await;
    create_ending(client, "critical", "system-node-critical").await;
    guest.run("systemctl poweroff --no-block").await.unwrap();
    guest.until_off(TIMEOUT).await.unwrap();
    guest.power_on().await.unwrap();
    let ended = guest.run("cat /var/lib/trace/usual /var/lib/trace/critical").await.unwrap();
    let ended: Vec<f64> = ended.lines().map(|line| line.parse().unwrap()).collect();
    assert!(ended[0] + 2.0 <= ended[1], "the usual pod's end is awaited: {ended:?}");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    for name in ["usual", "critical"] {
        // Written before the machine went off: nothing else writes this reason.
        let status = until("the pod", async || pods.get(name).await.map_err(|e| e.to_string()))
            .await
            .status
            .unwrap();
        assert_eq!(status.reason.as_deref(), Some("Terminated"), "{status:?}");
        assert_eq!(status.phase.as_deref(), Some("Failed"), "{status:?}");
        pods.delete(name, &Default::default()).await.unwrap();
    }
}

/// Writes objects until the power is cut; what was acknowledged is there afterwards.
async fn survives_a_power_cut(guest: &mut Guest, client: &Client, round: u32) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    // Any moment between one and eight seconds from now.
    let moment =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos()
            % 7000;
    let moment = Duration::from_millis(1000 + u64::from(moment));
    let mut acknowledged = BTreeSet::new();
    let writing = async {
        for number in 0.. {
            let name = format!("map-{round}-{number}");
            let map = ConfigMap {
                metadata: kube::api::ObjectMeta { name: Some(name.clone()), ..Default::default() },
                ..Default::default()
            };
            if maps.create(&PostParams::default(), &map).await.is_ok() {
                acknowledged.insert(name);
            }
        }
    };
    let _ = tokio::time::timeout(moment, writing).await;
    guest.cut_power().unwrap();
    eprintln!("vm: {} writes were acknowledged in {moment:?}", acknowledged.len());
    assert!(!acknowledged.is_empty());
    guest.power_on().await.unwrap();
    let stored: BTreeSet<_> = until("the list", async || {
        maps.list(&ListParams::default()).await.map_err(|error| error.to_string())
    })
    .await
    .items
    .iter()
    .map(ResourceExt::name_any)
    .collect();
    let lost: Vec<_> = acknowledged.difference(&stored).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
}

/// Waits until the pods of before a boot run again, with other containers.
async fn until_back(guest: &mut Guest, client: &Client, node: &str) {
    until_units_run(guest, &UNITS).await;
    until_node(client, node, true).await;
    until_served(client, "web", 2).await;
    until_nothing_is_stale(guest, client, node, Runtime::Containerd.list_sandboxes()).await;
}

/// The same packages under another version.
async fn repack(fixture: &Fixture, version: &str) {
    let script = format!(
        "cd '{}' && mkdir -p {version} && for package in *.deb; do
             dpkg-deb --raw-extract $package tree
             sed -i 's/^Version: .*/Version: {version}/; s/(>= [^)]*)//' tree/DEBIAN/control
             dpkg-deb --root-owner-group -Znone --build tree {version}/$package >/dev/null
             rm -r tree
         done",
        fixture.payload().display()
    );
    let done = tokio::process::Command::new("sh").arg("-ec").arg(script).output().await.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Another version is installed while requests are served: nothing of a pod changes.
async fn installs_under_load(
    guest: &mut Guest,
    client: &Client,
    version: &str,
    before: &BTreeMap<String, PodState>,
) {
    let main = "systemctl show --value --property MainPID longshore longshore-apiserver";
    let processes = guest.run(main).await.unwrap();
    guest.run(&format!("dpkg --install {version}/*.deb")).await.unwrap();
    until_units_run(guest, &UNITS).await;
    let now = guest.run(main).await.unwrap();
    for (old, new) in processes.lines().zip(now.lines()).filter(|(old, _)| !old.is_empty()) {
        assert_ne!(old, new, "restarted");
    }
    until_node(client, "one", true).await;
    assert_eq!(&pod_states(client).await, before, "version {version}");
}

#[tokio::test]
#[ignore = "boots a virtual machine: `make vm-machines` runs it"]
async fn machine_is_a_cluster_until_it_is_uninstalled() {
    let fixture = Fixture::new("service");
    repack(&fixture, "99.0-1").await;
    repack(&fixture, "98.0-1").await;
    let step = Step::new("boot");
    let guest = &mut fixture.machine("one", 1).await;
    drop(step);

    let step = Step::new("install, check, up");
    guest.run(&format!("{FILES} >/var/tmp/files")).await.unwrap();
    install(guest).await;
    passes_check(guest).await;
    guest
        .run("printf 'shutdownGracePeriod: 60s\\nshutdownGracePeriodCriticalPods: 30s\\n' >/var/tmp/node.yaml")
        .await
        .unwrap();
    let said = guest.run("time longshore up --node-config=/var/tmp/node.yaml").await.unwrap();
    eprintln!("vm: {said}");
    assert!(said.contains("longshore join 198.18.7.1:6443 --token"), "{said}");
    until_units_run(guest, &UNITS).await;
    passes_check(guest).await;
    let client = &client(guest).await;
    drop(step);

    let step = Step::new("pods and a service");
    let address = serve(client, "web", 2).await;
    until_served(client, "web", 2).await;
    drop(step);

    let step = Step::new("upgrade, and back, under load");
    let before = pod_states(client).await;
    start_load(guest, &address).await;
    installs_under_load(guest, client, "99.0-1", &before).await;
    installs_under_load(guest, client, "98.0-1", &before).await;
    drop(step);

    let step = Step::new("each unit is killed under load");
    for unit in UNITS {
        guest
            .run(&format!("systemctl kill --kill-whom=main --signal=SIGKILL {unit}"))
            .await
            .unwrap();
        until(&format!("{unit} starts again"), async || {
            let shown = format!(
                "systemctl show --property NRestarts --property ActiveState {unit} | sort | xargs"
            );
            let state = guest.run(&shown).await.map_err(|e| e.to_string())?;
            if state.trim() == "ActiveState=active NRestarts=1" { Ok(()) } else { Err(state) }
        })
        .await;
    }
    until_node(client, "one", true).await;
    assert_load_was_served(guest).await;
    assert_eq!(pod_states(client).await, before, "killed");
    drop(step);

    let step = Step::new("reboot");
    guest.reboot().await.unwrap();
    until_back(guest, client, "one").await;
    drop(step);

    for round in 1..=3 {
        let _step = Step::new("power cut");
        survives_a_power_cut(guest, client, round).await;
        until_back(guest, client, "one").await;
    }

    let step = Step::new("power off");
    powers_off_in_order(guest, client).await;
    until_back(guest, client, "one").await;
    drop(step);

    let step = Step::new("reset, killed in the middle, and again; uninstall");
    guest
        .run("longshore reset --yes >/dev/null 2>&1 & sleep 4; kill -KILL $!; wait $! || true")
        .await
        .unwrap();
    guest.run("longshore reset --yes").await.unwrap();
    let left = guest
        .run(
            "ctr -n k8s.io containers ls -q
             iptables-save | grep -E 'KUBE-|LONGSHORE-'
             ip6tables-save | grep -E 'KUBE-|LONGSHORE-'
             ip -o link | grep -E 'longshore0|veth'
             ip route show proto 76
             grep -E 'kubelet|longshore' /proc/mounts
             find /sys/fs/cgroup -name 'kubepods*'
             systemctl list-units --all --no-legend --plain 'longshore*' 'kubepods*'
             pgrep --list-full longshore
             true",
        )
        .await
        .unwrap();
    assert_eq!(left.trim(), "", "after reset");
    guest
        .run("dpkg --purge longshore-cluster longshore longshore-apiserver longshore-controllers")
        .await
        .unwrap();
    // The test's own, and the runtime's.
    guest.run("rm -r /usr/local/bin/load /var/lib/trace /var/lib/cni").await.unwrap();
    let left = guest
        .run(&format!("{FILES} | diff /var/tmp/files - | grep '^[<>]' || true"))
        .await
        .unwrap();
    assert_eq!(left.trim(), "", "after the packages were purged");
    drop(step);
}

#[tokio::test]
#[ignore = "boots two virtual machines: `make vm-machines` runs it"]
async fn machines_are_a_cluster_and_one_loses_its_power() {
    let fixture = Fixture::new("join");
    let step = Step::new("boot, up and join");
    let one = &mut fixture.machine("one", 1).await;
    install(one).await;
    let said = one.run("longshore up").await.unwrap();
    let join = said
        .lines()
        .find(|line| line.trim().starts_with("longshore join"))
        .expect("the line")
        .trim();
    let two = &mut fixture.machine("two", 2).await;
    // A node needs the one package.
    two.run("dpkg --install longshore_*.deb").await.unwrap();
    let refused = two.ask(&join.replace("sha256:", "sha256:00"), TIMEOUT).await.unwrap();
    assert_eq!(refused.code, 1, "{refused:?}");
    two.run(join).await.unwrap();
    let client = &client(one).await;
    until_node(client, "one", true).await;
    until_node(client, "two", true).await;
    drop(step);

    let step = Step::new("a service with pods on both");
    let address = serve(client, "web", 2).await;
    until_served(client, "web", 2).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let nodes: BTreeSet<_> = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|pod| pod.spec.and_then(|spec| spec.node_name))
        .collect();
    assert_eq!(nodes.into_iter().collect::<Vec<_>>(), ["one", "two"]);
    // Each pod from each machine: ten requests reach both of them.
    for guest in [&mut *one, &mut *two] {
        let script = format!(
            "for _ in $(seq 10); do busybox wget -q -T 10 -O - http://{address}/ || exit; done | uniq -c"
        );
        assert_eq!(guest.run(&script).await.unwrap().trim(), "10 served");
    }
    drop(step);

    let step = Step::new("one loses its power: its pods move");
    two.cut_power().unwrap();
    until_node(client, "two", false).await;
    until("both pods on the machine that is left", async || {
        let all = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let of_one = all.iter().filter(|pod| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some("one")
        });
        let ready = of_one.filter(|pod| {
            is_ready(&pod.status.as_ref().and_then(|status| status.conditions.as_ref()))
        });
        match ready.count() {
            2 => Ok(()),
            count => Err(format!("{count}")),
        }
    })
    .await;
    drop(step);

    let step = Step::new("it comes back");
    two.power_on().await.unwrap();
    until_node(client, "two", true).await;
    until_served(client, "web", 2).await;
    until_nothing_is_stale(two, client, "two", Runtime::Containerd.list_sandboxes()).await;
    until_nothing_is_stale(one, client, "one", Runtime::Containerd.list_sandboxes()).await;
    start_load(two, &address).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_load_was_served(two).await;
    drop(step);
}
