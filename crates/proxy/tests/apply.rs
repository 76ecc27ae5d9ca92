//! Rules in the kernel, with both variants of iptables.

use crate::common;

use std::cell::Cell;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{eventually, in_netns, sh};
use longshore_proxy::Family;
use longshore_proxy::apply::{
    Backend, CANARY, Error, Iptables, Limits, Position, Table, Variant, cleanup, watch,
};
use tokio::time::{sleep, timeout};

const VARIANTS: [(Variant, &str); 2] = [(Variant::Nft, "nft"), (Variant::Legacy, "legacy")];

async fn backend(variant: Variant) -> Arc<Backend> {
    Backend::of(variant, Limits::default()).await.unwrap()
}

async fn iptables(variant: Variant) -> Iptables {
    backend(variant).await.family(Family::V4)
}

/// Names of chains and rules, without counters and comments.
fn saved(text: &str) -> Vec<&str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(" [").next().unwrap()).collect()
}

#[test]
fn chains_and_rules_come_and_go() {
    in_netns(async || {
        for (variant, _) in VARIANTS {
            for family in Family::ALL {
                let it = backend(variant).await.family(family);
                it.supported().await.unwrap();
                let table = Table::Nat;
                assert!(!it.has_chain(table, "KUBE-A").await.unwrap());
                assert!(!it.delete_chain(table, "KUBE-A").await.unwrap());
                assert!(!it.flush_chain(table, "KUBE-A").await.unwrap());
                assert!(!it.ensure_chain(table, "KUBE-A").await.unwrap());
                assert!(it.ensure_chain(table, "KUBE-A").await.unwrap());
                assert!(it.has_chain(table, "KUBE-A").await.unwrap());
                assert!(!it.has_chain(Table::Filter, "KUBE-A").await.unwrap());
                let rule = ["-m", "comment", "--comment", "two words", "-j", "KUBE-A"];
                assert!(!it.delete_rule(table, "OUTPUT", &rule).await.unwrap());
                let (first, last) = (Position::First, Position::Last);
                assert!(!it.ensure_rule(last, table, "OUTPUT", &["-j", "RETURN"]).await.unwrap());
                assert!(!it.ensure_rule(first, table, "OUTPUT", &rule).await.unwrap());
                assert!(it.ensure_rule(last, table, "OUTPUT", &rule).await.unwrap());
                assert!(it.ensure_rule(last, table, "KUBE-A", &["-j", "NONE"]).await.is_err());
                let text = it.save(table).await.unwrap();
                assert_eq!(
                    saved(&text)[6..],
                    [
                        "-A OUTPUT -m comment --comment \"two words\" -j KUBE-A",
                        "-A OUTPUT -j RETURN",
                        "COMMIT"
                    ]
                );
                let chains = it.chains(table).await.unwrap();
                assert!(
                    ["KUBE-A", "OUTPUT"].iter().all(|it| chains.iter().any(|chain| it == chain))
                );
                assert!(it.chains(Table::Filter).await.unwrap().iter().all(|it| it != "KUBE-A"));
                assert!(it.delete_chain(table, "KUBE-A").await.is_err(), "a rule jumps to it");
                assert!(it.delete_rule(table, "OUTPUT", &rule).await.unwrap());
                assert!(!it.delete_rule(table, "OUTPUT", &rule).await.unwrap());
                it.ensure_rule(last, table, "KUBE-A", &["-j", "RETURN"]).await.unwrap();
                assert!(it.flush_chain(table, "KUBE-A").await.unwrap());
                assert!(it.delete_chain(table, "KUBE-A").await.unwrap());
                assert!(!it.delete_rule(table, "OUTPUT", &rule).await.unwrap());
            }
        }
    });
}

#[test]
fn apply_restore_is_atomic_and_reports_the_line() {
    in_netns(async || {
        for (variant, name) in VARIANTS {
            let it = iptables(variant).await;
            it.ensure_chain(Table::Nat, "KUBE-OLD").await.unwrap();
            it.restore("*nat\n:KUBE-A - [0:0]\n-A KUBE-A -j RETURN\nCOMMIT\n", true).await.unwrap();
            let before = it.save(Table::Nat).await.unwrap();
            for (text, at, line) in [
                ("*nat\n:KUBE-B - [0:0]\n-A KUBE-B -j NONE\nCOMMIT\n", 3, "-A KUBE-B -j NONE"),
                ("*nat\n:KUBE-B - [0:0]\n-X KUBE-NONE\nCOMMIT\n", 3, "-X KUBE-NONE"),
                ("*nat\n:KUBE-B - [0:0]\n-A KUBE-B -p tcp --none 1\nCOMMIT\n", 3, "--none 1"),
            ] {
                let error = it.restore(text, false).await.unwrap_err();
                let Error::Input { command, code, line: number, text, .. } = &error else {
                    panic!("{name}: {error}");
                };
                assert!(command.contains("-restore --noflush"), "{error}");
                // Of a chain that is not there legacy says only that the transaction failed.
                let commit = variant == Variant::Legacy && text == "COMMIT";
                assert!((*number == at && text.contains(line)) || commit, "{name}: {error}");
                assert!(code.is_some_and(|code| code > 0), "{name}: {error}");
            }
            let after = it.save(Table::Nat).await.unwrap();
            assert_eq!(saved(&before), saved(&after));
            assert!(it.chains(Table::Nat).await.unwrap().contains(&"KUBE-OLD".into()));
        }
    });
}

#[test]
fn apply_large_restore() {
    in_netns(async || {
        for (variant, _) in VARIANTS {
            let it = iptables(variant).await;
            let chains: String = (0..300).map(|i| format!(":KUBE-SVC-{i:016} - [0:0]\n")).collect();
            let rules: String = (0..20_000)
                .map(|i| {
                    format!(
                        "-A KUBE-SVC-{:016} -s 10.{}.{}.1/32 -j RETURN\n",
                        i % 300,
                        i / 250,
                        i % 250
                    )
                })
                .collect();
            it.restore(&format!("*nat\n{chains}{rules}COMMIT\n"), false).await.unwrap();
            let text = it.save(Table::Nat).await.unwrap();
            assert_eq!(text.lines().filter(|line| line.starts_with("-A")).count(), 20_000);
            let chains = it.chains(Table::Nat).await.unwrap();
            assert_eq!(chains.iter().filter(|name| name.starts_with("KUBE-SVC-")).count(), 300);
        }
    });
}

#[test]
fn iptables_variant_detection_changes_nothing() {
    let detected = async || Backend::detect(Limits::default()).await.unwrap().variant;
    in_netns(async || {
        assert_eq!(detected().await, Variant::Nft);
        assert_eq!(sh("nft list ruleset; cat /proc/thread-self/net/ip_tables_names"), "");
        sh("iptables-legacy -A OUTPUT -j ACCEPT");
        assert_eq!(detected().await, Variant::Legacy);
        sh("iptables-nft -A OUTPUT -j ACCEPT");
        assert_eq!(detected().await, Variant::Nft);
        sh("ip6tables-legacy -A OUTPUT -j ACCEPT");
        assert_eq!(detected().await, Variant::Legacy);
        sh("iptables-nft -t mangle -N KUBE-IPTABLES-HINT");
        assert_eq!(detected().await, Variant::Nft);
        sh("iptables-nft -t mangle -X KUBE-IPTABLES-HINT");
        sh("iptables-nft -A OUTPUT -j ACCEPT; iptables-nft -A OUTPUT -j ACCEPT");
        assert_eq!(detected().await, Variant::Nft);
        sh("ip6tables-legacy -t mangle -N KUBE-KUBELET-CANARY");
        assert_eq!(detected().await, Variant::Legacy);
    });
}

/// An interval of checks that is longer than a test waits.
const NEVER: Duration = Duration::from_secs(3600);

/// Runs the watch while the test flushes, and waits until it notices each.
async fn noticed(it: &Iptables, interval: Duration, flushes: &[String]) {
    let reported = Cell::new(0);
    let watching = watch(it, CANARY, interval, || reported.set(reported.get() + 1));
    let test = async {
        for table in Table::ALL {
            while !it.has_chain(table, CANARY).await.unwrap() {
                sleep(Duration::from_millis(5)).await;
            }
        }
        for flush in flushes {
            let before = reported.get();
            // Changes that take nothing of ours away say nothing.
            it.restore("*nat\n:KUBE-A - [0:0]\n-A KUBE-A -j RETURN\nCOMMIT\n", false)
                .await
                .unwrap();
            it.ensure_rule(Position::First, Table::Nat, "INPUT", &["-j", "KUBE-A"]).await.unwrap();
            it.delete_rule(Table::Nat, "INPUT", &["-j", "KUBE-A"]).await.unwrap();
            it.ensure_rule(Position::First, Table::Nat, "PREROUTING", &["-j", "KUBE-A"])
                .await
                .unwrap();
            sleep(Duration::from_millis(100)).await;
            assert_eq!(reported.get(), before, "before {flush}");
            sh(flush);
            eventually(flush, || reported.get() > before).await;
            // By then canaries are up again.
            for table in Table::ALL {
                assert!(it.has_chain(table, CANARY).await.unwrap(), "after {flush}");
            }
            // A flush in several commands may be reported more than once.
            sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = watching => unreachable!(),
        () = test => {}
    }
}

#[test]
fn flush_detection_nft_is_immediate() {
    in_netns(async || {
        for (family, iptables) in [(Family::V4, "iptables-nft"), (Family::V6, "ip6tables-nft")] {
            let it = backend(Variant::Nft).await.family(family);
            let flushes = [
                "nft flush ruleset".into(),
                format!("{iptables} -t nat -F; {iptables} -t nat -X"),
                format!("{iptables} -t mangle -F; {iptables} -t mangle -X"),
                format!("{iptables} -F; {iptables} -X"),
                // Chains stay, the canary's too.
                format!("{iptables} -t nat -F"),
            ];
            noticed(&it, NEVER, &flushes).await;
        }
    });
}

#[test]
fn flush_detection_legacy_polls() {
    in_netns(async || {
        let it = iptables(Variant::Legacy).await;
        let flushes = ["iptables-legacy -t mangle -X".into()];
        noticed(&it, NEVER, &flushes).await;
        let flushes = ["iptables-legacy -t nat -F; iptables-legacy -t nat -X".into()];
        noticed(&it, Duration::from_secs(1), &flushes).await;
    });
}

#[test]
fn flush_detection_while_the_lock_is_held() {
    in_netns(async || {
        let limits = Limits { lock: Duration::from_secs(1), ..Limits::default() };
        let it = Backend::of(Variant::Legacy, limits).await.unwrap().family(Family::V4);
        let flushes = Cell::new(0);
        let watching =
            watch(&it, CANARY, Duration::from_millis(200), || flushes.set(flushes.get() + 1));
        let test = async {
            sleep(Duration::from_millis(500)).await;
            // As a firewall that holds the lock for itself and its own commands: longer than we wait.
            sh("flock /run/xtables.lock sleep 2");
            sh("iptables-legacy -t nat -X");
            eventually("the flush is reported", || flushes.get() == 1).await;
        };
        tokio::select! { () = watching => {}, () = test => {} }
    });
}

/// Another process that holds the xtables lock.
struct Lock(Child);

impl Lock {
    fn take(seconds: f32) -> Self {
        let child = Command::new("flock")
            .args(["-o", "/run/xtables.lock", "sleep", &seconds.to_string()])
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let holder = format!(" {} ", child.id());
        while !std::fs::read_to_string("/proc/locks").unwrap().contains(&holder) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Self(child)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let group = nix::unistd::Pid::from_raw(self.0.id().try_into().unwrap());
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

#[test]
fn xtables_lock_is_waited_for() {
    in_netns(async || {
        let it = iptables(Variant::Legacy).await;
        let lock = Lock::take(600.0);
        let mut restore = Box::pin(it.restore("*nat\n:KUBE-A - [0:0]\nCOMMIT\n", false));
        assert!(timeout(Duration::from_millis(500), &mut restore).await.is_err(), "it waits");
        drop(lock);
        restore.await.unwrap();
        // nft takes no lock.
        let _lock = Lock::take(600.0);
        iptables(Variant::Nft).await.ensure_chain(Table::Nat, "KUBE-A").await.unwrap();
    });
}

#[test]
fn xtables_lock_holder_is_logged() {
    in_netns(async || {
        let limits = Limits { lock: Duration::from_secs(2), ..Limits::default() };
        let it = Backend::of(Variant::Legacy, limits).await.unwrap().family(Family::V4);
        let lock = Lock::take(20.0);
        let error = it.ensure_chain(Table::Nat, "KUBE-A").await.unwrap_err();
        let Error::Locked { holder: Some(holder), .. } = &error else { panic!("{error}") };
        assert_eq!((holder.pid, holder.name.as_deref()), (lock.0.id(), Some("flock")));
        assert_eq!(
            error.to_string(),
            format!(
                "iptables-legacy -N KUBE-A -t nat: the xtables lock /run/xtables.lock was not free \
                 within 2s: process {} (flock) holds it",
                lock.0.id()
            )
        );
    });
}

#[test]
fn apply_command_timeout() {
    in_netns(async || {
        let limits = Limits { command: Duration::from_millis(200), ..Limits::default() };
        let it = Backend::of(Variant::Legacy, limits).await.unwrap().family(Family::V4);
        let lock = Lock::take(20.0);
        let error = it.ensure_chain(Table::Nat, "KUBE-A").await.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        drop(lock);
        sleep(Duration::from_millis(300)).await;
        assert!(!iptables(Variant::Legacy).await.has_chain(Table::Nat, "KUBE-A").await.unwrap());
    });
}

#[test]
fn cleanup_keeps_foreign_rules() {
    in_netns(async || {
        let everything = |it: &str| sh(&format!("{it}-save | grep -v '^#' | sed 's/ \\[.*//'"));
        let mut before = Vec::new();
        for (_, name) in VARIANTS {
            for it in [format!("iptables-{name}"), format!("ip6tables-{name}")] {
                sh(&format!(
                    "{it} -N DOCKER; {it} -A FORWARD -j DOCKER; {it} -N KUBE-FIREWALL
                     {it} -A INPUT -j KUBE-FIREWALL
                     {it} -t mangle -N KUBE-IPTABLES-HINT; {it} -t nat -A OUTPUT -j RETURN"
                ));
                before.push(everything(&it));
                sh(&format!(
                    r#"
                    for table in mangle nat filter; do {it} -t $table -N KUBE-PROXY-CANARY; done
                    for chain in KUBE-SERVICES KUBE-NODEPORTS KUBE-FORWARD; do {it} -N $chain; done
                    {it} -I INPUT -m comment --comment "health check" -j KUBE-NODEPORTS
                    {it} -I FORWARD -m conntrack --ctstate NEW -m comment \
                        --comment 'kubernetes "service" portals' -j KUBE-SERVICES
                    {it} -t nat -N KUBE-SERVICES
                    {it} -t nat -I PREROUTING -m comment --comment "service portals" -j KUBE-SERVICES
                    for i in 1 2 3; do
                        {it} -t nat -N KUBE-SVC-$i; {it} -t nat -N KUBE-SEP-$i
                        {it} -t nat -A KUBE-SERVICES -p tcp -m tcp --dport $i -j KUBE-SVC-$i
                        {it} -t nat -A KUBE-SVC-$i -j KUBE-SEP-$i
                    done
                    {it} -t nat -N KUBE-PORTALS-HOST; {it} -t nat -A OUTPUT -j KUBE-PORTALS-HOST
                    "#
                ));
            }
        }
        sh("for family in ip ip6; do
                nft add table $family kube-proxy
                nft add chain $family kube-proxy services
                nft add rule $family kube-proxy services accept
            done
            nft add table inet other");
        cleanup(Limits::default()).await.unwrap();
        let tables = sh("nft list tables");
        assert!(!tables.contains("kube-proxy") && tables.contains("other"), "{tables}");
        let names = ["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"];
        for (name, before) in names.into_iter().zip(&before) {
            assert_eq!(&everything(name), before, "{name}");
        }
        cleanup(Limits::default()).await.unwrap();
    });
}

#[test]
fn cleanup_creates_nothing() {
    in_netns(async || {
        cleanup(Limits::default()).await.unwrap();
        assert_eq!(sh("nft list ruleset; cat /proc/thread-self/net/ip_tables_names"), "");
    });
}
