//! `make bench-volumes`: what volumes cost a node.
mod data;
mod ownership;

use std::fmt;

use anyhow::Result;
use serde::Serialize;

use crate::Args;
use data::Data;
use ownership::Ownership;

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Volumes {
    /// None when no volumes with data were asked for.
    pub(crate) data: Option<Data>,
    pub(crate) ownership: Ownership,
}

/// Plays the phases one after the other.
pub(crate) async fn run(args: &Args, count: usize) -> Result<Volumes> {
    let data = match count {
        0 => None,
        count => Some(data::run(args, count).await?),
    };
    let ownership = ownership::run(args.files, usize::from(args.repeat))?;
    Ok(Volumes { data, ownership })
}

impl fmt::Display for Volumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(data) = &self.data {
            write!(f, "{data}")?;
        }
        writeln!(f, "{}", self.ownership)
    }
}
