//! kube-proxy: how services reach their endpoints. Data flows one way: `model` keeps services and
//! endpoints, `render` makes rules of them, `apply` has them in the kernel.

pub mod model;
