//! Logs of containers.

use super::*;

#[tokio::test]
async fn container_logs_endpoint() {
    let setup = setup(&["--authorization-mode=AlwaysAllow"], &[]).await;
    for (path, expected) in [
        (LOGS.to_owned(), (200, "one\ntwo\n")),
        (format!("{LOGS}?tailLines=1"), (200, "two\n")),
        (
            format!("{LOGS}?stream=Stdout"),
            (
                400,
                "unable to return the given log stream: \"Stdout\". Please enable PodLogsQuerySplitStreams feature gate in kubelet",
            ),
        ),
        (format!("{LOGS}?stream=All"), (200, "one\ntwo\n")),
        (format!("{LOGS}?timestamps=true&limitBytes=10"), (200, "2024-01-01")),
        (format!("{LOGS}?tailLines=x"), (400, r#"{"message": "Unable to decode query."}"#)),
        (format!("{LOGS}?tailLines=-1"), (422, r#"{"message": "Invalid request."}"#)),
        (
            format!("{LOGS}?previous=true"),
            (400, "previous terminated container \"c\" in pod \"p\" not found"),
        ),
        ("/containerLogs/ns/other/c".to_owned(), (404, "pod \"other\" does not exist")),
        (
            "/containerLogs/ns/p/other".to_owned(),
            (404, "container \"other\" not found in pod \"p\""),
        ),
        (
            "/containerLogs/ns/p/slow".to_owned(),
            (400, "container \"slow\" in pod \"p\" is not available"),
        ),
    ] {
        let (status, body) = setup.get(Some("admin"), None, &path).await;
        assert_eq!((status, body.as_str()), expected, "{path}");
    }
    fs::remove_file(&setup.host.log).unwrap();
    let (status, body) = setup.get(Some("admin"), None, LOGS).await;
    let log = setup.host.log.display();
    let expected = format!(
        "failed to try resolving symlinks in path \"{log}\": lstat {log}: no such file or directory"
    );
    assert_eq!((status, body), (400, expected));

    let gate = "--feature-gates=PodLogsQuerySplitStreams=true";
    let split = self::setup(&["--authorization-mode=AlwaysAllow", gate], &[]).await;
    let path = format!("{LOGS}?stream=Stdout");
    assert_eq!(split.get(Some("admin"), None, &path).await, (200, "one\n".to_owned()));
}

#[tokio::test]
async fn container_logs_follow_over_rotation() {
    use std::io::Write;
    let setup = setup(&["--authorization-mode=AlwaysAllow"], &[]).await;
    let mut stream = setup.connect(Some("admin")).await;
    send(&mut stream, None, "GET", &format!("{LOGS}?follow=true&tailLines=1")).await;
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    let mut expect = async |stream: &mut TlsStream<TcpStream>, text: &str| {
        while !seen.contains(text) {
            let count = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut buffer))
                .await
                .unwrap()
                .unwrap();
            assert!(count > 0, "{text} never came: {seen}");
            seen.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
    };
    expect(&mut stream, "two\n").await;
    writeln!(setup.log(), "2024-01-01T00:00:02Z stdout F three").unwrap();
    expect(&mut stream, "three\n").await;
    let log = &setup.host.log;
    fs::rename(log, log.with_extension("old")).unwrap();
    fs::write(log, "2024-01-01T00:00:03Z stdout F four\n").unwrap();
    expect(&mut stream, "four\n").await;
    writeln!(setup.log(), "2024-01-01T00:00:04Z stdout F five").unwrap();
    setup.host.running.send_replace(false);
    expect(&mut stream, "five\n").await;
    expect(&mut stream, "\r\n0\r\n\r\n").await;
    assert!(!seen.contains("one"));
}
