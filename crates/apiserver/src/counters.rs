//! Counters of a family, by their labels. Labels come from fixed sets and from the configuration, so what
//! clients send cannot make them grow.

use std::collections::BTreeMap;
use std::fmt::Write;

use parking_lot::Mutex;

/// A family.
#[derive(Default)]
pub(crate) struct Counters(Mutex<BTreeMap<String, u64>>);

impl Counters {
    /// Counts one with these labels. Values have no characters that need an escape.
    pub(crate) fn increment(&self, labels: &[(&str, &str)]) {
        let mut text = String::new();
        for (i, (name, value)) in labels.iter().enumerate() {
            // writing into a string cannot fail
            let _ = write!(text, "{}{name}=\"{value}\"", if i == 0 { "" } else { "," });
        }
        let mut counters = self.0.lock();
        let count = counters.entry(text).or_default();
        *count = count.saturating_add(1);
    }

    /// In Prometheus' text format.
    pub(crate) fn render(&self, name: &str, help: &str) -> String {
        Counters::render_all([self], name, help)
    }

    /// One family whose counters are in several places.
    pub(crate) fn render_all<'a>(
        all: impl IntoIterator<Item = &'a Counters>,
        name: &str,
        help: &str,
    ) -> String {
        let mut text = format!("# HELP {name} [ALPHA] {help}\n# TYPE {name} counter\n");
        for counters in all {
            for (labels, count) in counters.0.lock().iter() {
                let _ = writeln!(text, "{name}{{{labels}}} {count}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_rendered_by_their_labels() {
        let counters = Counters::default();
        for result in ["success", "failure", "success"] {
            counters.increment(&[("name", "w"), ("result", result)]);
        }
        let text = counters.render("family", "Some help.");
        assert_eq!(
            text,
            "# HELP family [ALPHA] Some help.\n# TYPE family counter\n\
             family{name=\"w\",result=\"failure\"} 1\nfamily{name=\"w\",result=\"success\"} 2\n"
        );
    }
}
