//! What every part of Longshore needs and nothing of Kubernetes' objects: arithmetic on times that
//! cannot overflow ([`time`]), the wall clock ([`clock`]), a rate limit ([`rate`]), files that are replaced whole ([`files`]) and
//! trees of directories of any depth ([`trees`]), output that cannot fail ([`output`]), the log
//! ([`logging`]), memory that goes back to the kernel ([`memory`]), panics that end one piece of work
//! ([`panics`]), work that blocks ([`blocking`]), what a caller may hold of a server ([`connections`], [`budget`], [`fair_queue`]), decisions that are
//! cached ([`ttl_cache`]), notifications to systemd ([`systemd`]), and the
//! release of Kubernetes ([`version`]).

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod blocking;
pub mod budget;
pub mod clock;
pub mod connections;
pub mod fair_queue;
pub mod files;
pub mod flags;
pub mod glob;
pub mod logging;
pub mod memory;
pub mod output;
pub mod panics;
pub mod proxies;
pub mod rate;
pub mod retry;
pub mod systemd;
pub mod time;
pub mod trees;
pub mod ttl_cache;
pub mod version;
