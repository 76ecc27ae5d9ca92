//! Makes lines of a snapshot. Pure: the same snapshot and width give the same lines.
use std::path::Path;

use crate::inspect::{EventSample, PodSample, Snapshot};

/// How a piece of text is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Title,
    Dim,
    Good,
    Bad,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Title => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Good => "\x1b[32m",
            Self::Bad => "\x1b[31m",
        }
    }
}

/// A line in pieces of one style each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Line(Vec<(Style, String)>);

impl Line {
    fn with(mut self, style: Style, text: impl Into<String>) -> Self {
        self.0.push((style, text.into()));
        self
    }

    fn plain(text: impl Into<String>) -> Self {
        Self::default().with(Style::Plain, text)
    }

    fn dim(text: impl Into<String>) -> Self {
        Self::default().with(Style::Dim, text)
    }

    /// The line in a terminal's language, cut to `width` columns.
    pub(crate) fn render(&self, width: usize) -> String {
        let mut left = width;
        let mut out = String::new();
        for (style, text) in &self.0 {
            let piece: String = text
                .chars()
                // What comes from the cluster must not steer the terminal.
                .map(|c| if c.is_control() { ' ' } else { c })
                .take(left)
                .collect();
            left -= piece.chars().count();
            match style {
                Style::Plain => out.push_str(&piece),
                _ => out.extend([style.code(), &piece, "\x1b[0m"]),
            }
        }
        out
    }

    fn wrapped(style: Style, text: &str, width: usize) -> Vec<Self> {
        let chars: Vec<char> = text.chars().collect();
        let pieces = chars.chunks(width.max(1));
        pieces.map(|piece| Self::default().with(style, piece.iter().collect::<String>())).collect()
    }
}

/// The whole panel, at most `height` lines: what comes last gives way first, but for the foot.
pub(crate) fn panel(
    snapshot: &Snapshot,
    kubeconfig: &Path,
    width: usize,
    height: usize,
) -> Vec<Line> {
    let foot = foot(snapshot, kubeconfig, width);
    let mut lines = head(snapshot);
    let room = |lines: &Vec<Line>| height.saturating_sub(lines.len() + foot.len());
    for section in [table(&snapshot.pods), daemons(snapshot)] {
        let room = room(&lines);
        // A blank line, the title and one row at least.
        if room >= 3 {
            lines.push(Line::default());
            lines.extend(section.into_iter().take(room - 1));
        }
    }
    let room = room(&lines);
    if room >= 3 {
        lines.extend([Line::default(), Line::dim("EVENTS")]);
        let skip = snapshot.events.len().saturating_sub(room - 2);
        lines.extend(snapshot.events.iter().skip(skip).map(event));
    }
    lines.extend(foot);
    lines.truncate(height);
    lines
}

/// One line per thing, for a log: what is new in it is what changed.
pub(crate) fn plain(snapshot: &Snapshot) -> Vec<String> {
    let conditions =
        snapshot.node.conditions.iter().map(|(kind, status)| format!("{kind}={status}"));
    let node = format!("node {}: {}", snapshot.node.name, conditions.collect::<Vec<_>>().join(" "));
    let pods = snapshot.pods.iter().map(|pod| {
        let PodSample { name, status, ready, containers, restarts, .. } = pod;
        let ip = pod.ip.as_deref().unwrap_or("-");
        format!("pod {name}: {status}, {ready}/{containers} ready, {restarts} restarts, ip {ip}")
    });
    let events = snapshot.events.iter().map(|event| format!("event {}", event.text));
    let error = snapshot.error.iter().map(|why| format!("no answer from the apiserver: {why}"));
    std::iter::once(node).chain(pods).chain(events).chain(error).collect()
}

fn head(snapshot: &Snapshot) -> Vec<Line> {
    let node = &snapshot.node;
    let ready = node.conditions.iter().any(|(kind, status)| kind == "Ready" && status == "True");
    let (style, word) = if ready { (Style::Good, "Ready") } else { (Style::Bad, "NotReady") };
    let title = Line::default()
        .with(Style::Title, "Longshore")
        .with(Style::Plain, format!("  {}  ", node.name))
        .with(style, word);
    let title = match &snapshot.error {
        Some(why) => title.with(Style::Bad, format!("  no answer from the apiserver: {why}")),
        None => title,
    };
    let mut conditions = Line::default();
    for (kind, status) in node.conditions.iter().filter(|(kind, _)| kind != "Ready") {
        // For all conditions but Ready, False is how it should be.
        let (style, mark) = match status.as_str() {
            "False" => (Style::Good, "○"),
            _ => (Style::Bad, "●"),
        };
        conditions = conditions.with(style, mark).with(Style::Dim, format!(" {kind}  "));
    }
    vec![
        title,
        Line::dim(format!("{}, {}", node.version, node.runtime)),
        Line::dim(node.capacity.clone()),
        conditions,
    ]
}

fn daemons(snapshot: &Snapshot) -> Vec<Line> {
    let mut lines =
        vec![Line::dim(format!("{:<12}{:>8}{:>8}{:>12}", "DAEMON", "PID", "CPU", "MEMORY"))];
    lines.extend(snapshot.daemons.iter().map(|daemon| {
        #[allow(clippy::cast_precision_loss, reason = "for display only")]
        let memory = daemon.memory as f64 / f64::from(1 << 20);
        let columns = format!("{:>8}{:>6.1} %{memory:>8.1} MiB", daemon.pid, daemon.cpu);
        Line::plain(format!("{:<12}", daemon.name)).with(Style::Plain, columns)
    }));
    lines
}

fn table(pods: &[PodSample]) -> Vec<Line> {
    let name = pods.iter().map(|pod| pod.name.len()).max().unwrap_or(0).max(3) + 2;
    let status = pods.iter().map(|pod| pod.status.len()).max().unwrap_or(0).max(6) + 2;
    let rest = |ready: &str, restarts: &str, age: &str, ip: &str| {
        format!("{ready:<7}{restarts:<10}{age:<6}{ip}")
    };
    let title =
        format!("{:<name$}{:<status$}{}", "POD", "STATUS", rest("READY", "RESTARTS", "AGE", "IP"));
    let mut lines = vec![Line::dim(title)];
    lines.extend(pods.iter().map(|pod| {
        let style = match pod.status.as_str() {
            "Running" if pod.ready == pod.containers => Style::Good,
            "Running" | "Pending" | "ContainerCreating" | "Terminating" => Style::Plain,
            "Succeeded" | "Completed" => Style::Dim,
            _ => Style::Bad,
        };
        let ready = format!("{}/{}", pod.ready, pod.containers);
        let ip = pod.ip.as_deref().unwrap_or("-");
        Line::plain(format!("{:<name$}", pod.name))
            .with(style, format!("{:<status$}", pod.status))
            .with(Style::Plain, rest(&ready, &pod.restarts.to_string(), &short(pod.age), ip))
    }));
    lines
}

fn event(event: &EventSample) -> Line {
    let style = if event.warning { Style::Bad } else { Style::Plain };
    Line::dim(format!("{:>5}  ", short(event.age))).with(style, event.text.clone())
}

/// What a person can type, never cut: a cut command line is worth nothing.
pub(crate) fn commands(snapshot: &Snapshot, kubeconfig: &Path) -> Vec<String> {
    let kubectl = format!("kubectl --kubeconfig={} get pods -A", kubeconfig.display());
    let served = snapshot.pods.iter().find_map(|pod| Some((pod.ip.as_ref()?, pod.port?)));
    let curl = served.map(|(ip, port)| format!("curl http://{ip}:{port}/"));
    std::iter::once(kubectl).chain(curl).collect()
}

fn foot(snapshot: &Snapshot, kubeconfig: &Path, width: usize) -> Vec<Line> {
    let mut lines = vec![Line::default()];
    for command in commands(snapshot, kubeconfig) {
        lines.extend(Line::wrapped(Style::Title, &command, width));
    }
    lines.push(Line::dim("Ctrl-C takes everything down."));
    lines
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
#[path = "view_tests.rs"]
mod tests;
