#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::json;

use super::*;
use crate::sources::Source;

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
async fn a_write_that_fails_is_tried_again_once_however_much_is_told() {
    let writer = StatusWriter::default();
    for round in 0..100 {
        writer.tell(&pod(1, "Pending"), status(&round.to_string()));
        if let Some(job) = next(&writer) {
            assert_eq!(round, 0, "nothing is written before its retry is due");
            writer.wrote(job, Outcome::Failed);
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
async fn what_others_wrote_over_the_status_is_put_right() {
    let writer = StatusWriter::default();
    writer.tell(&pod(1, "Pending"), status("Running"));
    writer.wrote(next(&writer).unwrap(), Outcome::Taken { version: 5 });
    for (version, phase) in [(3, "Pending"), (5, "Running")] {
        writer.tell(&pod(version, phase), status("Running"));
        assert!(next(&writer).is_none(), "{version} is older than the write, or its echo");
    }
    writer.tell(&pod(6, "Pending"), status("Running"));
    let job = next(&writer).expect("somebody wrote");
    assert_eq!((phase(&job.written), phase(&job.wanted)), ("Pending", "Running"));
    // What comes up during a write is looked at after it.
    writer.tell(&pod(8, "Failed"), status("Running"));
    assert!(next(&writer).is_none());
    writer.wrote(job, Outcome::Taken { version: 7 });
    assert_eq!(phase(&next(&writer).expect("again").written), "Failed");
}

#[tokio::test]
async fn a_pod_that_is_gone_is_forgotten_and_leaves_nothing_queued() {
    let writer = StatusWriter::default();
    writer.tell(&pod(1, "Pending"), status("Running"));
    writer.wrote(next(&writer).unwrap(), Outcome::Gone);
    assert!(writer.latest("u").is_none());
    writer.tell(&pod(1, "Pending"), status("Running"));
    writer.forget("u");
    assert!(writer.state().queue.is_empty());
}
