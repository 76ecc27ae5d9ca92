//! Makes lines of a snapshot. Pure: the same snapshot, choices and size give the same lines.

use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};

use crate::snapshot::{ContainerSample, EventSample, PodSample, ProcessSample, Snapshot};
use crate::state::{LogView, Order, State};

const PLAIN: Style = Style::new();
const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const GOOD: Style = Style::new().fg(Color::Green);
const BAD: Style = Style::new().fg(Color::Red);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// What stands below everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Foot {
    /// Command lines that a person can type: never cut, for a cut one is worth nothing.
    pub commands: Vec<String>,
    /// What keys do.
    pub hint: String,
}

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot, state: &State, foot: &Foot) {
    let area = frame.area();
    let lines = panel(snapshot, state, foot, area.width.into(), area.height.into());
    frame.render_widget(Text::from(lines), area);
}

/// The whole panel, at most `height` lines: what comes last gives way first, but for the foot.
fn panel(
    snapshot: &Snapshot,
    state: &State,
    foot: &Foot,
    width: usize,
    height: usize,
) -> Vec<Line<'static>> {
    if let Some(log) = &state.log {
        return log_panel(log, state.message.as_deref(), width, height);
    }
    let foot = foot_lines(foot, state.message.as_deref(), width);
    let mut lines = head(snapshot);
    let room = |lines: &Vec<Line>| height.saturating_sub(lines.len() + foot.len());
    let pods = state.pods(snapshot);
    let selected = pods.iter().position(|pod| Some(&pod.name) == state.selected.as_ref());
    let containers = selected.and_then(|at| pods.get(at)).map(|pod| container_lines(pod));
    // Each has a blank line, a title and one row at least.
    for (section, at) in [
        (pod_lines(&pods, state), selected),
        (containers.unwrap_or_default(), None),
        (process_lines(&snapshot.processes), None),
    ] {
        let room = room(&lines);
        if room >= 3 && section.len() > 1 {
            lines.push(Line::default());
            lines.extend(window(section, at, room - 1));
        }
    }
    let left = room(&lines);
    let (title, events) = event_section(snapshot, state);
    if left >= 3 && !events.is_empty() {
        lines.extend([Line::default(), Line::styled(title, DIM)]);
        let skip = events.len().saturating_sub(left - 2);
        lines.extend(events.into_iter().skip(skip).map(event_line));
    }
    lines.extend(foot);
    lines.truncate(height);
    lines
}

/// Everything, as text without colours.
pub fn text(snapshot: &Snapshot) -> String {
    let state = State::default();
    let pods = state.pods(snapshot);
    let mut lines = head(snapshot);
    for section in [pod_lines(&pods, &state), process_lines(&snapshot.processes)] {
        if section.len() > 1 {
            lines.push(Line::default());
            lines.extend(section);
        }
    }
    if !snapshot.events.is_empty() {
        lines.extend([Line::default(), Line::raw("EVENTS")]);
        lines.extend(snapshot.events.iter().map(event_line));
    }
    let mut text = String::new();
    for line in lines {
        let line: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
        // What comes from the cluster must not steer the terminal.
        let clean = line.chars().map(|c| if c.is_control() { ' ' } else { c });
        text.push_str(clean.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}

/// One line per thing, for a log: what is new in it is what changed.
pub fn changes(snapshot: &Snapshot) -> Vec<String> {
    let conditions =
        snapshot.node.conditions.iter().map(|one| format!("{}={}", one.kind, one.status));
    let node = format!("node {}: {}", snapshot.node.name, conditions.collect::<Vec<_>>().join(" "));
    let pods = snapshot.pods.iter().map(|pod| {
        let PodSample { name, status, restarts, .. } = pod;
        let ip = pod.ip.as_deref().unwrap_or("-");
        format!("pod {name}: {status}, {} ready, {restarts} restarts, ip {ip}", ready(pod))
    });
    let events = snapshot.events.iter().map(|event| format!("event {}", event.text));
    let errors = snapshot.errors.iter().map(|why| format!("no answer from {why}"));
    std::iter::once(node).chain(pods).chain(events).chain(errors).collect()
}

/// A part of a section that has room for `height` lines: the title, and rows around that at `at`.
fn window(section: Vec<Line<'static>>, at: Option<usize>, height: usize) -> Vec<Line<'static>> {
    let rows = height.saturating_sub(1);
    // The row at `at` is the last one that is shown, until it is among the first.
    let skip = at.map_or(0, |at| (at + 1).saturating_sub(rows));
    let mut lines = section.into_iter();
    let title = lines.next();
    title.into_iter().chain(lines.skip(skip).take(rows)).collect()
}

fn log_panel(
    log: &LogView,
    message: Option<&str>,
    width: usize,
    height: usize,
) -> Vec<Line<'static>> {
    let title = Line::styled(format!("LOG {}", log.title), TITLE);
    let hint = message_or(
        message,
        "Esc: back   l: the next container   s: shell   ↑ ↓ PgUp PgDn Home End",
    );
    let rows = height.saturating_sub(2);
    let pieces: Vec<String> =
        log.lines.iter().flat_map(|line| wrapped(&printable(line), width)).collect();
    let end = pieces.len().saturating_sub(log.below).max(rows.min(pieces.len()));
    let shown = pieces.into_iter().take(end).skip(end.saturating_sub(rows)).map(Line::raw);
    let mut lines: Vec<Line> = std::iter::once(title).chain(shown).collect();
    lines.push(hint);
    lines.truncate(height);
    lines
}

/// What went wrong, in the place of the hint.
fn message_or(message: Option<&str>, hint: &str) -> Line<'static> {
    match message {
        Some(message) => Line::styled(printable(message), BAD),
        None => Line::styled(hint.to_owned(), DIM),
    }
}

/// Text of a container, without what would steer the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c == '\t' { ' ' } else { c }).filter(|c| !c.is_control()).collect()
}

fn head(snapshot: &Snapshot) -> Vec<Line<'static>> {
    let node = &snapshot.node;
    let mut title = vec![Span::styled("Longshore", TITLE), Span::raw(format!("  {}  ", node.name))];
    let ready = node.conditions.iter().find(|one| one.kind == "Ready");
    title.extend(ready.map(|ready| match ready.status.as_str() {
        "True" => Span::styled("Ready", GOOD),
        _ => Span::styled("NotReady", BAD),
    }));
    title.extend(node.health.as_ref().map(|health| {
        let style = if health == "ok" { GOOD } else { BAD };
        Span::styled(format!("  healthz {health}"), style)
    }));
    let mut lines = vec![Line::from(title)];
    lines.extend(
        snapshot.errors.iter().map(|why| Line::styled(format!("no answer from {why}"), BAD)),
    );
    for text in [[node.version.as_str(), &node.runtime].join(", "), node.capacity.clone()] {
        if text.len() > 2 {
            lines.push(Line::styled(text, DIM));
        }
    }
    let mut conditions = Vec::new();
    for one in node.conditions.iter().filter(|one| one.kind != "Ready") {
        // For all conditions but Ready, False is how it should be.
        let (style, mark) = if one.status == "False" { (GOOD, "○") } else { (BAD, "●") };
        conditions.push(Span::styled(mark, style));
        conditions.push(Span::styled(format!(" {}  ", one.kind), DIM));
    }
    if !conditions.is_empty() {
        lines.push(Line::from(conditions));
    }
    lines
}

fn process_lines(processes: &[ProcessSample]) -> Vec<Line<'static>> {
    let title = format!("{:<22}{:>8}{:>8}{:>12}", "PROCESS", "PID", "CPU", "MEMORY");
    let row = |one: &ProcessSample| {
        let ProcessSample { name, pid, cpu, memory } = one;
        Line::raw(format!("{name:<22}{pid:>8}{cpu:>6.1} %{:>12}", mebibytes(Some(*memory))))
    };
    std::iter::once(Line::styled(title, DIM)).chain(processes.iter().map(row)).collect()
}

/// A column of text is as wide as its longest.
fn width<'a>(title: &str, texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| text.chars().count()).max().unwrap_or(0).max(title.len()) + 2
}

fn pod_lines(pods: &[&PodSample], state: &State) -> Vec<Line<'static>> {
    let name = width("POD", pods.iter().map(|pod| pod.name.as_str()));
    let status = width("STATUS", pods.iter().map(|pod| pod.status.as_str()));
    let rest = |ready: &str, restarts: &str, cpu: &str, memory: &str, age: &str, ip: &str| {
        format!("{ready:<7}{restarts:<10}{cpu:>7}{memory:>13}  {age:<6}{ip}")
    };
    let mark = |order: Order, text: &str| {
        let is_order = state.order == order && order != Order::Name;
        format!("{text}{}", if is_order { "↓" } else { "" })
    };
    let titles = rest(
        "READY",
        &mark(Order::Restarts, "RESTARTS"),
        &mark(Order::Cpu, "CPU"),
        &mark(Order::Memory, "MEMORY"),
        "AGE",
        "IP",
    );
    let title = format!("{:<name$}{:<status$}{titles}", "POD", "STATUS");
    let row = |pod: &&PodSample| {
        let rest = rest(
            &ready(pod),
            &pod.restarts.to_string(),
            &millicores(pod.millicores()),
            &mebibytes(pod.memory()),
            &short(pod.age),
            pod.ip.as_deref().unwrap_or("-"),
        );
        let line = Line::from(vec![
            Span::raw(format!("{:<name$}", pod.name)),
            Span::styled(format!("{:<status$}", pod.status), status_style(pod)),
            Span::raw(rest),
        ]);
        let is_selected = Some(&pod.name) == state.selected.as_ref();
        if is_selected { line.style(SELECTED) } else { line }
    };
    std::iter::once(Line::styled(title, DIM)).chain(pods.iter().map(row)).collect()
}

fn status_style(pod: &PodSample) -> Style {
    match pod.status.as_str() {
        "Running" if pod.ready.is_none_or(|ready| ready == pod.expected) => GOOD,
        "Running" | "Pending" | "ContainerCreating" | "PodInitializing" | "Terminating" => PLAIN,
        "Succeeded" | "Completed" | "Stopped" => DIM,
        _ => BAD,
    }
}

fn container_lines(pod: &PodSample) -> Vec<Line<'static>> {
    let name = width("CONTAINER", pod.containers.iter().map(|one| one.name.as_str()));
    let rest = |state: &str, restarts: &str, cpu: &str, memory: &str| {
        format!("{state:<9}{restarts:<10}{cpu:>7}{memory:>13}")
    };
    let titles = rest("STATE", "RESTARTS", "CPU", "MEMORY");
    let title = format!("{:<name$}{titles}", "CONTAINER");
    let row = |one: &ContainerSample| {
        let restarts = one.restarts.to_string();
        let rest = rest(one.state, &restarts, &millicores(one.millicores), &mebibytes(one.memory));
        Line::raw(format!("{:<name$}{rest}", one.name))
    };
    std::iter::once(Line::styled(title, DIM)).chain(pod.containers.iter().map(row)).collect()
}

/// The events of the selected pod, or all.
fn event_section<'a>(snapshot: &'a Snapshot, state: &State) -> (String, Vec<&'a EventSample>) {
    let events = snapshot.events.iter();
    match &state.selected {
        Some(pod) => {
            let own = events.filter(|event| event.pod.as_ref() == Some(pod)).collect();
            (format!("EVENTS OF {pod}"), own)
        }
        None => ("EVENTS".to_owned(), events.collect()),
    }
}

fn event_line(event: &EventSample) -> Line<'static> {
    let style = if event.warning { BAD } else { PLAIN };
    let age = Span::styled(format!("{:>5}  ", short(event.age)), DIM);
    Line::from(vec![age, Span::styled(event.text.clone(), style)])
}

fn foot_lines(foot: &Foot, message: Option<&str>, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![Line::default()];
    for command in &foot.commands {
        lines.extend(wrapped(command, width).map(|piece| Line::styled(piece, TITLE)));
    }
    lines.push(message_or(message, &foot.hint));
    lines
}

/// A text in pieces that are as wide as the terminal.
fn wrapped(text: &str, width: usize) -> impl Iterator<Item = String> + use<> {
    let chars: Vec<char> = text.chars().collect();
    let pieces: Vec<String> =
        chars.chunks(width.max(1)).map(|piece| piece.iter().collect()).collect();
    pieces.into_iter()
}

fn ready(pod: &PodSample) -> String {
    match pod.ready {
        Some(ready) => format!("{ready}/{}", pod.expected),
        None => format!("?/{}", pod.expected),
    }
}

fn millicores(number: Option<u64>) -> String {
    number.map_or("-".to_owned(), |number| format!("{number}m"))
}

fn mebibytes(bytes: Option<u64>) -> String {
    #[allow(clippy::cast_precision_loss, reason = "for display only")]
    bytes.map_or("-".to_owned(), |bytes| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)))
}

/// An age as kubectl shows it.
fn short(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
#[path = "panel_tests.rs"]
mod tests;
