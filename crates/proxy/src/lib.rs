//! kube-proxy: how services reach their endpoints. Data flows one way: [`model`] keeps services and
//! their endpoints as this node sees them, [`render`] makes rules of them as text, `apply` has
//! these in the kernel.

pub mod config;
pub mod model;
pub mod render;
