//! Logs of all programs: lines in klog's text format, or JSON as upstream's programs write it. The
//! verbosity can be changed at run time.
//!
//! A file of ours has the name that `vmodule` and the place in a line mean: `node.rs` is `node`, and
//! `images/mod.rs` is `images`.

mod format;
mod levels;
mod settings;
mod writer;

use std::sync::{Arc, OnceLock};

use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

use self::format::Line;
use self::levels::Levels;
use self::writer::Writer;

pub use self::settings::{
    Configuration, Format, LoggingFlags, Routing, Settings, VModule, parse_vmodule,
};

/// Changes the verbosity of the process; set once it logs.
static CHANGE: OnceLock<Change> = OnceLock::new();
/// Where the process logs.
static WRITER: OnceLock<Arc<Writer>> = OnceLock::new();

type Change = Box<dyn Fn(u32) -> bool + Send + Sync>;
type BoxedFilter = Box<dyn Filter<Registry> + Send + Sync>;

/// Starts logging. The levels of `RUST_LOG` take precedence over those of the settings.
pub fn start(settings: &Settings) {
    let levels = Levels::new(settings);
    let filter: BoxedFilter = match EnvFilter::try_from_default_env() {
        Ok(filter) => Box::new(filter),
        Err(_) => Box::new(levels.clone()),
    };
    let (filter, handle) = reload::Layer::new(filter);
    let writer = Arc::new(Writer::start(settings));
    let _ = WRITER.set(Arc::clone(&writer));
    let lines = Lines { format: settings.format, writer };
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    let _ = CHANGE.set(Box::new(move |verbosity| {
        handle.reload(Box::new(levels.with_verbosity(verbosity)) as BoxedFilter).is_ok()
    }));
}

/// Changes the verbosity; returns whether logging was started.
pub fn set_verbosity(verbosity: u32) -> bool {
    CHANGE.get().is_some_and(|change| change(verbosity))
}

/// Writes what is buffered, before the process ends.
pub fn flush() {
    if let Some(writer) = WRITER.get() {
        writer.flush();
    }
}

/// Writes a line for each event.
struct Lines {
    format: Format,
    writer: Arc<Writer>,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let line = Line::of(event);
        let text = match self.format {
            Format::Text => line.text(),
            Format::Json => line.json(),
        };
        self.writer.write(*event.metadata().level(), text.as_bytes());
    }
}
