use super::*;
use crate::look::{DaemonLook, NodeLook};

fn look() -> Snapshot {
    let pod = |name: &str, status: &str| PodLook {
        name: format!("default/{name}"),
        status: status.into(),
        ready: 1,
        containers: 1,
        ip: Some("198.19.1.2".into()),
        port: Some(8080),
        age: 125,
        ..PodLook::default()
    };
    Snapshot {
        node: NodeLook {
            name: "longshore-1".into(),
            conditions: vec![
                ("Ready".into(), "True".into()),
                ("DiskPressure".into(), "False".into()),
            ],
            ..NodeLook::default()
        },
        daemons: vec![DaemonLook { name: "longshore", pid: 42, cpu: 1.25, memory: 15 << 20 }],
        pods: vec![pod("hello", "Running"), pod("broken", "CrashLoopBackOff")],
        events: (0..50)
            .map(|n| EventLook { text: format!("Event{n}"), age: 50 - n, ..EventLook::default() })
            .collect(),
        trouble: None,
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
fn a_panel_fits_every_terminal() {
    let kubeconfig = Path::new("/var/tmp/longshore/1/apiserver/admin.kubeconfig");
    for (width, height) in [(200, 60), (80, 24), (40, 20), (20, 10), (1, 1), (0, 0)] {
        let lines = panel(&look(), kubeconfig, width, height);
        assert!(lines.len() <= height, "{width}x{height}: {} lines", lines.len());
        for line in &lines {
            let shown = visible(&line.render(width));
            assert!(shown <= width, "{width}x{height}: {shown} columns");
        }
    }
}

#[test]
fn a_panel_shows_what_matters() {
    let lines = text(&panel(&look(), Path::new("/k"), 80, 24));
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
fn on_a_low_terminal_pods_and_commands_remain() {
    let lines = text(&panel(&look(), Path::new("/k"), 80, 12)).concat();
    for needle in ["default/hello", "default/broken", "kubectl", "curl"] {
        assert!(lines.contains(needle), "{needle:?} is not in {lines:?}");
    }
}

#[test]
fn a_command_is_wrapped_and_not_cut() {
    let lines = text(&panel(&look(), Path::new("/a/long/kubeconfig"), 20, 40));
    let all = lines.concat();
    assert!(all.contains("kubectl --kubeconfig=/a/long/kubeconfig get pods -A"), "{lines:#?}");
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let line = Line::plain("a\x1b[2Jb\nc");
    assert_eq!(line.render(80), "a [2Jb c");
}

#[test]
fn ages_are_short() {
    let table = [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")];
    for (seconds, expected) in table {
        assert_eq!(short(seconds), expected);
    }
}
