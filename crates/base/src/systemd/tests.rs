use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn watchdog_interval_is_read_from_systemd() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let table = [
        (None, None, Ok(None)),
        (Some(""), Some("7"), Ok(None)),
        (Some("30000000"), None, Ok(seconds(30))),
        (Some("30000000"), Some(""), Ok(seconds(30))),
        (Some("30000000"), Some("7"), Ok(seconds(30))),
        (Some("30000000"), Some("8"), Ok(None)),
        (Some("1000001"), Some("7"), Ok(Some(Duration::from_micros(1_000_001)))),
        (Some("1000000"), Some("7"), Err("too short")),
        (Some("30s"), Some("7"), Err("WATCHDOG_USEC")),
        (Some("-1"), None, Err("WATCHDOG_USEC")),
        (Some("0"), None, Err("WATCHDOG_USEC")),
        (Some("30000000"), Some("me"), Err("WATCHDOG_PID")),
    ];
    for (limit, process, expected) in table {
        let read = limit_of(limit, process, 7).map_err(|error| error.to_string());
        match (&read, expected) {
            (Err(error), Err(part)) => assert!(error.contains(part), "{limit:?}: {error}"),
            (Ok(read), Ok(expected)) => assert_eq!(*read, expected, "{limit:?} {process:?}"),
            (read, expected) => panic!("{limit:?} {process:?}: {read:?}, not {expected:?}"),
        }
    }
}

#[tokio::test]
async fn watchdog_is_notified_only_while_healthy() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("notify");
    let systemd = tokio::net::UnixDatagram::bind(&socket).unwrap();
    let well = Arc::new(AtomicBool::new(true));
    let watchdog = Watchdog { socket: socket.into(), period: Duration::from_millis(20) };
    let state = Arc::clone(&well);
    let answering = tokio::spawn(watchdog.run(move || match state.load(Ordering::SeqCst) {
        true => Ok(()),
        false => Err("stuck".to_owned()),
    }));
    let mut buffer = [0; 64];
    for _ in 0..3 {
        let length = systemd.recv(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..length], b"WATCHDOG=1");
    }
    well.store(false, Ordering::SeqCst);
    sleep(Duration::from_millis(50)).await;
    while systemd.try_recv(&mut buffer).is_ok() {}
    sleep(Duration::from_millis(100)).await;
    assert!(systemd.try_recv(&mut buffer).is_err(), "no notification while unhealthy");
    well.store(true, Ordering::SeqCst);
    systemd.recv(&mut buffer).await.unwrap();
    answering.abort();
}

#[test]
fn systemd_abstract_socket_is_reached() {
    let name = format!("longshore-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let systemd = UnixDatagram::bind_addr(&address).unwrap();
    send(OsStr::new(&format!("@{name}")), "READY=1").unwrap();
    let mut buffer = [0; 16];
    assert_eq!(systemd.recv(&mut buffer).unwrap(), 7);
    assert_eq!(&buffer[..7], b"READY=1");
}
