//! The requests: `/apis/metrics.k8s.io/v1beta1/…`, to be mounted where requests are authorized.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::directory::{Directory, DirectoryError, Identity, Selection};
use crate::objects;
use crate::samples::Shared;

/// What requests are answered from.
struct Sources {
    samples: Shared,
    directory: Box<dyn Directory>,
}

type Handle = State<Arc<Sources>>;

/// The routes of the group.
pub fn router(samples: Shared, directory: impl Directory) -> Router {
    let sources = Arc::new(Sources { samples, directory: Box::new(directory) });
    let prefixed = |path: &str| format!("/apis/{}{path}", objects::API_VERSION);
    Router::new()
        .route(&prefixed(""), get(async || answer(StatusCode::OK, &objects::resources())))
        .route(&prefixed("/nodes"), get(nodes))
        .route(&prefixed("/nodes/{name}"), get(node))
        .route(&prefixed("/pods"), get(all_pods))
        .route(&prefixed("/namespaces/{namespace}/pods"), get(pods))
        .route(&prefixed("/namespaces/{namespace}/pods/{name}"), get(pod))
        .with_state(sources)
}

async fn nodes(State(sources): Handle, Query(selection): Query<Selection>) -> Response {
    match sources.directory.nodes(&selection).await {
        Ok(nodes) => {
            let items = nodes.iter().filter_map(|node| sources.node(node)).collect();
            answer(StatusCode::OK, &objects::list("NodeMetricsList", items))
        }
        Err(error) => refusal(&error),
    }
}

async fn node(State(sources): Handle, Path(name): Path<String>) -> Response {
    let found = sources.directory.nodes(&named(&name)).await;
    let object = found.map(|nodes| {
        let node = nodes.iter().find(|node| node.name == name)?;
        sources.node(node)
    });
    one(object, "nodemetrics", &name)
}

async fn all_pods(State(sources): Handle, Query(selection): Query<Selection>) -> Response {
    sources.pods(None, &selection).await
}

async fn pods(
    State(sources): Handle,
    Path(namespace): Path<String>,
    Query(selection): Query<Selection>,
) -> Response {
    sources.pods(Some(&namespace), &selection).await
}

async fn pod(State(sources): Handle, Path((namespace, name)): Path<(String, String)>) -> Response {
    let found = sources.directory.pods(Some(&namespace), &named(&name)).await;
    let object = found.map(|pods| {
        let pod = pods.iter().find(|pod| pod.name == name)?;
        sources.pod(pod)
    });
    one(object, "podmetrics", &format!("{namespace}/{name}"))
}

impl Sources {
    fn node(&self, node: &Identity) -> Option<Value> {
        let usage = self.samples.read().node(&node.name)?;
        Some(objects::node(node, &usage, Timestamp::now()))
    }

    fn pod(&self, pod: &Identity) -> Option<Value> {
        let containers = self.samples.read().pod(pod.namespace.as_deref()?, &pod.name)?;
        objects::pod(pod, &containers, Timestamp::now())
    }

    async fn pods(&self, namespace: Option<&str>, selection: &Selection) -> Response {
        match self.directory.pods(namespace, selection).await {
            Ok(pods) => {
                let items = pods.iter().filter_map(|pod| self.pod(pod)).collect();
                answer(StatusCode::OK, &objects::list("PodMetricsList", items))
            }
            Err(error) => refusal(&error),
        }
    }
}

fn named(name: &str) -> Selection {
    Selection { field_selector: Some(format!("metadata.name={name}")), ..Selection::default() }
}

fn one(object: Result<Option<Value>, DirectoryError>, kind: &str, name: &str) -> Response {
    match object {
        Ok(Some(object)) => answer(StatusCode::OK, &object),
        Ok(None) => {
            let message = format!("{kind}.metrics.k8s.io {name:?} not found");
            let details = json!({"name": name, "group": "metrics.k8s.io", "kind": kind});
            let status = objects::status(404, "NotFound", &message, Some(details));
            answer(StatusCode::NOT_FOUND, &status)
        }
        Err(error) => refusal(&error),
    }
}

fn refusal(error: &DirectoryError) -> Response {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer(code, &objects::status(code.as_u16(), &error.reason, &error.message, None))
}

fn answer(code: StatusCode, body: &Value) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
