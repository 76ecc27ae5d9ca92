//! Levels, and the versions of their rules, as labels and configurations have them.

/// A level of the Pod Security Standards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

/// A level, and the minor version of its rules; `None` is the newest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) level: Level,
    pub(super) version: Option<u32>,
}

impl Policy {
    pub(super) fn to_text(self) -> String {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Some(minor) => format!("{level}:v1.{minor}"),
            None => format!("{level}:latest"),
        }
    }
}

pub(super) fn parse_level(value: &str) -> Result<Level, &'static str> {
    match value {
        "privileged" => Ok(Level::Privileged),
        "baseline" => Ok(Level::Baseline),
        "restricted" => Ok(Level::Restricted),
        _ => Err("must be one of privileged, baseline, restricted"),
    }
}

pub(super) fn parse_version(value: &str) -> Result<Option<u32>, &'static str> {
    const WRONG: &str = "must be \"latest\" or \"v1.x\"";
    if value == "latest" {
        return Ok(None);
    }
    let minor = value.strip_prefix("v1.").ok_or(WRONG)?;
    let is_number = minor.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || (minor.len() > 1 && minor.starts_with('0')) {
        return Err(WRONG);
    }
    minor.parse().map(Some).map_err(|_| WRONG)
}
