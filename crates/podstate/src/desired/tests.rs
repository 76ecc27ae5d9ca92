use serde_json::json;

use super::*;

fn pod(name: &str, uid: &str, annotations: serde_json::Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": uid, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }))
    .expect("a pod")
}

fn static_pod(hash: &str) -> Pod {
    pod("web", hash, json!({spec::SOURCE_ANNOTATION: "file", spec::HASH_ANNOTATION: hash}))
}

fn mirror(uid: &str, hash: &str) -> Pod {
    pod(
        "web",
        uid,
        json!({
            spec::SOURCE_ANNOTATION: "file", spec::HASH_ANNOTATION: hash, spec::MIRROR_ANNOTATION: hash,
        }),
    )
}

fn uid_of(pod: Option<Arc<Pod>>) -> Option<String> {
    pod.map(|pod| spec::uid(&pod).to_owned())
}

fn changes_of(changes: &[Change]) -> Vec<String> {
    changes
        .iter()
        .map(|change| match change {
            Change::Set(pod) => format!("+{}", spec::uid(pod)),
            Change::Gone { pod, .. } => format!("-{}", spec::uid(pod)),
            Change::Mirror { uid } => format!("~{uid}"),
        })
        .collect()
}

#[test]
fn desired_snapshot_replaces_the_pods_of_its_source_only() {
    let desired = Desired::new([Source::Api, Source::File]);
    let none = || json!({});
    desired.apply(Source::File, Update::Snapshot(vec![static_pod("s")]));
    assert!(!*desired.synced().borrow(), "the apiserver has yet to speak");
    let snapshot = vec![pod("a", "1", none()), pod("b", "2", none())];
    assert_eq!(changes_of(&desired.apply(Source::Api, Update::Snapshot(snapshot))), ["+1", "+2"]);
    assert!(*desired.synced().borrow());
    let changes = desired.apply(Source::Api, Update::Snapshot(vec![pod("b", "2", none())]));
    assert_eq!(
        changes_of(&changes),
        ["-1"],
        "b is unchanged, the static pod is not the apiserver's"
    );
}

#[test]
fn a_pod_made_again_under_its_name_is_another_pod() {
    let desired = Desired::new([Source::Api]);
    desired.apply(Source::Api, Update::Set(Box::new(pod("a", "1", json!({})))));
    let again = desired.apply(Source::Api, Update::Set(Box::new(pod("a", "2", json!({})))));
    assert_eq!(changes_of(&again), ["+2"]);
    let late = desired.apply(Source::Api, Update::Remove(Box::new(pod("a", "1", json!({})))));
    assert_eq!(changes_of(&late), ["-1"]);
    assert!(desired.pod("2").is_some());
}

#[test]
fn mirror_pod_is_never_run_and_matches_its_version_only() {
    let desired = Desired::new([Source::Api, Source::File]);
    desired.apply(Source::File, Update::Snapshot(vec![static_pod("h1")]));
    let changes = desired.apply(Source::Api, Update::Snapshot(vec![mirror("m1", "h1")]));
    assert_eq!(changes_of(&changes), ["~h1"]);
    assert_eq!(uid_of(desired.mirror(&static_pod("h1"))).as_deref(), Some("m1"));
    let changes = desired.apply(Source::File, Update::Snapshot(vec![static_pod("h2")]));
    assert_eq!(changes_of(&changes), ["-h1", "+h2"]);
    assert_eq!(uid_of(desired.mirror(&static_pod("h2"))), None, "the mirror shows the old version");
    desired.apply(Source::Api, Update::Set(Box::new(mirror("m2", "h2"))));
    desired.apply(Source::Api, Update::Remove(Box::new(mirror("m1", "h1"))));
    assert_eq!(
        uid_of(desired.mirror(&static_pod("h2"))).as_deref(),
        Some("m2"),
        "a late end of the old one"
    );
}

#[test]
fn static_pod_with_fixed_uid_restarts_when_its_content_changes() {
    let desired = Desired::new([Source::File]);
    let edition = |content: &str| {
        pod(
            "web",
            "given",
            json!({
                spec::SOURCE_ANNOTATION: "file", spec::HASH_ANNOTATION: "given",
                spec::CONTENT_ANNOTATION: content,
            }),
        )
    };
    let changes_for = |content| {
        changes_of(&desired.apply(Source::File, Update::Snapshot(vec![edition(content)])))
    };
    assert_eq!(changes_for("1"), ["+given"]);
    assert_eq!(changes_for("1"), Vec::<String>::new());
    assert_eq!(changes_for("2"), ["-given", "+given"]);
}

#[test]
fn desired_first_source_wins_for_pods_of_one_name() {
    let desired = Desired::new([Source::File, Source::Http]);
    let snapshot = |source, pods| changes_of(&desired.apply(source, Update::Snapshot(pods)));
    assert_eq!(snapshot(Source::Http, vec![static_pod("url")]), ["+url"]);
    assert_eq!(snapshot(Source::File, vec![static_pod("file")]), ["-url", "+file"]);
    assert_eq!(snapshot(Source::File, vec![]), ["-file", "+url"]);
}

/// Finding 13: a change that cannot be decoded must not look like a deletion.
#[test]
fn desired_keeps_pods_that_cannot_be_decoded() {
    let desired = Desired::new([Source::Api]);
    let pods = ["1", "2"].map(|uid| pod(uid, uid, json!({})));
    desired.apply(Source::Api, Update::Snapshot(pods.to_vec()));
    let unreadable = |uids: &[&str]| {
        let uids = uids.iter().map(|uid| (*uid).to_owned()).collect();
        desired.apply(Source::Api, Update::Unreadable(uids))
    };
    assert!(unreadable(&["1", "3"]).is_empty());
    let changes = desired.apply(Source::Api, Update::Snapshot(Vec::new()));
    assert_eq!(changes_of(&changes), ["-2"]);
    assert!(desired.pod("1").is_some());
    // This one is not known, and its containers and files are kept.
    assert!(desired.pod("3").is_none() && desired.has("3") && !desired.has("2"));
    let gone = desired.apply(Source::Api, Update::Remove(Box::new(pods[0].clone())));
    assert_eq!(changes_of(&gone), ["-1"]);
    unreadable(&[]);
    assert!(!desired.has("1") && !desired.has("3"));
}

#[test]
fn mirror_pod_is_held_until_its_removed_pod_has_ended() {
    let desired = Desired::new([Source::File]);
    let name = ("ns".to_owned(), "web".to_owned());
    let held = || desired.shared.mirroring.is_held(&name);
    let snapshot = |pods| desired.apply(Source::File, Update::Snapshot(pods));
    snapshot(vec![static_pod("h1")]);
    assert!(!held());
    let first = snapshot(vec![static_pod("h2")]);
    let second = snapshot(vec![]);
    assert!(held());
    let mut changed = desired.shared.mirroring.changes();
    drop(second);
    assert!(held(), "the first one has not ended yet");
    drop(first);
    assert!(!held());
    assert!(changed.has_changed().unwrap(), "the loop is woken");
    changed.mark_unchanged();
    desired.apply(Source::Api, Update::Set(Box::new(pod("a", "1", json!({})))));
    let removed = desired.apply(Source::Api, Update::Remove(Box::new(pod("a", "1", json!({})))));
    assert!(matches!(removed.as_slice(), [Change::Gone { hold: None, .. }]));
}
