//! Full syncs over something, partial syncs, clean-up.

use serde_json::json;

use crate::model::fixture::{name, one, service, slice, tracker};
use crate::model::{Changes, Family, Tracker};

use super::super::{Existing, Stale, Table, cleanup, partial};
use super::kernel::Kernel;
use super::{full_sync, settings, synced};

fn three() -> Tracker {
    let mut tracker = tracker(Family::V4);
    for i in 1..4 {
        let full_name = format!("ns/svc{i}");
        let spec = json!({"type": "NodePort", "clusterIP": format!("10.96.0.{i}"),
            "ports": [{"name": "p80", "port": 80, "nodePort": 30000 + i}]});
        tracker.apply_service(&service(&full_name, spec));
        let endpoints = [format!("10.244.1.{i}"), format!("10.244.2.{i}")];
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        tracker.apply_slice(&slice(&full_name, "a", &endpoints, json!({})));
    }
    tracker.take_changes();
    tracker
}

#[test]
fn render_no_change_writes_nothing() {
    let tracker = three();
    let mut kernel = synced(tracker.state(), &settings());
    assert_eq!(full_sync(&mut kernel, tracker.state(), &settings()).0, 0);
}

#[test]
fn sync_restores_rules_changed_by_others() {
    let tracker = three();
    let right = synced(tracker.state(), &settings());
    let svc = right.chains("nat").find(|(name, _)| name.starts_with("KUBE-SVC")).unwrap();
    let (svc, rule) = (svc.0.clone(), svc.1[1].clone());
    let harms = [
        format!("*nat\n-D {svc} {rule}\nCOMMIT\n"),
        format!("*nat\n:{svc} - [0:0]\nCOMMIT\n"),
        "*nat\n-A KUBE-MARK-MASQ -j RETURN\nCOMMIT\n".to_owned(),
        "*nat\n-A KUBE-SERVICES -j RETURN\nCOMMIT\n".to_owned(),
        "*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n".to_owned(),
        "*nat\n:KUBE-SVC-OLD - [0:0]\n:KUBE-SEP-OLD - [0:0]\n-A KUBE-SVC-OLD -j KUBE-SEP-OLD\nCOMMIT\n".to_owned(),
        "*nat\n:PREROUTING - [0:0]\nCOMMIT\n".to_owned(),
    ];
    for harm in harms {
        let mut kernel = right.clone();
        kernel.restore(&harm).unwrap();
        assert_ne!(kernel, right);
        assert!(full_sync(&mut kernel, tracker.state(), &settings()).0 > 0, "{harm}");
        assert_eq!(kernel, right, "{harm}");
    }
}

#[test]
fn render_keeps_foreign_rules() {
    let mut kernel = Kernel::default();
    let others = "*nat\n:KUBE-HAIRPIN - [0:0]\n-A PREROUTING -j KUBE-HAIRPIN\n-A KUBE-HAIRPIN -j RETURN\n:DOCKER - [0:0]\n-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\nCOMMIT\n";
    kernel.restore(others).unwrap();
    let before = kernel.clone();
    full_sync(&mut kernel, three().state(), &settings());
    assert_eq!(kernel.chain("nat", "KUBE-HAIRPIN"), ["-j RETURN"]);
    assert_eq!(kernel.chain("nat", "PREROUTING").len(), 3);
    clean(&mut kernel);
    // the kubelet's guard stays
    assert_eq!(kernel.chain("filter", "KUBE-FIREWALL").len(), 1);
    let guard = "*filter\n-D INPUT -j KUBE-FIREWALL\n-D OUTPUT -j KUBE-FIREWALL\n:KUBE-FIREWALL - [0:0]\n-X KUBE-FIREWALL\nCOMMIT\n";
    kernel.restore(guard).unwrap();
    assert_eq!(kernel, before);
}

fn clean(kernel: &mut Kernel) {
    let saved = kernel.save();
    for text in cleanup(&Existing::read(saved.lines())) {
        kernel.restore(&text).unwrap();
    }
}

#[test]
fn render_jumps_are_the_last_transaction() {
    let mut tracker = tracker(Family::V4);
    for i in 0..400 {
        let full_name = format!("ns/svc{i}");
        tracker.apply_service(&service(
            &full_name,
            json!({"clusterIP": format!("10.96.{}.{}", i / 250, i % 250 + 1)}),
        ));
        tracker.apply_slice(&slice(
            &full_name,
            "a",
            &["10.244.1.1", "10.244.1.2", "10.244.1.3"],
            json!({}),
        ));
    }
    tracker.take_changes();
    let (settings, existing) = (settings(), Existing::default());
    let full = super::super::Full::new(tracker.state(), &settings, &existing);
    let texts: Vec<String> = full.collect();
    assert_eq!(texts.len(), 5, "1600 chains");
    let (switch, others) = texts.split_last().unwrap();
    assert!(switch.starts_with("*filter\n:KUBE-SERVICES"));
    assert_eq!(switch.matches("\n-A KUBE-SERVICES ").count(), 401);
    assert_eq!(switch.matches("\n-I ").count(), 14);
    for text in others {
        assert!(!text.contains("KUBE-SERVICES"));
        assert!(text.matches("\n:").count() <= 500);
    }
}

/// Runs a partial sync; its texts.
fn follow(kernel: &mut Kernel, tracker: &Tracker, changes: &Changes) -> Vec<String> {
    assert!(!changes.everything);
    let partial = partial(tracker.state(), &changes.services, &settings());
    for text in &partial.transactions {
        kernel.restore(text).unwrap();
    }
    let mut stale = Stale::default();
    stale.follow(&partial);
    for text in stale.take() {
        kernel.restore(&text).unwrap();
    }
    partial.transactions
}

#[test]
fn render_added_service_is_a_small_transaction() {
    let mut tracker = three();
    let mut kernel = synced(tracker.state(), &settings());
    tracker.apply_service(&service("ns/new", json!({"clusterIP": "10.96.0.9"})));
    let changes = tracker.take_changes();
    let texts = follow(&mut kernel, &tracker, &changes);
    assert_eq!(
        texts,
        [
            "*filter\n-A KUBE-SERVICES -d 10.96.0.9/32 -p tcp -m comment --comment \"ns/new:p80 has no endpoints\" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable\nCOMMIT\n"
        ]
    );
    tracker.apply_slice(&slice("ns/new", "a", &["10.244.1.9"], json!({})));
    let changes = tracker.take_changes();
    let texts = follow(&mut kernel, &tracker, &changes);
    assert_eq!(texts.len(), 1);
    let lines: Vec<&str> = texts[0].lines().collect();
    assert!(lines[1].starts_with("-D KUBE-SERVICES -d 10.96.0.9/32"), "{}", texts[0]);
    assert_eq!(lines.iter().filter(|line| line.starts_with(':')).count(), 2);
    assert!(texts[0].contains("\n-I KUBE-SERVICES -d 10.96.0.9/32"), "{}", texts[0]);
    assert_eq!(lines.len(), 12, "{}", texts[0]);
    assert_eq!(kernel.sorted(), synced(tracker.state(), &settings()).sorted());
}

#[test]
fn render_added_endpoint_writes_two_chains() {
    let (mut tracker, _) = one(json!({"clusterIP": "10.96.0.1"}), &["10.244.1.1", "10.244.1.2"]);
    let mut kernel = synced(tracker.state(), &settings());
    let endpoints = ["10.244.1.1", "10.244.1.2", "10.244.1.3"];
    tracker.apply_slice(&slice("ns1/svc1", "a", &endpoints, json!({})));
    let changes = tracker.take_changes();
    let texts = follow(&mut kernel, &tracker, &changes);
    assert_eq!(texts.len(), 1);
    assert_eq!(texts[0].lines().filter(|line| line.starts_with(':')).count(), 2, "{}", texts[0]);
    assert!(!texts[0].contains("KUBE-SERVICES"), "{}", texts[0]);
    assert_eq!(kernel.sorted(), synced(tracker.state(), &settings()).sorted());
}

#[test]
fn render_deleted_service_removes_its_chains() {
    let mut tracker = three();
    let mut kernel = synced(tracker.state(), &settings());
    assert!(tracker.delete_service(&name("ns/svc2")));
    let changes = tracker.take_changes();
    let partial = partial(tracker.state(), &changes.services, &settings());
    assert_eq!(partial.stale.len(), 4);
    assert!(partial.written.is_empty());
    // the chains go afterwards, by themselves
    assert!(
        partial.transactions.iter().all(|text| !text.contains("-X")),
        "{:?}",
        partial.transactions
    );
    follow(&mut kernel, &tracker, &changes);
    assert_eq!(kernel.sorted(), synced(tracker.state(), &settings()).sorted());
}

#[test]
fn render_many_removals_rewrite_shared_chains() {
    let mut tracker = tracker(Family::V4);
    for i in 1..80 {
        tracker.apply_service(&service(
            &format!("ns/svc{i}"),
            json!({"clusterIP": format!("10.96.0.{i}")}),
        ));
        tracker.apply_slice(&slice(&format!("ns/svc{i}"), "a", &["10.244.1.1"], json!({})));
    }
    tracker.take_changes();
    let mut kernel = synced(tracker.state(), &settings());
    for i in 1..60 {
        tracker.delete_service(&name(&format!("ns/svc{i}")));
    }
    let changes = tracker.take_changes();
    let texts = follow(&mut kernel, &tracker, &changes);
    assert_eq!(texts.len(), 1);
    assert!(texts[0].starts_with("*nat\n:KUBE-SERVICES - [0:0]\n"), "{}", texts[0]);
    assert_eq!(kernel, synced(tracker.state(), &settings()));
}

#[test]
fn render_reused_chain_is_not_stale() {
    let (mut tracker, _) = one(json!({"clusterIP": "10.96.0.1"}), &["10.244.1.1", "10.244.1.2"]);
    let mut stale = Stale::default();
    tracker.apply_slice(&slice("ns1/svc1", "a", &["10.244.1.1"], json!({})));
    let changes = tracker.take_changes();
    stale.follow(&partial(tracker.state(), &changes.services, &settings()));
    assert_eq!(stale.len(), 1);
    tracker.apply_slice(&slice("ns1/svc1", "a", &["10.244.1.1", "10.244.1.2"], json!({})));
    let changes = tracker.take_changes();
    stale.follow(&partial(tracker.state(), &changes.services, &settings()));
    assert!(stale.is_empty());
}

#[test]
fn cleanup_without_rules_of_ours_does_nothing() {
    assert!(cleanup(&Existing::read(Kernel::default().save().lines())).is_empty());
    let garbage = [
        "-A KUBE-SERVICES",
        "*",
        "*mangle",
        ":KUBE-X",
        "*nat",
        ":",
        "-A",
        "-A KUBE-SERVICES",
        "COMMIT",
    ];
    let existing = Existing::read(garbage);
    assert!(!existing.has(Table::Nat, "KUBE-SERVICES"));
    assert!(!existing.has(Table::Filter, "KUBE-X"));
}
