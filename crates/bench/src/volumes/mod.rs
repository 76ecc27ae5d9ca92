//! `make bench-volumes`: what volumes cost a node.
mod ownership;

use std::fmt;

use anyhow::Result;
use serde::Serialize;

use crate::Args;
use ownership::Ownership;

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Volumes {
    pub(crate) ownership: Ownership,
}

/// Plays the phases one after the other.
pub(crate) async fn run(args: &Args) -> Result<Volumes> {
    let ownership = ownership::run(args.files, usize::from(args.repeat))?;
    Ok(Volumes { ownership })
}

impl fmt::Display for Volumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.ownership)
    }
}
