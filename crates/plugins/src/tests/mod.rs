//! Plugins on real sockets.

mod registrar;
mod sockets;
