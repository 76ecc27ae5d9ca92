//! AppArmor profiles on real runtimes. Ignored where `make test` runs, whose kernels may lack AppArmor.

use crate::common;

use std::fs;

use common::{TIMEOUT, container, get_json, manifest};
use longshore_testkit::{Docker, DockerOptions, Host, Node, NodeOptions, wait_until};
use serde_json::{Value, json};

const PROFILE: &str = "longshore-test";

/// Loads a profile that forbids one file.
fn load_profile(host: &Host) {
    let path = host.dir().join(PROFILE);
    let text = format!(
        "profile {PROFILE} flags=(attach_disconnected, mediate_deleted) {{\n\
         file,\ncapability,\nnetwork,\nsignal,\nptrace,\nmount,\ndeny /denied w,\n}}\n"
    );
    fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    host.run("apparmor_parser", ["--skip-cache", "--replace", &path]).expect("AppArmor");
}

fn profile(kind: &str) -> Value {
    json!({"type": kind})
}

fn local(name: &str) -> Value {
    json!({"type": "Localhost", "localhostProfile": name})
}

/// Exit code and termination message of each container of a pod that has ended; of others the reason of their wait.
fn found(pods: &Value, pod: &str) -> Vec<(String, Value, String)> {
    let mut pods = pods["items"].as_array().into_iter().flatten();
    let whole = pods.find(|one| {
        one["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(&format!("{pod}-")))
    });
    let statuses = whole.and_then(|whole| whole["status"]["containerStatuses"].as_array());
    let found = |status: &Value| {
        let (ended, waits) = (&status["state"]["terminated"], &status["state"]["waiting"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match ended.is_null() {
            true => (text(&status["name"]), Value::Null, text(&waits["reason"])),
            false => (text(&status["name"]), ended["exitCode"].clone(), text(&ended["message"])),
        }
    };
    statuses.into_iter().flatten().map(found).collect()
}

/// Each container has its profile, or its pod's, or the runtime's, which is called `default`.
/// A container whose profile is not loaded has this exit code, and this in its reason or message.
async fn is_applied(host: &Host, mut options: NodeOptions, default: &str, refusal: (Value, &str)) {
    load_profile(host);
    options.config.insert("readOnlyPort".to_owned(), json!(10255));
    let mut node = Node::standalone(host, options).unwrap();
    let text =
        "(cat /proc/self/attr/current; echo x >/denied && cat /denied) >/dev/termination-log 2>&1";
    let is_default = (json!(0), format!("{default} (enforce)\nx\n"));
    let is_unconfined = (json!(0), "unconfined\nx\n".to_owned());
    let is_denied =
        (json!(1), format!("{PROFILE} (enforce)\nsh: can't create /denied: Permission denied\n"));
    // the pod's profile; the names of its containers, their profiles, and what they find
    let pods = [
        (
            "confined",
            local(PROFILE),
            vec![
                ("pods", Value::Null, &is_denied),
                ("less", profile("Unconfined"), &is_unconfined),
                ("default", profile("RuntimeDefault"), &is_default),
            ],
        ),
        (
            "free",
            profile("Unconfined"),
            vec![("pods", Value::Null, &is_unconfined), ("own", local(PROFILE), &is_denied)],
        ),
        ("none", Value::Null, vec![("none", Value::Null, &is_default)]),
    ];
    let write = |name: &str, pods: &Value, containers: Vec<Value>| {
        let whole = manifest(name, "Never", containers.into());
        let mut whole: Value = serde_json::from_str(&whole).unwrap();
        whole["spec"]["securityContext"] = json!({"appArmorProfile": pods});
        fs::write(node.manifests().join(format!("{name}.json")), whole.to_string()).unwrap();
    };
    let with = |name: &str, own: &Value| {
        let mut made = container(name, text);
        made["securityContext"] = json!({"appArmorProfile": own});
        made
    };
    for (name, of_pod, containers) in &pods {
        write(name, of_pod, containers.iter().map(|(name, own, _)| with(name, own)).collect());
    }
    write("absent", &Value::Null, vec![with("c", &local("no-such-profile"))]);
    for (name, _, containers) in &pods {
        let mut expected: Vec<_> = containers
            .iter()
            .map(|(name, _, (code, message))| ((*name).to_owned(), code.clone(), message.clone()))
            .collect();
        // as statuses are
        expected.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        wait_until(TIMEOUT, name, async || {
            let found = found(&get_json(host.node_ip(), "/pods").await?, name);
            if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await
        .unwrap();
    }
    wait_until(TIMEOUT, "the refusal", async || {
        match found(&get_json(host.node_ip(), "/pods").await?, "absent").as_slice() {
            [(_, code, why)] if *code == refusal.0 && why.contains(refusal.1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    for file in fs::read_dir(node.manifests()).unwrap().flatten() {
        fs::remove_file(file.path()).unwrap();
    }
    wait_until(TIMEOUT, "the pods to go", async || {
        let pods = get_json(host.node_ip(), "/pods").await?;
        if pods["items"].as_array().is_none_or(Vec::is_empty) {
            Ok(())
        } else {
            Err(pods.to_string())
        }
    })
    .await
    .unwrap();
    node.daemon().terminate(TIMEOUT).unwrap();
}

#[tokio::test]
#[ignore = "needs a kernel with AppArmor: `make vm-test` runs it"]
async fn apparmor_profile_confines_its_container() {
    let host = Host::start().unwrap();
    let options = NodeOptions::default();
    is_applied(&host, options, "cri-containerd.apparmor.d", (Value::Null, "CreateContainerError"))
        .await;
    host.assert_clean();
}

#[tokio::test]
#[ignore = "needs a kernel with AppArmor and a Docker Engine: `make vm-test` runs it"]
async fn apparmor_profile_confines_its_container_on_docker() {
    let (host, mut docker) = Docker::with_host(DockerOptions::default()).unwrap();
    let options = docker.node_options(&host).unwrap();
    // The engine looks for the profile when the container starts, and tells it as an exit.
    let refusal = (json!(127), "unable to apply apparmor profile");
    is_applied(&host, options, "docker-default", refusal).await;
    docker.stop().unwrap();
    host.assert_clean();
}
