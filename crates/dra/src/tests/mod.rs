//! The decisions as tables; the manager with a scripted driver in memory, under tokio's paused clock; and
//! drivers on real sockets.

mod checkpoint;
mod lives;
mod pure;
mod sockets;
mod world;
