//! Registration of fake drivers on real sockets, with a fake apiserver.

mod pure;
mod registration;
