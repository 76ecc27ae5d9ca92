//! Pages for people who look for what is slow: the levels, their queues and their requests, in upstream's
//! columns.

use std::fmt::Write;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::FlowControl;
use super::queue_set::QueueView;

/// The most queues of a level that are shown without having requests.
const SHOWN_QUEUES: u32 = 10_000;
/// A column has at least so many characters.
const MIN_WIDTH: usize = 8;

impl FlowControl {
    /// A line for each level.
    pub(crate) fn dump_levels(&self) -> String {
        let mut table = Table::new(&[
            "PriorityLevelName",
            "ActiveQueues",
            "IsIdle",
            "IsQuiescing",
            "WaitingRequests",
            "ExecutingRequests",
            "DispatchedRequests",
            "RejectedRequests",
            "TimedoutRequests",
            "CancelledRequests",
        ]);
        for (name, state) in self.levels.lock().iter() {
            let set = state.level.set.lock();
            let (load, totals) = (set.load(), set.totals());
            table.row(vec![
                name.clone(),
                set.queue_counts().1.to_string(),
                set.is_idle().to_string(),
                state.is_quiescing.to_string(),
                load.waiting.to_string(),
                load.executing.to_string(),
                totals.dispatched.to_string(),
                totals.rejected.to_string(),
                "0".to_owned(),
                totals.cancelled.to_string(),
            ]);
        }
        table.text()
    }

    /// A line for each queue.
    pub(crate) fn dump_queues(&self) -> String {
        let mut table = Table::new(&[
            "PriorityLevelName",
            "Index",
            "PendingRequests",
            "ExecutingRequests",
            "SeatsInUse",
            "NextDispatchR",
            "InitialSeatsSum",
            "MaxSeatsSum",
            "TotalWorkSum",
        ]);
        for (name, state) in self.levels.lock().iter() {
            let set = state.level.set.lock();
            let mut active = set.queue_views().peekable();
            let idle = 0..set.queue_counts().0.min(SHOWN_QUEUES);
            let mut row = |queue: QueueView| {
                table.row(vec![
                    name.clone(),
                    queue.index.to_string(),
                    queue.waiting.to_string(),
                    queue.executing.to_string(),
                    queue.seats_in_use.to_string(),
                    seat_seconds(queue.next_dispatch),
                    queue.initial_seats_waiting.to_string(),
                    queue.seats_waiting.to_string(),
                    seat_seconds(queue.work_waiting),
                ]);
            };
            for index in idle {
                let queue = active.next_if(|queue| queue.index == index);
                row(queue.unwrap_or(QueueView { index, ..QueueView::default() }));
            }
            active.for_each(row);
        }
        table.text()
    }

    /// A line for each request.
    pub(crate) fn dump_requests(&self, has_details: bool) -> String {
        const COLUMNS: [&str; 18] = [
            "PriorityLevelName",
            "FlowSchemaName",
            "QueueIndex",
            "RequestIndexInQueue",
            "FlowDistingsher",
            "ArriveTime",
            "InitialSeats",
            "FinalSeats",
            "AdditionalLatency",
            "StartTime",
            "UserName",
            "Verb",
            "APIPath",
            "Namespace",
            "Name",
            "APIVersion",
            "Resource",
            "SubResource",
        ];
        let columns = if has_details { &COLUMNS[..] } else { &COLUMNS[..10] };
        let mut table = Table::new(columns);
        let (now, instant) = (Timestamp::now(), Instant::now());
        let time = |at: Instant| {
            let ago = instant.saturating_duration_since(at);
            now.checked_sub(ago).map_or_else(|_| String::new(), |at| at.to_string())
        };
        for (name, state) in self.levels.lock().iter() {
            let set = state.level.set.lock();
            for (queue, view) in set.request_views() {
                let (schema, digest) = (&view.tracked.schema, view.tracked.request.digest());
                let user = &*view.tracked.user;
                let has_queues = queue.is_some();
                let distinguisher =
                    if has_queues { schema.distinguisher(user, &digest) } else { "" };
                let index = |index: Option<String>| index.unwrap_or_else(|| "-1".to_owned());
                let mut row = vec![
                    name.clone(),
                    schema.name.to_string(),
                    index(queue.map(|queue| queue.to_string())),
                    index(view.position.map(|position| position.to_string())),
                    distinguisher.to_owned(),
                    time(view.arrived),
                    view.width.initial.to_string(),
                    view.width.last.to_string(),
                    duration(view.width.lingers),
                    view.started.map_or_else(|| "0001-01-01T00:00:00Z".to_owned(), time),
                ];
                if has_details {
                    let version = match digest.group {
                        "" => digest.version.to_owned(),
                        group => format!("{group}/{}", digest.version),
                    };
                    row.extend(
                        [
                            user,
                            digest.verb,
                            digest.path,
                            digest.namespace,
                            digest.name,
                            &version,
                            digest.resource,
                            digest.subresource,
                        ]
                        .map(str::to_owned),
                    );
                }
                table.row(row);
            }
        }
        table.text()
    }
}

/// As upstream writes amounts of work.
fn seat_seconds(work: f64) -> String {
    format!("{:.8}ss", work.max(0.0))
}

/// As Go writes a duration of less than some minutes.
fn duration(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    match () {
        () if duration.is_zero() => "0s".to_owned(),
        () if micros < 1000.0 => format!("{}µs", rounded(micros)),
        () if micros < 1e6 => format!("{}ms", rounded(micros / 1e3)),
        () => format!("{}s", rounded(micros / 1e6)),
    }
}

fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

/// Rows of cells, in columns as wide as their longest cells.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(columns: &[&str]) -> Table {
        Table { rows: vec![columns.iter().map(|name| (*name).to_owned()).collect()] }
    }

    /// Cells have no control characters, whatever users are named.
    fn row(&mut self, cells: Vec<String>) {
        let plain = |cell: String| cell.replace(|c: char| c.is_control(), "\u{fffd}");
        self.rows.push(cells.into_iter().map(plain).collect());
    }

    fn text(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let mut widths = vec![MIN_WIDTH; columns];
        for row in &self.rows {
            for (cell, width) in row.iter().zip(&mut widths) {
                // a comma, and a space before the next
                *width = (*width).max(cell.chars().count() + 2);
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // writing into a string cannot fail
                let _ = match i + 1 == columns {
                    true => writeln!(text, "{cell}"),
                    false => write!(text, "{:width$}", format!("{cell},")),
                };
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_control_pages_have_columns() {
        let mut table = Table::new(&["Name", "Index", "Last"]);
        table.row(vec!["a long name".into(), "1".into(), "x".into()]);
        table.row(vec!["b\n\tc".into(), "22".into(), String::new()]);
        let expected = "Name,        Index,  Last\n\
                        a long name, 1,      x\n\
                        b\u{fffd}\u{fffd}c,        22,     \n";
        assert_eq!(table.text(), expected);
        assert_eq!(seat_seconds(1.5), "1.50000000ss");
        for (millis, expected) in [(0.0, "0s"), (0.5, "500µs"), (12.5, "12.5ms"), (1500.0, "1.5s")]
        {
            assert_eq!(duration(Duration::from_secs_f64(millis / 1e3)), expected);
        }
    }
}
