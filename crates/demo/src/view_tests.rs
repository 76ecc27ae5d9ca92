use super::*;
use crate::inspect::{DaemonSample, NodeSample};

fn snapshot() -> Snapshot {
    let pod = |name: &str, status: &str| PodSample {
        name: format!("default/{name}"),
        status: status.into(),
        ready: 1,
        containers: 1,
        ip: Some("198.19.1.2".into()),
        port: Some(8080),
        age: 125,
        ..PodSample::default()
    };
    Snapshot {
        node: NodeSample {
            name: "longshore-1".into(),
            conditions: vec![
                ("Ready".into(), "True".into()),
                ("DiskPressure".into(), "False".into()),
            ],
            ..NodeSample::default()
        },
        daemons: vec![DaemonSample { name: "longshore", pid: 42, cpu: 1.25, memory: 15 << 20 }],
        pods: vec![pod("hello", "Running"), pod("broken", "CrashLoopBackOff")],
        events: (0..50)
            .map(|n| EventSample {
                text: format!("Event{n}"),
                age: 50 - n,
                ..EventSample::default()
            })
            .collect(),
        error: None,
    }
}

fn text(lines: &[Line]) -> Vec<String> {
    lines.iter().map(|line| line.0.iter().map(|(_, text)| text.as_str()).collect()).collect()
}

fn visible(rendered: &str) -> usize {
    let mut escaped = false;
    let shown = rendered.chars().filter(|c| {
        let was = escaped;
        escaped = *c == '\x1b' || (escaped && *c != 'm');
        !was && !escaped
    });
    shown.count()
}

#[test]
fn panel_fits_every_terminal() {
    let kubeconfig = Path::new("/var/tmp/longshore/1/apiserver/admin.kubeconfig");
    for (width, height) in [(200, 60), (80, 24), (40, 20), (20, 10), (1, 1), (0, 0)] {
        let lines = panel(&snapshot(), kubeconfig, width, height);
        assert!(lines.len() <= height, "{width}x{height}: {} lines", lines.len());
        for line in &lines {
            let shown = visible(&line.render(width));
            assert!(shown <= width, "{width}x{height}: {shown} columns");
        }
    }
}

#[test]
fn panel_shows_what_matters() {
    let lines = text(&panel(&snapshot(), Path::new("/k"), 80, 24));
    let has = |needle: &str| lines.iter().any(|line| line.contains(needle));
    for needle in [
        "longshore-1  Ready",
        "longshore         42   1.2 %    15.0 MiB",
        "default/hello   Running",
        "CrashLoopBackOff  1/1    0         2m    198.19.1.2",
        "kubectl --kubeconfig=/k get pods -A",
        "curl http://198.19.1.2:8080/",
        "Event49",
    ] {
        assert!(has(needle), "{needle:?} is not in {lines:#?}");
    }
    assert!(!has("Event0"), "the last events are shown, not the first");
}

#[test]
fn panel_keeps_pods_and_commands_on_low_terminals() {
    let lines = text(&panel(&snapshot(), Path::new("/k"), 80, 12)).concat();
    for needle in ["default/hello", "default/broken", "kubectl", "curl"] {
        assert!(lines.contains(needle), "{needle:?} is not in {lines:?}");
    }
}

#[test]
fn panel_wraps_commands() {
    let lines = text(&panel(&snapshot(), Path::new("/a/long/kubeconfig"), 20, 40));
    let all = lines.concat();
    assert!(all.contains("kubectl --kubeconfig=/a/long/kubeconfig get pods -A"), "{lines:#?}");
}

#[test]
fn panel_escapes_control_characters() {
    let line = Line::plain("a\x1b[2Jb\nc");
    assert_eq!(line.render(80), "a [2Jb c");
}

#[test]
fn panel_ages_are_short() {
    let table = [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")];
    for (seconds, expected) in table {
        assert_eq!(short(seconds), expected);
    }
}
