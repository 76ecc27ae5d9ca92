//! kube-proxy: how services reach their endpoints. Data flows one way: `model` keeps services and
//! endpoints, `render` makes rules of them, `apply` has them in the kernel.

pub mod apply;
pub mod conntrack;
mod family;
mod netlink;
pub mod pacer;
pub mod sysctl;
pub mod userspace;

pub use family::Family;
