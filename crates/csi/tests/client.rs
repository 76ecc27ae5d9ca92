//! The client against a small driver in this process, on a real socket.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longshore_csi::v1::identity_server::Identity;
use longshore_csi::v1::node_server::Node;
use longshore_csi::v1::node_service_capability::{Rpc, Type, rpc};
use longshore_csi::v1::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest,
    NodeGetInfoResponse, NodePublishVolumeRequest, NodeServiceCapability, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
};
use longshore_csi::{Capabilities, Code, Driver, Error, Observer, Options, Server, serve_driver};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tonic::{Request, Response, Status, async_trait};

/// Responds with the code in the volume's name; never to `hang`.
#[derive(Clone, Default)]
struct Fake {
    asked: Arc<AtomicUsize>,
}

#[async_trait]
impl Identity for Fake {}

#[async_trait]
impl Node for Fake {
    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse::default()))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        if self.asked.fetch_add(1, Ordering::Relaxed) == 0 {
            return Err(Status::unavailable("starting"));
        }
        let able =
            |kind: i32| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind })) };
        let capabilities = vec![
            able(rpc::Type::ExpandVolume.into()),
            able(rpc::Type::VolumeMountGroup.into()),
            // An unknown capability, and an empty one.
            able(99),
            NodeServiceCapability { r#type: None },
        ];
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        match request.into_inner().volume_id.parse() {
            Ok(0) => Ok(Response::new(NodeUnpublishVolumeResponse {})),
            Ok(code) => Err(Status::new(Code::from_i32(code), "as you asked")),
            Err(_) => std::future::pending().await,
        }
    }
}

#[derive(Default)]
struct Noted(Mutex<Vec<(String, String, String)>>);

impl Observer for Noted {
    fn observe(&self, driver: &str, method: &str, _: Duration, code: &str) {
        let noted = (driver.to_owned(), method.to_owned(), code.to_owned());
        self.0.lock().push(noted);
    }
}

fn start() -> (TempDir, Server, Options) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("csi.sock");
    let fake = Fake::default();
    let server = serve_driver(UnixListener::bind(&socket).unwrap(), fake.clone(), fake);
    let options = Options::new(socket.display().to_string());
    (dir, server, options)
}

#[tokio::test]
async fn csi_errors_match_upstream() {
    let (_dir, _server, options) = start();
    let driver = Driver::new("csi.example.com", options).unwrap();
    driver.unpublish("0", "/t").await.unwrap();
    for (code, name, is_final) in [
        (1, "Canceled", false),
        (2, "Unknown", true),
        (3, "InvalidArgument", true),
        (4, "DeadlineExceeded", false),
        (5, "NotFound", true),
        (8, "ResourceExhausted", false),
        (9, "FailedPrecondition", true),
        (10, "Aborted", false),
        (12, "Unimplemented", true),
        (13, "Internal", true),
        (14, "Unavailable", false),
    ] {
        let error = driver.unpublish(&code.to_string(), "/t").await.unwrap_err();
        let expected = format!(
            "csi.example.com: NodeUnpublishVolume: rpc error: code = {name} desc = as you asked"
        );
        assert_eq!(error.to_string(), expected);
        assert_eq!((error.code(), error.is_final()), (Some(Code::from_i32(code)), is_final));
    }
    let error = driver.unstage("v", "/s").await.unwrap_err();
    assert_eq!(error.code(), Some(Code::Unimplemented), "what a driver leaves out");
    let error = driver.info().await.unwrap_err();
    assert_eq!(error.to_string(), "csi.example.com: NodeGetInfo: the response has no node_id");
    let error = Driver::new("d", Options::new("tcp://127.0.0.1:1")).unwrap_err();
    assert!(matches!(&error, Error::Endpoint { driver, .. } if driver == "d"), "{error}");
}

#[tokio::test]
async fn csi_call_timeout_and_unavailable_driver() {
    let (dir, server, options) = start();
    let noted = Arc::new(Noted::default());
    let observer: Arc<dyn Observer> = noted.clone();
    let timeout = Duration::from_millis(200);
    let options = Options { timeout, observer: Some(observer), ..options };
    let driver = Driver::new("d", options).unwrap();
    let error = driver.unpublish("hang", "/t").await.unwrap_err();
    assert_eq!((error.code(), error.is_final()), (Some(Code::DeadlineExceeded), false));
    driver.unpublish("0", "/t").await.unwrap();
    server.stop().await;
    let error = driver.unpublish("0", "/t").await.unwrap_err();
    assert_eq!((error.code(), error.is_final()), (Some(Code::Unavailable), false), "{error}");
    // It is restarted with a new socket, and the same client reconnects.
    let socket = dir.path().join("csi.sock");
    std::fs::remove_file(&socket).unwrap();
    let fake = Fake::default();
    let _server = serve_driver(UnixListener::bind(&socket).unwrap(), fake.clone(), fake);
    driver.unpublish("0", "/t").await.unwrap();
    let method = "/csi.v1.Node/NodeUnpublishVolume";
    let codes = ["DeadlineExceeded", "OK", "Unavailable", "OK"];
    let expected = codes.map(|code| ("d".to_owned(), method.to_owned(), code.to_owned()));
    assert_eq!(*noted.0.lock(), expected);
}

#[tokio::test]
async fn csi_capabilities_are_queried_until_known() {
    let (_dir, _server, options) = start();
    let driver = Driver::new("d", options).unwrap();
    assert_eq!(driver.capabilities().await.unwrap_err().code(), Some(Code::Unavailable));
    let expected = Capabilities { expand: true, mount_group: true, ..Capabilities::default() };
    assert_eq!(driver.capabilities().await.unwrap(), expected);
    assert_eq!(driver.clone().capabilities().await.unwrap(), expected);
}

#[test]
fn csi_secrets_are_redacted() {
    let secrets = [("password".to_owned(), "hunter2".to_owned())];
    let stage = NodeStageVolumeRequest {
        volume_id: "v".to_owned(),
        secrets: secrets.clone().into(),
        ..NodeStageVolumeRequest::default()
    };
    let publish = NodePublishVolumeRequest {
        volume_id: "v".to_owned(),
        secrets: secrets.into(),
        ..NodePublishVolumeRequest::default()
    };
    for shown in [format!("{stage:?}"), format!("{publish:?}")] {
        assert!(shown.contains("\"v\"") && !shown.contains("hunter2"), "{shown}");
    }
}
