//! Sends batches of events to a webhook, again after any failure, as upstream does.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use super::backend::{Entry, Failure};
use super::metrics::Plugin;
use super::{AuditError, WebhookConfig};
use crate::remote::Remote;

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How often a batch is sent at most.
const ATTEMPTS: u32 = 5;
/// By what the wait grows with each failure.
const FACTOR: f64 = 1.5;
/// By what part of it a wait may be longer.
const JITTER: f64 = 0.2;

/// A webhook for events.
pub(super) struct Webhook {
    remote: Remote,
    initial_backoff: Duration,
}

impl Webhook {
    pub(super) fn open(config: &WebhookConfig) -> Result<Webhook, AuditError> {
        let remote = Remote::of_kubeconfig(&config.config_file)
            .map_err(|error| AuditError::Webhook { reason: error.to_string() })?;
        Ok(Webhook { remote, initial_backoff: config.initial_backoff })
    }

    /// Sends events as one list.
    pub(super) async fn deliver(&self, entries: &[Entry]) -> Result<(), Failure> {
        let body = list(entries);
        let mut wait = self.initial_backoff;
        let mut attempt = 1;
        loop {
            let Err(reason) = self.remote.post_once(body.clone(), TIMEOUT).await else {
                return Ok(());
            };
            if attempt == ATTEMPTS {
                return Err(Failure { plugin: Plugin::Webhook, reason, events: entries.len() });
            }
            tracing::debug!(attempt, reason, "the audit webhook is called again");
            let random = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
            sleep(scaled(wait, 1.0 + JITTER * random)).await;
            wait = scaled(wait, FACTOR);
            attempt += 1;
        }
    }
}

fn scaled(span: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(span.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

/// An EventList.
fn list(entries: &[Entry]) -> Bytes {
    let mut text =
        br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#.to_vec();
    for (i, (event, _)) in entries.iter().enumerate() {
        if i > 0 {
            text.push(b',');
        }
        event.write_json(&mut text);
    }
    text.extend_from_slice(b"]}");
    text.into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::{BodyExt, Full};
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::TokioIo;
    use parking_lot::Mutex;
    use serde_json::Value;
    use tokio::net::TcpListener;

    use super::*;
    use crate::audit::backend::{Backend, BatchConfig, Mode, Sink};
    use crate::audit::event::Event;

    /// A webhook that fails so many times first.
    struct Receiver {
        address: std::net::SocketAddr,
        lists: Arc<Mutex<Vec<Value>>>,
        calls: Arc<AtomicUsize>,
    }

    async fn receiver(failures: usize) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (lists, calls) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (kept, counted) = (lists.clone(), calls.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (lists, calls) = (kept.clone(), counted.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (lists, calls) = (lists.clone(), calls.clone());
                    async move {
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let mut response = Response::new(Full::new(Bytes::new()));
                        match calls.fetch_add(1, Ordering::Relaxed) < failures {
                            true => *response.status_mut() = hyper::StatusCode::NOT_FOUND,
                            false => lists.lock().push(serde_json::from_slice(&body).unwrap()),
                        }
                        Ok::<_, std::convert::Infallible>(response)
                    }
                });
                let builder = hyper::server::conn::http1::Builder::new();
                tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
            }
        });
        Receiver { address, lists, calls }
    }

    fn webhook(dir: &std::path::Path, address: std::net::SocketAddr, mode: Mode) -> Backend {
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'http://{address}/audit'}}}}]"
        );
        let path = dir.join("webhook.conf");
        std::fs::write(&path, text).unwrap();
        let config = WebhookConfig {
            config_file: path,
            initial_backoff: Duration::from_millis(10),
            mode,
            truncate: None,
        };
        Backend::new(Sink::webhook(&config).unwrap(), mode, None, Arc::default())
    }

    fn event(id: &str) -> Arc<Event> {
        Arc::new(Event { audit_id: id.to_owned(), ..Event::default() })
    }

    #[tokio::test]
    async fn audit_webhook_is_sent_batches_and_called_again_after_failures() {
        let (dir, receiver) = (tempfile::tempdir().unwrap(), receiver(3).await);
        let batch = BatchConfig {
            buffer_size: 100,
            max_size: 3,
            max_wait: Duration::from_secs(3600),
            throttle: None,
        };
        let backend = webhook(dir.path(), receiver.address, Mode::Batch(batch));
        for id in ["a", "b", "c", "d"] {
            assert!(backend.process(event(id)).await);
        }
        backend.stop().await;
        let lists = receiver.lists.lock().clone();
        let mut sizes: Vec<usize> =
            lists.iter().map(|list| list["items"].as_array().unwrap().len()).collect();
        sizes.sort_unstable();
        assert_eq!((sizes, receiver.calls.load(Ordering::Relaxed)), (vec![1, 3], 5));
        assert_eq!(lists[0]["kind"], "EventList");
        assert_eq!(lists[0]["items"][0]["kind"], "Event");
    }

    #[test]
    fn audit_webhook_faults_name_the_kubeconfig() {
        let dir = tempfile::tempdir().unwrap();
        let config = WebhookConfig {
            config_file: dir.path().join("absent.conf"),
            initial_backoff: Duration::ZERO,
            mode: Mode::Blocking,
            truncate: None,
        };
        let error = Webhook::open(&config).err().unwrap().to_string();
        let (start, _) = error.split_once("absent.conf: ").unwrap();
        assert!(start.starts_with("initializing audit webhook: "), "{error}");
    }

    #[tokio::test]
    async fn audit_webhook_in_blocking_mode() {
        let (dir, receiver) = (tempfile::tempdir().unwrap(), receiver(0).await);
        let backend = webhook(dir.path(), receiver.address, Mode::BlockingStrict);
        assert!(backend.process(event("a")).await);
        assert_eq!(receiver.lists.lock().len(), 1);
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let backend = webhook(dir.path(), nobody, Mode::BlockingStrict);
        assert!(!backend.process(event("a")).await);
        let backend = webhook(dir.path(), nobody, Mode::Blocking);
        assert!(backend.process(event("a")).await);
    }
}
