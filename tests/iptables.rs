//! The iptables chains of the kubelet on a test host: created at the start, restored after a flush,
//! kept at the stop; and the protection of loopback addresses.

use crate::common;

use std::fs;

use common::{TIMEOUT, get_json};
use longshore_testkit::{Daemon, Host, Node, NodeOptions, wait_until};
use serde_json::{Value, json};

const GUARD: &str = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \
                     \"block incoming localnet connections\" -m conntrack ! --ctstate \
                     RELATED,ESTABLISHED,DNAT -j DROP";

fn start(host: &Host, config: Value) -> Node {
    let mut config = config.as_object().cloned().unwrap();
    config.insert("readOnlyPort".to_owned(), json!(10255));
    Node::standalone(host, NodeOptions { config, ..NodeOptions::default() }).unwrap()
}

fn rules(host: &Host, program: &str, table: &str) -> String {
    host.run(program, ["-t", table, "-S"]).unwrap()
}

/// What is not as a kubelet keeps it.
fn missing(host: &Host) -> Result<(), String> {
    let filter = rules(host, "iptables", "filter");
    for line in ["-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL", GUARD] {
        let found = filter.lines().filter(|rule| *rule == line).count();
        if found != 1 {
            return Err(format!("{found} times {line}"));
        }
    }
    for program in ["iptables", "ip6tables"] {
        if !rules(host, program, "mangle").contains("-N KUBE-IPTABLES-HINT\n") {
            return Err(format!("{program}: no hint"));
        }
    }
    Ok(())
}

async fn until_kept(host: &Host) {
    wait_until(TIMEOUT, "the chains are there", async || missing(host)).await.unwrap();
}

#[tokio::test]
async fn iptables_chains_are_created_and_restored_after_a_flush() {
    let host = Host::start().unwrap();
    // what is there already is not made twice
    host.run("iptables", ["-N", "KUBE-FIREWALL"]).unwrap();
    host.run("iptables", ["-A", "OUTPUT", "-j", "KUBE-FIREWALL"]).unwrap();
    let mut node = start(&host, json!({}));
    until_kept(&host).await;
    let flush = "for ip in iptables ip6tables; do for table in filter mangle nat; do \
                 $ip -t $table -F; $ip -t $table -X; done; done";
    for _ in 0..2 {
        host.run("sh", ["-c", flush]).unwrap();
        until_kept(&host).await;
    }
    // A flush that leaves the other tables alone. Its second step may remove a chain that was
    // restored after its first.
    for _ in 0..10 {
        host.run("sh", ["-c", "iptables -F; iptables -X || true"]).unwrap();
        until_kept(&host).await;
    }
    node.daemon().terminate(TIMEOUT).unwrap();
    missing(&host).expect("they stay");
    drop(node);
    host.assert_clean();
}

#[tokio::test]
async fn iptables_chains_are_not_created_if_disabled() {
    let host = Host::start().unwrap();
    let node = start(&host, json!({"makeIPTablesUtilChains": false}));
    wait_until(TIMEOUT, "the node answers", async || get_json(host.node_ip(), "/pods").await)
        .await
        .unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    for table in ["filter", "mangle"] {
        let rules = rules(&host, "iptables", table);
        assert!(!rules.contains("KUBE-"), "{rules}");
    }
    drop(node);
    host.assert_clean();
}

/// A server at a loopback address of the host, which leads packets to it from everywhere, and a
/// neighbour that sends them.
struct Loopback {
    neighbour: Daemon,
    _server: Daemon,
}

impl Loopback {
    fn open(host: &Host) -> Self {
        let shell = |name: &str, script: &str| {
            let mut command = host.command("sh");
            command.args(["-c", script]);
            host.spawn(name, command).unwrap()
        };
        let files = host.dir().join("www");
        fs::create_dir_all(&files).unwrap();
        fs::write(files.join("x"), "inside").unwrap();
        let serve = format!("exec busybox httpd -f -p 127.0.0.1:8099 -h {}", files.display());
        let server = shell("server", &serve);
        let neighbour = shell("neighbour", "exec unshare --net sleep 600");
        let lead = "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet";
        let pid = neighbour.pid();
        let inside = format!("nsenter --net=/proc/{pid}/ns/net");
        let script = format!(
            "set -e; {lead}
             until [ \"$(readlink /proc/{pid}/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do sleep 0.1; done
             ip link add guard0 type veth peer name guard1
             ip link set guard1 netns {pid}
             ip addr add 198.51.100.1/24 dev guard0
             ip link set guard0 up
             {inside} sh -ec '{lead}; ip addr add 198.51.100.2/24 dev guard1; ip link set guard1 up
                              ip route add 127.0.0.0/8 via 198.51.100.1'"
        );
        host.run("sh", ["-c", &script]).unwrap();
        Self { neighbour, _server: server }
    }

    fn request(&self, host: &Host) -> Result<String, String> {
        let netns = format!("--net=/proc/{}/ns/net", self.neighbour.pid());
        let url = "http://127.0.0.1:8099/x";
        let command = [&netns, "curl", "-s", "-f", "--noproxy", "*", "-m", "2", url];
        host.run("nsenter", command).map_err(|error| error.to_string())
    }
}

/// CVE-2020-8558: with `route_localnet`, which kube-proxy sets, neighbours reached what listens on
/// loopback addresses. kube-proxy's own guard has the same rule in `tests/proxy`.
#[tokio::test]
async fn iptables_protects_loopback_addresses_from_neighbours() {
    let host = Host::start().unwrap();
    let loopback = Loopback::open(&host);
    let found =
        wait_until(TIMEOUT, "an open door", async || loopback.request(&host)).await.unwrap();
    assert_eq!(found, "inside", "without the guard, the test has something to show");
    let node = start(&host, json!({}));
    until_kept(&host).await;
    loopback.request(&host).unwrap_err();
    let own = ["-s", "-f", "--noproxy", "*", "-m", "2", "http://127.0.0.1:8099/x"];
    assert_eq!(host.run("curl", own).unwrap(), "inside", "the node itself does");
    drop((node, loopback));
    host.assert_clean();
}
