use serde_json::{Value, json};

use longshore_podstate::sources::Source;

use super::*;

fn pod(version: u64, phase: &str) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": version.to_string()},
        "status": {"phase": phase},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn status(phase: &str) -> PodStatus {
    PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() }
}

/// The next write, as what is known to be written and what is to be.
fn next(writer: &StatusWriter) -> Option<Job> {
    writer.state().next_job(&Desired::new([Source::Api]))
}

fn phase(status: &PodStatus) -> &str {
    status.phase.as_deref().unwrap_or_default()
}

#[tokio::test]
async fn status_write_failure_is_retried_once_with_the_latest_status() {
    let writer = StatusWriter::default();
    for round in 0..100 {
        writer.set_status(&pod(1, "Pending"), status(&round.to_string()));
        if let Some(job) = next(&writer) {
            assert_eq!(round, 0, "nothing is written before its retry is due");
            writer.handle_result(job, Outcome::Failed);
        }
    }
    writer.state().enqueue_due(Instant::now());
    assert!(next(&writer).is_none());
    writer.state().enqueue_due(Instant::now() + RETRY_BASE);
    let job = next(&writer).expect("due");
    assert_eq!(phase(&job.wanted), "99", "the newest");
    assert!(next(&writer).is_none(), "once");
}

#[tokio::test]
async fn status_overwritten_by_others_is_restored() {
    let writer = StatusWriter::default();
    writer.set_status(&pod(1, "Pending"), status("Running"));
    writer.handle_result(next(&writer).unwrap(), Outcome::Taken { version: 5 });
    for (version, phase) in [(3, "Pending"), (5, "Running")] {
        writer.set_status(&pod(version, phase), status("Running"));
        assert!(next(&writer).is_none(), "{version} is older than the write, or its echo");
    }
    writer.set_status(&pod(6, "Pending"), status("Running"));
    let job = next(&writer).expect("another client wrote");
    assert_eq!((phase(&job.written), phase(&job.wanted)), ("Pending", "Running"));
    // What comes up during a write is looked at after it.
    writer.set_status(&pod(8, "Failed"), status("Running"));
    assert!(next(&writer).is_none());
    writer.handle_result(job, Outcome::Taken { version: 7 });
    assert_eq!(phase(&next(&writer).expect("again").written), "Failed");
}

#[tokio::test]
async fn status_write_that_ends_late_is_not_that_of_a_pod_added_again() {
    let writer = StatusWriter::default();
    writer.set_status(&pod(1, "Pending"), status("Running"));
    let late = next(&writer).unwrap();
    writer.forget("u");
    writer.set_status(&pod(2, ""), status("Pending"));
    let job = next(&writer).unwrap();
    writer.handle_result(late, Outcome::Taken { version: 7 });
    writer.set_status(&pod(2, ""), status("Running"));
    assert!(next(&writer).is_none(), "a write of it is under way");
    writer.handle_result(job, Outcome::Taken { version: 3 });
    let job = next(&writer).unwrap();
    assert_eq!((phase(&job.written), phase(&job.wanted)), ("Pending", "Running"));
}

#[tokio::test]
async fn status_of_deleted_pod_is_forgotten() {
    let writer = StatusWriter::default();
    writer.set_status(&pod(1, "Pending"), status("Running"));
    writer.handle_result(next(&writer).unwrap(), Outcome::Gone);
    assert!(writer.latest("u").is_none());
    writer.set_status(&pod(1, "Pending"), status("Running"));
    writer.forget("u");
    assert!(writer.state().queue.is_empty());
}

/// An apiserver that has one pod and finds fault with some fields of statuses. Gives the bodies of
/// the patches that it took, and whether the pod was deleted.
async fn picky_apiserver(
    invalid: &'static [&'static str],
) -> (kube::Client, Arc<Mutex<(Vec<Value>, bool)>>) {
    let seen = Arc::new(Mutex::new((Vec::new(), false)));
    let there = serde_json::to_value(&*pod(9, "Running")).unwrap();
    let noted = seen.clone();
    let answer = move |method: axum::http::Method, body: String| async move {
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        let mut noted = noted.lock();
        let refused = body["status"]
            .as_object()
            .is_some_and(|status| invalid.iter().any(|field| status.contains_key(*field)));
        let (code, answer) = match method.as_str() {
            "PATCH" if refused => {
                (422, json!({"kind": "Status", "code": 422, "reason": "Invalid"}))
            }
            "PATCH" => {
                noted.0.push(body["status"].clone());
                (200, there)
            }
            "DELETE" => {
                noted.1 = true;
                (200, there)
            }
            _ => (200, there),
        };
        let code = axum::http::StatusCode::from_u16(code).unwrap();
        (code, [("content-type", "application/json")], answer.to_string())
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = axum::Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    (kube::Client::try_from(config).unwrap(), seen)
}

#[tokio::test]
async fn status_invalid_field_does_not_block_others_or_deletion() {
    for (invalid, taken) in [
        (&["message"][..], vec![json!({"phase": "Failed"}), json!({"reason": "Why"})]),
        (&["phase", "message", "reason"][..], vec![]),
        (&[][..], vec![json!({"phase": "Failed", "reason": "Why", "message": "?"})]),
    ] {
        let (client, seen) = picky_apiserver(invalid).await;
        let writer = StatusWriter::default();
        let last = PodStatus {
            reason: Some("Why".to_owned()),
            message: Some("?".to_owned()),
            ..status("Failed")
        };
        writer.finish(&pod(1, "Running"), last);
        let job = next(&writer).unwrap();
        let outcome = write(client, &job).await;
        assert!(matches!(outcome, Outcome::Taken { .. }), "{invalid:?}");
        writer.handle_result(job, outcome);
        assert!(next(&writer).is_none(), "it is not tried again and again");
        assert_eq!(*seen.lock(), (taken, true), "{invalid:?}");
    }
}

#[tokio::test]
async fn status_changes_are_reported_to_listeners_in_order() {
    let writer = StatusWriter::default();
    let mut events = writer.events().subscribe();
    let mut next = move || {
        let (kind, pod) = match events.try_recv().ok()? {
            PodEvent::Added(pod) => ("added", pod),
            PodEvent::Modified(pod) => ("modified", pod),
            PodEvent::Deleted(pod) => ("deleted", pod),
        };
        Some((kind, pod.status.as_ref().map(phase).unwrap_or_default().to_owned()))
    };
    let event = |kind, phase: &str| Some((kind, phase.to_owned()));
    writer.set_status(&pod(1, "Pending"), status("Pending"));
    assert_eq!(next(), event("added", "Pending"));
    writer.set_status(&pod(1, "Pending"), status("Pending"));
    assert_eq!(next(), None, "nothing has changed");
    writer.set_status(&pod(1, "Pending"), status("Running"));
    assert_eq!(next(), event("modified", "Running"));
    writer.set_status(&pod(2, "Pending"), status("Running"));
    assert_eq!(next(), event("modified", "Running"), "the pod has");
    writer.set_status(&pod(2, "Pending"), status("Failed"));
    assert_eq!(next(), event("modified", "Failed"));
    writer.ended("u");
    assert_eq!(next().unwrap().0, "deleted");
    writer.finish(&pod(2, "Pending"), status("Failed"));
    writer.forget("u");
    assert_eq!(next(), None, "once");

    // A pod that is made again under its UID, as static pods are.
    writer.set_status(&pod(3, "Pending"), status("Pending"));
    assert_eq!(next(), event("added", "Pending"));
    writer.forget("u");
    assert_eq!(next().unwrap().0, "deleted");
    let mut deleting = (*pod(4, "Running")).clone();
    deleting.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    writer.set_status(&Arc::new(deleting), status("Running"));
    assert_eq!(next(), event("modified", "Running"), "as upstream: it is on its way out");
}
