use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::*;
use super::*;

fn deployment(replicas: i32, surge: Value, unavailable: Value) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": "d", "namespace": "x", "uid": "d", "generation": 1},
        "spec": {
            "replicas": replicas,
            "progressDeadlineSeconds": 600,
            "selector": {"matchLabels": {"app": "d"}},
            "strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
            "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": []}},
        },
    }))
    .unwrap()
}

fn set(
    name: &str,
    replicas: isize,
    available: isize,
    most: isize,
    desired: isize,
) -> Arc<ReplicaSet> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {
                    "deployment.kubernetes.io/desired-replicas": desired.to_string(),
                    "deployment.kubernetes.io/max-replicas": most.to_string()}},
            "spec": {"replicas": replicas, "selector": {}},
            "status": {"replicas": replicas, "availableReplicas": available},
        }))
        .unwrap(),
    )
}

#[test]
fn rollout_limits_are_as_upstream() {
    for (replicas, surge, unavailable, expected) in [
        (10, json!("25%"), json!("25%"), (3, 2)),
        (1, json!("25%"), json!("25%"), (1, 0)),
        (10, json!(0), json!(0), (0, 1)),
        (3, json!(5), json!(9), (5, 3)),
        (0, json!(1), json!(1), (1, 0)),
        (4, json!("x"), json!("-5%"), (0, 1)),
    ] {
        let limits = Limits::of(&deployment(replicas, surge, unavailable));
        assert_eq!((limits.surge, limits.unavailable), expected, "{replicas}");
    }
}

#[test]
fn rollout_finds_the_new_set_by_its_template() {
    let mut of = deployment(1, json!(1), json!(0));
    let new = new_set(&of, &Sets::default(), None).unwrap();
    let name = new.metadata.name.clone().unwrap();
    assert!(name.starts_with("d-"), "{name}");
    assert_eq!(desired(&new), 1);
    let labels = new.metadata.labels.clone().unwrap();
    assert_eq!(format!("d-{}", labels[HASH_LABEL]), name);
    let sets = Sets::of(&of, vec![Arc::new(new.clone())]);
    assert!(sets.new.is_some() && sets.old.is_empty());
    of.spec.as_mut().unwrap().template.spec.as_mut().unwrap().hostname = Some("h".into());
    let sets = Sets::of(&of, vec![Arc::new(new.clone())]);
    assert!(sets.new.is_none() && sets.old.len() == 1);
    let other = new_set(&of, &sets, Some(1)).unwrap();
    assert_ne!(other.metadata.name, new.metadata.name);
}

/// A set that was scaled down has more available pods for a moment, by its status, than it keeps.
#[test]
fn rollout_does_not_count_pods_that_are_about_to_go() {
    let limits = Limits { replicas: 4, surge: 1, unavailable: 1 };
    for (new, old, expected) in [
        // 4 to 3 was written, and the status says 4 still
        ((2, 1), (3, 4), 2),
        ((2, 1), (3, 3), 2),
        ((2, 0), (3, 4), 3),
        // a rollout that is taken back half-way
        ((2, 4), (2, 2), 1),
    ] {
        let sets = Sets {
            new: Some(set("new", new.0, new.1, 5, 4)),
            old: vec![set("old", old.0, old.1, 5, 4)],
        };
        assert_eq!(scaled_down(limits, &sets), [expected], "{new:?} {old:?}");
    }
}

#[test]
fn scaling_is_proportional() {
    let limits = Limits { replicas: 20, surge: 4, unavailable: 0 };
    // a rollout at 10 replicas with a surge of 2: two sets with 12 pods
    let sets = Sets { new: Some(set("new", 4, 4, 12, 10)), old: vec![set("old", 8, 8, 12, 10)] };
    assert!(is_scaling(limits, &sets));
    let sizes = rescaled(true, limits, &sets, 12);
    let by_name =
        |name: &str| sizes.iter().find(|(set, _)| name_of(&**set) == name).map(|(_, size)| *size);
    assert_eq!((by_name("old"), by_name("new")), (Some(16), Some(8)));
    let one = Sets { new: Some(set("new", 4, 4, 12, 10)), old: vec![set("old", 0, 0, 12, 10)] };
    assert_eq!(rescaled(true, limits, &one, 12).first().unwrap().1, 20);
    let none = Limits { replicas: 0, surge: 1, unavailable: 0 };
    assert!(rescaled(true, none, &sets, 12).iter().all(|(_, size)| *size == 0));
}

#[test]
fn revisions_have_a_history() {
    let mut of = deployment(1, json!(1), json!(0));
    of.metadata.annotations = Some(
        [("note".to_owned(), "n".to_owned()), (annotations::REVISION.to_owned(), "9".to_owned())]
            .into(),
    );
    let mut metadata = ObjectMeta::default();
    for revision in [1, 3, 3, 7] {
        annotations::annotate_new(&of, &mut metadata, revision);
    }
    let known = metadata.annotations.clone().unwrap();
    assert_eq!(known[annotations::REVISION], "7");
    assert_eq!(known["deployment.kubernetes.io/revision-history"], "1,3");
    assert_eq!(known["note"], "n");
    assert!(!annotations::annotate_new(&of, &mut metadata, 7));
    annotations::set(&mut metadata, "deployment.kubernetes.io/revision-history", &"1,".repeat(999));
    annotations::annotate_new(&of, &mut metadata, 1000);
    let history =
        metadata.annotations.unwrap()["deployment.kubernetes.io/revision-history"].clone();
    assert!(history.len() <= 2000 && history.ends_with(",7"), "{}", history.len());
}

#[test]
fn progress_is_reported_in_upstreams_words() {
    let mut of = deployment(2, json!(1), json!(0));
    let now = Timestamp::now();
    let sets = Sets { new: Some(set("d-1", 2, 0, 3, 2)), old: Vec::new() };
    set_condition(
        of.status.get_or_insert_default(),
        PROGRESSING,
        "True",
        "NewReplicaSetCreated",
        "",
    );
    let status = status::of_rollout(&of, &sets, now);
    let progressing = status::condition(&status, PROGRESSING).unwrap();
    assert_eq!(progressing.message.as_deref(), Some("ReplicaSet \"d-1\" is progressing."));
    of.status = Some(status);
    assert!(status::next_check(&of, now).is_some());
    let later = now.checked_add(std::time::Duration::from_secs(700)).unwrap();
    let status = status::of_rollout(&of, &sets, later);
    let timed_out = status::condition(&status, PROGRESSING).unwrap();
    assert_eq!(timed_out.message.as_deref(), Some("ReplicaSet \"d-1\" has timed out progressing."));
    assert_eq!(
        (timed_out.reason.as_deref(), timed_out.status.as_str()),
        (Some(status::TIMED_OUT), "False")
    );
    let available = status::condition(&status, "Available").unwrap();
    assert_eq!(available.reason.as_deref(), Some("MinimumReplicasUnavailable"));
    let sets = Sets { new: Some(set("d-1", 2, 2, 3, 2)), old: Vec::new() };
    let status = status::of_rollout(&of, &sets, later);
    let done = status::condition(&status, PROGRESSING).unwrap();
    assert_eq!(done.message.as_deref(), Some("ReplicaSet \"d-1\" has successfully progressed."));
    assert!(status::is_complete(&of, &status));
}

proptest! {
    /// Any rollout ends, and its limits are kept on the way.
    #[test]
    fn rollout_keeps_its_limits_and_ends(
        replicas in 1_isize..30, surge in 0_isize..8, unavailable in 0_isize..8,
        others in prop::collection::vec(0_isize..10, 0..4),
        steps in prop::collection::vec(any::<prop::sample::Index>(), 400),
    ) {
        let unavailable = if surge == 0 { unavailable.max(1) } else { unavailable };
        let limits = Limits { replicas, surge, unavailable: unavailable.min(replicas) };
        let mut sizes: Vec<isize> = others.iter().scan(limits.replicas, |left, part| {
            let size = (*part).min(*left);
            *left -= size;
            Some(size)
        }).collect();
        let rest = replicas - sizes.iter().sum::<isize>();
        sizes.push(rest);
        let mut available = sizes.clone();
        let (mut new, mut new_available) = (0, 0);
        let mut done = false;
        for step in steps {
            let old = sizes.iter().zip(&available).enumerate();
            let old = old.map(|(index, (size, up))| set(&format!("o{index}"), *size, *up, 0, replicas));
            let sets = Sets { new: Some(set("new", new, new_available, 0, replicas)), old: old.collect() };
            prop_assert!(sets.available() >= limits.least_available());
            prop_assert!(sets.desired() <= limits.most().max(replicas));
            let up = if new == replicas { new } else { scaled_up(true, limits, new, sets.desired()) };
            let changed = if up == new {
                let down = scaled_down(limits, &sets);
                let changed = down != sizes;
                for (up, size) in available.iter_mut().zip(&down) {
                    *up = (*up).min(*size);
                }
                sizes = down;
                changed
            } else {
                new = up;
                true
            };
            if !changed && new_available < new {
                new_available += 1 + isize::try_from(step.index(usize::try_from(new - new_available).unwrap())).unwrap();
            } else if !changed {
                done = true;
                break;
            }
        }
        prop_assert!(done, "{new} {sizes:?}");
        prop_assert_eq!(new, replicas);
        prop_assert!(sizes.iter().all(|size| *size == 0));
    }
}
