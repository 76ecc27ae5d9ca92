//! `longshore up`, `join`, `token`, `down` and `reset` as people type them, on two test hosts with a
//! containerd each, and `up`, `check` and `reset` on one with a Docker Engine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::{Api, LogParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use longshore_testkit::{
    BUSYBOX, Daemon, Docker, DockerOptions, Machine, PAUSE, program, wait_until,
};
use serde_json::{Value, json};

/// Enough for a start on a machine that is busy with builds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What the tests do on a machine.
trait Typed {
    fn spawn(&self, name: &str, words: &[&str]) -> Daemon;
    fn run(&self, words: &[&str]) -> String;
    fn fails(&self, command: Command, part: &str);
    fn files(&self) -> Vec<PathBuf>;
    async fn until_log(&self, daemon: &mut Daemon, part: &str) -> String;
    fn logs(&self) -> String;
    fn assert_reset(&self);
}

impl Typed for Machine {
    fn spawn(&self, name: &str, words: &[&str]) -> Daemon {
        self.host.spawn(name, self.starting(words).unwrap()).expect("longshore is started")
    }

    /// A command that succeeds: what it prints.
    fn run(&self, words: &[&str]) -> String {
        let output = self.command(words).unwrap().output().expect("longshore");
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{words:?}: {out} {err}");
        out.into_owned()
    }

    /// A command that fails, with one line that says why.
    fn fails(&self, mut command: Command, part: &str) {
        let output = command.output().expect("longshore");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {err}");
        assert!(err.contains(part), "{part}: {err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{err}");
    }

    /// Files under the root.
    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.root()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => found.push(entry.path()),
                }
            }
        }
        found
    }

    async fn until_log(&self, daemon: &mut Daemon, part: &str) -> String {
        wait_until(TIMEOUT, part, async || {
            let log = daemon.log();
            if log.contains(part) { Ok(log) } else { Err(log) }
        })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", self.logs()))
    }

    fn logs(&self) -> String {
        let folder = self.root().join("var/log/longshore");
        let tails = longshore_testkit::log_tails(&folder, 15);
        tails.into_iter().map(|(name, tail)| format!("--- {name}\n{tail}\n")).collect()
    }

    /// Nothing of the node and its network is on the host.
    fn assert_reset(&self) {
        assert_eq!(self.files(), [] as [PathBuf; 0]);
        assert_eq!(self.host.ctr(["containers", "ls", "-q"]).unwrap().trim(), "");
        let rules = self.host.run("iptables-save", [] as [&str; 0]).unwrap();
        let left: Vec<_> =
            rules.lines().filter(|l| l.contains("KUBE-") || l.contains("LONGSHORE-")).collect();
        assert!(left.is_empty(), "{left:#?}");
        let links = self.host.run("ip", ["-o", "link"]).unwrap();
        assert!(!links.contains("longshore0"), "{links}");
        assert_eq!(self.host.run("ip", ["route", "show", "proto", "76"]).unwrap().trim(), "");
        let cni: Vec<_> = fs::read_dir(self.cni_conf_dir()).unwrap().collect();
        assert!(cni.is_empty(), "{cni:?}");
    }
}

async fn client(kubeconfig: PathBuf) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.proxy_url = None;
    Client::try_from(config).unwrap()
}

fn pod(name: &str, node: &str, script: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
            }],
        },
    }))
    .unwrap()
}

async fn until_phase(pods: &Api<Pod>, name: &str, phase: &str) {
    wait_until(TIMEOUT, &format!("{name} to be {phase}"), async || {
        let pod = pods.get(name).await.map_err(|error| error.to_string())?;
        let status = pod.status.unwrap_or_default();
        if status.phase.as_deref() == Some(phase) { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await
    .unwrap();
}

/// The words of the line that joins, without the program.
fn join_words(log: &str) -> Vec<String> {
    let line =
        log.lines().find(|line| line.trim().starts_with("longshore join")).expect("the line");
    line.split_whitespace().skip(1).map(str::to_owned).collect()
}

fn words(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

#[tokio::test]
async fn host_up_join_pods_down_and_reset() {
    let (one, two) = (Machine::start().unwrap(), Machine::start().unwrap());
    one.host.join(&two.host).expect("a link");
    refuses_a_disk_that_is_full(&one);

    let mut up = one.spawn("up", &["up"]);
    let log = one.until_log(&mut up, "is Ready").await;
    let join = join_words(&log);
    let admin = client(one.root().join("etc/kubernetes/admin.conf")).await;

    refuses_a_second_cluster(&one);
    refuses_what_nothing_vouches_for(&two, &join);
    tokens_are_created_listed_and_deleted(&one, &two);

    let disk = two.root().join("var/lib/kubelet").display().to_string();
    fs::create_dir_all(&disk).unwrap();
    two.host.run("mount", ["-t", "tmpfs", "tmpfs", &disk]).unwrap();
    let mut joined = two.spawn("join", &words(&join));
    two.until_log(&mut joined, "is Ready").await;
    assert!(!two.root().join("etc/kubernetes/bootstrap-kubelet.conf").exists());
    pods_reach_each_other_by_name(&admin, &one, &two).await;

    leaves_by_down_and_reset(&two, &mut joined);
    two.host.run("umount", [&disk]).unwrap();
    is_reset_after_an_interruption(&one, &mut up);
    drop((up, joined));
    two.host.assert_clean();
    one.host.assert_clean();
}

fn refuses_a_disk_that_is_full(machine: &Machine) {
    let disk = machine.root();
    fs::create_dir_all(&disk).unwrap();
    let disk = disk.display().to_string();
    machine.host.run("mount", ["-t", "tmpfs", "-o", "size=8m", "tmpfs", &disk]).unwrap();
    machine.fails(machine.starting(&["up"]).unwrap(), "MiB left");
    assert_eq!(machine.files(), [] as [PathBuf; 0]);
    machine.host.run("umount", [&disk]).unwrap();
}

/// Neither on the same root nor on the same ports.
fn refuses_a_second_cluster(machine: &Machine) {
    machine.fails(machine.starting(&["up"]).unwrap(), "longshore down");
    let other = machine.host.dir().join("other");
    let mut command = machine.host.command(program("longshore").unwrap());
    command.args(["up", "--foreground"]).arg("--root").arg(&other);
    command.arg(format!("--address={}", machine.host.node_ip()));
    command.arg(format!("--container-runtime-endpoint=unix://{}", machine.host.socket().display()));
    machine.fails(command, "is in use");
    assert!(!other.join("etc").exists() && !other.join("var/lib").exists());
}

fn refuses_what_nothing_vouches_for(machine: &Machine, join: &[String]) {
    let replaced = |at: &str, with: &str| -> Vec<String> {
        let at = join.iter().position(|word| word == at).unwrap() + 1;
        let mut words = join.to_vec();
        words[at] = with.to_owned();
        words
    };
    let hash = format!("sha256:{}", "0".repeat(64));
    for (line, part) in [
        (replaced("--discovery-token-ca-cert-hash", &hash), "this is another cluster"),
        (replaced("--token", "abcdef.0123456789abcdef"), "longshore token create"),
        (replaced("--token", &format!("{}.0000000000000000", &token_of(join)[..6])), "not signed"),
        (replaced("join", "198.18.255.254:1"), "198.18.255.254:1"),
    ] {
        machine.fails(machine.starting(&words(&line)).unwrap(), part);
        assert_eq!(machine.files(), [] as [PathBuf; 0]);
    }
    machine.fails(machine.starting(&["join"]).unwrap(), "longshore token create");
    machine.fails(machine.command(&["down"]).unwrap(), "has no cluster");
    machine.fails(machine.command(&["token", "list"]).unwrap(), "--kubeconfig");
}

fn token_of(join: &[String]) -> String {
    join[join.iter().position(|word| word == "--token").unwrap() + 1].clone()
}

fn tokens_are_created_listed_and_deleted(one: &Machine, two: &Machine) {
    let line = one.run(&[
        "token",
        "create",
        "abcdef.0123456789abcdef",
        "--ttl=10s",
        "--description=short",
    ]);
    assert!(line.starts_with("longshore join "), "{line}");
    one.fails(one.command(&["token", "create", "abcdef.0123456789abcdef"]).unwrap(), "already");
    let list: Value = serde_json::from_str(&one.run(&["token", "list", "-o", "json"])).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2, "{list}");
    // It expires, and joins nobody then.
    std::thread::sleep(Duration::from_secs(11));
    let expired = join_words(&line);
    two.fails(two.starting(&words(&expired)).unwrap(), "abcdef");
    let kept = one.run(&["token", "create", "--quiet", "--ttl=0"]);
    assert!(one.run(&["token", "list"]).contains(kept.trim()));
    one.run(&["token", "delete", kept.trim()]);
    one.fails(one.command(&["token", "delete", kept.trim()]).unwrap(), "there is no token");
}

async fn pods_reach_each_other_by_name(admin: &Client, one: &Machine, two: &Machine) {
    let nodes: Api<Node> = Api::all(admin.clone());
    for machine in [one, two] {
        let node = nodes.get(&machine.host.name()).await.unwrap();
        let range = node.spec.unwrap().pod_cidr.unwrap();
        assert!(range.starts_with("10.244."), "{range}");
    }
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "default");
    let serve = "mkdir /www && echo served >/www/index.html && exec httpd -f -p 8080 -h /www";
    let create = PostParams::default();
    pods.create(&create, &pod("server", &two.host.name(), serve)).await.unwrap();
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }))
    .unwrap();
    let services: Api<Service> = Api::namespaced(admin.clone(), "default");
    services.create(&create, &service).await.unwrap();
    until_phase(&pods, "server", "Running").await;
    // The C library of the image resolves no names, and wget fails without; nslookup asks the DNS
    // server itself.
    let get = "until a=$(nslookup -type=a web.default.svc.cluster.local | sed -n 's/^Address: //p') && \
        [ -n \"$a\" ] && printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 5 $a 80 | grep served; do sleep 1; done";
    pods.create(&create, &pod("visitor", &one.host.name(), get)).await.unwrap();
    until_phase(&pods, "visitor", "Succeeded").await;
    // Through the apiserver, which verifies the node's certificate.
    let log = wait_until(TIMEOUT, "the log", async || {
        pods.logs("visitor", &LogParams::default()).await.map_err(|error| error.to_string())
    });
    assert_eq!(log.await.unwrap().lines().last(), Some("served"));
    pods.create(&create, &pod("keeper", &one.host.name(), "sleep 100000")).await.unwrap();
    until_phase(&pods, "keeper", "Running").await;
}

fn leaves_by_down_and_reset(machine: &Machine, joined: &mut Daemon) {
    machine.fails(machine.starting(&["join"]).unwrap(), "longshore down");
    assert!(machine.run(&["down"]).contains("stopped"));
    assert!(joined.wait(Duration::from_secs(10)).unwrap().success());
    let running = machine.host.ctr(["tasks", "ls", "-q"]).unwrap();
    assert_ne!(running.trim(), "", "pods go on running");
    assert!(machine.run(&["down"]).contains("nothing ran"));

    let shown = machine.run(&["reset", "--dry-run"]);
    for part in
        ["default/server", "filter/KUBE-FORWARD", "longshore0", "cgroups", "var/lib/kubelet"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    machine.fails(machine.command(&["reset"]).unwrap(), "--yes");
    assert!(machine.root().join("var/lib/longshore/cluster.json").exists());
    machine.run(&["reset", "--yes"]);
    machine.assert_reset();
    assert!(machine.run(&["reset", "--yes"]).contains("nothing to remove"));
}

/// Of a cluster that runs, killed in the middle, and again.
fn is_reset_after_an_interruption(machine: &Machine, up: &mut Daemon) {
    let mut first =
        machine.host.spawn("reset", machine.command(&["reset", "--yes"]).unwrap()).unwrap();
    // Once it has stopped the services, it removes.
    up.wait(Duration::from_secs(60)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    first.kill().unwrap();
    machine.run(&["reset", "--yes"]);
    machine.assert_reset();
}

#[tokio::test]
async fn host_up_check_and_reset_on_docker() {
    if !Docker::is_installed() {
        println!("skipped: no dockerd on this machine");
        return;
    }
    let (host, mut docker) = Docker::with_host(DockerOptions::default()).unwrap();
    let machine = Machine::with(host, format!("docker://{}", docker.socket().display())).unwrap();
    // Somebody else's, with a label that a pod has too.
    let other = json!({
        "Image": PAUSE, "Labels": {"io.kubernetes.pod.uid": "u"}, "HostConfig": {"NetworkMode": "none"},
    });
    let created =
        docker.request("POST", "/containers/create?name=other", other.to_string().as_bytes());
    assert_eq!(created.unwrap().0, 201);

    let mut up = machine.starting(&["up"]).unwrap();
    up.arg(format!("--node-arg=--pod-infra-container-image={PAUSE}"));
    let mut up = machine.host.spawn("up", up).unwrap();
    machine.until_log(&mut up, "is Ready").await;
    let admin = client(machine.root().join("etc/kubernetes/admin.conf")).await;
    let pods: Api<Pod> = Api::default_namespaced(admin);
    let web = pod("web", &machine.host.name(), "exec sleep 1000");
    wait_until(TIMEOUT, "the pod to be admitted", async || {
        pods.create(&PostParams::default(), &web).await.map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    until_phase(&pods, "web", "Running").await;
    let checked = machine.command(&["check", "-o", "json"]).unwrap().output().unwrap();
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    for (name, part) in [("container runtime", "Docker "), ("cgroup driver", "")] {
        let mut checks = checked["checks"].as_array().unwrap().iter();
        let check = checks.find(|check| check["name"] == name).unwrap();
        assert_eq!(check["level"], "ok", "{check}");
        assert!(check["message"].as_str().unwrap().contains(part), "{check}");
    }

    let shown = machine.run(&["reset", "--dry-run"]);
    assert!(shown.contains("default/web"), "{shown}");
    machine.run(&["reset", "--yes"]);
    assert!(up.wait(Duration::from_secs(60)).unwrap().success());
    assert_eq!(machine.files(), [] as [PathBuf; 0]);
    let (_, left) = docker.request("GET", "/containers/json?all=true", &[]).unwrap();
    let names: Vec<_> = left.as_array().unwrap().iter().map(|one| &one["Names"][0]).collect();
    assert_eq!(names, ["/other"]);
    drop(up);
    docker.stop().unwrap();
    machine.host.assert_clean();
}
