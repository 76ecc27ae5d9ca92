use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::snapshot::{Condition, NodeSample};
use crate::state::Key;

fn snapshot() -> Snapshot {
    let pod = |name: &str, status: &str| PodSample {
        name: format!("default/{name}"),
        status: status.into(),
        ready: Some(1),
        expected: 1,
        ip: Some("198.19.1.2".into()),
        port: Some(8080),
        age: 125,
        containers: vec![ContainerSample {
            name: "web".into(),
            id: "c1".into(),
            state: "Running",
            restarts: 3,
            millicores: Some(12),
            memory: Some(3 << 19),
        }],
        ..PodSample::default()
    };
    let condition =
        |kind: &str, status: &str| Condition { kind: kind.into(), status: status.into() };
    Snapshot {
        node: NodeSample {
            name: "longshore-1".into(),
            health: Some("ok".into()),
            conditions: vec![condition("Ready", "True"), condition("DiskPressure", "False")],
            ..NodeSample::default()
        },
        processes: vec![ProcessSample {
            name: "longshore".into(),
            pid: 42,
            cpu: 1.25,
            memory: 15 << 20,
        }],
        pods: vec![pod("hello", "Running"), pod("broken", "CrashLoopBackOff")],
        events: (0..50)
            .map(|n| EventSample {
                text: format!("Event{n}"),
                age: n,
                pod: Some(if n < 49 { "default/hello" } else { "default/other" }.to_owned()),
                ..EventSample::default()
            })
            .collect(),
        errors: vec![],
    }
}

fn foot() -> Foot {
    let commands = vec!["kubectl --kubeconfig=/k get pods -A".into(), "curl http://a/".into()];
    Foot { commands, hint: "q: quit".into() }
}

/// What a terminal of that size shows.
fn screen(snapshot: &Snapshot, state: &State, foot: &Foot, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, snapshot, state, foot)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| row(y).trim_end().to_owned()).collect()
}

#[test]
fn panel_fits_every_terminal() {
    for (width, height) in [(200, 60), (80, 24), (40, 20), (20, 10), (1, 1), (0, 0)] {
        let mut state = State::default();
        for key in [Key::Home, Key::End, Key::Enter] {
            state.press(key, &snapshot());
            let lines = panel(&snapshot(), &state, &foot(), width, height);
            assert!(lines.len() <= height, "{width}x{height}: {} lines", lines.len());
        }
    }
}

#[test]
fn panel_shows_what_matters() {
    let mut state = State::default();
    state.press(Key::Home, &snapshot());
    let lines = screen(&snapshot(), &state, &foot(), 90, 26);
    let has = |needle: &str| lines.iter().any(|line| line.contains(needle));
    assert!(has("EVENTS OF default/hello") && has("Event48") && !has("Event49"), "{lines:#?}");
    state.press(Key::Escape, &snapshot());
    let without = screen(&snapshot(), &state, &foot(), 90, 26);
    assert!(without.iter().any(|line| line.ends_with("Event49")), "{without:#?}");
    for needle in [
        "longshore-1  Ready  healthz ok",
        "○ DiskPressure",
        "longshore                   42   1.2 %    15.0 MiB",
        "default/hello   Running",
        "CrashLoopBackOff  1/1    0             12m      1.5 MiB  2m    198.19.1.2",
        "web        Running  3             12m      1.5 MiB",
        "kubectl --kubeconfig=/k get pods -A",
        "q: quit",
    ] {
        assert!(has(needle), "{needle:?} is not in {lines:#?}");
    }
    assert!(!has("Event0"), "the last events are shown, not the first");
}

#[test]
fn panel_keeps_pods_and_commands_on_low_terminals() {
    let lines = screen(&snapshot(), &State::default(), &foot(), 80, 10).concat();
    for needle in ["default/hello", "default/broken", "kubectl", "curl", "q: quit"] {
        assert!(lines.contains(needle), "{needle:?} is not in {lines:?}");
    }
}

#[test]
fn panel_shows_the_selected_of_many_pods() {
    let mut many = snapshot();
    let first = many.pods[0].clone();
    many.pods =
        (0..100).map(|n| PodSample { name: format!("n/pod-{n:02}"), ..first.clone() }).collect();
    let mut state = State::default();
    for (key, shown, hidden) in [
        (Key::Home, "pod-00", "pod-99"),
        (Key::End, "pod-99", "pod-00"),
        (Key::Up, "pod-98", "pod-00"),
    ] {
        state.press(key, &many);
        let lines = screen(&many, &state, &foot(), 80, 24).concat();
        assert!(lines.contains(shown) && !lines.contains(hidden), "{key:?}: {lines}");
    }
}

#[test]
fn panel_shows_what_went_wrong_in_the_place_of_the_hint() {
    let log = LogView { title: "n/p c".into(), ..LogView::default() };
    for log in [None, Some(log)] {
        let message = Some("n/p c: there is no\x1b shell".to_owned());
        let state = State { log, message, ..State::default() };
        let lines = screen(&snapshot(), &state, &foot(), 80, 24);
        assert!(lines.iter().any(|line| line == "n/p c: there is no shell"), "{lines:#?}");
        assert!(lines.iter().all(|line| !line.contains("q: quit")), "{lines:#?}");
    }
}

#[test]
fn panel_wraps_commands() {
    let commands = vec!["kubectl --kubeconfig=/a/long/kubeconfig get pods -A".to_owned()];
    let foot = Foot { commands: commands.clone(), hint: String::new() };
    let lines = screen(&snapshot(), &State::default(), &foot, 20, 40);
    // A piece that ends with a blank has lost it here.
    let all = lines.concat().replace(' ', "");
    assert!(all.contains(&commands[0].replace(' ', "")), "{lines:#?}");
}

#[test]
fn panel_escapes_control_characters() {
    let mut hostile = snapshot();
    hostile.events = vec![EventSample { text: "a\x1b[2Jb\nc".into(), ..EventSample::default() }];
    assert!(text(&hostile).contains("a [2Jb c\n"), "{}", text(&hostile));
    let lines = screen(&hostile, &State::default(), &foot(), 80, 24);
    assert!(lines.iter().all(|line| !line.contains('\x1b')), "{lines:#?}");
    let log = LogView { lines: vec!["a\x1b[2Jb\tc".into()], ..LogView::default() };
    let state = State { log: Some(log), ..State::default() };
    assert_eq!(screen(&hostile, &state, &foot(), 80, 24)[1], "a[2Jb c");
}

#[test]
fn panel_shows_the_end_of_a_log_and_what_is_above() {
    let lines: Vec<String> = (0..50).map(|n| format!("line {n}")).collect();
    let shown = |below, height| {
        let log =
            LogView { title: "n/p c".into(), lines: lines.clone(), below, ..LogView::default() };
        let state = State { log: Some(log), ..State::default() };
        screen(&Snapshot::default(), &state, &foot(), 60, height)
    };
    let end = shown(0, 10);
    assert_eq!(
        (end[0].as_str(), end[1].as_str(), end[8].as_str()),
        ("LOG n/p c", "line 42", "line 49")
    );
    assert!(end[9].starts_with("Esc: back"));
    assert_eq!(shown(5, 10)[8], "line 44");
    // The first lines fill the screen, however far one scrolls.
    assert_eq!((shown(49, 10)[1].as_str(), shown(49, 10)[8].as_str()), ("line 0", "line 7"));
    assert_eq!(shown(0, 60)[1], "line 0");
}

#[test]
fn panel_as_text_has_everything() {
    let mut all = snapshot();
    all.errors = vec!["the apiserver, about events: forbidden".into()];
    let text = text(&all);
    for needle in [
        "no answer from the apiserver, about events: forbidden",
        "default/broken  CrashLoopBackOff",
        "Event0\n",
        "Event49\n",
    ] {
        assert!(text.contains(needle), "{needle:?} is not in {text}");
    }
    assert!(text.lines().all(|line| line == line.trim_end()));
    assert!(super::text(&Snapshot::default()).starts_with("Longshore"));
}

#[test]
fn panel_changes_are_one_line_for_each_thing() {
    let lines = changes(&snapshot());
    assert_eq!(lines[0], "node longshore-1: Ready=True DiskPressure=False");
    assert_eq!(lines[1], "pod default/hello: Running, 1/1 ready, 0 restarts, ip 198.19.1.2");
    assert_eq!(lines.len(), 1 + 2 + 50);
}

#[test]
fn panel_ages_are_short() {
    let table = [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")];
    for (seconds, expected) in table {
        assert_eq!(short(seconds), expected);
    }
}
