//! Which events are logged: by verbosity, for some files another one.

use std::sync::Arc;

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing_subscriber::layer::{Context, Filter};

use super::format::Place;
use super::settings::{Settings, VModule};
use crate::glob;

/// The levels of all events.
#[derive(Clone, Debug)]
pub(super) struct Levels {
    verbosity: u32,
    vmodule: Arc<[VModule]>,
    quiet: bool,
}

impl Levels {
    pub(super) fn new(settings: &Settings) -> Self {
        let Settings { verbosity, vmodule, quiet, .. } = settings;
        Self { verbosity: *verbosity, vmodule: vmodule.as_slice().into(), quiet: *quiet }
    }

    pub(super) fn with_verbosity(&self, verbosity: u32) -> Self {
        Self { verbosity, ..self.clone() }
    }

    /// Upstream's levels in three steps.
    fn level(&self, verbosity: u32) -> LevelFilter {
        match verbosity {
            0 if self.quiet => LevelFilter::WARN,
            0..=2 => LevelFilter::INFO,
            3..=5 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }
    }

    /// The verbosity of a file.
    fn verbosity(&self, file: Option<&str>) -> u32 {
        let Some(file) = file.filter(|_| !self.vmodule.is_empty()) else { return self.verbosity };
        let place = Place::of(file);
        let matches = |own: &&VModule| {
            let subject = if own.pattern.contains('/') { place.path } else { place.name };
            glob::matches(own.pattern.as_bytes(), subject.as_bytes())
        };
        self.vmodule.iter().find(matches).map_or(self.verbosity, |own| own.verbosity)
    }

    fn logs(&self, metadata: &Metadata<'_>) -> bool {
        let mut level = self.level(self.verbosity(metadata.file()));
        if !metadata.target().starts_with("longshore") {
            // below that libraries log whole requests with secrets
            level = level.min(LevelFilter::INFO);
        }
        *metadata.level() <= level
    }
}

impl<S> Filter<S> for Levels {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.logs(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match self.logs(metadata) {
            true => Interest::always(),
            false => Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let each = self.vmodule.iter().map(|own| own.verbosity).chain([self.verbosity]);
        each.map(|verbosity| self.level(verbosity)).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(verbosity: u32, vmodule: &[(&str, u32)]) -> Levels {
        let vmodule = vmodule.iter().map(|(pattern, verbosity)| VModule {
            pattern: (*pattern).to_owned(),
            verbosity: *verbosity,
        });
        let settings = Settings { verbosity, vmodule: vmodule.collect(), ..Settings::default() };
        Levels::new(&settings)
    }

    #[test]
    fn log_verbosity_of_files() {
        let own = levels(1, &[("images", 4), ("crates/server/*", 6), ("nod?", 0)]);
        for (file, expected) in [
            ("crates/runtime/src/images/mod.rs", 4),
            ("crates/runtime/src/images/pull.rs", 1),
            ("crates/server/src/auth.rs", 6),
            ("src/node.rs", 0),
            ("src/nodes.rs", 1),
        ] {
            assert_eq!(own.verbosity(Some(file)), expected, "{file}");
        }
        assert_eq!(own.verbosity(None), 1);
        let hint = |own: &Levels| Filter::<tracing_subscriber::Registry>::max_level_hint(own);
        assert_eq!(hint(&own), Some(LevelFilter::TRACE));
        assert_eq!(hint(&levels(4, &[])), Some(LevelFilter::DEBUG));
        let quiet = Levels { quiet: true, ..levels(0, &[]) };
        assert_eq!(quiet.level(0), LevelFilter::WARN);
        assert_eq!(quiet.with_verbosity(1).level(1), LevelFilter::INFO);
    }
}
