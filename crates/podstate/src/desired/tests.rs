#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

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

fn told(changes: &[Change]) -> Vec<String> {
    changes
        .iter()
        .map(|change| match change {
            Change::Set(pod) => format!("+{}", spec::uid(pod)),
            Change::Gone(pod) => format!("-{}", spec::uid(pod)),
            Change::Mirror { uid } => format!("~{uid}"),
        })
        .collect()
}

#[test]
fn a_snapshot_replaces_what_its_source_told_and_nothing_else() {
    let desired = Desired::new([Source::Api, Source::File]);
    let none = || json!({});
    desired.apply(Source::File, Update::Snapshot(vec![static_pod("s")]));
    assert!(!*desired.synced().borrow(), "the apiserver has yet to speak");
    let snapshot = vec![pod("a", "1", none()), pod("b", "2", none())];
    assert_eq!(told(&desired.apply(Source::Api, Update::Snapshot(snapshot))), ["+1", "+2"]);
    assert!(*desired.synced().borrow());
    let changes = desired.apply(Source::Api, Update::Snapshot(vec![pod("b", "2", none())]));
    assert_eq!(told(&changes), ["-1"], "b is unchanged, the static pod is not the apiserver's");
}

#[test]
fn a_pod_made_again_under_its_name_is_another_pod() {
    let desired = Desired::new([Source::Api]);
    desired.apply(Source::Api, Update::Set(Box::new(pod("a", "1", json!({})))));
    let again = desired.apply(Source::Api, Update::Set(Box::new(pod("a", "2", json!({})))));
    assert_eq!(told(&again), ["+2"]);
    let late = desired.apply(Source::Api, Update::Remove(Box::new(pod("a", "1", json!({})))));
    assert_eq!(told(&late), ["-1"]);
    assert!(desired.pod("2").is_some());
}

#[test]
fn a_mirror_is_never_run_and_counts_only_for_its_own_version() {
    let desired = Desired::new([Source::Api, Source::File]);
    desired.apply(Source::File, Update::Snapshot(vec![static_pod("h1")]));
    let changes = desired.apply(Source::Api, Update::Snapshot(vec![mirror("m1", "h1")]));
    assert_eq!(told(&changes), ["~h1"]);
    assert_eq!(uid_of(desired.mirror(&static_pod("h1"))).as_deref(), Some("m1"));
    let changes = desired.apply(Source::File, Update::Snapshot(vec![static_pod("h2")]));
    assert_eq!(told(&changes), ["-h1", "+h2"]);
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
fn a_static_pod_that_keeps_its_uid_begins_anew_when_its_content_changes() {
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
    let told_of =
        |content| told(&desired.apply(Source::File, Update::Snapshot(vec![edition(content)])));
    assert_eq!(told_of("1"), ["+given"]);
    assert_eq!(told_of("1"), Vec::<String>::new());
    assert_eq!(told_of("2"), ["-given", "+given"]);
}

#[test]
fn of_two_sources_with_one_name_the_first_wins_for_as_long_as_it_is_there() {
    let desired = Desired::new([Source::File, Source::Http]);
    let snapshot = |source, pods| told(&desired.apply(source, Update::Snapshot(pods)));
    assert_eq!(snapshot(Source::Http, vec![static_pod("url")]), ["+url"]);
    assert_eq!(snapshot(Source::File, vec![static_pod("file")]), ["-url", "+file"]);
    assert_eq!(snapshot(Source::File, vec![]), ["-file", "+url"]);
}

/// Finding 13: a change that cannot be decoded must not look like a deletion.
#[test]
fn a_pod_that_cannot_be_decoded_stays() {
    let desired = Desired::new([Source::Api]);
    let pods = ["1", "2"].map(|uid| pod(uid, uid, json!({})));
    desired.apply(Source::Api, Update::Snapshot(pods.to_vec()));
    let unreadable = |uids: &[&str]| {
        let uids = uids.iter().map(|uid| (*uid).to_owned()).collect();
        desired.apply(Source::Api, Update::Unreadable(uids))
    };
    assert!(unreadable(&["1", "3"]).is_empty());
    let changes = desired.apply(Source::Api, Update::Snapshot(Vec::new()));
    assert_eq!(told(&changes), ["-2"]);
    assert!(desired.pod("1").is_some());
    // Nothing more is known of this one, and what runs of it is not removed.
    assert!(desired.pod("3").is_none() && desired.has("3") && !desired.has("2"));
    let gone = desired.apply(Source::Api, Update::Remove(Box::new(pods[0].clone())));
    assert_eq!(told(&gone), ["-1"]);
    unreadable(&[]);
    assert!(!desired.has("1") && !desired.has("3"));
}
