use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path as FilePath;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use tower::ServiceExt;

use super::*;

async fn get(top: &FilePath, queries: bool, path: &str, range: Option<&str>) -> (u16, String) {
    let mut request = Request::get(path);
    if let Some(range) = range {
        request = request.header("range", range);
    }
    let request = request.body(Body::empty()).unwrap();
    let response = routes_in(top.to_owned(), queries).oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

/// A log directory, and a file outside of it.
fn tree() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().join("log");
    fs::create_dir_all(top.join("pods/x")).unwrap();
    fs::create_dir_all(top.join("svc")).unwrap();
    fs::create_dir_all(top.join("containers")).unwrap();
    fs::write(top.join("a.log"), "0123456789").unwrap();
    fs::write(top.join("svc/svc.log"), "of the service\n").unwrap();
    fs::write(top.join("pods/x/0.log"), "of a pod\n").unwrap();
    fs::write(folder.path().join("secret"), "planted").unwrap();
    symlink(top.join("pods/x/0.log"), top.join("containers/x.log")).unwrap();
    symlink(folder.path().join("secret"), top.join("absolute")).unwrap();
    symlink("../secret", top.join("relative")).unwrap();
    symlink("/", top.join("pods/everything")).unwrap();
    symlink(top.join("round"), top.join("round")).unwrap();
    nix::unistd::mkfifo(&top.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    (folder, top)
}

#[tokio::test]
async fn node_logs_serves_files_inside_the_directory() {
    let (_folder, top) = tree();
    for (path, range, expected) in [
        ("/logs/a.log", None, (200, "0123456789")),
        ("/logs/a.log", Some("bytes=-3"), (206, "789")),
        ("/logs/a.log", Some("bytes=20-"), (416, "invalid range: failed to overlap\n")),
        ("/logs/containers/x.log", None, (200, "of a pod\n")),
        ("/logs/none", None, (404, "404 page not found\n")),
        ("/logs/a.log/x", None, (404, "404 page not found\n")),
        ("/logs/absolute", None, (403, "403 Forbidden\n")),
        ("/logs/relative", None, (403, "403 Forbidden\n")),
        ("/logs/pods/everything/etc/passwd", None, (403, "403 Forbidden\n")),
        ("/logs/round", None, (403, "403 Forbidden\n")),
        ("/logs/pipe", None, (403, "403 Forbidden\n")),
        ("/logs/../secret", None, (400, "invalid URL path\n")),
        ("/logs/%2e%2e/secret", None, (400, "invalid URL path\n")),
        ("/logs/pods/%2e%2e%2f%2e%2e%2fsecret", None, (400, "invalid URL path\n")),
        ("/logs/a.log%00", None, (400, "invalid URL path\n")),
    ] {
        let (status, body) = get(&top, false, path, range).await;
        assert_eq!((status, body.as_str()), expected, "{path}");
    }
    let (status, page) = get(&top, false, "/logs/", None).await;
    assert_eq!(status, 200);
    assert!(page.contains("<a href=\"a.log\">a.log</a>\n"), "{page}");
    assert!(page.contains("<a href=\"pods/\">pods/</a>\n"), "{page}");
}

#[tokio::test]
async fn node_logs_queries_name_files_and_services() {
    let (_folder, top) = tree();
    for (query, expected) in [
        ("query=/a.log", (200, "0123456789")),
        ("query=containers%5Cx.log", (200, "of a pod\n")),
        ("query=/../secret", (400, "invalid URL path\n")),
        ("query=svc", (200, "of the service\n")),
        ("query=no-such-service", (200, "\nlog not found for no-such-service\n")),
        ("query=a&pattern=(", (406, "pattern: Invalid value: \"(\": unclosed group\n")),
        ("query=%20", (400, "query: Invalid value: query cannot be empty\n")),
    ] {
        let (status, body) = get(&top, true, &format!("/logs/?{query}"), None).await;
        assert_eq!((status, body.as_str()), expected, "{query}");
    }
    let (status, body) = get(&top, true, "/logs/?query=svc&tailLines=1", None).await;
    assert!(status == 200 && body.contains("try without specifying options"), "{body}");
    let (status, body) = get(&top, true, "/logs/a.log?query=svc", None).await;
    assert_eq!((status, body.as_str()), (406, "path not allowed in query mode\n"));
    let (status, body) = get(&top, true, "/logs?query=svc", None).await;
    assert_eq!((status, body.as_str()), (200, "of the service\n"), "as documentation writes it");
    // with queries off there are files alone
    let (status, body) = get(&top, false, "/logs/a.log?query=svc", None).await;
    assert_eq!((status, body.as_str()), (200, "0123456789"));
}
