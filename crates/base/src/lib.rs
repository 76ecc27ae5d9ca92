//! What every part of Longshore needs and nothing of Kubernetes: arithmetic on times that cannot
//! overflow ([`time`]), panics that end one piece of work ([`panics`]), and what a caller may hold of
//! a server ([`connections`], [`budget`]).

pub mod budget;
pub mod connections;
pub mod panics;
pub mod time;
