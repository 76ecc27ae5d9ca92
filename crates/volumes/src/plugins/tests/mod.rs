//! Registration of drivers of our own on real sockets, with an apiserver of a few lines.

mod pure;
mod registering;
mod sockets;
